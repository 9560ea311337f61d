//! The table of the x86-64 system calls: one row each, in the order of their numbers (Linux,
//! arch/x86/entry/syscalls/syscall_64.tbl). Roles follow the manual's prototypes, sizes the ABI.
//!
//! ```text
//! __NR_recvfrom(Fd, OutRet(Arg(2)), Uint, …)  consumes receives …;
//!      │        │   │      │                  what else is known of the call: `row::Row`'s words
//!      │        │   │      the length of the buffer: as argument 2 says
//!      │        │   argument 1 points to a buffer, of which the kernel writes as much as the result says
//!      │        argument 0 is a file descriptor
//!      the constant with the call's number
//! ```
//! A row without such words may block, is ended by signals, and touches its buffers and no other memory.

use linux_raw_sys::general as k;

use super::row::Special::*;
use super::row::{self, Left, Len, Role, Row, Unit};
use Len::*;
use Role::*;

const fn size<T>() -> u16 {
    size_of::<T>() as u16
}

const INT: u16 = size::<i32>();
const LONG: u16 = size::<u64>();
const TWO_INTS: u16 = 2 * INT;
const STAT: u16 = size::<k::stat>();
const STATX: u16 = size::<k::statx>();
const STATFS: u16 = size::<k::statfs>();
const TIMESPEC: u16 = row::TIME_SIZE;
const TIMEVAL: u16 = row::TIME_SIZE;
/// Of access, and of modification.
const TWO_TIMES: u16 = 2 * row::TIME_SIZE;
const UTIMBUF: u16 = 16;
const TIMEZONE: u16 = size::<k::timezone>();
const ITIMER: u16 = size::<k::__kernel_itimerspec>();
const TIMEX: u16 = 208;
const TMS: u16 = 32;
const RLIMIT: u16 = size::<k::rlimit>();
const RUSAGE: u16 = size::<k::rusage>();
const SIGINFO: u16 = size::<k::siginfo>();
const SIGEVENT: u16 = size::<k::sigevent>();
const MASK_AND_SIZE: u16 = 2 * LONG;
const POLLFD: u16 = size::<k::pollfd>();
const EPOLL_EVENT: u16 = size::<k::epoll_event>();
const IO_EVENT: u16 = 32;
const IOVEC: u16 = size::<k::iovec>();
const MSGHDR: u16 = 56;
const MMSGHDR: u16 = 64;
const SEMBUF: u16 = 6;
const MQ_ATTR: u16 = 64;
const WAITER: u16 = size::<k::futex_waitv>();
const TWO_WAITERS: u16 = 2 * WAITER;
const UTSNAME: u16 = 390;
const SYSINFO: u16 = 112;
const USTAT: u16 = 32;
const USER_DESC: u16 = size::<k::user_desc>();
const CAP_HEADER: u16 = size::<k::__user_cap_header_struct>();
const CAP_DATA: u16 = 2 * size::<k::__user_cap_data_struct>();
const CACHESTAT: u16 = size::<k::cachestat>();
const CACHESTAT_RANGE: u16 = size::<k::cachestat_range>();
/// landlock_net_port_attr, the larger one.
const LANDLOCK_RULE: u16 = 16;

const TIMER_ABSTIME: u8 = k::TIMER_ABSTIME as u8;
/// FUTEX_WAIT is zero; every other operation has another sort of time, or none.
const FUTEX_OPERATION: u8 = 127;
const FUTEX_WAKE_PRIVATE: i32 = k::FUTEX_WAKE_PRIVATE as i32;
const SOL_TCP: i32 = 6;

const PATH: Role = In(Str);
const TIMEOUT: Role = Timeout(Unit::Timespec, Left::Unchanged);
const TIMEOUT_LEFT: Role = Timeout(Unit::Timespec, Left::Written);
const TIMEOUT_LEFT_ON_SUCCESS: Role = Timeout(Unit::Timespec, Left::WrittenOnSuccess);
const TIMEVAL_LEFT: Role = Timeout(Unit::Timeval, Left::Written);

macro_rules! rows {
    ($($number:ident($($role:expr),*) $($word:ident $(($($about:expr),*))?)*;)*) => {
        &[$((k::$number, {
            const ROLES: &[Role] = &[$($role),*];
            const ALL: ([row::Buf; row::ARGUMENTS], usize) = row::buffers(ROLES);
            const BUFFERS: &[row::Buf] = ALL.0.split_at(ALL.1).0;
            Row::new(stringify!($number), ROLES, BUFFERS)$(.$word($($($about),*)?))*
        })),*]
    };
}

