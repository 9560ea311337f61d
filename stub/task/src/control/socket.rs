//! The control socket: what goes out.

use linux_raw_sys::general as k;
use linux_raw_sys::net::MSG_NOSIGNAL;
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;

pub fn send_all(fd: i32, bytes: &[u8]) {
    let mut sent = 0;
    while let Some(rest) = bytes.get(sent..).filter(|r| !r.is_empty()) {
        // SAFETY: sends bytes; MSG_NOSIGNAL.
        match unsafe {
            sys!(
                k::__NR_sendto,
                fd,
                rest.as_ptr(),
                rest.len(),
                MSG_NOSIGNAL,
                0,
                0
            )
        } {
            Ok(n) => sent += n as usize,
            Err(Errno(4)) => {}
            Err(_) => return,
        }
    }
}
