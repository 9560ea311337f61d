//! Starts and ends the library.

use core::sync::atomic::Ordering::*;
use std::sync::Mutex;

use ulpf_lib::place;

use crate::backend;
use crate::change;
use crate::engine;
use crate::entry;
use crate::error::Failure;
use crate::exception_stacks;
use crate::fork;
use crate::model::{MODEL, Model};
use crate::shared::S;
use crate::signals;
use crate::thread;
use crate::upcall;

/// Allocates the library's resources, once: stacks, engine, signals.
pub fn prepare() -> Result<(), Failure> {
    static READY: Mutex<bool> = Mutex::new(false);
    if signals::installed() && S.engine().is_some() {
        return Ok(());
    }
    let mut ready = READY.lock().unwrap_or_else(|e| e.into_inner());
    if !*ready {
        thread::prepare();
        upcall::prepare();
        place::settle(place::base_for(random_bytes()));
        backend::choose()?;
        exception_stacks::prepare()?;
        change::change(engine::prepare)?;
        fork::prepare();
        *ready = true;
    }
    change::change(entry::install)
}

/// The random bytes that the kernel gives to this program, or `None` if its addresses are not random. (For a stub the
/// command does the same, `command/host/src/process.rs`.)
fn random_bytes() -> Option<[u8; 16]> {
    const ASK: u64 = 0xffff_ffff;
    // SAFETY: only asks.
    let persona = unsafe { libc::personality(ASK) };
    let switched_off =
        || std::fs::read("/proc/sys/kernel/randomize_va_space").is_ok_and(|t| t == b"0\n");
    if persona & libc::ADDR_NO_RANDOMIZE != 0 || switched_off() {
        return None;
    }
    // SAFETY: the kernel's 16 bytes, which stay where they are.
    unsafe { (libc::getauxval(libc::AT_RANDOM) as *const [u8; 16]).as_ref() }.copied()
}

/// Runs `f` with the model, as the changer.
pub fn with<R>(f: impl FnOnce(&mut Model) -> Result<R, Failure>) -> Result<R, Failure> {
    prepare()?;
    change::change(|changer| {
        let model = MODEL.get(changer);
        model.begin();
        f(model)
    })
}

/// Ends all watches and gives guarded memory back as private memory. (Our signal handlers stay, because a fault may be on
/// its way to them. They pass everything to the program's own.)
///
/// # Errors
/// ENOMEM if guarded memory cannot be given back.
pub fn unregister() -> Result<(), Failure> {
    if S.engine().is_none() {
        return Ok(());
    }
    with(|m| m.clear())?;
    S.user_handler.store(0, Release);
    S.handler.store(0, Release);
    Ok(())
}
