//! Exec: another program replaces this one, and this image.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::sync::futex;

use super::call::Args;
use super::tracing;
use crate::global::follows;
use crate::global::g;
use crate::runtime::asm::ulpf_blocking;
use crate::runtime::debug_registers;
use crate::runtime::events::{Event, Request};
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::park::{self, park, request};
use crate::runtime::thread::{Current, State};
use crate::signals::kernel;
use crate::signals::masks;
use crate::signals::waiting;

const AT_FDCWD: i32 = -100;

pub fn exec(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    // The kernel reads path, arguments and environment; if there are guards, it gets a copy.
    let mut args = *a;
    let (path_at, argv_at, envp_at) = if nr as u32 == k::__NR_execveat {
        (1, 2, 3)
    } else {
        (0, 1, 2)
    };
    let mut copy = Copy::default();
    if g().guarded() {
        for n in [path_at, argv_at, envp_at] {
            let Some(v) = args.get_mut(n) else { continue };
            let made = if n == path_at {
                copy.string(*v)
            } else {
                copy.vector(*v)
            };
            if let Some(p) = made {
                *v = p;
            }
        }
    }
    let in_program = t.is_programs();
    let i = t.own();
    let wanted = match in_program {
        true => g().follows(follows::EXEC),
        false => t.adopted.load(Relaxed) || i.spawned.get() && g().follows(follows::SPAWN),
    };
    let traced = tracing::from_exec(t, uc);
    let dir = if path_at == 1 { a[0] as i32 } else { AT_FDCWD };
    let followed = wanted && !traced && ask_to_be_followed(t, uc, args[path_at], dir);
    // The kernel forgets our handlers for the new image, but keeps blocked and ignored signals.
    let mask = masks::virtual_mask(t, uc);
    if in_program {
        g().in_exec.fetch_add(1, SeqCst);
        park::notify();
    }
    // No park signal may reach the new program after a successful exec. (A thread that has asked to be followed runs
    // alone, and gets no signal.)
    if !followed {
        t.set_state(State::Dead);
        // (After exec, the thread has the number of the first thread.)
        while g().nudged.load(SeqCst) != 0 {
            // The signal is being sent; it arrives before the call.
            futex::yield_now();
        }
    }
    waiting::hand_over(t);
    kernel::ignore_again(t);
    let traced = traced && tracing::begin(dir, args[path_at]);
    let call = [nr, args[0], args[1], args[2], args[3], args[4], args[5]];
    // The new program inherits the mask. A signal that comes after the mask is set, but before the call, makes the call
    // fail (RESTART). It is delivered, and the call is made again.
    // SAFETY: the program's own call.
    let r = unsafe { ulpf_blocking(&call, &mask, 0) };
    if traced {
        tracing::exec_has_failed();
    }
    masks::only_ours();
    kernel::hear_again(t);
    if !followed {
        t.set_state(State::Running);
        if debug_registers::active() {
            request(t, uc, Request::Adopt);
        }
    }
    if in_program {
        g().in_exec.fetch_sub(1, SeqCst);
    }
    if !followed && g().world.load(SeqCst) != 0 {
        park(t, uc, Event::None);
    }
    if followed {
        request(t, uc, Request::End);
    }
    copy.free();
    r
}

/// Lets the command take this thread before it becomes another program; the other threads are stopped from here on.
/// Returns `false` if there is no such path.
fn ask_to_be_followed(t: Current, uc: &mut UContext, path_at: u64, dir: i32) -> bool {
    let mut path = [0u8; 4096];
    let Some(len) = memory::strlen(path_at, path.len()) else {
        return false;
    };
    let Some(text) = path.get_mut(..len) else {
        return false;
    };
    if memory::read(path_at, text) != len {
        return false;
    }
    let (path, len) = (text.as_ptr() as u64, len as u64);
    request(t, uc, Request::ExecBegin { path, len, dir });
    while g().exec_word.load(SeqCst) == 0 {
        futex::wait(&g().exec_word, 0);
    }
    true
}

/// A copy of exec's strings outside guarded memory.
#[derive(Default)]
struct Copy {
    base: u64,
    len: u64,
    used: u64,
}

impl Copy {
    const ROOM: u64 = 4 << 20;

    fn take(&mut self, n: u64) -> Option<u64> {
        if self.base == 0 {
            self.base = ulpf_lib::arena::map_anonymous(Self::ROOM as usize) as u64;
            self.len = if self.base == 0 { 0 } else { Self::ROOM };
        }
        let at = self.used.next_multiple_of(8);
        (at + n <= self.len).then(|| {
            self.used = at + n;
            self.base + at
        })
    }
    fn string(&mut self, at: u64) -> Option<u64> {
        let n = memory::strlen(at, 128 << 10)?;
        let to = self.take(n as u64 + 1)?;
        // SAFETY: just taken.
        let bytes = unsafe { core::slice::from_raw_parts_mut(to as *mut u8, n + 1) };
        (memory::read(at, bytes) == n + 1).then_some(to)
    }
    fn vector(&mut self, at: u64) -> Option<u64> {
        if at == 0 {
            return None;
        }
        let mut n = 0;
        while memory::get::<u64>(at + n * 8)? != 0 {
            n += 1;
        }
        let to = self.take((n + 1) * 8)?;
        for j in 0..n {
            let s = self.string(memory::get::<u64>(at + j * 8)?)?;
            // SAFETY: within the array just taken.
            unsafe { *((to + j * 8) as *mut u64) = s };
        }
        // SAFETY: the terminator.
        unsafe { *((to + n * 8) as *mut u64) = 0 };
        Some(to)
    }
    fn free(&mut self) {
        if self.base != 0 {
            ulpf_lib::arena::unmap_anonymous(self.base as *mut u8, self.len as usize);
        }
    }
}
