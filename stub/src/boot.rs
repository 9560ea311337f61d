//! The entries that the command runs when it has loaded the image (see `ulpf_lib::boot`).

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

use alloc::boxed::Box;

use linux_raw_sys::{auxvec, general as k, prctl};
use ulpf_lib::boot::{BOOT_MAGIC, BOOT_VERSION, BootArgs};
use ulpf_lib::place::{self, AfterFork};
use ulpf_lib::ring::{SHARED_LEN, SharedHeader};
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;

use ulpf_lib::arena::map_anonymous;
use ulpf_lib::guard::{Guards, flags};
use ulpf_lib::sync::futex;
use ulpf_lib::sys::failure::{EINVAL, ENOMEM};
use ulpf_stub_handlers::global::{self, Machine, g, machine};
use ulpf_stub_handlers::ours::PAD;
use ulpf_stub_handlers::rights::{MOST_GROUPS, Rights, supplementary};
use ulpf_stub_handlers::runtime::asm::{ulpf_report, ulpf_spawn};
use ulpf_stub_handlers::runtime::keys;
use ulpf_stub_handlers::runtime::thread::{Current, State};
use ulpf_stub_handlers::signals::{kernel, numbers::HIDDEN};
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_handlers::{engine, locks, syscalls};
use ulpf_stub_task::control;

const STUB_STACK: usize = 1 << 20;

static ARGS: AtomicPtr<BootArgs> = AtomicPtr::new(core::ptr::null_mut());
/// 0: the stub's task is starting; 1: ready; else a negative errno as u32.
static READY: AtomicU32 = AtomicU32::new(0);
static STACK: AtomicU64 = AtomicU64::new(0);

/// # Safety
/// Called by the command on a stopped thread of the program, see `ulpf_lib::boot`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ulpf_stub_boot(args: *mut BootArgs) -> ! {
    // SAFETY: the command wrote the block.
    let r = unsafe { boot(args) };
    // SAFETY: ends the entry.
    unsafe { ulpf_report(r.map_or_else(|e| -(e.0 as i64), |_| 0)) }
}

/// # Safety
/// As [`ulpf_stub_boot`], on each further thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ulpf_stub_boot_thread(args: *mut BootArgs) -> ! {
    // SAFETY: the command wrote the block.
    let area = unsafe { (*args).sequences };
    let r = adopt_thread(area).map(drop);
    // SAFETY: ends the entry.
    unsafe { ulpf_report(r.map_or_else(|e| -(e.0 as i64), |_| 0)) }
}

