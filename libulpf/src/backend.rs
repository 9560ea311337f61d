//! How accesses reach us: one way for the whole program, chosen once, with a reason.
//!
//! | back end | what tells us | what it needs |
//! |---|---|---|
//! | `signal` | page guards by mprotect(2), SIGSEGV | nothing |
//! | `debug-registers` | perf events, SIGTRAP behind the access (`registers.rs`) | at most four small watches |

use core::sync::atomic::{AtomicU8, Ordering::*};
use std::sync::Mutex;

use ulpf_lib::guard::{OUR_IMAGES, OUR_PLACE, maps};

use crate::error::Failure;
use crate::registers;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Backend {
    Signal = 1,
    Registers = 2,
}

const ALL: [Backend; 2] = [Backend::Signal, Backend::Registers];

impl Backend {
    pub fn name(self) -> &'static str {
        match self {
            Backend::Signal => "signal",
            Backend::Registers => "debug-registers",
        }
    }

    fn named(name: &str) -> Option<Backend> {
        ALL.into_iter().find(|b| b.name() == name)
    }

    /// Is it there? The reason for either answer.
    fn probe(self) -> Result<&'static str, Failure> {
        match self {
            Backend::Signal => {
                Ok("page guards and SIGSEGV: needs no privilege and works on every machine")
            }
            Backend::Registers => registers::probe().map(|()| {
                "the processor's debug registers: no page is guarded, four small watches at most"
            }),
        }
    }
}

/// 0: not chosen yet.
static CHOSEN: AtomicU8 = AtomicU8::new(0);
static CHOICE: Mutex<Choice> = Mutex::new(Choice {
    wish: None,
    reason: ("", ""),
});

/// What speaks for it, and who has chosen it. (Nothing that would have to be freed.)
type Reason = (&'static str, &'static str);

struct Choice {
    /// What the program has asked for, and in which words.
    wish: Option<Backend>,
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

/// Asks for a back end by name, before the first handler or watch; `auto` takes that back. The
/// environment variable `ULPF_BACKEND` goes before it: whoever runs the program decides last.
pub fn use_backend(name: &str) -> Result<(), Failure> {
    let wish = match name {
        "auto" => None,
        name => Some(Backend::named(name).ok_or_else(|| unknown("", name))?),
    };
    let mut choice = lock();
    if let Some(now) = chosen() {
        if wish.is_none_or(|w| w == now) {
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
    if let Some(wish) = wish {
        wish.probe()?;
    }
    choice.wish = wish;
    Ok(())
}

/// What would be taken now, and why.
fn decide(choice: &Choice) -> Result<(Backend, Reason), Failure> {
    let text = std::env::var("ULPF_BACKEND").unwrap_or_default();
    let (wish, who) = match text.as_str() {
        "" | "auto" => (choice.wish, "; the program has asked for it"),
        name => (
            Some(Backend::named(name).ok_or_else(|| unknown("ULPF_BACKEND=", name))?),
            "; ULPF_BACKEND asks for it",
        ),
    };
    if let Some(wish) = wish {
        let why = wish.probe()?;
        return Ok((wish, (why, who)));
    }
    let why = Backend::Signal.probe()?;
    Ok((Backend::Signal, (why, "")))
}

/// The back end in use, or that would be: its name and why. Where none can be had, why not.
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

/// Chooses, for good. What is asked for has to be there, and nobody else's stub.
pub fn choose() -> Result<(), Failure> {
    let mut choice = lock();
    if chosen().is_some() {
        return Ok(());
    }
    let (backend, reason) = decide(&choice)?;
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
    choice.reason = reason;
    CHOSEN.store(backend as u8, Release);
    Ok(())
}
