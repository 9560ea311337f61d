//! A front end that is connected to its back end, for the fuzz targets in fuzz/.

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
