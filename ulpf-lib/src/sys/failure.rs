//! Results of failed system calls: minus the errno (`asm-generic/errno-base.h`, `asm-generic/errno.h`).
#![allow(missing_docs)]

use linux_raw_sys::errno;

macro_rules! failures {
    ($($name:ident)*) => { $(pub const $name: i64 = -(errno::$name as i64);)* };
}

failures! {
    E2BIG EACCES EAGAIN EBADF EBADFD EBUSY ECANCELED ECHILD EDEADLK EEXIST EFAULT EINPROGRESS EINTR EINVAL EIO ENOENT ENOEXEC ENOMEM ENOSYS ENOTTY
    ENXIO EOPNOTSUPP EPERM EPROTONOSUPPORT ESRCH
}
