//! The x86-64 system calls, for people: names and arguments (Linux,
//! arch/x86/entry/syscalls/syscall_64.tbl and the manual's prototypes).

use core::fmt::{Result, Write};

/// The name of a system call.
pub fn name(number: u64) -> Option<&'static str> {
    find(number).map(|row| row.1)
}

fn find(number: u64) -> Option<&'static (u16, &'static str, &'static str)> {
    let at = CALLS
        .binary_search_by_key(&number, |(n, ..)| *n as u64)
        .ok()?;
    CALLS.get(at)
}

/// One call as strace would begin its line: `read(3, 0x4010, 512) = 512`. A call without a name here
/// is shown with all six arguments.
///
/// # Errors
/// Those of `out`.
pub fn write_call(out: &mut dyn Write, number: u64, args: &[u64; 6], result: i64) -> Result {
    let arguments = match find(number) {
        Some((_, name, arguments)) => {
            out.write_str(name)?;
            arguments
        }
        None => {
            write!(out, "syscall {number}")?;
            "xxxxxx"
        }
    };
    out.write_char('(')?;
    for (i, (kind, &v)) in arguments.bytes().zip(args).enumerate() {
        if i > 0 {
            out.write_str(", ")?;
        }
        match kind {
            // The kernel takes an int, whatever stands in the upper half of the register.
            b'd' if v >> 32 == 0 || v >> 31 == (1 << 33) - 1 => write!(out, "{}", v as i32)?,
            b'd' => write!(out, "{}", v as i64)?,
            b'u' => write!(out, "{v}")?,
            b'o' => write!(out, "{v:#o}")?,
            b'p' if v == 0 => out.write_str("NULL")?,
            _ => write!(out, "{v:#x}")?,
        }
    }
    match result {
        // Addresses (mmap and the like).
        4_294_967_296.. => write!(out, ") = {result:#x}"),
        _ => write!(out, ") = {result}"),
    }
}

