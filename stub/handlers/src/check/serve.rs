//! The functions of an allocator, as they are served here.

use core::sync::atomic::{AtomicU32, Ordering::*};

use linux_raw_sys::errno::{EINVAL, ENOMEM};
use ulpf_engine::cpu::Gprs;
use ulpf_lib::ring::findings::{Asked, By, Wrong};

use super::entries::{self, Function};
use super::granules::ArenaFull;
use super::heap::{self, Origin};
use super::{arena, blocks, depot, errno, family, files, lookup, old, overlaps, report, shadow};
use crate::backtraces;
use crate::global::machine;
use crate::runtime::thread::Current;
use crate::runtime::{memory, park};

/// Callers that are noted for each block. Written before `ON`.
pub static FRAMES: AtomicU32 = AtomicU32::new(8);
/// The result of a call.
pub enum Outcome {
    /// The call returns this value.
    Returns(u64),
    /// The arena must grow by this many bytes; nothing has been done.
    NeedsRoom(u64),
    /// The block is not ours: the program's own function serves the call ([`entries::PASSES`]).
    Passes,
}

/// The caller, as far as it is noted.
struct Caller<'a> {
    /// `None` in a forked child or after a detach.
    thread: Option<Current>,
    gprs: Option<&'a Gprs>,
    noted: u32,
}

impl Caller<'_> {
    /// The number of its call stack in the depot, and the allocation family.
    fn note(&mut self) -> (u32, By) {
        let (Some(t), Some(gprs)) = (self.thread, self.gprs) else {
            return (0, By::Malloc);
        };
        let want = FRAMES.load(Relaxed) as usize;
        let note = |frames: &[u64]| depot::note(t.tid() as u32, frames);
        let (noted, by) = backtraces::callers(t, gprs, want.max(2), note, |noted, frames| {
            (noted, family::by(frames))
        });
        self.noted = noted;
        // Reset whatever the callers say: the next block belongs to another call. (The `operator new[]` that does not
        // throw calls the one that may, and is found itself.)
        let array = t.own().asks_for_array.take();
        let by = if array && by == By::New {
            By::NewArray
        } else {
            by
        };
        (self.noted, by)
    }
}

/// Serves a call with these arguments. Errors are reported if the thread and its registers are given. `goes_on`: the
/// call can continue in the program's own function.
pub fn serve(
    (function, goes_on): (Function, bool),
    thread: Option<Current>,
    gprs: Option<&Gprs>,
    [a, b, c]: [u64; 3],
) -> Outcome {
    use Outcome::{NeedsRoom, Passes, Returns};
    if goes_on && function.frees_or_asks() && a != 0 && is_theirs(a, thread, gprs) {
        return Passes;
    }
    if goes_on && function.allocates(a) && entries::begins_itself() {
        return Passes;
    }
    if function.frees_or_asks() && arena::has(a) {
        // (Most blocks begin with their slots.)
        blocks::expect(a - arena::arena());
        shadow::expect(a);
    }
    let mut caller = Caller {
        thread,
        gprs,
        noted: 0,
    };
    let allocate = |caller: &mut Caller, size: u64, align: u64, zeroed: bool| {
        let (noted, by) = caller.note();
        let asked = asked(function, a);
        match heap::allocate(size, align, caller.origin(by, asked, noted), zeroed) {
            Ok(block) => Returns(block),
            Err(ArenaFull::Grow(bytes)) => {
                // The call starts again, at malloc.
                if by == By::NewArray
                    && let Some(t) = caller.thread
                {
                    t.own().asks_for_array.set(true);
                }
                NeedsRoom(bytes)
            }
            Err(ArenaFull::Never) => fails(ENOMEM),
        }
    };
    let aligned =
        |caller: &mut Caller, size: u64, align: u64| match align.checked_next_power_of_two() {
            Some(align) => allocate(caller, size, align, false),
            None => fails(EINVAL),
        };
    match function {
        Function::Malloc => allocate(&mut caller, a, 16, false),
        Function::Calloc => match a.checked_mul(b) {
            Some(size) => allocate(&mut caller, size, 16, true),
            None => fails(ENOMEM),
        },
        Function::Memalign => aligned(&mut caller, b, a),
        Function::NewAligned => aligned(&mut caller, a, b),
        Function::Valloc => allocate(&mut caller, a, 4096, false),
        Function::Pvalloc => match a.max(1).checked_next_multiple_of(4096) {
            Some(size) => allocate(&mut caller, size, 4096, false),
            None => fails(ENOMEM),
        },
        Function::PosixMemalign => {
            if !b.is_power_of_two() || b < 8 {
                return Returns(EINVAL.into());
            }
            match allocate(&mut caller, c, b, false) {
                Returns(0) => Returns(ENOMEM.into()),
                Returns(block) => {
                    memory::put(a, &block);
                    Returns(0)
                }
                more => more,
            }
        }
        Function::Realloc | Function::Reallocarray => {
            let size = match function {
                Function::Realloc => Some(b),
                _ => b.checked_mul(c),
            };
            let Some(size) = size else {
                return fails(ENOMEM);
            };
            if a == 0 {
                return allocate(&mut caller, size, 16, false);
            }
            if size == 0 {
                free(&mut caller, a, By::Realloc);
                return Returns(0);
            }
            reallocate(&mut caller, a, size, asked(function, a))
        }
        Function::Free => {
            free(&mut caller, a, By::Malloc);
            Returns(0)
        }
        Function::Delete => {
            free(&mut caller, a, By::New);
            Returns(0)
        }
        Function::DeleteArray => {
            free(&mut caller, a, By::NewArray);
            Returns(0)
        }
        Function::NewArray => {
            if let Some(t) = thread {
                t.own().asks_for_array.set(true);
            }
            Returns(0)
        }
        Function::Memcpy
        | Function::Mempcpy
        | Function::Strcpy
        | Function::Stpcpy
        | Function::Strcat
        | Function::Strncpy
        | Function::Strncat => {
            if let (Some(t), Some(gprs), Some(found)) =
                (thread, gprs, overlaps::overlap(function, [a, b, c]))
            {
                report::overlap(t, gprs, function.copies().unwrap_or(0), found);
            }
            Returns(0)
        }
        Function::UsableSize => Returns(lookup::at(a).map_or(0, |block| block.size)),
    }
}

