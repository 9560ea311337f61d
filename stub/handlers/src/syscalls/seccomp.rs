//! seccomp(2): the program's filters see its calls as the program makes them.
//!
//! What the stub makes on the program's behalf comes from other code, with other pointers, and the stub has calls of
//! its own that no filter of the program's knows. So the kernel gets each filter behind a few instructions that let our
//! image's calls pass ([`ulpf_lib::seccomp::exempting`]), and the filters are run here, on the call as it was made
//! ([`judge`]). What only the kernel can do (tell a supervisor or a tracer, end a thread) it does at one `syscall`
//! instruction that is not let pass: [`ulpf_judged`].
//!
//! The kernel's filters stay what they are in forked children, after exec and after a detach; there the addresses of our
//! image pass, where nothing of ours lies any more.
//!
//! Slots of patched call sites ask nobody. So they make only calls that every filter lets pass by their number alone
//! ([`passes`]); when there is a new filter, they are made anew.

use core::ptr::null;
use core::slice;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use linux_raw_sys::ptrace as p;
use ulpf_lib::seccomp::{Data, Instruction, MOST, PREFIX, STRICT, Verdict, X86_64};
use ulpf_lib::sys::failure::{EINVAL, ENOMEM};
use ulpf_lib::{arena, seccomp, sys};

use super::call::{Args, EFAULT, Outcome, raw};
use super::ordinary::ordinary;
use super::process::end_thread;
use super::sites::{self, KNOWN, Numbers};
use crate::global::{g, machine};
use crate::runtime::asm::{ulpf_blocking, ulpf_judged};
use crate::runtime::events::Request;
use crate::runtime::frame::{SigInfo, UContext};
use crate::runtime::memory;
use crate::runtime::park;
use crate::runtime::thread::{Current, Thread};
use crate::signals::actions::KernelAction;
use crate::signals::numbers::{SIGKILL, SIGSYS, bit};
use crate::signals::{kernel, masks, raise};

/// A filter that the program has installed. For good: other threads may have it, too.
pub struct Filter {
    /// The one that was installed before.
    parent: *const Filter,
    len: usize,
    /// It stands for the strict mode: whom it kills, SIGKILL does.
    strict: bool,
}

/// Any thread has a filter.
pub static SOME: AtomicBool = AtomicBool::new(false);
/// Numbers that a filter of some thread does not let pass whatever the arguments are.
static LOOKED_AT: Numbers = [const { AtomicU64::new(0) }; KNOWN / 64];
/// A supervisor would have to decide about a call that only we can make: it was made.
pub static UNSUPERVISED: AtomicBool = AtomicBool::new(false);
/// A program with a filter has forked or executed another program, which is not followed.
pub static UNFOLLOWED: AtomicBool = AtomicBool::new(false);
/// A filter is longer than the kernel takes behind [`seccomp::exempting`].
pub static TOO_LONG: AtomicBool = AtomicBool::new(false);

/// Filters of a thread, the newest first, as pairs of filter and instructions.
fn filters(t: &Thread) -> impl Iterator<Item = &'static Filter> {
    // SAFETY: filters are never freed.
    let first = unsafe { t.filters.load(Acquire).as_ref() };
    // SAFETY: as above.
    core::iter::successors(first, |filter| unsafe { filter.parent.as_ref() })
}

impl Filter {
    /// The program's own instructions.
    fn instructions(&self) -> &[Instruction] {
        self.all().get(PREFIX..).unwrap_or(&[])
    }

    /// What the kernel has: they stand behind the filter.
    fn all(&self) -> &[Instruction] {
        // SAFETY: `Filter::with` has made room for so many, and written them.
        unsafe { slice::from_raw_parts((self as *const Filter).add(1).cast(), PREFIX + self.len) }
    }