unsafe fn boot(args: *mut BootArgs) -> Result<(), Errno> {
    // SAFETY: the command wrote the block.
    let a = unsafe { &mut *args };
    if a.magic != BOOT_MAGIC || a.version != BOOT_VERSION {
        return Err(Errno(-EINVAL as i32));
    }
    let auxiliary = |key: u32| {
        let mut entries = a.auxv.as_chunks::<2>().0.iter();
        let entry = entries.find(|entry| entry[0] == u64::from(key));
        entry.map_or(0, |entry| entry[1])
    };
    let fsgsbase = auxiliary(auxvec::AT_HWCAP2) & 2 != 0;
    let min_sigstack = auxiliary(auxvec::AT_MINSIGSTKSZ);
    let random = auxiliary(auxvec::AT_RANDOM);
    // SAFETY: nothing else runs yet.
    unsafe {
        global::init(Machine {
            image: (a.image_base, a.image_base + a.image_len),
            fsgsbase,
            min_sigstack,
            random,
        });
        ARGS.store(args, SeqCst);
        global::set_boot_block(args);
        place::settle(a.place);
        place::begin_at(a.begin);
        PAD.store(a.pad, Relaxed);
        g().pid.store(sys!(k::__NR_getpid)? as i32, Relaxed);
        g().brk.store(sys!(k::__NR_brk, 0)?, Relaxed);
    }
    if !g().threads.init() {
        return Err(Errno(-ENOMEM as i32));
    }
    // SAFETY: no handler of ours is there yet.
    unsafe { engine::init() }?;
    keys::init();
    // The world counts as stopped until the debugger (or `ulpf run`) resumes it.
    g().world.store(1, SeqCst);
    let stack = map_anonymous(STUB_STACK);
    if stack.is_null() {
        return Err(Errno(-ENOMEM as i32));
    }
    // The child inherits the mask: nothing may interrupt the stub's task.
    let all = !0u64;
    let mut old = 0u64;
    // SAFETY: masks around the clone.
    unsafe {
        sys!(
            k::__NR_rt_sigprocmask,
            k::SIG_SETMASK,
            &all as *const u64,
            &mut old as *mut u64,
            8
        )
    }?;
    STACK.store(stack as u64, Relaxed);
    // Two steps, so that the stub's task is not a child of the program: the program must not find it with wait(2).
    let orphan = !inherits_orphans();
    let (top, begin): (_, extern "C" fn() -> !) = match orphan {
        true => (64 * 1024, first_step),
        false => (STUB_STACK as u64, stub_task),
    };
    // SAFETY: tasks of our own on their own stack; CLONE_VM alone: no shared descriptors, handlers or group.
    let pid = unsafe { ulpf_spawn(k::CLONE_VM.into(), stack as u64 + top, begin) };
    // SAFETY: back to the program's mask, and the first step is reaped (__WALL).
    unsafe {
        sys!(
            k::__NR_rt_sigprocmask,
            k::SIG_SETMASK,
            &old as *const u64,
            0,
            8
        )?;
        if pid < 0 {
            return Err(Errno(-pid as i32));
        }
        if orphan {
            let _ = sys!(k::__NR_wait4, pid, 0, k::__WALL, 0);
        }
    }
    while READY.load(SeqCst) == 0 {
        futex::wait(&READY, 0);
    }
    let r = READY.load(SeqCst) as i32;
    if r < 0 {
        return Err(Errno(-r));
    }
    a.stub_pid = g().stub_tid.load(Relaxed);
    // Where yama guards ptrace, the stub's task needs leave to send traps to the program's threads
    // (debug registers). The kernel forgets it when that task ends.
    // SAFETY: without yama an error that does not matter.
    let _ = unsafe { sys!(k::__NR_prctl, prctl::PR_SET_PTRACER, a.stub_pid) };
    kernel::take_over();
    let t = adopt_thread(a.sequences)?;
    syscalls::seccomp::adopt(&t, a)?;
    // The stub's task has copies of the descriptors, and we have those of the filters.
    // SAFETY: what the command has made for this boot alone.
    unsafe {
        let _ = sys!(k::__NR_close, a.control_fd);
        let _ = sys!(k::__NR_close, a.shared_fd);
        if a.filters_len > 0 {
            let _ = sys!(k::__NR_munmap, a.filters, a.filters_len);
        }
    }
    Ok(())
}

/// Returns whether the program would become the parent of orphans, and so of the stub's task. It does if it is the
/// first process of a container, or has made itself a subreaper. Then the task is made its child at once, without an
/// exit signal: wait(2) skips such a child without __WCLONE or __WALL, and still reports that there is no child.
fn inherits_orphans() -> bool {
    let mut subreaper = 0i32;
    // SAFETY: asks for a number and a flag.
    unsafe {
        let _ = sys!(
            k::__NR_prctl,
            prctl::PR_GET_CHILD_SUBREAPER,
            &raw mut subreaper
        );
    }
    g().pid.load(Relaxed) == 1 || subreaper != 0
}

extern "C" fn first_step() -> ! {
    // SAFETY: makes the stub's task and ends.
    unsafe {
        let r = ulpf_spawn(
            k::CLONE_VM.into(),
            STACK.load(Relaxed) + STUB_STACK as u64,
            stub_task,
        );
        if r < 0 {
            ready(r as i32);
        }
        let _ = sys!(k::__NR_exit, 0);
    }
    loop {
        core::hint::spin_loop();
    }
}

/// Gives the calling thread its record, its stack and its dispatch. `area`: see [`BootArgs::sequences`].
fn adopt_thread(area: [u64; 3]) -> Result<Current, Errno> {
    if g().threads.iter().next().is_some() {
        locks::threads_begin();
    }
    let t = g()
        .threads
        .create(&g().actions)
        .ok_or(Errno(-ENOMEM as i32))?;
    // SAFETY: the record that is made for this thread.
    let t = unsafe { Current::with(t) };
    let own = t.own();
    own.booting.set(true);
    own.area_before.set(area);
    let stack = t.our_stack();
    let mut mask = 0u64;
    // SAFETY: reads and sets up the calling thread.
    unsafe {
        t.tid.store(sys!(k::__NR_gettid)? as i32, Relaxed);
        t.tgid.store(g().pid.load(Relaxed), Relaxed);
        sys!(k::__NR_sigaltstack, &raw const stack, own.alt.as_ptr())?;
        sys!(
            k::__NR_rt_sigprocmask,
            k::SIG_BLOCK,
            0,
            &mut mask as *mut u64,
            8
        )?;
        own.hidden.set(mask & HIDDEN);
        let mut size = 0u64;
        let _ = sys!(k::__NR_get_robust_list, 0, t.robust.as_ptr(), &raw mut size);
        let unblock = HIDDEN;
        sys!(
            k::__NR_rt_sigprocmask,
            k::SIG_UNBLOCK,
            &unblock as *const u64,
            0,
            8
        )?;
    }
    sys::check(syscalls::process::enable_dispatch())?;
    let mut room = [0; MOST_GROUPS];
    t.rights.put(&Rights::of_caller(supplementary(&mut room)));
    t.set_state(State::Running);
    Ok(t)
}

