//! fork(2): the child gets its memory as private memory, watched by nobody.
//!
//! ```text
//!  parent                                   child
//!  becomes the changer, guards all it moved
//!  fork ───────────────────────────────────▶ copies what it still shares with the parent
//!  waits on a pipe  ◀── end of file ──────── closes the pipe; no watches, no guards
//!  guards as before, no longer the changer
//! ```
//! vfork and posix_spawn share the memory until exec, and are not concerned; neither is a bare clone(2),
//! whose child must exec or leave: it has none of our generated code, but still shares the memory that was moved.

use core::cell::UnsafeCell;
use std::sync::Once;

use linux_raw_sys::general as k;
use ulpf_lib::sys;

use crate::change;
use crate::model::model;
use crate::stacks::{self, Block};

struct Between {
    /// Block of the thread that forks, which has another number in the child.
    block: *mut Block,
    mask: u64,
    pipe: Option<[i32; 2]>,
}

struct Cell(UnsafeCell<Between>);
// SAFETY: used by the thread that forks, which is the changer.
unsafe impl Sync for Cell {}
static BETWEEN: Cell = Cell(UnsafeCell::new(Between {
    block: core::ptr::null_mut(),
    mask: 0,
    pipe: None,
}));

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
    let Some(block) = Block::claim() else { return };
    let mask = change::block_signals();
    change::begin();
    let mut fds = [0i32; 2];
    // SAFETY: two descriptors; the changer.
    unsafe {
        let pipe = sys!(k::__NR_pipe2, fds.as_mut_ptr(), k::O_CLOEXEC)
            .is_ok()
            .then_some(fds);
        *BETWEEN.0.get() = Between { block, mask, pipe };
        change::aside(block, || model().before_fork());
    }
}

extern "C" fn in_parent() {
    // SAFETY: the changer since `before`.
    let between = unsafe { &mut *BETWEEN.0.get() };
    // SAFETY: as in the child.
    let Some(block) = (unsafe { between.block.as_mut() }) else {
        return;
    };
    if let Some([read, write]) = between.pipe.take() {
        close(write);
        let mut byte = 0u8;
        // SAFETY: one byte. The end of the file says that the child is done, or gone.
        while unsafe { sys!(k::__NR_read, read, &mut byte as *mut u8, 1) }
            .is_err_and(|e| e.0 == libc::EINTR)
        {}
        close(read);
    }
    let mask = between.mask;
    between.block = core::ptr::null_mut();
    // SAFETY: the changer.
    change::aside(block, || unsafe { model().after_fork() });
    change::end(block);
    change::set_mask(mask);
}

extern "C" fn in_child() {
    // SAFETY: the changer, in a copy of its own.
    let between = unsafe { &mut *BETWEEN.0.get() };
    // SAFETY: set by `before`, if that became the changer.
    let Some(block) = (unsafe { between.block.as_mut() }) else {
        return;
    };
    stacks::after_fork(block);
    // SAFETY: as above.
    change::aside(block, || unsafe {
        if !model().in_child() {
            let text = b"libulpf: no memory for a forked child's copy of watched memory\n";
            let _ = sys!(k::__NR_write, 2, text.as_ptr(), text.len());
            let _ = sys!(k::__NR_exit_group, 127);
        }
    });
    if let Some(pipe) = between.pipe.take() {
        pipe.into_iter().for_each(close);
    }
    crate::shared::after_fork();
    let mask = between.mask;
    between.block = core::ptr::null_mut();
    change::end(block);
    change::set_mask(mask);
}