const ROWS: &[(u32, Row)] = rows! {
    __NR_read(Fd, OutRet(Arg(2)), Uint) consumes receives vectored(k::__NR_readv) slot;
    __NR_write(Fd, InRet(Arg(2)), Uint) consumes sends full vectored(k::__NR_writev) slot;
    __NR_open(PATH, Hex, Octal) slot;
    __NR_close(Fd) never_blocks slot;
    __NR_stat(PATH, Out(Fixed(STAT))) never_blocks slot;
    __NR_fstat(Fd, Out(Fixed(STAT))) never_blocks slot;
    __NR_lstat(PATH, Out(Fixed(STAT))) never_blocks slot;
    __NR_poll(InOut(ArgTimes(1, POLLFD)), Uint, Millis) consumes slot;
    __NR_lseek(Fd, Int, Int) never_blocks slot;
    __NR_mmap(Pointer, Uint, Hex, Hex, Fd, Hex) special(Mapping) addresses never_blocks;
    __NR_mprotect(Pointer, Uint, Hex) special(Mapping) addresses never_blocks;
    __NR_munmap(Pointer, Uint) special(Mapping) addresses never_blocks;
    __NR_brk(Pointer) special(Mapping) addresses never_blocks;
    __NR_rt_sigaction(Int, Pointer, Pointer, Uint) special(Stub) addresses uninterruptible;
    __NR_rt_sigprocmask(Int, Pointer, Pointer, Uint) special(Stub) addresses uninterruptible;
    __NR_rt_sigreturn() special(Stub) addresses uninterruptible;
    __NR_ioctl(Fd, Hex, Pointer) by_command;
    __NR_pread64(Fd, OutRet(Arg(2)), Uint, Position) consumes vectored(k::__NR_preadv) slot;
    __NR_pwrite64(Fd, InRet(Arg(2)), Uint, Position) consumes full vectored(k::__NR_pwritev) slot;
    __NR_readv(Fd, IovOut(Arg(2)), Uint) consumes receives;
    __NR_writev(Fd, IovIn(Arg(2)), Uint) consumes sends full;
    __NR_access(PATH, Hex) slot;
    __NR_pipe(Out(Fixed(TWO_INTS))) uninterruptible;
    __NR_select(Int, InOut(FdSet(0)), InOut(FdSet(0)), InOut(FdSet(0)), TIMEVAL_LEFT) consumes;
    __NR_sched_yield() never_blocks slot;
    __NR_mremap(Pointer, Uint, Uint, Hex, Pointer) special(Mapping) addresses never_blocks;
    __NR_msync(Pointer, Uint, Hex) addresses;
    __NR_mincore(Pointer, Uint, Out(Pages(1))) never_blocks;
    __NR_madvise(Pointer, Uint, Int) special(Mapping) addresses never_blocks;
    __NR_shmget(Int, Uint, Hex) uninterruptible;
    __NR_shmat(Int, Pointer, Hex) special(Mapping) addresses uninterruptible;
    __NR_shmctl(Int, Int, Pointer) by_command uninterruptible;
    __NR_dup(Fd) never_blocks slot;
    __NR_dup2(Fd, Fd) never_blocks slot;
    __NR_pause() consumes;
    __NR_nanosleep(TIMEOUT, Remainder) consumes;
    __NR_getitimer(Int, Out(Fixed(ITIMER))) uninterruptible;
    __NR_alarm(Uint) uninterruptible;
    __NR_setitimer(Int, In(Fixed(ITIMER)), Out(Fixed(ITIMER))) uninterruptible;
    __NR_getpid() never_blocks slot;
    __NR_sendfile(Fd, Fd, InOut(Fixed(LONG)), Uint) consumes;
    __NR_socket(Int, Int, Int) uninterruptible slot;
    __NR_connect(Fd, In(Arg(2)), Uint) consumes sends;
    __NR_accept(Fd, Out(Deref(2)), InOut(Fixed(INT))) consumes receives slot;
    __NR_sendto(Fd, InRet(Arg(2)), Uint, Hex, In(Arg(5)), Uint) consumes sends full slot if_null(4);
    __NR_recvfrom(Fd, OutRet(Arg(2)), Uint, Hex, Out(Deref(5)), InOut(Fixed(INT))) consumes receives
        full_if_waitall(3) slot if_null(4) if_null(5);
    __NR_sendmsg(Fd, MsgIn(Fixed(MSGHDR)), Hex) consumes sends full;
    __NR_recvmsg(Fd, MsgOut(Fixed(MSGHDR)), Hex) consumes receives;
    __NR_shutdown(Fd, Int) uninterruptible slot;
    __NR_bind(Fd, In(Arg(2)), Uint) uninterruptible;
    __NR_listen(Fd, Int) uninterruptible slot;
    __NR_getsockname(Fd, Out(Deref(2)), InOut(Fixed(INT))) uninterruptible;
    __NR_getpeername(Fd, Out(Deref(2)), InOut(Fixed(INT))) uninterruptible;
    __NR_socketpair(Int, Int, Int, Out(Fixed(TWO_INTS))) uninterruptible;
    __NR_setsockopt(Fd, Int, Int, In(Arg(4)), Uint) by_command uninterruptible slot if_is(1, SOL_TCP);
    __NR_getsockopt(Fd, Int, Int, Out(Deref(4)), InOut(Fixed(INT))) uninterruptible;
    __NR_clone(Hex, Pointer, Pointer, Pointer, Pointer) special(Clone);
    __NR_fork() special(Clone) uninterruptible;
    __NR_vfork() special(Clone);
    __NR_execve(Pointer, Pointer, Pointer) special(Exec);
    __NR_exit(Int) special(Stub) uninterruptible;
    __NR_wait4(Int, Out(Fixed(INT)), Hex, Out(Fixed(RUSAGE))) consumes;
    __NR_kill(Int, Int);
    __NR_uname(Out(Fixed(UTSNAME))) never_blocks;
    __NR_semget(Int, Int, Hex) uninterruptible;
    __NR_semop(Int, In(ArgTimes(2, SEMBUF)), Uint) consumes;
    __NR_semctl(Int, Int, Int, Pointer) open uninterruptible;
    __NR_shmdt(Pointer) special(Mapping) addresses uninterruptible;
    __NR_msgget(Int, Hex) uninterruptible;
    __NR_msgsnd(Int, In(ArgAnd(2, LONG)), Uint, Hex) consumes;
    __NR_msgrcv(Int, OutRetAfter(LONG, ArgAnd(2, LONG)), Uint, Int, Hex) consumes;
    __NR_msgctl(Int, Int, Pointer) open uninterruptible;
    __NR_fcntl(Fd, Int, Hex) by_command slot if_near(2);
    __NR_flock(Fd, Int);
    __NR_fsync(Fd);
    __NR_fdatasync(Fd);
    __NR_truncate(PATH, Int);
    __NR_ftruncate(Fd, Int);
    __NR_getdents(Fd, OutRet(Arg(2)), Uint) consumes;
    __NR_getcwd(OutRet(Arg(1)), Uint) never_blocks slot;
    __NR_chdir(PATH) never_blocks;
    __NR_fchdir(Fd) uninterruptible;
    __NR_rename(PATH, PATH);
    __NR_mkdir(PATH, Octal);
    __NR_rmdir(PATH);
    __NR_creat(PATH, Octal);
    __NR_link(PATH, PATH);
    __NR_unlink(PATH) slot;
    __NR_symlink(PATH, PATH);
    __NR_readlink(PATH, OutRet(Arg(2)), Uint) never_blocks slot;
    __NR_chmod(PATH, Octal);
    __NR_fchmod(Fd, Octal);
    __NR_chown(PATH, Int, Int);
    __NR_fchown(Fd, Int, Int);
    __NR_lchown(PATH, Int, Int);
    __NR_umask(Octal) never_blocks slot;
    __NR_gettimeofday(Out(Fixed(TIMEVAL)), Out(Fixed(TIMEZONE))) never_blocks slot;
    __NR_getrlimit(Int, Out(Fixed(RLIMIT))) never_blocks;
    __NR_getrusage(Int, Out(Fixed(RUSAGE))) never_blocks;
    __NR_sysinfo(Out(Fixed(SYSINFO))) never_blocks;
    __NR_times(Out(Fixed(TMS))) uninterruptible;
    __NR_ptrace(Int, Int, Pointer, Pointer) special(Stub) by_command;
    __NR_getuid() never_blocks slot;
    __NR_syslog(Int, OutRet(Arg(2)), Int);
    __NR_getgid() never_blocks slot;
    __NR_setuid(Int) special(Rights) uninterruptible;
    __NR_setgid(Int) special(Rights) uninterruptible;
    __NR_geteuid() never_blocks slot;
    __NR_getegid() never_blocks slot;
    __NR_setpgid(Int, Int) uninterruptible;
    __NR_getppid() never_blocks slot;
    __NR_getpgrp() never_blocks slot;
    __NR_setsid() uninterruptible;
    __NR_setreuid(Int, Int) special(Rights) uninterruptible;
    __NR_setregid(Int, Int) special(Rights) uninterruptible;
    __NR_getgroups(Int, OutRetTimes(INT, ArgTimes(0, INT))) uninterruptible;
    __NR_setgroups(Int, In(ArgTimes(0, INT))) special(Rights) uninterruptible;
    __NR_setresuid(Int, Int, Int) special(Rights) uninterruptible;
    __NR_getresuid(Out(Fixed(INT)), Out(Fixed(INT)), Out(Fixed(INT))) uninterruptible;
    __NR_setresgid(Int, Int, Int) special(Rights) uninterruptible;
    __NR_getresgid(Out(Fixed(INT)), Out(Fixed(INT)), Out(Fixed(INT))) uninterruptible;
    __NR_getpgid(Int) uninterruptible slot;
    __NR_setfsuid(Int) special(Rights) uninterruptible;
    __NR_setfsgid(Int) special(Rights) uninterruptible;
    __NR_getsid(Int) uninterruptible slot;
    __NR_capget(InOut(Fixed(CAP_HEADER)), Out(Fixed(CAP_DATA))) uninterruptible;
    __NR_capset(InOut(Fixed(CAP_HEADER)), In(Fixed(CAP_DATA))) special(Rights) uninterruptible;
    __NR_rt_sigpending(Out(Arg(1)), Uint) special(Stub) uninterruptible;
    __NR_rt_sigtimedwait(In(Arg(3)), Out(Fixed(SIGINFO)), TIMEOUT, Uint) consumes special(SignalSet(0));
    __NR_rt_sigqueueinfo(Int, Int, In(Fixed(SIGINFO))) uninterruptible;
    __NR_rt_sigsuspend(Pointer, Uint) special(Mask(0));
    __NR_sigaltstack(Pointer, Pointer) special(Stub) uninterruptible;
    __NR_utime(PATH, In(Fixed(UTIMBUF)));
    __NR_mknod(PATH, Octal, Hex);
    __NR_uselib(PATH);
    __NR_personality(Hex) uninterruptible;
    __NR_ustat(Uint, Out(Fixed(USTAT)));
    __NR_statfs(PATH, Out(Fixed(STATFS)));
    __NR_fstatfs(Fd, Out(Fixed(STATFS)));
    __NR_sysfs(Int, Pointer, Pointer) open;
    __NR_getpriority(Int, Int) uninterruptible slot;
    __NR_setpriority(Int, Int, Int) uninterruptible;
    __NR_sched_setparam(Int, In(Fixed(INT))) uninterruptible;
    __NR_sched_getparam(Int, Out(Fixed(INT))) uninterruptible;
    __NR_sched_setscheduler(Int, Int, In(Fixed(INT))) uninterruptible;
    __NR_sched_getscheduler(Int) uninterruptible;
    __NR_sched_get_priority_max(Int) uninterruptible;
    __NR_sched_get_priority_min(Int) uninterruptible;
    __NR_sched_rr_get_interval(Int, Out(Fixed(TIMESPEC))) uninterruptible;
    __NR_mlock(Pointer, Uint) special(Lock) addresses;
    __NR_munlock(Pointer, Uint) special(Lock) addresses;
    __NR_mlockall(Hex) special(Lock) addresses;
    __NR_munlockall() special(Lock) addresses;
    __NR_vhangup();
    __NR_modify_ldt(Int, Pointer, Uint) by_command uninterruptible;
    __NR_pivot_root(PATH, PATH);
    __NR__sysctl(Pointer) open;
    __NR_prctl(Int, Hex, Hex, Hex, Hex) special(Stub) by_command uninterruptible;
    __NR_arch_prctl(Hex, Pointer) special(Stub) by_command never_blocks;
    __NR_adjtimex(InOut(Fixed(TIMEX))) uninterruptible;
    __NR_setrlimit(Int, In(Fixed(RLIMIT))) special(Rights) uninterruptible;
    __NR_chroot(PATH) special(Rights);
    __NR_sync();
    __NR_acct(PATH);
    __NR_settimeofday(In(Fixed(TIMEVAL)), In(Fixed(TIMEZONE)));
    __NR_mount(PATH, PATH, PATH, Hex, PATH);
    __NR_umount2(PATH, Hex);
    __NR_swapon(PATH, Hex);
    __NR_swapoff(PATH);
    __NR_reboot(Hex, Hex, Hex, PATH);
    __NR_sethostname(In(Arg(1)), Uint) uninterruptible;
    __NR_setdomainname(In(Arg(1)), Uint) uninterruptible;
    __NR_iopl(Int) special(Stub) uninterruptible;
    __NR_ioperm(Uint, Uint, Int) special(Stub) uninterruptible;
    __NR_create_module(Hex, Hex, Hex, Hex, Hex, Hex);
    __NR_init_module(In(Arg(1)), Uint, PATH);
    __NR_delete_module(PATH, Hex);
    __NR_get_kernel_syms(Hex, Hex, Hex, Hex, Hex, Hex);
    __NR_query_module(Hex, Hex, Hex, Hex, Hex, Hex);
    __NR_quotactl(Hex, Pointer, Int, Pointer) open;
    __NR_nfsservctl(Hex, Hex, Hex, Hex, Hex, Hex);
    __NR_getpmsg(Hex, Hex, Hex, Hex, Hex, Hex);
    __NR_putpmsg(Hex, Hex, Hex, Hex, Hex, Hex);
    __NR_afs_syscall(Hex, Hex, Hex, Hex, Hex, Hex);
    __NR_tuxcall(Hex, Hex, Hex, Hex, Hex, Hex);
    __NR_security(Hex, Hex, Hex, Hex, Hex, Hex);
    __NR_gettid() never_blocks slot;
    __NR_readahead(Fd, Int, Uint);
    __NR_setxattr(PATH, PATH, In(Arg(3)), Uint, Hex);
    __NR_lsetxattr(PATH, PATH, In(Arg(3)), Uint, Hex);
    __NR_fsetxattr(Fd, PATH, In(Arg(3)), Uint, Hex);
    __NR_getxattr(PATH, PATH, OutRet(Arg(3)), Uint);
    __NR_lgetxattr(PATH, PATH, OutRet(Arg(3)), Uint);
    __NR_fgetxattr(Fd, PATH, OutRet(Arg(3)), Uint);
    __NR_listxattr(PATH, OutRet(Arg(2)), Uint);
    __NR_llistxattr(PATH, OutRet(Arg(2)), Uint);
    __NR_flistxattr(Fd, OutRet(Arg(2)), Uint);
    __NR_removexattr(PATH, PATH);
    __NR_lremovexattr(PATH, PATH);
    __NR_fremovexattr(Fd, PATH);
    __NR_tkill(Int, Int) uninterruptible;
    __NR_time(Out(Fixed(LONG))) never_blocks;
    __NR_futex(Pointer, Int, Uint, TIMEOUT, Pointer) special(Futex) consumes relative_unless(1, FUTEX_OPERATION)
        slot if_is(1, FUTEX_WAKE_PRIVATE);
    __NR_sched_setaffinity(Int, Uint, In(Arg(1))) never_blocks;
    __NR_sched_getaffinity(Int, Uint, OutRet(Arg(1))) never_blocks;
    __NR_set_thread_area(InOut(Fixed(USER_DESC))) uninterruptible;
    __NR_io_setup(Uint, InOut(Fixed(LONG))) uninterruptible;
    __NR_io_destroy(Pointer);
    __NR_io_getevents(Pointer, Int, Int, OutRetTimes(IO_EVENT, ArgTimes(2, IO_EVENT)), TIMEOUT) consumes;
    __NR_io_submit(Pointer, Int, Pointer) open;
    __NR_io_cancel(Pointer, Pointer, Pointer) open uninterruptible;
    __NR_get_thread_area(InOut(Fixed(USER_DESC))) uninterruptible;
    __NR_lookup_dcookie(Uint, OutRet(Arg(2)), Uint);
    __NR_epoll_create(Int) uninterruptible;
    __NR_epoll_ctl_old(Hex, Hex, Hex, Hex, Hex, Hex);
    __NR_epoll_wait_old(Hex, Hex, Hex, Hex, Hex, Hex);
    __NR_remap_file_pages(Pointer, Uint, Hex, Uint, Hex) special(Mapping) addresses;
    __NR_getdents64(Fd, OutRet(Arg(2)), Uint) consumes;
    __NR_set_tid_address(Pointer) special(Stub) addresses never_blocks;
    __NR_restart_syscall();
    __NR_semtimedop(Int, In(ArgTimes(2, SEMBUF)), Uint, TIMEOUT) consumes;
    __NR_fadvise64(Fd, Int, Uint, Int);
    __NR_timer_create(Int, In(Fixed(SIGEVENT)), Out(Fixed(INT))) uninterruptible;
    __NR_timer_settime(Int, Int, In(Fixed(ITIMER)), Out(Fixed(ITIMER))) uninterruptible;
    __NR_timer_gettime(Int, Out(Fixed(ITIMER))) uninterruptible;
    __NR_timer_getoverrun(Int) uninterruptible;
    __NR_timer_delete(Int) uninterruptible;
    __NR_clock_settime(Int, In(Fixed(TIMESPEC))) uninterruptible;
    __NR_clock_gettime(Int, Out(Fixed(TIMESPEC))) never_blocks slot;
    __NR_clock_getres(Int, Out(Fixed(TIMESPEC))) never_blocks;
    __NR_clock_nanosleep(Int, Int, TIMEOUT, Remainder) consumes relative_unless(1, TIMER_ABSTIME);
    __NR_exit_group(Int) special(Stub) uninterruptible;
    __NR_epoll_wait(Fd, OutRetTimes(EPOLL_EVENT, ArgTimes(2, EPOLL_EVENT)), Int, Millis) consumes slot;
    __NR_epoll_ctl(Fd, Int, Fd, In(Fixed(EPOLL_EVENT))) uninterruptible slot;
    __NR_tgkill(Int, Int, Int) uninterruptible;
    __NR_utimes(PATH, In(Fixed(TWO_TIMES)));
    __NR_vserver(Hex, Hex, Hex, Hex, Hex, Hex);
    __NR_mbind(Pointer, Uint, Hex, Pointer, Uint, Hex) open;
    __NR_set_mempolicy(Int, Pointer, Uint) open;
    __NR_get_mempolicy(Pointer, Pointer, Uint, Pointer, Hex) open;
    __NR_mq_open(PATH, Hex, Octal, In(Fixed(MQ_ATTR)));
    __NR_mq_unlink(PATH);
    __NR_mq_timedsend(Fd, In(Arg(2)), Uint, Uint, In(Fixed(TIMESPEC))) consumes;
    __NR_mq_timedreceive(Fd, OutRet(Arg(2)), Uint, Out(Fixed(INT)), In(Fixed(TIMESPEC))) consumes;
    __NR_mq_notify(Fd, In(Fixed(SIGEVENT)));
    __NR_mq_getsetattr(Fd, In(Fixed(MQ_ATTR)), Out(Fixed(MQ_ATTR)));
    __NR_kexec_load(Pointer, Uint, Pointer, Hex) open;
    __NR_waitid(Int, Int, Out(Fixed(SIGINFO)), Hex, Out(Fixed(RUSAGE))) consumes;
    __NR_add_key(PATH, PATH, In(Arg(3)), Uint, Int);
    __NR_request_key(PATH, PATH, PATH, Int);
    __NR_keyctl(Int, Hex, Hex, Hex, Hex) open;
    __NR_ioprio_set(Int, Int, Int) uninterruptible;
    __NR_ioprio_get(Int, Int) uninterruptible;
    __NR_inotify_init() uninterruptible;
    __NR_inotify_add_watch(Fd, PATH, Hex);
    __NR_inotify_rm_watch(Fd, Int) uninterruptible;
    __NR_migrate_pages(Int, Uint, Pointer, Pointer) open;
    __NR_openat(Fd, PATH, Hex, Octal) slot;
    __NR_mkdirat(Fd, PATH, Octal);
    __NR_mknodat(Fd, PATH, Octal, Hex);
    __NR_fchownat(Fd, PATH, Int, Int, Hex);
    __NR_futimesat(Fd, PATH, In(Fixed(TWO_TIMES)));
    __NR_newfstatat(Fd, PATH, Out(Fixed(STAT)), Hex) never_blocks slot;
    __NR_unlinkat(Fd, PATH, Hex) slot;
    __NR_renameat(Fd, PATH, Fd, PATH);
    __NR_linkat(Fd, PATH, Fd, PATH, Hex);
    __NR_symlinkat(PATH, Fd, PATH);
    __NR_readlinkat(Fd, PATH, OutRet(Arg(3)), Uint) uninterruptible slot;
    __NR_fchmodat(Fd, PATH, Octal);
    __NR_faccessat(Fd, PATH, Hex) slot;
    __NR_pselect6(Int, InOut(FdSet(0)), InOut(FdSet(0)), InOut(FdSet(0)), TIMEOUT_LEFT, In(Fixed(MASK_AND_SIZE)))
        special(MaskPair) consumes;
    __NR_ppoll(InOut(ArgTimes(1, POLLFD)), Uint, TIMEOUT_LEFT, In(Arg(4)), Uint) special(Mask(3)) consumes;
    __NR_unshare(Hex) special(Rights) uninterruptible;
    __NR_set_robust_list(Pointer, Uint) special(Stub) addresses never_blocks;
    __NR_get_robust_list(Int, Out(Fixed(LONG)), Out(Fixed(LONG))) uninterruptible;
    __NR_splice(Fd, InOut(Fixed(LONG)), Fd, InOut(Fixed(LONG)), Uint, Hex) consumes;
    __NR_tee(Fd, Fd, Uint, Hex) consumes;
    __NR_sync_file_range(Fd, Int, Int, Hex);
    __NR_vmsplice(Fd, Pointer, Uint, Hex) by_command consumes;
    __NR_move_pages(Int, Uint, In(ArgTimes(1, LONG)), In(ArgTimes(1, INT)), Out(ArgTimes(1, INT)), Hex);
    __NR_utimensat(Fd, PATH, In(Fixed(TWO_TIMES)), Hex);
    __NR_epoll_pwait(Fd, OutRetTimes(EPOLL_EVENT, ArgTimes(2, EPOLL_EVENT)), Int, Millis, In(Arg(5)), Uint)
        special(Mask(4)) consumes slot if_null(4);
    __NR_signalfd(Fd, In(Arg(2)), Uint) special(SignalSet(1)) uninterruptible;
    __NR_timerfd_create(Int, Hex) uninterruptible;
    __NR_eventfd(Uint) uninterruptible;
    __NR_fallocate(Fd, Hex, Int, Int);
    __NR_timerfd_settime(Fd, Hex, In(Fixed(ITIMER)), Out(Fixed(ITIMER))) uninterruptible;
    __NR_timerfd_gettime(Fd, Out(Fixed(ITIMER))) uninterruptible;
    __NR_accept4(Fd, Out(Deref(2)), InOut(Fixed(INT)), Hex) consumes receives slot;
    __NR_signalfd4(Fd, In(Arg(2)), Uint, Hex) special(SignalSet(1)) uninterruptible;
    __NR_eventfd2(Uint, Hex) uninterruptible slot;
    __NR_epoll_create1(Hex) uninterruptible slot;
    __NR_dup3(Fd, Fd, Hex) uninterruptible slot;
    __NR_pipe2(Out(Fixed(TWO_INTS)), Hex) uninterruptible;
    __NR_inotify_init1(Hex) uninterruptible;
    __NR_preadv(Fd, IovOut(Arg(2)), Uint, Position, Int) consumes;
    __NR_pwritev(Fd, IovIn(Arg(2)), Uint, Position, Int) consumes full;
    __NR_rt_tgsigqueueinfo(Int, Int, Int, In(Fixed(SIGINFO))) uninterruptible;
    __NR_perf_event_open(Pointer, Int, Int, Fd, Hex) open;
    __NR_recvmmsg(Fd, MMsgOut(ArgTimes(2, MMSGHDR)), Uint, Hex, TIMEOUT_LEFT_ON_SUCCESS) consumes receives;
    __NR_fanotify_init(Hex, Hex) uninterruptible;
    __NR_fanotify_mark(Fd, Hex, Hex, Fd, PATH);
    __NR_prlimit64(Int, Int, In(Fixed(RLIMIT)), Out(Fixed(RLIMIT))) special(Rights) never_blocks;
    __NR_name_to_handle_at(Fd, Pointer, Pointer, Pointer, Hex) open;
    __NR_open_by_handle_at(Fd, Pointer, Hex) open;
    __NR_clock_adjtime(Int, InOut(Fixed(TIMEX))) uninterruptible;
    __NR_syncfs(Fd);
    __NR_sendmmsg(Fd, MMsgIn(ArgTimes(2, MMSGHDR)), Uint, Hex) consumes sends;
    __NR_setns(Fd, Hex) special(Rights);
    __NR_getcpu(Out(Fixed(INT)), Out(Fixed(INT)), Pointer) never_blocks;
    __NR_process_vm_readv(Int, IovOut(Arg(2)), Uint, In(ArgTimes(4, IOVEC)), Uint, Hex) consumes;
    __NR_process_vm_writev(Int, IovIn(Arg(2)), Uint, In(ArgTimes(4, IOVEC)), Uint, Hex) consumes;
    __NR_kcmp(Int, Int, Int, Hex, Hex) uninterruptible;
    __NR_finit_module(Fd, PATH, Hex);
    __NR_sched_setattr(Int, In(OwnSize), Hex) uninterruptible;
    __NR_sched_getattr(Int, Out(Arg(2)), Uint, Hex) uninterruptible;
    __NR_renameat2(Fd, PATH, Fd, PATH, Hex);
    __NR_seccomp(Int, Hex, Pointer) special(Stub) open;
    __NR_getrandom(OutRet(Arg(1)), Uint, Hex) slot;
    __NR_memfd_create(PATH, Hex) uninterruptible;
    __NR_kexec_file_load(Fd, Fd, Uint, In(Arg(2)), Hex);
    __NR_bpf(Int, Pointer, Uint) open;
    __NR_execveat(Fd, Pointer, Pointer, Pointer, Hex) special(Exec);
    __NR_userfaultfd(Hex) uninterruptible;
    __NR_membarrier(Int, Hex, Int);
    __NR_mlock2(Pointer, Uint, Hex) special(Lock) addresses;
    __NR_copy_file_range(Fd, InOut(Fixed(LONG)), Fd, InOut(Fixed(LONG)), Uint, Hex) consumes;
    __NR_preadv2(Fd, IovOut(Arg(2)), Uint, Position, Int, Hex) consumes;
    __NR_pwritev2(Fd, IovIn(Arg(2)), Uint, Position, Int, Hex) consumes full;
    __NR_pkey_mprotect(Pointer, Uint, Hex, Int) special(Mapping) addresses;
    __NR_pkey_alloc(Hex, Hex) addresses uninterruptible;
    __NR_pkey_free(Int) addresses uninterruptible;
    __NR_statx(Fd, PATH, Hex, Hex, Out(Fixed(STATX))) never_blocks slot;
    __NR_io_pgetevents(Pointer, Int, Int, OutRetTimes(IO_EVENT, ArgTimes(2, IO_EVENT)), TIMEOUT, In(Fixed(MASK_AND_SIZE)))
        special(MaskPair) consumes;
    __NR_rseq(Pointer, Uint, Hex, Hex) special(Stub) addresses never_blocks;
    __NR_uretprobe();
    __NR_pidfd_send_signal(Fd, Int, In(Fixed(SIGINFO)), Hex) uninterruptible;
    __NR_io_uring_setup(Uint, Pointer) special(Stub);
    __NR_io_uring_enter(Fd, Uint, Uint, Hex, Pointer, Uint) special(Stub) addresses;
    __NR_io_uring_register(Fd, Int, Pointer, Uint) special(Stub) addresses;
    __NR_open_tree(Fd, PATH, Hex);
    __NR_move_mount(Fd, PATH, Fd, PATH, Hex);
    __NR_fsopen(PATH, Hex);
    __NR_fsconfig(Fd, Int, Pointer, Pointer, Int) open;
    __NR_fsmount(Fd, Hex, Hex);
    __NR_fspick(Fd, PATH, Hex);
    __NR_pidfd_open(Int, Hex) uninterruptible;
    __NR_clone3(Pointer, Uint) special(Clone);
    __NR_close_range(Uint, Uint, Hex);
    __NR_openat2(Fd, PATH, In(Arg(3)), Uint);
    __NR_pidfd_getfd(Fd, Fd, Hex) uninterruptible;
    __NR_faccessat2(Fd, PATH, Hex, Hex) slot;
    __NR_process_madvise(Fd, In(ArgTimes(2, IOVEC)), Uint, Int, Hex);
    __NR_epoll_pwait2(Fd, OutRetTimes(EPOLL_EVENT, ArgTimes(2, EPOLL_EVENT)), Int, TIMEOUT, In(Arg(5)), Uint)
        special(Mask(4)) consumes;
    __NR_mount_setattr(Fd, PATH, Hex, In(Arg(4)), Uint);
    __NR_quotactl_fd(Fd, Hex, Int, Pointer) open;
    __NR_landlock_create_ruleset(In(Arg(1)), Uint, Hex) uninterruptible;
    __NR_landlock_add_rule(Fd, Int, In(Fixed(LANDLOCK_RULE)), Hex) uninterruptible;
    __NR_landlock_restrict_self(Fd, Hex) special(Rights) uninterruptible;
    __NR_memfd_secret(Hex) uninterruptible;
    __NR_process_mrelease(Fd, Hex) addresses;
    __NR_futex_waitv(WaitV(ArgTimes(1, WAITER)), Uint, Hex, In(Fixed(TIMESPEC)), Int) consumes;
    __NR_set_mempolicy_home_node(Pointer, Uint, Uint, Hex) addresses;
    __NR_cachestat(Fd, In(Fixed(CACHESTAT_RANGE)), Out(Fixed(CACHESTAT)), Hex);
    __NR_fchmodat2(Fd, PATH, Octal, Hex);
    __NR_map_shadow_stack(Pointer, Uint, Hex) addresses uninterruptible;
    __NR_futex_wake(In(Fixed(INT)), Hex, Uint, Hex) uninterruptible consumes;
    __NR_futex_wait(In(Fixed(INT)), Uint, Uint, Hex, In(Fixed(TIMESPEC)), Int) consumes;
    __NR_futex_requeue(WaitV(Fixed(TWO_WAITERS)), Hex, Uint, Uint) uninterruptible consumes;
    __NR_statmount(In(OwnSize), Out(Arg(2)), Uint, Hex);
    __NR_listmount(In(OwnSize), OutRetTimes(LONG, ArgTimes(2, LONG)), Uint, Hex);
    __NR_lsm_get_self_attr(Uint, Pointer, Pointer, Hex) open;
    __NR_lsm_set_self_attr(Uint, Pointer, Uint, Hex) open;
    __NR_lsm_list_modules(Pointer, Pointer, Hex) open;
    __NR_mseal(Pointer, Uint, Hex) addresses;
    __NR_setxattrat(Fd, Pointer, Hex, Pointer, Pointer, Uint) open;
    __NR_getxattrat(Fd, Pointer, Hex, Pointer, Pointer, Uint) open;
    __NR_listxattrat(Fd, Pointer, Hex, Pointer, Uint) open;
    __NR_removexattrat(Fd, Pointer, Hex, Pointer) open;
    __NR_open_tree_attr(Fd, Pointer, Hex, Pointer, Uint) open;
    __NR_file_getattr(Fd, PATH, Out(Arg(3)), Uint, Hex);
    __NR_file_setattr(Fd, PATH, In(Arg(3)), Uint, Hex);
};

/// One more than the highest number.
pub const NUMBERS: usize = ROWS[ROWS.len() - 1].0 as usize + 1;

static BY_NUMBER: [Option<Row>; NUMBERS] = {
    let (mut all, mut n) = ([None; NUMBERS], 0);
    while n < ROWS.len() {
        all[ROWS[n].0 as usize] = Some(ROWS[n].1);
        n += 1;
    }
    all
};

/// The row of a system call.
#[inline]
pub fn row(number: u64) -> Option<&'static Row> {
    BY_NUMBER.get(usize::try_from(number).ok()?)?.as_ref()
}
