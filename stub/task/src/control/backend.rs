//! The guard mechanism, mprotect and signals or the kernel module: its selection, its setup, and its reply.

use core::fmt::Write;

use ulpf_lib::boot::{BOOT_BACKEND_KERNEL, BOOT_BACKEND_SIGNAL};
use ulpf_lib::command::reply::Backend;
use ulpf_lib::device;
use ulpf_lib::guard::{DeviceUse, Machine};

use super::replies::refused;
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_handlers::upcall;

/// Selects the backend that the user wants; nothing is opened before the first watch.
pub fn choose(flags: u32, stopped: &mut Stopped) {
    if flags & BOOT_BACKEND_SIGNAL != 0 {
        return;
    }
    let how = DeviceUse {
        required: flags & BOOT_BACKEND_KERNEL != 0,
        features: device::FEATURE_SIGSTACK | device::FEATURE_EFAULT,
        entry: upcall::entry().unwrap_or(0),
        handler_flags: device::HANDLER_SIGSTACK,
        policy: device::POLICY_EFAULT,
    };
    // SAFETY: the entry is a handler.
    unsafe { stopped.guards().use_device(how) };
}

/// Forbidden accesses raise signals from now on; the guards stay.
pub fn no_upcalls(stopped: &mut Stopped) {
    upcall::no_more();
    stopped.guards().no_handler();
}

/// `monitor ulpf backend`: the backend and the reason for it, as JSON.
pub fn tell(stopped: &mut Stopped, out: &mut dyn Write) {
    let guards = stopped.guards();
    if let Err(r) = guards.prepare() {
        return refused(out, &r);
    }
    let (name, why, upcalls) = match guards.machine() {
        Machine::Device(device) => {
            let why = match guards.has_handler() {
                true => "/dev/ulpf is there: accesses to guarded pages come without a signal",
                false => {
                    "/dev/ulpf is there; accesses come by a signal, because the program's state (AMX, a shadow stack, no XSAVE) fits no other frame"
                }
            };
            (
                "kernel",
                why,
                Some(device.counts().map_or(0, |c| c.upcalls)),
            )
        }
        Machine::Signals(Some(why)) => ("signal", why.why(), None),
        _ => ("signal", "it was asked for", None),
    };
    let unused = match guards.machine() {
        Machine::Signals(Some(why)) => Some(why.what_to_do().into()),
        _ => None,
    };
    let answer = Backend {
        backend: name.into(),
        name: None,
        why: why.into(),
        what_to_do: unused,
        upcalls,
    };
    let _ = writeln!(out, "{answer}");
}
