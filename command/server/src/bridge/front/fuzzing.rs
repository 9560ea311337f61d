//! A front end whose back end is there already; compiled only for fuzz/.

use super::super::link::Place;
use super::{BackEnd, Front, Started, Terminal};
use ulpf_bridge::{Reason, Stop};

pub fn front(started: Started) -> Front {
    let mut front = Front::new(
        BackEnd::At(Place::Once),
        None,
        Terminal::Shared,
        true,
        false,
    );
    front.stop = Some(Stop {
        thread: 1,
        pc: 0x1000,
        reason: Reason::Attached,
    });
    front.started = Some(started);
    front
}