    /// A filter of `len` instructions, which `write` writes.
    fn with(len: usize, write: impl FnOnce(&mut [Instruction]) -> bool) -> Option<*mut Filter> {
        let size = Self::size(len);
        let filter = arena::map_anonymous(size).cast::<Filter>();
        if filter.is_null() {
            return None;
        }
        // SAFETY: just mapped, with room for the filter and its instructions, for which zeros are valid.
        let instructions = unsafe {
            filter.write(Filter {
                parent: null(),
                len,
                strict: false,
            });
            slice::from_raw_parts_mut(filter.add(1).cast::<Instruction>(), PREFIX + len)
        };
        let (prefix, own) = instructions.split_at_mut(PREFIX);
        let (start, end) = machine().image;
        prefix.copy_from_slice(&seccomp::exempting(start, end, judged()));
        if !write(own) {
            arena::unmap_anonymous(filter.cast(), size);
            return None;
        }
        Some(filter)
    }

    fn size(len: usize) -> usize {
        size_of::<Filter>() + (PREFIX + len) * size_of::<Instruction>()
    }

    /// Not the kernel's.
    fn drop(filter: *mut Filter, len: usize) {
        arena::unmap_anonymous(filter.cast(), Self::size(len));
    }
}

/// The address that a filter sees of a call that is not let pass.
fn judged() -> u64 {
    ulpf_judged as *const () as u64 + 2
}

/// Has the thread a filter?
pub fn filtered(t: &Thread) -> bool {
    !t.filters.load(Relaxed).is_null()
}

/// Would a call of `t` from `ip` (the address behind the instruction) be made?
pub fn permits(t: &Thread, nr: u64, ip: u64, a: &Args) -> bool {
    decide(t, nr, ip, X86_64, a).0 == Verdict::Allow
}

/// What the filters say, and whether the strict mode says it.
fn decide(t: &Thread, nr: u64, ip: u64, arch: u32, a: &Args) -> (Verdict, bool) {
    let data = Data {
        nr: nr as i32,
        arch,
        instruction_pointer: ip,
        args: *a,
    };
    let strict = filters(t).any(|filter| filter.strict);
    let values = filters(t).map(|filter| seccomp::run(filter.instructions(), &data));
    (Verdict::of(seccomp::strictest(values)), strict)
}

