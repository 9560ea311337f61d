//! A front end that is connected to its back end, for the fuzz targets in fuzz/.

use super::super::place::Place;
use super::{BackEnd, Front, Started, Terminal};

pub async fn front(started: Started) -> Front {
    let backend = BackEnd::At(Place::Unix("nowhere".into()));
    let mut front = Front::new(backend, None, Terminal::Shared, true, false);
    front.started = Some(started);
    // A back end that answers nothing sensible has no program.
    let _ = front.begin().await;
    front
}
