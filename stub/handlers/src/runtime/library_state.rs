//! State of a thread with regard to the library by which its program watches itself (`crate::library`).

use core::cell::Cell;

use ulpf_lib::ring::SystemCall as Call;

use super::events::Events;

/// State of a thread with regard to the library.
pub struct LibraryState {
    /// Stops that wait until the thread leaves the library.
    pub due: [Cell<Due>; LibraryState::MOST],
    pub waiting: Cell<usize>,
    /// The frame of the handler whose return resumes the debugger's step (0: the end of the library's own step), and
    /// the start of the step.
    pub across: Cell<Option<(u64, u64)>>,
    /// A fault that the library does not handle: PC, address, number of the library's changes so far, and repetitions.
    pub strange: Cell<(u64, u64, u64, u8)>,
}

#[derive(Clone, Copy)]
pub struct Due {
    pub events: Events,
    pub context: u64,
    pub stack: [u64; 2],
    pub call: Option<Call>,
}

impl LibraryState {
    /// Handlers of the library, one inside the other.
    const MOST: usize = 4;

    pub const fn none() -> LibraryState {
        LibraryState {
            due: [const {
                Cell::new(Due {
                    events: Events::none(),
                    context: 0,
                    stack: [0; 2],
                    call: None,
                })
            }; LibraryState::MOST],
            waiting: Cell::new(0),
            across: Cell::new(None),
            strange: Cell::new((0, 0, 0, 0)),
        }
    }
}
