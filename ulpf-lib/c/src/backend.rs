//! Back ends: the mechanism that detects accesses, chosen once for the whole program, with a reason.
//!
//! * `signal`: page guards by mprotect(2), SIGSEGV. It has no requirement.
//! * `protection-keys`: page guards by pkey_mprotect(2), SIGSEGV (`keys.rs`). The processor and the kernel must have them.
//! * `device`: page guards of the kernel module, which enters our handler (`upcall.rs`). It needs `/dev/ulpf`.
//! * `debug-registers`: perf events, SIGTRAP behind the access (`registers.rs`), for at most four small watches.

use core::sync::atomic::{AtomicU8, Ordering::*};
use std::sync::Mutex;

use ulpf_lib::device::{self, Device, Unusable};
use ulpf_lib::guard::{self, maps};
use ulpf_lib::sys::Errno;

use crate::error::Failure;
use crate::shared::S;
use crate::stub_link;
use crate::{keys, registers};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Backend {
    Signal = 1,
    Registers = 2,
    Keys = 3,
    Device = 4,
}

const ALL: [Backend; 4] = [
    Backend::Signal,
    Backend::Registers,
    Backend::Keys,
    Backend::Device,
];

impl Backend {
    pub fn name(self) -> &'static str {
        match self {
            Backend::Signal => "signal",
            Backend::Registers => "debug-registers",
            Backend::Keys => "protection-keys",
            Backend::Device => "device",
        }
    }

    fn named(name: &str) -> Option<Backend> {
        ALL.into_iter().find(|b| b.name() == name)
    }

    /// Whether it is usable; either result has its reason.
    fn probe(self) -> Result<&'static str, Failure> {
        match self {
            Backend::Signal => {
                Ok("page guards and SIGSEGV: needs no privilege and works on every machine")
            }
            Backend::Registers => registers::probe().map(|()| {
                "the processor's debug registers: no page is guarded, four small watches at most"
            }),
            Backend::Keys => keys::probe().map(|()| {
                "page guards by protection keys and SIGSEGV: each thread has its own, also while one of them steps"
            }),
            Backend::Device => device().map(|()| {
                "page guards of the kernel module: its upcalls are cheaper than signals, and system calls succeed"
            }).map_err(|why| {
                Failure::new(libc::ENODEV, format!("{}; {}", why.why(), why.what_to_do()))
            }),
        }
    }
}

/// Features that the module must have.
pub const FEATURES: u64 = guard::FEATURES | device::FEATURE_SIGSTACK;

fn device() -> Result<(), Unusable> {
    Device::open(FEATURES).map(drop)
}

/// Why `auto` did not choose the device.
fn because(why: Unusable) -> &'static str {
    match why {
        Unusable::Open(Errno(libc::ENOENT)) => "; the kernel module's /dev/ulpf is not there",
        Unusable::Open(Errno(libc::EACCES)) => {
            "; /dev/ulpf is there, but may not be opened by this user"
        }
        Unusable::Open(_) => "; /dev/ulpf cannot be opened",
        _ => "; the kernel module is not of this version",
    }
}

/// 0: not chosen yet.
static CHOSEN: AtomicU8 = AtomicU8::new(0);
static CHOICE: Mutex<Choice> = Mutex::new(Choice {
    asked: None,
    reason: ("", ""),
});

/// The reason for a back end, and the source of the choice. (Static: never freed.)
type Reason = (&'static str, &'static str);

struct Choice {
    /// The back end that the program has requested.
    asked: Option<Backend>,
    reason: Reason,
}

/// The back end in use; `None` before the first handler or watch.
pub fn chosen() -> Option<Backend> {
    ALL.into_iter().find(|b| *b as u8 == CHOSEN.load(Acquire))
}

pub fn is(backend: Backend) -> bool {
    CHOSEN.load(Acquire) == backend as u8
}

fn lock() -> std::sync::MutexGuard<'static, Choice> {
    CHOICE.lock().unwrap_or_else(|e| e.into_inner())
}

