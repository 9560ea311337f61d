//! The C interface (`include/ulpf.h`): status codes, errno, and a sentence in `ulpf_error`.

use core::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use core::sync::atomic::Ordering::*;

use ulpf_lib::guard::{PROT_EXEC, maps};
use ulpf_lib::{AccessKind, WatchKind};

use crate::backend::{self, Backend};
use crate::callbacks::current;
use crate::calls;
use crate::change::change;
use crate::error::{self, Failure};
use crate::exception_stacks::OwnBlock;
use crate::keys;
use crate::model::{FLAGS, Request};
use crate::pli::Permission;
use crate::poison;
use crate::setup::{self, prepare, with};
use crate::shared::S;
use crate::watch::{self, Counts, Stats};

/// `struct ulpf_watchpoint`.
#[repr(C)]
pub struct Watchpoint {
    /// Bytes of the structure as the caller knows it.
    pub size: usize,
    /// First byte to watch.
    pub addr: *mut c_void,
    /// In bytes; at least one.
    pub len: usize,
    /// `ULPF_READ` (1), `ULPF_WRITE` (2) or `ULPF_ACCESS` (3).
    pub access: c_int,
    /// `ULPF_*` flags, or 0.
    pub flags: u32,
    /// Its thread (or with `ULPF_OTHERS` the exempt one), or 0 for all.
    pub thread: i32,
    /// 0.
    pub reserved: i32,
    /// Called after each hit, or 0 for the handler of `ulpf_set_handler`.
    pub handler: usize,
    /// Argument of the handler.
    pub data: *mut c_void,
}

fn fail(failure: &Failure) -> c_long {
    error::remember(&failure.text);
    // SAFETY: the calling thread's errno.
    unsafe { *libc::__errno_location() = failure.errno };
    -1
}

/// The result for C; errno is unchanged without an error.
fn answer(result: Result<c_long, Failure>) -> c_long {
    result.unwrap_or_else(|failure| fail(&failure))
}

fn call<R>(f: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
    // SAFETY: the calling thread's errno, which what we call may change.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let kept = unsafe { *errno };
    // Nothing may unwind into C.
    let result = std::panic::catch_unwind(core::panic::AssertUnwindSafe(f)).unwrap_or_else(|_| {
        Err(Failure::new(
            libc::EFAULT,
            "an error inside libulpf; please report it",
        ))
    });
    // SAFETY: as above.
    unsafe { *errno = kept };
    result
}

fn code_at(addr: usize, what: &str) -> Result<(), Failure> {
    prepare()?;
    // As a change, because the kernel would write into the program's heap, which may be guarded.
    let prot = change(|_| {
        let snapshot = maps::Snapshot::read()
            .map_err(|e| Failure::os(e, "/proc/self/maps cannot be read; mount /proc"))?;
        Ok(snapshot.at(addr as u64).map_or(0, |v| v.prot))
    })?;
    match prot & PROT_EXEC {
        PROT_EXEC => Ok(()),
        _ => Err(Failure::new(
            libc::EFAULT,
            format!("{what} at {addr:#x} is not code of this process"),
        )),
    }
}

// ---- the thesis's API ---------------------------------------------------------------------------

/// Registers the handler of all faults on guarded pages, and prepares the rest.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_register_user_handler(handler: *mut c_void) -> c_int {
    answer(call(|| {
        if handler.is_null() {
            return Err(Failure::new(libc::EINVAL, "the handler is a null pointer"));
        }
        code_at(handler as usize, "the handler")?;
        prepare()?;
        if backend::is(Backend::Registers) {
            return Err(Failure::new(
                libc::EOPNOTSUPP,
                "debug registers trap behind the access, so no handler can come before it; use another back end",
            ));
        }
        S.user_handler
            .compare_exchange(0, handler as usize, AcqRel, Acquire)
            .map_err(|_| {
                Failure::new(
                    libc::EBUSY,
                    "a handler is registered already; call ulpf_unregister first",
                )
            })?;
        Ok(0)
    })) as c_int
}

/// Ends all watches. 0, or -1 and errno.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_unregister() -> c_int {
    answer(call(|| setup::unregister().map(|()| 0))) as c_int
}

/// Reports the accesses to `range` bytes from `addr` on that the permission (`USER_*`, thesis section 3.4) forbids.
/// 0, or -1 and errno: EPERM without a handler, EINVAL, EFAULT, EOPNOTSUPP, ENOMEM, ENOSPC.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_set_permissions(
    addr: *mut c_void,
    range: usize,
    permissions: c_int,
) -> c_long {
    answer(call(|| {
        let permission = permission(permissions)?;
        if S.user_handler.load(Acquire) == 0 {
            return Err(Failure::new(
                libc::EPERM,
                "no handler is registered; call ulpf_register_user_handler first",
            ));
        }
        with(|m| m.set_permissions(addr as u64, range as u64, permission)).map(|()| 0)
    }))
}