/// Number, name, arguments: d int, u unsigned, p pointer, x hexadecimal, o octal.
#[rustfmt::skip]
const CALLS: &[(u16, &str, &str)] = &[
    (0, "read", "dpu"), (1, "write", "dpu"), (2, "open", "pxo"), (3, "close", "d"), (4, "stat", "pp"),
    (5, "fstat", "dp"), (6, "lstat", "pp"), (7, "poll", "pud"), (8, "lseek", "ddd"), (9, "mmap", "puxxdx"),
    (10, "mprotect", "pux"), (11, "munmap", "pu"), (12, "brk", "p"), (13, "rt_sigaction", "dppu"),
    (14, "rt_sigprocmask", "dppu"), (15, "rt_sigreturn", ""), (16, "ioctl", "dxp"), (17, "pread64", "dpud"),
    (18, "pwrite64", "dpud"), (19, "readv", "dpu"), (20, "writev", "dpu"), (21, "access", "px"), (22, "pipe", "p"),
    (23, "select", "dpppp"), (24, "sched_yield", ""), (25, "mremap", "puuxp"), (26, "msync", "pux"),
    (27, "mincore", "pup"), (28, "madvise", "pud"), (29, "shmget", "dux"), (30, "shmat", "dpx"),
    (31, "shmctl", "ddp"), (32, "dup", "d"), (33, "dup2", "dd"), (34, "pause", ""), (35, "nanosleep", "pp"),
    (36, "getitimer", "dp"), (37, "alarm", "u"), (38, "setitimer", "dpp"), (39, "getpid", ""),
    (40, "sendfile", "ddpu"), (41, "socket", "ddd"), (42, "connect", "dpu"), (43, "accept", "dpp"),
    (44, "sendto", "dpuxpu"), (45, "recvfrom", "dpuxpp"), (46, "sendmsg", "dpx"), (47, "recvmsg", "dpx"),
    (48, "shutdown", "dd"), (49, "bind", "dpu"), (50, "listen", "dd"), (51, "getsockname", "dpp"),
    (52, "getpeername", "dpp"), (53, "socketpair", "dddp"), (54, "setsockopt", "dddpu"), (55, "getsockopt", "dddpp"),
    (56, "clone", "xpppp"), (57, "fork", ""), (58, "vfork", ""), (59, "execve", "ppp"), (60, "exit", "d"),
    (61, "wait4", "dpxp"), (62, "kill", "dd"), (63, "uname", "p"), (64, "semget", "ddx"), (65, "semop", "dpu"),
    (66, "semctl", "dddp"), (67, "shmdt", "p"), (68, "msgget", "dx"), (69, "msgsnd", "dpux"), (70, "msgrcv", "dpudx"),
    (71, "msgctl", "ddp"), (72, "fcntl", "ddx"), (73, "flock", "dd"), (74, "fsync", "d"), (75, "fdatasync", "d"),
    (76, "truncate", "pd"), (77, "ftruncate", "dd"), (78, "getdents", "dpu"), (79, "getcwd", "pu"),
    (80, "chdir", "p"), (81, "fchdir", "d"), (82, "rename", "pp"), (83, "mkdir", "po"), (84, "rmdir", "p"),
    (85, "creat", "po"), (86, "link", "pp"), (87, "unlink", "p"), (88, "symlink", "pp"), (89, "readlink", "ppu"),
    (90, "chmod", "po"), (91, "fchmod", "do"), (92, "chown", "pdd"), (93, "fchown", "ddd"), (94, "lchown", "pdd"),
    (95, "umask", "o"), (96, "gettimeofday", "pp"), (97, "getrlimit", "dp"), (98, "getrusage", "dp"),
    (99, "sysinfo", "p"), (100, "times", "p"), (101, "ptrace", "ddpp"), (102, "getuid", ""), (103, "syslog", "dpd"),
    (104, "getgid", ""), (105, "setuid", "d"), (106, "setgid", "d"), (107, "geteuid", ""), (108, "getegid", ""),
    (109, "setpgid", "dd"), (110, "getppid", ""), (111, "getpgrp", ""), (112, "setsid", ""), (113, "setreuid", "dd"),
    (114, "setregid", "dd"), (115, "getgroups", "dp"), (116, "setgroups", "dp"), (117, "setresuid", "ddd"),
    (118, "getresuid", "ppp"), (119, "setresgid", "ddd"), (120, "getresgid", "ppp"), (121, "getpgid", "d"),
    (122, "setfsuid", "d"), (123, "setfsgid", "d"), (124, "getsid", "d"), (125, "capget", "pp"),
    (126, "capset", "pp"), (127, "rt_sigpending", "pu"), (128, "rt_sigtimedwait", "pppu"),
    (129, "rt_sigqueueinfo", "ddp"), (130, "rt_sigsuspend", "pu"), (131, "sigaltstack", "pp"), (132, "utime", "pp"),
    (133, "mknod", "pox"), (134, "uselib", "p"), (135, "personality", "x"), (136, "ustat", "up"),
    (137, "statfs", "pp"), (138, "fstatfs", "dp"), (139, "sysfs", "dpp"), (140, "getpriority", "dd"),
    (141, "setpriority", "ddd"), (142, "sched_setparam", "dp"), (143, "sched_getparam", "dp"),
    (144, "sched_setscheduler", "ddp"), (145, "sched_getscheduler", "d"), (146, "sched_get_priority_max", "d"),
    (147, "sched_get_priority_min", "d"), (148, "sched_rr_get_interval", "dp"), (149, "mlock", "pu"),
    (150, "munlock", "pu"), (151, "mlockall", "x"), (152, "munlockall", ""), (153, "vhangup", ""),
    (154, "modify_ldt", "dpu"), (155, "pivot_root", "pp"), (156, "_sysctl", "p"), (157, "prctl", "dxxxx"),
    (158, "arch_prctl", "xp"), (159, "adjtimex", "p"), (160, "setrlimit", "dp"), (161, "chroot", "p"),
    (162, "sync", ""), (163, "acct", "p"), (164, "settimeofday", "pp"), (165, "mount", "pppxp"),
    (166, "umount2", "px"), (167, "swapon", "px"), (168, "swapoff", "p"), (169, "reboot", "xxxp"),
    (170, "sethostname", "pu"), (171, "setdomainname", "pu"), (172, "iopl", "d"), (173, "ioperm", "uud"),
    (174, "create_module", "xxxxxx"), (175, "init_module", "pup"), (176, "delete_module", "px"),
    (177, "get_kernel_syms", "xxxxxx"), (178, "query_module", "xxxxxx"), (179, "quotactl", "xpdp"),
    (180, "nfsservctl", "xxxxxx"), (181, "getpmsg", "xxxxxx"), (182, "putpmsg", "xxxxxx"),
    (183, "afs_syscall", "xxxxxx"), (184, "tuxcall", "xxxxxx"), (185, "security", "xxxxxx"), (186, "gettid", ""),
    (187, "readahead", "ddu"), (188, "setxattr", "pppux"), (189, "lsetxattr", "pppux"), (190, "fsetxattr", "dppux"),
    (191, "getxattr", "pppu"), (192, "lgetxattr", "pppu"), (193, "fgetxattr", "dppu"), (194, "listxattr", "ppu"),
    (195, "llistxattr", "ppu"), (196, "flistxattr", "dpu"), (197, "removexattr", "pp"), (198, "lremovexattr", "pp"),
    (199, "fremovexattr", "dp"), (200, "tkill", "dd"), (201, "time", "p"), (202, "futex", "pdupp"),
    (203, "sched_setaffinity", "dup"), (204, "sched_getaffinity", "dup"), (205, "set_thread_area", "p"),
    (206, "io_setup", "up"), (207, "io_destroy", "p"), (208, "io_getevents", "pddpp"), (209, "io_submit", "pdp"),
    (210, "io_cancel", "ppp"), (211, "get_thread_area", "p"), (212, "lookup_dcookie", "upu"),
    (213, "epoll_create", "d"), (214, "epoll_ctl_old", "xxxxxx"), (215, "epoll_wait_old", "xxxxxx"),
    (216, "remap_file_pages", "puxux"), (217, "getdents64", "dpu"), (218, "set_tid_address", "p"),
    (219, "restart_syscall", ""), (220, "semtimedop", "dpup"), (221, "fadvise64", "ddud"),
    (222, "timer_create", "dpp"), (223, "timer_settime", "ddpp"), (224, "timer_gettime", "dp"),
    (225, "timer_getoverrun", "d"), (226, "timer_delete", "d"), (227, "clock_settime", "dp"),
    (228, "clock_gettime", "dp"), (229, "clock_getres", "dp"), (230, "clock_nanosleep", "ddpp"),
    (231, "exit_group", "d"), (232, "epoll_wait", "dpdd"), (233, "epoll_ctl", "dddp"), (234, "tgkill", "ddd"),
    (235, "utimes", "pp"), (236, "vserver", "xxxxxx"), (237, "mbind", "puxpux"), (238, "set_mempolicy", "dpu"),
    (239, "get_mempolicy", "ppupx"), (240, "mq_open", "pxop"), (241, "mq_unlink", "p"),
    (242, "mq_timedsend", "dpuup"), (243, "mq_timedreceive", "dpupp"), (244, "mq_notify", "dp"),
    (245, "mq_getsetattr", "dpp"), (246, "kexec_load", "pupx"), (247, "waitid", "ddpxp"), (248, "add_key", "pppud"),
    (249, "request_key", "pppd"), (250, "keyctl", "dxxxx"), (251, "ioprio_set", "ddd"), (252, "ioprio_get", "dd"),
    (253, "inotify_init", ""), (254, "inotify_add_watch", "dpx"), (255, "inotify_rm_watch", "dd"),
    (256, "migrate_pages", "dupp"), (257, "openat", "dpxo"), (258, "mkdirat", "dpo"), (259, "mknodat", "dpox"),
    (260, "fchownat", "dpddx"), (261, "futimesat", "dpp"), (262, "newfstatat", "dppx"), (263, "unlinkat", "dpx"),
    (264, "renameat", "dpdp"), (265, "linkat", "dpdpx"), (266, "symlinkat", "pdp"), (267, "readlinkat", "dppu"),
    (268, "fchmodat", "dpo"), (269, "faccessat", "dpx"), (270, "pselect6", "dppppp"), (271, "ppoll", "puppu"),
    (272, "unshare", "x"), (273, "set_robust_list", "pu"), (274, "get_robust_list", "dpp"), (275, "splice", "dpdpux"),
    (276, "tee", "ddux"), (277, "sync_file_range", "dddx"), (278, "vmsplice", "dpux"), (279, "move_pages", "dupppx"),
    (280, "utimensat", "dppx"), (281, "epoll_pwait", "dpddpu"), (282, "signalfd", "dpu"),
    (283, "timerfd_create", "dx"), (284, "eventfd", "u"), (285, "fallocate", "dxdd"),
    (286, "timerfd_settime", "dxpp"), (287, "timerfd_gettime", "dp"), (288, "accept4", "dppx"),
    (289, "signalfd4", "dpux"), (290, "eventfd2", "ux"), (291, "epoll_create1", "x"), (292, "dup3", "ddx"),
    (293, "pipe2", "px"), (294, "inotify_init1", "x"), (295, "preadv", "dpudd"), (296, "pwritev", "dpudd"),
    (297, "rt_tgsigqueueinfo", "dddp"), (298, "perf_event_open", "pdddx"), (299, "recvmmsg", "dpuxp"),
    (300, "fanotify_init", "xx"), (301, "fanotify_mark", "dxxdp"), (302, "prlimit64", "ddpp"),
    (303, "name_to_handle_at", "dpppx"), (304, "open_by_handle_at", "dpx"), (305, "clock_adjtime", "dp"),
    (306, "syncfs", "d"), (307, "sendmmsg", "dpux"), (308, "setns", "dx"), (309, "getcpu", "ppp"),
    (310, "process_vm_readv", "dpupux"), (311, "process_vm_writev", "dpupux"), (312, "kcmp", "dddxx"),
    (313, "finit_module", "dpx"), (314, "sched_setattr", "dpx"), (315, "sched_getattr", "dpux"),
    (316, "renameat2", "dpdpx"), (317, "seccomp", "dxp"), (318, "getrandom", "pux"), (319, "memfd_create", "px"),
    (320, "kexec_file_load", "ddupx"), (321, "bpf", "dpu"), (322, "execveat", "dpppx"), (323, "userfaultfd", "x"),
    (324, "membarrier", "dxd"), (325, "mlock2", "pux"), (326, "copy_file_range", "dpdpux"),
    (327, "preadv2", "dpuddx"), (328, "pwritev2", "dpuddx"), (329, "pkey_mprotect", "puxd"),
    (330, "pkey_alloc", "xx"), (331, "pkey_free", "d"), (332, "statx", "dpxxp"), (333, "io_pgetevents", "pddppp"),
    (334, "rseq", "puxx"), (424, "pidfd_send_signal", "ddpx"), (425, "io_uring_setup", "up"),
    (426, "io_uring_enter", "duuxpu"), (427, "io_uring_register", "ddpu"), (428, "open_tree", "dpx"),
    (429, "move_mount", "dpdpx"), (430, "fsopen", "px"), (431, "fsconfig", "ddppd"), (432, "fsmount", "dxx"),
    (433, "fspick", "dpx"), (434, "pidfd_open", "dx"), (435, "clone3", "pu"), (436, "close_range", "uux"),
    (437, "openat2", "dppu"), (438, "pidfd_getfd", "ddx"), (439, "faccessat2", "dpxx"),
    (440, "process_madvise", "dpudx"), (441, "epoll_pwait2", "dpdppu"), (442, "mount_setattr", "dpxpu"),
    (443, "quotactl_fd", "dxdp"), (444, "landlock_create_ruleset", "pux"), (445, "landlock_add_rule", "ddpx"),
    (446, "landlock_restrict_self", "dx"), (447, "memfd_secret", "x"), (448, "process_mrelease", "dx"),
    (449, "futex_waitv", "puxpd"), (450, "set_mempolicy_home_node", "puux"), (451, "cachestat", "dppx"),
    (452, "fchmodat2", "dpox"), (453, "map_shadow_stack", "pux"), (454, "futex_wake", "pxux"),
    (455, "futex_wait", "puuxpd"), (456, "futex_requeue", "pxuu"), (457, "statmount", "ppux"),
    (458, "listmount", "ppux"), (459, "lsm_get_self_attr", "uppx"), (460, "lsm_set_self_attr", "upux"),
    (461, "lsm_list_modules", "ppx"), (462, "mseal", "pux"), (463, "setxattrat", "dpxppu"),
    (464, "getxattrat", "dpxppu"), (465, "listxattrat", "dpxpu"), (466, "removexattrat", "dpxp"),
    (467, "open_tree_attr", "dpxpu"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    fn show(number: u64, args: [u64; 6], result: i64) -> String {
        let mut out = String::new();
        write_call(&mut out, number, &args, result).unwrap();
        out
    }

    #[test]
    fn names_are_sorted_and_known() {
        assert!(CALLS.windows(2).all(|w| w[0].0 < w[1].0));
        assert!(CALLS.iter().all(|c| c.2.len() <= 6));
        assert_eq!(name(0), Some("read"));
        assert_eq!(name(231), Some("exit_group"));
        assert_eq!(name(9999), None);
    }

    #[test]
    fn calls_are_decoded() {
        let at = 0x5555_0010;
        assert_eq!(
            show(0, [3, at, 512, 9, 9, 9], 512),
            "read(3, 0x55550010, 512) = 512"
        );
        assert_eq!(
            show(257, [-100i32 as u32 as u64, at, 0x80000, 0o644, 0, 0], -2),
            "openat(-100, 0x55550010, 0x80000, 0o644) = -2"
        );
        assert_eq!(
            show(262, [-100i64 as u64, at, 0, 0, 0, 0], 0),
            "newfstatat(-100, 0x55550010, NULL, 0x0) = 0"
        );
        assert_eq!(show(39, [0; 6], 17), "getpid() = 17");
        assert_eq!(
            show(9999, [1, 2, 3, 4, 5, 6], 0),
            "syscall 9999(0x1, 0x2, 0x3, 0x4, 0x5, 0x6) = 0"
        );
        assert_eq!(
            show(9, [0, 4096, 3, 34, u64::MAX, 0], 0x7fff_0000_0000),
            "mmap(NULL, 4096, 0x3, 0x22, -1, 0x0) = 0x7fff00000000"
        );
    }
}
