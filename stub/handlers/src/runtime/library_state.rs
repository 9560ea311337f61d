//! What a thread has to do with the library by which its program watches itself (`crate::library`).

use core::cell::Cell;

use ulpf_lib::ring::SystemCall as Call;

use super::events::Events;

/// What a thread has to do with the library.
pub struct LibraryState {
    /// Stops that wait until the library is left.
    pub due: [Cell<Due>; LibraryState::MOST],
    pub waiting: Cell<usize>,
    /// The debugger's step goes on when the handler with this frame returns (0: when the step is over that the
    /// library makes), and where it began.
    pub across: Cell<Option<(u64, u64)>>,
    /// A fault that the library does not know: PC, address, its changes so far; how often it has come.
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
    /// Handlers of the library's, one inside the other.
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