fn permission(value: c_int) -> Result<Permission, Failure> {
    Permission::from_value(value).ok_or_else(|| {
        Failure::new(
            libc::EINVAL,
            format!("{value:#x} is no permission: USER_RW, USER_RO, USER_EXE, USER_WO"),
        )
    })
}

/// The address that faulted; 0 outside a handler.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_read_fault_addr() -> c_ulong {
    current().map_or(0, |f| f.addr)
}

/// 1: the access that faulted touches watched bytes; 0: a false positive, or no handler is running.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_lookup_wp() -> c_int {
    current().map_or(0, |f| f.watched as c_int)
}

/// The PLI region that governs an address (thesis section 3.3.2), or 0.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_check_virt_prefix(addr: *mut c_void) -> c_ulong {
    call(|| with(|m| Ok(m.check_virt_prefix(addr as u64)))).unwrap_or(0)
}

/// Changes the permission of the page of `addr` in its PLI region, and the page's guard with it. 0, or -1 and errno:
/// EINVAL for another region.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_modify_pli(addr: *mut c_void, permissions: c_int, region: c_ulong) -> c_int {
    answer(call(|| {
        let permission = permission(permissions)?;
        with(|m| m.modify_pli(addr as u64, permission, region)).map(|()| 0)
    })) as c_int
}

// ---- Sentry-Watcher's API ------------------------------------------------------------------------

/// The handler of all watchpoints without one of their own, or null for none. 0, or -1 and errno: EFAULT if it is not
/// code.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_set_handler(handler: *mut c_void, data: *mut c_void) -> c_int {
    answer(call(|| {
        if !handler.is_null() {
            code_at(handler as usize, "the handler")?;
        }
        S.handler.store(0, Release);
        S.handler_data.store(data as usize, Release);
        S.handler.store(handler as usize, Release);
        Ok(0)
    })) as c_int
}

/// Watches `len` bytes (`ULPF_*` access). The watchpoint's number, or -1 and errno as `ulpf_insert`.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_insert_watchpoint(addr: *mut c_void, len: usize, access: c_int) -> c_long {
    let w = Watchpoint {
        size: size_of::<Watchpoint>(),
        addr,
        len,
        access,
        flags: 0,
        thread: 0,
        reserved: 0,
        handler: 0,
        data: core::ptr::null_mut(),
    };
    // SAFETY: one watchpoint.
    answer(call(|| unsafe { insert(&w, 1) }).map(|ids| ids[0] as c_long))
}

/// # Safety
/// `watchpoints` points to `count` of them, `ids` (if not null) to room for as many numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ulpf_insert(
    watchpoints: *const Watchpoint,
    count: usize,
    ids: *mut c_long,
) -> c_int {
    answer(call(|| {
        // SAFETY: the caller's promise.
        let made = unsafe { insert(watchpoints, count) }?;
        if !ids.is_null() {
            for (i, id) in made.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { ids.add(i).write(*id as c_long) };
            }
        }
        Ok(0)
    })) as c_int
}

/// # Safety
/// As `ulpf_insert`.
unsafe fn insert(watchpoints: *const Watchpoint, count: usize) -> Result<Vec<u32>, Failure> {
    if watchpoints.is_null() || count == 0 {
        return Err(Failure::new(
            libc::EINVAL,
            "there is no watchpoint to insert",
        ));
    }
    let mut requests = Vec::with_capacity(count);
    for i in 0..count {
        // SAFETY: the caller's promise.
        let w = unsafe { &*watchpoints.add(i) };
        let kind = match w.access {
            1 => WatchKind::Read,
            2 => WatchKind::Write,
            3 => WatchKind::Access,
            other => {
                return Err(Failure::new(
                    libc::EINVAL,
                    format!("{other} is no kind of access: ULPF_READ, ULPF_WRITE, ULPF_ACCESS"),
                ));
            }
        };
        if w.size != size_of::<Watchpoint>()
            || w.flags & !FLAGS != 0
            || w.reserved != 0
            || w.thread < 0
        {
            return Err(Failure::new(
                libc::EINVAL,
                "a watchpoint's size, flags, thread or reserved field is wrong; begin with ULPF_WATCHPOINT_INIT",
            ));
        }
        if w.handler != 0 {
            code_at(w.handler, "a watchpoint's handler")?;
        }
        requests.push(Request {
            start: w.addr as u64,
            len: w.len as u64,
            kind,
            flags: w.flags,
            thread: w.thread,
            handler: w.handler,
            data: w.data as usize,
        });
    }
    let ids = with(|m| m.insert(&requests))?;
    // Into the program's own memory.
    Ok(ids.to_vec())
}

