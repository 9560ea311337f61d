//! seccomp(2): the program's filters see its calls as the program makes them.
//!
//! The stub makes the program's calls from other code, with other pointers, and makes calls of its own that the
//! program's filters do not expect. So the kernel gets each filter behind a few instructions that let our image's calls
//! pass ([`ulpf_lib::seccomp::exempting`]). The filters are run here, on the call as it was made ([`judge`]). Some
//! verdicts only the kernel can execute: notify a supervisor or a tracer, end a thread. For these, one `syscall`
//! instruction is not exempt: [`ulpf_judged`]. There the filter sees that instruction's address and, if memory has
//! moved, another buffer's. So the kernel is not asked if there is neither a supervisor nor a tracer.
//!
//! In forked children, after exec and after a detach, the kernel's filters are unchanged: the addresses of our image
//! pass, although nothing of ours is there any more. A child or program that is followed gets its stub at the same
//! addresses, and with it the filters. The command finds them by [`tell`], and [`adopt`] installs them.
//!
//! Slots of patched call sites do not run filters. So they make only calls that every filter lets pass by their number
//! alone ([`passes`]). When there is a new filter, the slots are generated again.

use core::ptr::null;
use core::slice;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use linux_raw_sys::ptrace as p;
use ulpf_lib::boot::BootArgs;
use ulpf_lib::seccomp::{Data, Instruction, Kept, MOST, PREFIX, STRICT, Verdict, X86_64};
use ulpf_lib::sys::Errno;
use ulpf_lib::sys::failure::{EINVAL, ENOMEM, ENOSYS};
use ulpf_lib::{seccomp, sys};

use super::call::{Args, Outcome, raw};
use super::confined;
use super::ends::end_thread;
use super::ordinary::ordinary;
use super::sites::{self, KNOWN, Numbers};
use crate::global::{boot_block, g, machine};
use crate::runtime::asm::{ulpf_blocking, ulpf_judged};
use crate::runtime::events::Request;
use crate::runtime::frame::{SigInfo, UContext};
use crate::runtime::memory;
use crate::runtime::park;
use crate::runtime::seccomp_filters::Filter;
use crate::runtime::thread::{Current, Thread};
use crate::runtime::tracer;
use crate::signals::actions::KernelAction;
use crate::signals::delivery::default_action;
use crate::signals::numbers::{SIGKILL, SIGSYS, bit};
use crate::signals::{kernel, masks, raise};

/// Some thread has a filter.
pub static SOME: AtomicBool = AtomicBool::new(false);
/// Numbers that a filter of some thread does not let pass for all arguments.
static LOOKED_AT: Numbers = [const { AtomicU64::new(0) }; KNOWN / 64];
/// A supervisor should decide about a call that only we can make: it was made.
pub static UNSUPERVISED: AtomicBool = AtomicBool::new(false);
/// A filter is too long for the kernel behind [`seccomp::exempting`].
pub static TOO_LONG: AtomicBool = AtomicBool::new(false);

/// An address that the program cannot have.
const UNREADABLE: u64 = u64::MAX << 12;

/// Creates a filter of `len` instructions, which `write` writes.
fn make(len: usize, write: impl FnOnce(&mut [Instruction]) -> bool) -> Option<&'static mut Filter> {
    let filter = Filter::with_len(len)?;
    let (prefix, own) = filter.parts_mut();
    let (start, end) = machine().image;
    prefix.copy_from_slice(&seccomp::exempting(start, end, judged()));
    if !write(own) {
        Filter::unmap(filter);
        return None;
    }
    Some(filter)
}

/// The address that a filter sees for a call that is not exempt.
fn judged() -> u64 {
    ulpf_judged as *const () as u64 + 2
}

/// True if the thread has a filter.
pub fn filtered(t: &Thread) -> bool {
    !t.filters.is_empty()
}

/// True if the filters allow a call of `t` from `ip` (the address behind the instruction).
pub fn permits(t: &Thread, nr: u64, ip: u64, a: &Args) -> bool {
    decide(t, nr, ip, X86_64, a).0 == Verdict::Allow
}

/// The filters' verdict, and whether it is that of the strict mode.
fn decide(t: &Thread, nr: u64, ip: u64, arch: u32, a: &Args) -> (Verdict, bool) {
    let data = Data {
        nr: nr as i32,
        arch,
        instruction_pointer: ip,
        args: *a,
    };
    let strict = t.filters.each().any(|filter| filter.is_strict());
    let values = t
        .filters
        .each()
        .map(|filter| seccomp::run(filter.instructions(), &data));
    (Verdict::of(seccomp::strictest(values)), strict)
}

