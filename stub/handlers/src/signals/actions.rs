//! The program's actions for each signal (rt_sigaction(2)).

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering::*};

use ulpf_lib::sync::lock::Lock;

use super::numbers::{SIG_DFL, SIG_IGN};

/// `struct sigaction` as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct KernelAction {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}

/// The program's actions, one per signal. Shared by all threads; a vfork child has its own.
pub struct ActionTable {
    lock: Lock,
    /// The actions are given back to the kernel, or about to be: our handlers do not serve them any more.
    pub left: AtomicBool,
    pub given: AtomicBool,
    slots: UnsafeCell<[KernelAction; 65]>,
}

// SAFETY: `slots` is touched with `lock` held; holders run with asynchronous signals blocked.
unsafe impl Sync for ActionTable {}

impl Default for ActionTable {
    fn default() -> ActionTable {
        ActionTable::new()
    }
}

impl ActionTable {
    pub const fn new() -> ActionTable {
        ActionTable {
            lock: Lock::open(),
            left: AtomicBool::new(false),
            given: AtomicBool::new(false),
            slots: UnsafeCell::new(
                [KernelAction {
                    handler: 0,
                    flags: 0,
                    restorer: 0,
                    mask: 0,
                }; 65],
            ),
        }
    }
    fn with<R>(&self, f: impl FnOnce(&mut [KernelAction; 65]) -> R) -> R {
        let _locked = self.lock.lock();
        // SAFETY: the lock is ours.
        f(unsafe { &mut *self.slots.get() })
    }
    pub fn get(&self, sig: i32) -> KernelAction {
        self.with(|s| s.get(sig as usize).copied().unwrap_or_default())
    }
    pub fn set(&self, sig: i32, a: KernelAction) {
        self.with(|s| {
            if let Some(slot) = s.get_mut(sig as usize) {
                *slot = a;
            }
        });
    }
    pub fn copy_from(&'static self, other: &ActionTable) -> &'static ActionTable {
        let all = other.with(|s| *s);
        self.with(|s| *s = all);
        self
    }
    /// Breaks the lock: its holder has ended, or has stayed behind in another process.
    pub fn let_go(&self) {
        self.lock.let_go();
    }
    /// Prepares the table for another task.
    pub fn renew(&self) {
        self.let_go();
        self.left.store(false, Release);
        self.given.store(false, Release);
    }
    /// As exec does, and CLONE_CLEAR_SIGHAND: ignored signals stay ignored, the others get the default action.
    pub fn clear_handlers(&self) {
        self.with(|all| {
            for a in all.iter_mut() {
                let handler = if a.handler == SIG_IGN {
                    SIG_IGN
                } else {
                    SIG_DFL
                };
                *a = KernelAction {
                    handler,
                    ..KernelAction::default()
                };
            }
        });
    }
}