/// Ends a watch. 0, or -1 and errno: ENOENT if no watch has this number.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_delete_watchpoint(id: c_long) -> c_int {
    answer(call(|| {
        let id = u32::try_from(id).unwrap_or(u32::MAX);
        with(|m| m.delete(id)).map(|()| 0)
    })) as c_int
}

/// # Safety
/// `counts` points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ulpf_watchpoint_counts(id: c_long, counts: *mut Counts) -> c_int {
    match u32::try_from(id).ok().and_then(watch::counts) {
        Some(found) if !counts.is_null() => {
            // SAFETY: the caller's promise.
            unsafe { counts.write(found) };
            0
        }
        _ => fail(&Failure::new(
            libc::ENOENT,
            "there is no watchpoint of this number",
        )) as c_int,
    }
}

// ---- the rest -------------------------------------------------------------------------------------

/// An address at which the range can be accessed without a fault and without a hit; null and EXDEV if its parts are
/// apart.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_alias(addr: *mut c_void, len: usize) -> *mut c_void {
    match watch::alias(addr as usize, len) {
        Some(at) => at as *mut c_void,
        None => {
            fail(&Failure::new(
                libc::EXDEV,
                "the range has no contiguous alias; ask for parts of it",
            ));
            core::ptr::null_mut()
        }
    }
}

/// Whether a system call that accesses the range would fail with EFAULT because of a guard.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_is_guarded(addr: *const c_void, len: usize, access: c_int) -> c_int {
    let kind = match access {
        1 => AccessKind::Read,
        2 => AccessKind::Write,
        3 => AccessKind::ReadWrite,
        _ => {
            return fail(&Failure::new(
                libc::EINVAL,
                format!("{access} is no kind of access: ULPF_READ, ULPF_WRITE, ULPF_ACCESS"),
            )) as c_int;
        }
    };
    let piece = calls::Piece {
        addr: addr as u64,
        len: len as u64,
    };
    let Some(at) = calls::first_guarded(piece, kind) else {
        return 0;
    };
    let page = at & !(ulpf_lib::PAGE_SIZE - 1);
    error::remember(&format!(
        "the page {page:#x} is guarded because of a watch on it, so the kernel cannot access it: give the call \
         ulpf_alias({at:#x}, …), or use read, write, recv, send and their like of the C library"
    ));
    1
}

/// Gives the calling thread its exception stack now, not at its first fault.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_thread_init() -> c_int {
    answer(call(|| {
        prepare()?;
        change(|_| Ok(0))
    })) as c_int
}

/// The calling thread's accesses succeed without hits until `ulpf_resume`.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_suspend() -> c_int {
    own_pages(true)
}

/// The opposite of `ulpf_suspend`.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_resume() -> c_int {
    own_pages(false)
}

fn own_pages(open: bool) -> c_int {
    answer(call(|| {
        if !backend::is(Backend::Keys) {
            return Err(Failure::new(
                libc::EOPNOTSUPP,
                "only the back end `protection-keys` can let one thread through; delete the watches, or use ulpf_alias",
            ));
        }
        keys::set_own(open);
        Ok(0)
    })) as c_int
}

/// # Safety
/// `stats` points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ulpf_statistics(stats: *mut Stats) {
    // SAFETY: the caller's promise.
    unsafe { stats.write(watch::stats()) };
}

/// Requests a back end by name, before the first handler or watchpoint.
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ulpf_use_backend(name: *const c_char) -> c_int {
    answer(call(|| {
        if name.is_null() {
            return Err(Failure::new(
                libc::EINVAL,
                "the back end's name is a null pointer",
            ));
        }
        // SAFETY: the caller's promise.
        let name = unsafe { CStr::from_ptr(name) };
        backend::use_backend(&name.to_string_lossy()).map(|()| 0)
    })) as c_int
}

/// Name of the back end that is in use, or would be; valid until the thread's next request.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_backend_name() -> *const c_char {
    error::keep(backend::backend().0)
}

/// The reason for it; valid likewise.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_backend_reason() -> *const c_char {
    error::keep(&backend::backend().1)
}

/// The reason why the calling thread's last call failed; empty before the first failure.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_error() -> *const c_char {
    error::last().cast()
}

/// Whether the caller runs inside a handler (of ours).
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_in_handler() -> c_int {
    OwnBlock::here().map_or(0, |own| (own.depth.get() > 0) as c_int)
}

/// Declares these bytes inaccessible, for `ulpf check` and Valgrind's memcheck.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_poison(addr: *const c_void, len: usize) {
    poison::tell(poison::FORBIDDEN, addr as u64, len as u64);
}

/// The opposite of `ulpf_poison`.
#[unsafe(no_mangle)]
pub extern "C" fn ulpf_unpoison(addr: *const c_void, len: usize) {
    poison::tell(poison::USABLE, addr as u64, len as u64);
}