fn unknown(who: &str, name: &str) -> Failure {
    let known: Vec<String> = ALL.iter().map(|b| format!("`{}`", b.name())).collect();
    Failure::new(
        libc::EINVAL,
        format!(
            "{who}{name}: there is no such back end; say `auto`, {}",
            known.join(", ")
        ),
    )
}

/// Requests a back end by name, before the first handler or watch; `auto` cancels the request. The environment variable
/// `ULPF_BACKEND` takes precedence, so that the user of the program decides.
///
/// # Errors
/// EINVAL for an unknown name, EBUSY after the first handler or watch, ENODEV and others if it is not usable.
pub fn use_backend(name: &str) -> Result<(), Failure> {
    let asked = match name {
        "auto" => None,
        name => Some(Backend::named(name).ok_or_else(|| unknown("", name))?),
    };
    let mut choice = lock();
    if let Some(now) = chosen() {
        if asked.is_none_or(|w| w == now) {
            return Ok(());
        }
        return Err(Failure::new(
            libc::EBUSY,
            format!(
                "the back end `{}` is in use already; choose before the first handler or watchpoint",
                now.name()
            ),
        ));
    }
    if let Some(asked) = asked {
        asked.probe()?;
    }
    choice.asked = asked;
    Ok(())
}

/// The back end that would be chosen now, with the reason.
fn decide(choice: &Choice) -> Result<(Backend, Reason), Failure> {
    let text = std::env::var("ULPF_BACKEND").unwrap_or_default();
    let (asked, who) = match text.as_str() {
        "" | "auto" => (choice.asked, "; the program has asked for it"),
        name => (
            Some(Backend::named(name).ok_or_else(|| unknown("ULPF_BACKEND=", name))?),
            "; ULPF_BACKEND asks for it",
        ),
    };
    let stub = stub_link::ask();
    if let Some(asked) = asked {
        if stub && asked != Backend::Signal {
            return Err(Failure::new(
                libc::EBUSY,
                format!(
                    "the program is being watched by ulpf, whose guards the back end `{}` cannot be seen through, nor \
                     see through; take `auto` or `signal`, which can, or run the program by itself",
                    asked.name()
                ),
            ));
        }
        let why = asked.probe()?;
        return Ok((asked, (why, who)));
    }
    if stub {
        let because =
            "; the program is being watched by ulpf, with which no other back end goes together";
        return Ok((Backend::Signal, (Backend::Signal.probe()?, because)));
    }
    match device() {
        Ok(()) => Ok((Backend::Device, (Backend::Device.probe()?, ""))),
        Err(why) => Ok((Backend::Signal, (Backend::Signal.probe()?, because(why)))),
    }
}

/// Name and reason of the back end that is in use, or would be. If none is usable, the reason why not.
pub fn backend() -> (&'static str, String) {
    let choice = lock();
    let decided = match chosen() {
        Some(now) => Ok((now, choice.reason)),
        None => decide(&choice),
    };
    match decided {
        Ok((backend, (why, who))) => (backend.name(), format!("{why}{who}")),
        Err(failure) => ("none", failure.text),
    }
}

/// Makes the choice, for good. A requested back end must be usable.
pub fn choose() -> Result<(), Failure> {
    let mut choice = lock();
    if chosen().is_some() {
        return Ok(());
    }
    let (backend, reason) = decide(&choice)?;
    if stub_link::ask() {
        let snapshot = maps::Snapshot::read()
            .map_err(|e| Failure::os(e, "/proc/self/maps cannot be read; mount /proc"))?;
        stub_link::keep_apart(&snapshot);
    }
    if backend == Backend::Keys {
        keys::take()?;
    }
    S.table.blind.store(
        u32::from(matches!(backend, Backend::Registers | Backend::Keys)),
        Release,
    );
    choice.reason = reason;
    CHOSEN.store(backend as u8, Release);
    Ok(())
}