/// Fails a call with this errno.
fn fails(why: u32) -> Outcome {
    errno::set(why);
    Outcome::Returns(0)
}

/// True if the block is the program's own: from before the heap was checked, or from another function of its allocator.
fn is_theirs(block: u64, thread: Option<Current>, gprs: Option<&Gprs>) -> bool {
    if arena::has(block) {
        return false;
    }
    match entries::PASSES.load(Relaxed) {
        true => !old::serves(block),
        false => entries::OTHERS.load(Relaxed) && may_be_block(block, thread, gprs),
    }
}

/// True if an allocator can have returned this address. No stack is its memory, and no file.
fn may_be_block(addr: u64, thread: Option<Current>, gprs: Option<&Gprs>) -> bool {
    let stack = thread.zip(gprs);
    let on_stack = || stack.is_some_and(|(t, gprs)| is_on_stack(t, gprs, addr));
    addr.is_multiple_of(8) && !files::has(addr) && !on_stack()
}

/// True if the address is on the stack that the thread is on. Memory directly above a thread's stack may be an
/// allocator's.
fn is_on_stack(t: Current, gprs: &Gprs, addr: u64) -> bool {
    /// Below the stack pointer; also above it on an unknown stack.
    const NEAR: u64 = 64 << 10;
    /// The least distance between the first thread's stack and other memory (`mmap_base` in arch/x86/mm/mmap.c).
    const GAP: u64 = 128 << 20;
    /// Limit of arguments and environment.
    const ARGUMENTS: u64 = 6 << 20;
    /// Limit of a stack that a C library makes; the thread's data are at its upper end.
    const THREADS: u64 = 64 << 20;
    let rsp = gprs.rsp;
    let above = |end: u64, most: u64| end > rsp && end - rsp < most;
    let (random, (data, _)) = (machine().random, park::bases(t));
    let end = match t.tid() == t.tgid() {
        _ if above(random, GAP) => random + ARGUMENTS,
        false if above(data, THREADS) => data,
        _ => rsp + NEAR,
    };
    (rsp.saturating_sub(NEAR)..end).contains(&addr)
}

/// The function that allocates a block, given its first argument.
fn asked(function: Function, first: u64) -> Asked {
    match function {
        Function::Calloc => Asked::Calloc,
        Function::Realloc if first == 0 => Asked::ReallocOfNothing,
        Function::Realloc => Asked::Realloc,
        Function::Reallocarray => Asked::Reallocarray,
        Function::Memalign => Asked::Memalign,
        Function::PosixMemalign => Asked::PosixMemalign,
        Function::Valloc => Asked::Valloc,
        Function::Pvalloc => Asked::Pvalloc,
        _ => Asked::Malloc,
    }
}

fn free(caller: &mut Caller, block: u64, by: By) {
    if block == 0 {
        return;
    }
    let (noted, _) = caller.note();
    let family = match by {
        By::Realloc => By::Malloc,
        by => by,
    };
    let wrong = match free_any(block, family, noted) {
        Ok(()) => return,
        Err(wrong) => wrong,
    };
    caller.report(wrong, block, by);
}

/// Frees a block of the arena, or one from before.
fn free_any(block: u64, by: By, noted: u32) -> Result<(), Wrong> {
    match arena::has(block) || !entries::PASSES.load(Relaxed) {
        true => heap::free(block, by, noted),
        false => old::free(block, noted),
    }
}

/// Moves the block always, so that uses of the old address are found.
fn reallocate(caller: &mut Caller, block: u64, size: u64, asked: Asked) -> Outcome {
    let Some(old) = lookup::at(block).filter(|old| !old.freed) else {
        let wrong = match lookup::at(block) {
            Some(_) => Wrong::Twice,
            None => Wrong::NoBlock,
        };
        caller.note();
        caller.report(wrong, block, By::Realloc);
        return Outcome::Returns(0);
    };
    let (noted, _) = caller.note();
    let by = By::Malloc;
    let new = match heap::allocate(size, 16, caller.origin(by, asked, noted), false) {
        Ok(new) => new,
        Err(ArenaFull::Grow(bytes)) => return Outcome::NeedsRoom(bytes),
        Err(ArenaFull::Never) => return fails(ENOMEM),
    };
    heap::copy(block, new, old.size.min(size));
    if let Err(wrong) = free_any(block, By::Malloc, noted) {
        caller.report(wrong, block, By::Realloc);
    }
    Outcome::Returns(new)
}

impl Caller<'_> {
    fn origin(&self, by: By, asked: Asked, noted: u32) -> Origin {
        let thread = self.thread.map_or(0, |t| t.index.load(Relaxed));
        Origin {
            thread,
            by,
            asked,
            noted,
        }
    }

    fn report(&self, wrong: Wrong, block: u64, by: By) {
        if let (Some(t), Some(gprs)) = (self.thread, self.gprs) {
            let event = report::call(t, gprs, wrong, block, by);
            event.into_iter().for_each(|e| t.own().report(e));
        }
    }
}
