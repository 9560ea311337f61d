//! How faults reach us on this machine, and why so.

use ulpf_lib::guard::{OUR_IMAGES, OUR_PLACE, maps};

use crate::error::Failure;

/// The back end in use, or that would be.
pub fn backend_name() -> &'static str {
    "signal"
}

/// In the words of `ulpf doctor`.
pub fn reason() -> &'static str {
    "page guards and SIGSEGV: needs no privilege and works on every machine; it is the only back end of this version"
}

/// What `ULPF_BACKEND` asks for has to be there, and nobody else's stub.
pub fn choose() -> Result<(), Failure> {
    if let Ok(wanted) = std::env::var("ULPF_BACKEND")
        && !matches!(wanted.as_str(), "" | "auto" | "signal")
    {
        return Err(Failure::new(
            libc::ENODEV,
            format!(
                "ULPF_BACKEND={wanted}: this version has the back end `signal` only; unset the variable or say `auto`"
            ),
        ));
    }
    let snapshot = maps::Snapshot::read()
        .map_err(|e| Failure::os(e, "/proc/self/maps cannot be read; mount /proc"))?;
    if snapshot
        .vmas
        .iter()
        .any(|v| (OUR_IMAGES..OUR_PLACE).contains(&v.start))
    {
        return Err(Failure::new(
            libc::EBUSY,
            "the program is being watched by ulpf run, ulpf gdb or ulpf server, and guards cannot be shared; \
             set the watches there, or run the program by itself",
        ));
    }
    Ok(())
}
