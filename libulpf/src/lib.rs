//! Watchpoints for a program that watches itself: no debugger, no privilege, any number, any size.
//!
//! ```no_run
//! use libulpf::{Access, Watch};
//! use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
//!
//! static HITS: AtomicU32 = AtomicU32::new(0);
//! let data = Box::leak(Box::new([0u64; 8]));
//! let watch = Watch::new(&raw const data[3] as usize, 8, Access::Write)
//!     .handler(|hit| { HITS.fetch_add(hit.len() as u32, Relaxed); })
//!     .insert()?;
//! data[3] = 7;
//! assert_eq!(watch.counts().hits, 1);
//! # Ok::<(), libulpf::Failure>(())
//! ```
//! The C interface, with the thesis's names and Sentry-Watcher's, is `include/ulpf.h`; ulpf(3) says what
//! both promise.

mod above;
mod alloc;
mod backend;
mod calls;
mod change;
mod entry;
mod error;
pub mod ffi;
mod fork;
mod handler;
mod hits;
mod interpose;
mod io;
mod keys;
mod model;
mod pli;
mod registers;
mod shared;
mod signals;
mod slow;
pub mod splay;
mod stacks;
mod upcall;
mod watch;

pub use alloc::Switch;
pub use backend::{backend, use_backend};
pub use error::Failure;
pub use pli::Permission;
pub use watch::{Access, Counts, Hit, Stats, Watch, Watched, alias, insert_all, stats};

use model::{Model, model};
use shared::S;
use ulpf_lib::place;

/// Takes what is needed from the system, once: stacks, engine, signals.
pub(crate) fn prepare() -> Result<(), Failure> {
    use std::sync::Mutex;
    static READY: Mutex<bool> = Mutex::new(false);
    if signals::installed() && S.engine().is_some() {
        return Ok(());
    }
    let mut ready = READY.lock().unwrap_or_else(|e| e.into_inner());
    if !*ready {
        change::prepare();
        place::settle(place::base_for(random_bytes()));
        backend::choose()?;
        stacks::prepare()?;
        change::change(shared::prepare)?;
        fork::prepare();
        *ready = true;
    }
    change::change(signals::install)
}

/// What the kernel has given to this program to be random by; `None`: its addresses are not random (as the command
/// finds out for a stub, `src/inject/process.rs`).
fn random_bytes() -> Option<[u8; 16]> {
    const ADDR_NO_RANDOMIZE: i32 = 0x4_0000;
    const ASK: u64 = 0xffff_ffff;
    // SAFETY: only asks.
    let persona = unsafe { libc::personality(ASK) };
    let switched_off =
        || std::fs::read("/proc/sys/kernel/randomize_va_space").is_ok_and(|t| t == b"0\n");
    if persona & ADDR_NO_RANDOMIZE != 0 || switched_off() {
        return None;
    }
    // SAFETY: the kernel's 16 bytes, which stay where they are.
    unsafe { (libc::getauxval(libc::AT_RANDOM) as *const [u8; 16]).as_ref() }.copied()
}

/// Runs `f` with the model, as the changer.
pub(crate) fn with<R>(f: impl FnOnce(&mut Model) -> Result<R, Failure>) -> Result<R, Failure> {
    prepare()?;
    change::change(|| {
        // SAFETY: inside `change`, once.
        let model = unsafe { model() };
        model.begin();
        f(model)
    })
}

/// Ends all watches and gives guarded memory back as private memory. (Our signal handlers stay, because a
/// fault may be on its way to them; what they get goes to the program's own.)
pub fn unregister() -> Result<(), Failure> {
    use core::sync::atomic::Ordering::*;
    if S.engine().is_none() {
        return Ok(());
    }
    with(|m| m.clear())?;
    S.user_handler.store(0, Release);
    S.handler.store(0, Release);
    Ok(())
}
