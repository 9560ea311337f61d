//! fork(2): the child gets its memory as private memory, without watches.
//!
//! ```text
//!     parent                                   child
//!     becomes the changer, write-protects moved pages
//!     fork ───────────────────────────────────▶ copies what it still shares with the parent
//!     waits on a pipe  ◀── end of file ──────── closes the pipe; no watches, no guards
//!     guards as before, no longer the changer
//! ```
//! vfork and posix_spawn share the memory until exec, and need nothing. A bare clone(2) is not handled: its child must
//! exec or exit, because it lacks our generated code but still shares the moved memory.

use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use linux_raw_sys::general as k;
use ulpf_lib::sys;

use crate::change;
use crate::engine;
use crate::exception_stacks::{self, OwnBlock};
use crate::mask;
use crate::model::MODEL;
use crate::shared::{Changer, S};

/// State that the forking thread keeps from before to after the fork.
struct Between {
    own: OwnBlock,
    changer: Changer,
    mask: u64,
    pipe: Option<[i32; 2]>,
}

// SAFETY: stored and taken by one thread, which is the changer meanwhile. (In the child it has another id.)
unsafe impl Send for Between {}

static BETWEEN: Mutex<Option<Between>> = Mutex::new(None);

fn kept() -> MutexGuard<'static, Option<Between>> {
    BETWEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the state of `before`, if the thread has become the changer. (Other threads do not look, so a child finds the
/// lock free.)
fn take() -> Option<Between> {
    S.is_changer().then(kept)?.take()
}

pub fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: three functions that live as long as the process.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

fn close(fd: i32) {
    // SAFETY: ours.
    let _ = unsafe { sys!(k::__NR_close, fd) };
}

extern "C" fn before() {
    let Some(own) = OwnBlock::claim() else { return };
    let mask = mask::block_asynchronous();
    let mut changer = change::join();
    let mut fds = [0i32; 2];
    // SAFETY: two descriptors.
    let pipe = unsafe { sys!(k::__NR_pipe2, fds.as_mut_ptr(), k::O_CLOEXEC) };
    change::aside(own, || MODEL.get(&mut changer).before_fork());
    *kept() = Some(Between {
        own,
        changer,
        mask,
        pipe: pipe.is_ok().then_some(fds),
    });
}

extern "C" fn in_parent() {
    let Some(mut between) = take() else {
        return;
    };
    if let Some([read, write]) = between.pipe {
        close(write);
        let mut byte = 0u8;
        // SAFETY: one byte. The end of the file means that the child is done, or gone.
        while unsafe { sys!(k::__NR_read, read, &mut byte as *mut u8, 1) }
            .is_err_and(|e| e.0 == libc::EINTR)
        {}
        close(read);
    }
    change::aside(between.own, || MODEL.get(&mut between.changer).after_fork());
    change::end(between.own, between.changer);
    mask::set(between.mask);
}

extern "C" fn in_child() {
    let Some(mut between) = take() else {
        return;
    };
    exception_stacks::after_fork(between.own);
    change::aside(between.own, || {
        if !MODEL.get(&mut between.changer).in_child() {
            let text = b"libulpf: no memory for a forked child's copy of watched memory\n";
            // SAFETY: writes a constant, then ends the process.
            unsafe {
                let _ = sys!(k::__NR_write, k::STDERR_FILENO, text.as_ptr(), text.len());
                let _ = sys!(k::__NR_exit_group, 127);
            }
        }
    });
    if let Some(pipe) = between.pipe {
        pipe.into_iter().for_each(close);
    }
    engine::after_fork(&mut between.changer);
    change::end(between.own, between.changer);
    mask::set(between.mask);
}