/// Runs the thread's filters on a call of the program. Returns the outcome if the call must not be made as usual.
pub fn judge(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> Option<Outcome> {
    judge_as(t, uc, nr, X86_64, a)
}

/// As [`judge`], for a call of this architecture.
pub fn judge_as(t: Current, uc: &mut UContext, nr: u64, arch: u32, a: &Args) -> Option<Outcome> {
    if !filtered(&t) {
        return None;
    }
    let ours = arch == X86_64;
    let (verdict, strict) = decide(&t, nr, uc.gprs.rip, arch, a);
    match verdict {
        Verdict::Allow => None,
        Verdict::Errno(errno) => {
            // Not an outcome: the filter may return any number, also those that we use among ourselves.
            uc.gprs.rax = (-i64::from(errno)) as u64;
            Some(Outcome::Leave)
        }
        Verdict::Trap(errno) => {
            trap(t, uc, nr, arch, (k::SYS_SECCOMP as i32, errno.into()));
            Some(Outcome::Leave)
        }
        Verdict::Notify if !t.filters.each().any(Filter::is_heard) => Some(Outcome::Value(ENOSYS)),
        Verdict::Trace if !tracer::is_traced() => Some(Outcome::Value(ENOSYS)),
        Verdict::Notify | Verdict::Trace if ours && super::is_ordinary(nr) => {
            t.own().judged.set(true);
            let result = confined::call(t, uc, nr, a);
            t.own().judged.set(false);
            Some(Outcome::Value(result))
        }
        Verdict::Notify | Verdict::Trace => {
            park::tell(t, uc, &UNSUPERVISED);
            None
        }
        Verdict::KillThread if !strict && has_others(&t) => {
            end_thread(t);
            if ours {
                by_kernel(nr, a);
            }
            // SAFETY: the kernel has not ended the thread, so it ends itself.
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

/// Lets the kernel decide about the call as it was made, and make it.
fn by_kernel(nr: u64, a: &Args) {
    let [a0, a1, a2, a3, a4, a5] = *a;
    // SAFETY: a call that a filter of the program forbids.
    let _ = unsafe { ulpf_blocking(&[nr, a0, a1, a2, a3, a4, a5], null(), 1) };
}

/// Raises the program's SIGSYS, with this code and error, instead of a call. As in the kernel's `force_sig_seccomp`,
/// the signal ends a program that blocks or ignores it.
pub fn trap(t: Current, uc: &mut UContext, nr: u64, arch: u32, (code, errno): (i32, i32)) {
    let blocked = masks::virtual_mask(t, uc) & bit(SIGSYS) != 0;
    if blocked {
        kernel::actions(t).set(SIGSYS, KernelAction::default());
    }
    let mut info = SigInfo {
        signo: SIGSYS,
        errno,
        code,
        ..SigInfo::zeroed()
    };
    info.data[0] = uc.gprs.rip;
    info.data[1] = nr & 0xffff_ffff | u64::from(arch) << 32;
    uc.gprs.rax = nr;
    raise::raise(t, uc, SIGSYS, &info);
}

/// Ends the process for a filter, after this call.
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
    // The kernel's filter has let the call pass (it has seen another address): the process ends here in the same way.
    default_action(t, uc, SIGSYS, &SigInfo::zeroed());
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
        return EINVAL; // already in another mode
    }
    let copy = |to: &mut [Instruction]| {
        to.copy_from_slice(&STRICT);
        true
    };
    let Some(filter) = make(STRICT.len(), copy) else {
        return ENOMEM;
    };
    filter.set_nature(Kept::STRICT);
    // A filter needs a privilege or no_new_privs, the strict mode neither: without them, it is kept only here.
    let _ = give_to_kernel(filter, 0);
    t.filters.push(filter);
    begin(t, uc);
    0
}

fn install(t: Current, uc: &mut UContext, flags: u32, at: u64) -> i64 {
    // struct sock_fprog
    let Some([len, instructions]) = memory::get::<[u64; 2]>(at) else {
        return set_filter(flags, UNREADABLE);
    };
    let len = len as u16 as usize;
    if len == 0 || len > MOST {
        return refused(flags, len, instructions);
    }
    if len > MOST - PREFIX {
        park::tell(t, uc, &TOO_LONG);
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
    let Some(filter) = make(len, read) else {
        return match readable {
            true => ENOMEM,
            false => refused(flags, len, instructions),
        };
    };
    // No thread begins or ends while all threads get the filter.
    let all = flags & p::SECCOMP_FILTER_FLAG_TSYNC != 0;
    if all {
        park::request(t, uc, Request::ForkBegin);
    }
    let result = give_to_kernel(filter, flags);
    // With TSYNC alone, a positive result names a thread that cannot have the filter.
    let installed = result == 0 || result > 0 && flags & p::SECCOMP_FILTER_FLAG_NEW_LISTENER != 0;
    if !installed {
        Filter::unmap(filter);
    } else {
        if flags & p::SECCOMP_FILTER_FLAG_NEW_LISTENER != 0 {
            filter.set_nature(Kept::HEARD);
        }
        t.filters.push(filter);
        if all {
            let of_process = |other: &&Thread| other.tgid() == t.tgid();
            for other in g().threads.iter().filter(of_process) {
                other.filters.become_those_of(&t.filters);
            }
        }
    }
    if all {
        park::request(t, uc, Request::End);
    }
    if installed {
        begin(t, uc);
    }
    result
}

/// Installs the filter, including the instructions before it.
fn give_to_kernel(filter: &Filter, flags: u32) -> i64 {
    let all = filter.all();
    let program = [all.len() as u64, all.as_ptr() as u64];
    set_filter(flags, program.as_ptr() as u64)
}

/// Lets the kernel report the error of a filter of this length. The kernel does not read the program's filter, which
/// another thread may have corrected meanwhile: installed unchanged, it would forbid calls that the stub needs.
fn refused(flags: u32, len: usize, instructions: u64) -> i64 {
    let at = if instructions == 0 { 0 } else { UNREADABLE };
    let program = [len as u64, at];
    set_filter(flags, program.as_ptr() as u64)
}

fn set_filter(flags: u32, at: u64) -> i64 {
    let operation = p::SECCOMP_SET_MODE_FILTER.into();
    raw(
        k::__NR_seccomp.into(),
        &[operation, flags.into(), at, 0, 0, 0],
    )
}

/// True if every filter lets calls of this number pass.
pub fn passes(nr: u64) -> bool {
    !sites::has(&LOOKED_AT, nr)
}

/// A thread has a new filter: from now on its calls are checked here.
fn begin(t: Current, uc: &mut UContext) {
    let Some(filter) = t.filters.each().next() else {
        return;
    };
    look_at(filter);
    no_slots(t, uc);
}

/// Has all calls checked here.
pub fn look_at_all(t: Current, uc: &mut UContext) {
    for word in &LOOKED_AT {
        word.store(u64::MAX, SeqCst);
    }
    no_slots(t, uc);
}

/// Stops slots from making calls that must be checked here.
fn no_slots(t: Current, uc: &mut UContext) {
    if sites::SOME.load(SeqCst) {
        park::request(t, uc, Request::SitesAnew);
    }
}

fn look_at(filter: &Filter) {
    SOME.store(true, SeqCst);
    for nr in (0..KNOWN as u32).filter(|nr| !seccomp::always_allows(filter.instructions(), *nr)) {
        sites::put(&LOOKED_AT, nr.into());
    }
}

/// Takes over the filters that the program's only thread has from before ([`BootArgs::filters`]), when this stub
/// begins.
pub fn adopt(t: &Thread, a: &BootArgs) -> Result<(), Errno> {
    let (mut at, end) = (a.filters, a.filters + a.filters_len);
    while at < end {
        // SAFETY: the command has written them there.
        let kept = unsafe { &*(at as *const Kept) };
        let first = at + size_of::<Kept>() as u64;
        let len = PREFIX + kept.len as usize;
        // SAFETY: as above.
        let all = unsafe { slice::from_raw_parts(first as *const Instruction, len) };
        let filter = Filter::with_len(kept.len as usize).ok_or(Errno(-ENOMEM as i32))?;
        let (prefix, own) = filter.parts_mut();
        let (theirs, program) = all.split_at(PREFIX);
        prefix.copy_from_slice(theirs);
        own.copy_from_slice(program);
        filter.set_nature(kept.nature);
        look_at(filter);
        t.filters.push(filter);
        at = first + size_of_val(all) as u64;
    }
    Ok(())
}

/// Tells the command the address of the filters of `t` ([`BootArgs::leaving`]).
pub fn tell(t: &Thread) {
    // SAFETY: the block exists as long as the image, and this field has no other writer.
    unsafe { (&raw mut (*boot_block()).leaving).write_volatile(t.filters.address()) };
}

/// True if the command wants this image to stay in the forked child ([`BootArgs::stays`]).
pub fn image_stays() -> bool {
    // SAFETY: the block exists as long as the image.
    unsafe { (&raw const (*boot_block()).stays).read_volatile() != 0 }
}

/// Gives a new thread the filters of its parent.
pub fn inherit(child: &Thread, parent: &Thread) {
    child.filters.become_those_of(&parent.filters);
}
