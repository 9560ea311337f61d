// SPDX-License-Identifier: GPL-2.0-or-later
//! Numbers of the system calls that the machine knows, and of those that it refuses by name: what the program has in
//! rax (asm/unistd_64.h).

macro_rules! numbers {
    ($($name:ident)*) => { $(pub const $name: u64 = libc::$name as u64;)* };
}

numbers! {
    SYS_read SYS_write SYS_open SYS_close SYS_fstat SYS_poll SYS_lseek SYS_mmap SYS_mprotect SYS_munmap
    SYS_brk SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_ioctl SYS_pread64 SYS_pwrite64 SYS_readv
    SYS_writev SYS_access SYS_pipe SYS_sched_yield SYS_mremap SYS_msync SYS_madvise SYS_shmget SYS_dup
    SYS_dup2 SYS_pause SYS_nanosleep SYS_getitimer SYS_alarm SYS_setitimer SYS_getpid SYS_socket SYS_connect
    SYS_bind SYS_socketpair SYS_clone SYS_fork SYS_vfork SYS_execve SYS_exit SYS_wait4 SYS_waitid SYS_kill SYS_uname
    SYS_fcntl SYS_ftruncate SYS_unlink SYS_readlink SYS_gettimeofday SYS_getrlimit SYS_ptrace SYS_getuid
    SYS_getgid SYS_geteuid SYS_getegid SYS_setpgid SYS_getppid SYS_getpgrp SYS_setsid SYS_setresuid
    SYS_getpgid SYS_getsid SYS_rt_sigpending SYS_rt_sigsuspend SYS_sigaltstack SYS_mlock SYS_munlock
    SYS_mlockall SYS_munlockall SYS_prctl SYS_arch_prctl SYS_delete_module SYS_gettid SYS_tkill SYS_time
    SYS_futex SYS_sched_setaffinity SYS_sched_getaffinity SYS_epoll_create SYS_set_tid_address
    SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_exit_group SYS_epoll_wait SYS_tgkill SYS_openat
    SYS_newfstatat SYS_readlinkat SYS_faccessat SYS_ppoll SYS_set_robust_list SYS_signalfd SYS_fallocate
    SYS_epoll_create1 SYS_dup3 SYS_pipe2 SYS_perf_event_open SYS_prlimit64 SYS_getcpu SYS_process_vm_readv
    SYS_process_vm_writev SYS_getrandom SYS_memfd_create SYS_execveat SYS_membarrier SYS_mlock2 SYS_statx
    SYS_rseq SYS_io_uring_setup SYS_clone3 SYS_faccessat2
}
