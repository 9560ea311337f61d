//! seccomp(2): the program's filters see its calls as the program makes them.
//!
//! What the stub makes on the program's behalf comes from other code, with other pointers, and the stub has calls of
//! its own that no filter of the program's knows. So the kernel gets each filter behind a few instructions that let our
//! image's calls pass ([`ulpf_lib::seccomp::exempting`]), and the filters are run here, on the call as it was made
//! ([`judge`]). What only the kernel can do (tell a supervisor or a tracer, end a thread) it does at one `syscall`
//! instruction that is not let pass: [`ulpf_judged`]. There it sees that instruction's address, and where memory has
//! moved, another buffer's; so where nobody is there to be told, it is not asked.
//!
//! The kernel's filters stay what they are in forked children, after exec and after a detach; there the addresses of our
//! image pass, where nothing of ours lies any more. A child or program that is followed gets its stub at the same
//! addresses, and with it the filters: the command finds them where [`tell`] says, and [`adopt`] takes them there.
//!
//! Slots of patched call sites ask nobody. So they make only calls that every filter lets pass by their number alone
//! ([`passes`]); when there is a new filter, they are made anew.

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
use crate::runtime::filters::Filter;
use crate::runtime::frame::{SigInfo, UContext};
use crate::runtime::memory;
use crate::runtime::park;
use crate::runtime::thread::{Current, Thread};
use crate::runtime::tracer;
use crate::signals::actions::KernelAction;
use crate::signals::delivery::default_action;
use crate::signals::numbers::{SIGKILL, SIGSYS, bit};
use crate::signals::{kernel, masks, raise};

/// Any thread has a filter.
pub static SOME: AtomicBool = AtomicBool::new(false);
/// Numbers that a filter of some thread does not let pass whatever the arguments are.
static LOOKED_AT: Numbers = [const { AtomicU64::new(0) }; KNOWN / 64];
/// A supervisor would have to decide about a call that only we can make: it was made.
pub static UNSUPERVISED: AtomicBool = AtomicBool::new(false);
/// A filter is longer than the kernel takes behind [`seccomp::exempting`].
pub static TOO_LONG: AtomicBool = AtomicBool::new(false);

/// No address of the program's.
const UNREADABLE: u64 = u64::MAX << 12;

/// A filter of `len` instructions, which `write` writes.
fn make(len: usize, write: impl FnOnce(&mut [Instruction]) -> bool) -> Option<&'static mut Filter> {
    let filter = Filter::with_room(len)?;
    let (prefix, own) = filter.parts_mut();
    let (start, end) = machine().image;
    prefix.copy_from_slice(&seccomp::exempting(start, end, judged()));
    if !write(own) {
        Filter::unmap(filter);
        return None;
    }
    Some(filter)
}

/// The address that a filter sees of a call that is not let pass.
fn judged() -> u64 {
    ulpf_judged as *const () as u64 + 2
}

/// Has the thread a filter?
pub fn filtered(t: &Thread) -> bool {
    !t.filters.is_empty()
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
    let strict = t.filters.each().any(|filter| filter.is_strict());
    let values = t
        .filters
        .each()
        .map(|filter| seccomp::run(filter.instructions(), &data));
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
        Verdict::Errno(errno) => {
            // No outcome: any number may be asked for, also those by which we tell each other something.
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

/// The program's SIGSYS, with this code and error, instead of a call. As `force_sig_seccomp` of the kernel: who blocks or
/// ignores the signal is ended by it.
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
        return EINVAL; // another mode already
    }
    let copy = |to: &mut [Instruction]| {
        to.copy_from_slice(&STRICT);
        true
    };
    let Some(filter) = make(STRICT.len(), copy) else {
        return ENOMEM;
    };
    filter.set_nature(Kept::STRICT);
    // A filter needs a privilege or no_new_privs, the strict mode neither: without, it is kept here alone.
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
    // No thread begins or ends while it is given to all of them.
    let all = flags & p::SECCOMP_FILTER_FLAG_TSYNC != 0;
    if all {
        park::request(t, uc, Request::ForkBegin);
    }
    let result = give_to_kernel(filter, flags);
    // With TSYNC alone, a positive result names a thread that cannot have it.
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

/// Installs the filter, with what stands before it.
fn give_to_kernel(filter: &Filter, flags: u32) -> i64 {
    let all = filter.all();
    let program = [all.len() as u64, all.as_ptr() as u64];
    set_filter(flags, program.as_ptr() as u64)
}

/// The kernel says what is wrong with a filter of this length. It does not look at the program's, which another thread
/// may have put right meanwhile: installed as it is, that one would forbid what the stub needs.
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

/// Does every filter let calls of this number pass?
pub fn passes(nr: u64) -> bool {
    !sites::has(&LOOKED_AT, nr)
}

/// A thread has a new filter: from now on its calls are looked at here.
fn begin(t: Current, uc: &mut UContext) {
    let Some(filter) = t.filters.each().next() else {
        return;
    };
    look_at(filter);
    no_slots(t, uc);
}

/// No call is to be made without a look at it.
pub fn look_at_all(t: Current, uc: &mut UContext) {
    for word in &LOOKED_AT {
        word.store(u64::MAX, SeqCst);
    }
    no_slots(t, uc);
}

/// Slots leave to us what they may not make any more.
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

/// The program's only thread, as this stub begins: the filters that it has from before ([`BootArgs::filters`]).
pub fn adopt(t: &Thread, a: &BootArgs) -> Result<(), Errno> {
    let (mut at, end) = (a.filters, a.filters + a.filters_len);
    while at < end {
        // SAFETY: the command has written them there.
        let kept = unsafe { &*(at as *const Kept) };
        let first = at + size_of::<Kept>() as u64;
        let len = PREFIX + kept.len as usize;
        // SAFETY: as above.
        let all = unsafe { slice::from_raw_parts(first as *const Instruction, len) };
        let filter = Filter::with_room(kept.len as usize).ok_or(Errno(-ENOMEM as i32))?;
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

/// The command is to find the filters of `t` ([`BootArgs::leaving`]).
pub fn tell(t: &Thread) {
    // SAFETY: the block is there as long as the image, and nobody else writes this field.
    unsafe { (&raw mut (*boot_block()).leaving).write_volatile(t.filters.address()) };
}

/// The command wants this image to stay in the forked child ([`BootArgs::stays`]).
pub fn image_stays() -> bool {
    // SAFETY: the block is there as long as the image.
    unsafe { (&raw const (*boot_block()).stays).read_volatile() != 0 }
}

/// A thread as it begins: those of its parent.
pub fn inherit(child: &Thread, parent: &Thread) {
    child.filters.become_those_of(&parent.filters);
}