/// The thread's filters decide about a call of the program: what becomes of it, if it is not to be made as ever.
pub fn judge(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> Option<Outcome> {
    judge_as(t, uc, nr, X86_64, a)
}

/// As [`judge`], of a call of this architecture.
pub fn judge_as(t: Current, uc: &mut UContext, nr: u64, arch: u32, a: &Args) -> Option<Outcome> {
    if !filtered(&t) {
        return None;
    }
    let ours = arch == X86_64;
    let (verdict, strict) = decide(&t, nr, uc.gprs.rip, arch, a);
    match verdict {
        Verdict::Allow => None,
        Verdict::Errno(errno) => Some(Outcome::Value(-i64::from(errno))),
        Verdict::Trap(errno) => {
            trap(t, uc, nr, arch, errno);
            Some(Outcome::Leave)
        }
        Verdict::Notify | Verdict::Trace if ours && super::is_ordinary(nr) => {
            t.own().judged.set(true);
            let result = ordinary(t, uc, nr, a);
            t.own().judged.set(false);
            Some(Outcome::Value(result))
        }
        Verdict::Notify | Verdict::Trace => {
            if !UNSUPERVISED.swap(true, SeqCst) {
                park::notify();
            }
            None
        }
        Verdict::KillThread if !strict && has_others(&t) => {
            end_thread(t);
            if ours {
                by_kernel(nr, a);
            }
            // SAFETY: the kernel has not ended it, so it ends itself.
            let _ = unsafe { sys!(k::__NR_exit, SIGSYS) };
            Some(Outcome::Leave)
        }
        Verdict::KillThread | Verdict::KillProcess => {
            kill(t, uc, ours.then_some((nr, a)), strict);
            Some(Outcome::Leave)
        }
    }
}

fn has_others(t: &Thread) -> bool {
    let of_process = |other: &&Thread| other.tgid() == t.tgid();
    g().threads.iter().filter(of_process).count() > 1
}

/// The kernel decides about the call as it was made, and makes it.
fn by_kernel(nr: u64, a: &Args) {
    let [a0, a1, a2, a3, a4, a5] = *a;
    // SAFETY: a call that a filter of the program's forbids.
    let _ = unsafe { ulpf_blocking(&[nr, a0, a1, a2, a3, a4, a5], null(), 1) };
}

/// As `force_sig_seccomp` of the kernel: who blocks or ignores the signal is ended by it.
fn trap(t: Current, uc: &mut UContext, nr: u64, arch: u32, errno: u16) {
    let blocked = masks::virtual_mask(t, uc) & bit(SIGSYS) != 0;
    if blocked {
        kernel::actions(t).set(SIGSYS, KernelAction::default());
    }
    let mut info = SigInfo {
        signo: SIGSYS,
        errno: errno.into(),
        code: k::SYS_SECCOMP as i32,
        ..SigInfo::zeroed()
    };
    info.data[0] = uc.gprs.rip;
    info.data[1] = nr & 0xffff_ffff | u64::from(arch) << 32;
    uc.gprs.rax = nr;
    raise::raise(t, uc, SIGSYS, &info);
}

/// The filter ends the process, which has made this call.
fn kill(t: Current, uc: &mut UContext, call: Option<(u64, &Args)>, strict: bool) {
    if g().decides.load(Relaxed) {
        park::park(t, uc, crate::runtime::events::Event::Ends);
    }
    if strict {
        // SAFETY: ends the program.
        let _ = unsafe { sys!(k::__NR_kill, t.tgid(), SIGKILL) };
        return;
    }
    crate::crash::note(t, &uc.gprs, SIGSYS, uc.gprs.rip, None);
    if let Some((nr, a)) = call {
        by_kernel(nr, a);
    }
    // The kernel's filter has let pass what this one does not (it has seen another address): the same end.
    let _ = kernel::raw_sigaction(SIGSYS, &KernelAction::default());
    let set = bit(SIGSYS);
    // SAFETY: the process ends here.
    unsafe {
        let _ = sys!(k::__NR_tgkill, t.tgid(), t.tid(), SIGSYS);
        let _ = sys!(k::__NR_rt_sigprocmask, k::SIG_UNBLOCK, &raw const set, 0, 8);
    }
}

/// seccomp(2).
pub fn call(t: Current, uc: &mut UContext, a: &Args) -> i64 {
    match a[0] as u32 {
        p::SECCOMP_SET_MODE_STRICT if a[1] as u32 == 0 && a[2] == 0 => strict(t, uc),
        p::SECCOMP_SET_MODE_FILTER => install(t, uc, a[1] as u32, a[2]),
        _ => ordinary(t, uc, k::__NR_seccomp.into(), a),
    }
}

/// prctl(2), PR_SET_SECCOMP.
pub fn set_by_prctl(t: Current, uc: &mut UContext, a: &Args) -> i64 {
    match a[1] as u32 {
        p::SECCOMP_MODE_STRICT => strict(t, uc),
        p::SECCOMP_MODE_FILTER => install(t, uc, 0, a[2]),
        _ => EINVAL,
    }
}

fn strict(t: Current, uc: &mut UContext) -> i64 {
    if filtered(&t) {
        return EINVAL; // another mode already
    }
    let copy = |to: &mut [Instruction]| {
        to.copy_from_slice(&STRICT);
        true
    };
    let Some(filter) = Filter::with(STRICT.len(), copy) else {
        return ENOMEM;
    };
    // SAFETY: nobody else has it yet.
    unsafe { (*filter).strict = true };
    // A filter needs a privilege or no_new_privs, the strict mode neither: without, it is kept here alone.
    let _ = give_to_kernel(filter, 0);
    put(t, filter);
    // SAFETY: filters are never freed.
    begin(t, uc, unsafe { &*filter });
    0
}

fn install(t: Current, uc: &mut UContext, flags: u32, at: u64) -> i64 {
    let as_given = |flags: u32| {
        let operation = p::SECCOMP_SET_MODE_FILTER.into();
        raw(
            k::__NR_seccomp.into(),
            &[operation, flags.into(), at, 0, 0, 0],
        )
    };
    // struct sock_fprog
    let Some([len, instructions]) = memory::get::<[u64; 2]>(at) else {
        return EFAULT;
    };
    let len = len as u16 as usize;
    if len == 0 || len > MOST {
        return as_given(flags); // the kernel knows which error comes first
    }
    if len > MOST - PREFIX {
        if !TOO_LONG.swap(true, SeqCst) {
            park::notify();
        }
        return EINVAL;
    }
    let mut readable = true;
    let read = |to: &mut [Instruction]| {
        // SAFETY: instructions are plain bytes.
        let bytes = unsafe {
            slice::from_raw_parts_mut(
                to.as_mut_ptr().cast::<u8>(),
                size_of_val::<[Instruction]>(to),
            )
        };
        readable = memory::read(instructions, bytes) == bytes.len();
        readable
    };
    let Some(filter) = Filter::with(len, read) else {
        return if readable { ENOMEM } else { as_given(flags) };
    };
    // No thread begins or ends while it is given to all of them.
    let all = flags & p::SECCOMP_FILTER_FLAG_TSYNC != 0;
    if all {
        park::request(t, uc, Request::ForkBegin);
    }
    let result = give_to_kernel(filter, flags);
    // With TSYNC alone, a positive result names a thread that cannot have it.
    let installed = result == 0 || result > 0 && flags & p::SECCOMP_FILTER_FLAG_NEW_LISTENER != 0;
    if !installed {
        Filter::drop(filter, len);
    } else {
        put(t, filter);
        if all {
            let of_process = |other: &&Thread| other.tgid() == t.tgid();
            for other in g().threads.iter().filter(of_process) {
                other.filters.store(filter, Release);
            }
        }
    }
    if all {
        park::request(t, uc, Request::End);
    }
    if installed {
        // SAFETY: filters are never freed.
        begin(t, uc, unsafe { &*filter });
    }
    result
}

/// Installs the filter, with what stands before it.
fn give_to_kernel(filter: *const Filter, flags: u32) -> i64 {
    // SAFETY: not freed yet.
    let all = unsafe { (*filter).all() };
    let program = [all.len() as u64, all.as_ptr() as u64];
    let operation = p::SECCOMP_SET_MODE_FILTER.into();
    let at = program.as_ptr() as u64;
    raw(
        k::__NR_seccomp.into(),
        &[operation, flags.into(), at, 0, 0, 0],
    )
}

fn put(t: Current, filter: *mut Filter) {
    // SAFETY: nobody else has it yet.
    unsafe { (*filter).parent = t.filters.load(Relaxed) };
    t.filters.store(filter, Release);
}

/// Does every filter let calls of this number pass?
pub fn passes(nr: u64) -> bool {
    !sites::has(&LOOKED_AT, nr)
}

/// A thread has a new filter: from now on its calls are looked at here.
fn begin(t: Current, uc: &mut UContext, filter: &Filter) {
    SOME.store(true, SeqCst);
    for nr in (0..KNOWN as u32).filter(|nr| !seccomp::always_allows(filter.instructions(), *nr)) {
        sites::put(&LOOKED_AT, nr.into());
    }
    if sites::SOME.load(SeqCst) {
        park::request(t, uc, Request::SitesAnew);
    }
}

/// A thread as it begins: those of its parent.
pub fn inherit(child: &Thread, parent: &Thread) {
    child.filters.store(parent.filters.load(Acquire), Release);
}

/// A thread with a filter would be followed into another program or a child, which cannot be: what the command makes a
/// process do there, the filter might forbid.
pub fn tell_unfollowed() {
    if !UNFOLLOWED.swap(true, SeqCst) {
        park::notify();
    }
}
