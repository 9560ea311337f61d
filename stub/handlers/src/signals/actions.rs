//! What the program has asked for, for each signal (rt_sigaction(2)).

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

/// What the program has asked for, per signal. Shared by all threads; a vfork child has its own.
pub struct ActionTable {
    lock: Lock,
    /// Given back to the kernel, or about to be: nobody serves them any more.
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
    /// Whoever held it is no more, or has stayed behind in another process.
    pub fn let_go(&self) {
        self.lock.let_go();
    }
    /// For another task than before.
    pub fn renew(&self) {
        self.let_go();
        self.left.store(false, Release);
        self.given.store(false, Release);
    }
    /// As exec does, and CLONE_CLEAR_SIGHAND: what is ignored stays so, the rest is default.
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
