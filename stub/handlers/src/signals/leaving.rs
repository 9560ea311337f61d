//! Detach: each thread of the program returns to it, without anything of ours.

use core::sync::atomic::{AtomicU32, Ordering::*};

use linux_raw_sys::general as k;
use linux_raw_sys::prctl::{PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_OFF};
use ulpf_lib::boot::PARK_SIGNAL;
use ulpf_lib::sync::futex;
use ulpf_lib::sys;

use super::alternate;
use super::kernel::{REFRESHING, actions, give_back, raw_sigaction};
use super::numbers::*;
use super::waiting;
use crate::global::g;
use crate::runtime::areas;
use crate::runtime::frame::{SigInfo, UContext};
use crate::runtime::library_link;
use crate::runtime::thread::{Current, State, Thread};

/// Makes the frame of a parked handler return to the program without anything of ours.
pub fn leave(t: Current, uc: &mut UContext) {
    let table = actions(t);
    if !table.left.swap(true, SeqCst) {
        while REFRESHING.load(SeqCst) != 0 {
            futex::yield_now();
        }
        library_link::left();
        give_back(t, false);
        table.given.store(true, SeqCst);
    }
    // A thread that returned to the program before that would be served by us once more, and park for ever.
    while !table.given.load(SeqCst) {
        futex::yield_now();
    }
    drop_park_signals(t);
    let i = t.own();
    // SAFETY: turns this thread's dispatch off; the rest of the way out makes only our own calls.
    let _ = unsafe {
        sys!(
            k::__NR_prctl,
            PR_SET_SYSCALL_USER_DISPATCH,
            PR_SYS_DISPATCH_OFF,
            0,
            0,
            0
        )
    };
    waiting::hand_over(t);
    areas::disable();
    if i.clear_tid.get() != 0 {
        // The kernel may know the word by its alias, which is unmapped.
        // SAFETY: names the word that the program has named.
        let _ = unsafe { sys!(k::__NR_set_tid_address, i.clear_tid.get()) };
    }
    alternate::give_back(t, uc);
    uc.sigmask |= i.hidden.get();
    let last = shares_actions(&t) && LEAVING.fetch_sub(1, SeqCst) == 1;
    let park = g().actions.get(PARK_SIGNAL);
    if last && park.handler == SIG_DFL {
        let _ = raw_sigaction(PARK_SIGNAL, &park);
    }
    t.set_state(State::Dead);
}

/// Threads that have yet to leave. After the last one, no park signal is sent any more.
static LEAVING: AtomicU32 = AtomicU32::new(0);

fn shares_actions(t: &Thread) -> bool {
    // SAFETY: which table a thread has is settled before it runs.
    let own = unsafe { t.own() };
    t.is_programs() && core::ptr::eq(own.actions.get(), &g().actions)
}

/// Called before all threads leave.
pub fn begin_leaving() {
    let all = g().threads.iter().filter(|t| shares_actions(t)).count();
    LEAVING.store(all as u32, SeqCst);
}

/// A thread that has parked by itself may still have a pending park signal, which its handlers have blocked. Drops it,
/// and keeps signals of the program with that number.
fn drop_park_signals(t: Current) {
    const MOST: usize = 16;
    let set = bit(PARK_SIGNAL);
    let mut others = [SigInfo::zeroed(); MOST];
    let mut kept = 0;
    while let Some(info) = others.get_mut(kept) {
        let now = [0u64; 2];
        // SAFETY: takes a pending signal, at once.
        let got = unsafe {
            sys!(
                k::__NR_rt_sigtimedwait,
                &raw const set,
                &raw mut *info,
                now.as_ptr(),
                8
            )
        };
        if got != Ok(PARK_SIGNAL as u64) {
            break;
        }
        kept += usize::from(!park_is_ours(t, info));
    }
    for info in others.iter().take(kept) {
        // SAFETY: sends back a signal that this thread has just taken.
        let _ = unsafe {
            sys!(
                k::__NR_rt_tgsigqueueinfo,
                t.tgid(),
                t.tid(),
                PARK_SIGNAL,
                &raw const *info
            )
        };
    }
}

/// True if this is the park signal of the stub or the command, rather than a signal of the program with that number.
pub fn park_is_ours(t: Current, info: &SigInfo) -> bool {
    // A sender in another namespace has no number.
    info.code == k::SI_TKILL && [g().stub_tid.load(Relaxed), 0].contains(&info.sender())
        || t.own().booting.take()
}