fn ready(r: i32) {
    READY.store(if r == 0 { 1 } else { r as u32 }, SeqCst);
    futex::wake_all(&READY);
}

extern "C" fn stub_task() -> ! {
    // The task reads the time-stamp counter, whatever the thread may that it was made by.
    // SAFETY: a setting of this task's.
    let _ = unsafe { sys!(k::__NR_prctl, prctl::PR_SET_TSC, prctl::PR_TSC_ENABLE) };
    // SAFETY: `boot` wrote it before this task existed; nothing writes it any more.
    let args = unsafe { &*ARGS.load(SeqCst) };
    match set_up(args).and_then(|fd| control::listen(fd).map(|()| fd)) {
        Ok(control_fd) => {
            if control::run(control_fd, args.flags, || ready(0)) {
                end_after_detach();
            }
        }
        Err(e) => ready(-e.0),
    }
    end()
}

/// Ends the stub's task after a detach. The mappings that it leaves are listed for the command.
fn end_after_detach() -> ! {
    let left = control::left::list();
    // SAFETY: as in `stub_task`, which does not go on.
    let args = unsafe { &mut *ARGS.load(SeqCst) };
    args.left = left.as_ptr() as u64;
    args.left_len = left.len() as u64;
    args.left_gate = control::left::gate();
    end()
}

fn end() -> ! {
    // SAFETY: ends this task alone.
    unsafe {
        let _ = sys!(k::__NR_exit_group, 0);
    }
    loop {
        core::hint::spin_loop();
    }
}

/// Keeps the two descriptors that the command has made, and drops everything else of the program's.
fn set_up(a: &BootArgs) -> Result<i32, Errno> {
    // SAFETY: this task's own descriptor table and mappings.
    unsafe {
        g().stub_tid.store(sys!(k::__NR_getpid)? as i32, Relaxed);
        control::rescue::prepare(crate::heap::free_lock, end_after_detach);
        let _ = sys!(k::__NR_prctl, prctl::PR_SET_NAME, c"ulpf-stub".as_ptr());
        // This task's descriptor table is a copy of the program's: keep the two, close the rest.
        let (control, shared) = (a.control_fd as u32, a.shared_fd as u32);
        let (low, high) = (control.min(shared), control.max(shared));
        for (first, last) in [
            (0, low.wrapping_sub(1)),
            (low + 1, high.wrapping_sub(1)),
            (high + 1, u32::MAX),
        ] {
            if first <= last && last != u32::MAX || first == high + 1 {
                sys!(k::__NR_close_range, first, last, 0)?;
            }
        }
        let at = place::map(
            SHARED_LEN,
            k::PROT_READ | k::PROT_WRITE,
            k::MAP_SHARED | k::MAP_NORESERVE,
            i64::from(shared),
            AfterFork::Parent,
        )?;
        place::not_dumped(at, SHARED_LEN);
        g().shared.store(at as *mut SharedHeader, Relaxed);
        sys!(k::__NR_close, shared)?;
        ulpf_lib::kept::keep();
        control::text::keep();
        control::confine::begin();
        flags::calls_are_reported();
        let mut guards = Guards::lazy(&g().page_map);
        let (base, end) = machine().image;
        guards.exclude(ulpf_lib::TargetAddr(base), end - base);
        guards.exclude(ulpf_lib::TargetAddr(at), SHARED_LEN);
        guards.stay_where(ulpf_stub_handlers::sequences::stays);
        // Nothing else of ours runs yet.
        Stopped::claim().tables_mut().guards = Some(Box::new(guards));
        Ok(control as i32)
    }
}
