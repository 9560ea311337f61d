//! A character device as a channel to the debugger: a port of virtio-serial (/dev/virtio-ports/…, /dev/hvc1) or a
//! serial line. A device has no connections. A virtio-serial port reports whether its other end is open; a serial line
//! does not.
#![forbid(unsafe_code)]

use crate::sys;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Polling interval while the other end is closed.
const LOOK: Duration = Duration::from_millis(50);

/// A character device, as a connection.
#[derive(Clone, Debug)]
pub struct Device(Arc<AsyncFd<File>>);

impl Device {
    /// Whether this path is a character device.
    pub fn is_one(path: &Path) -> bool {
        std::fs::metadata(path).is_ok_and(|m| m.file_type().is_char_device())
    }

    /// Opens the device. The error is text for the user.
    pub fn open(path: &Path) -> Result<Device, String> {
        let unusable = |e: io::Error| format!("{} cannot be used: {e}", path.display());
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .map_err(unusable)?;
        sys::make_raw(&file);
        let device = sys::ready_or_not(file).map_err(unusable)?;
        Ok(Device(Arc::new(device)))
    }

    /// Waits until the other end is open. Cancel-safe.
    pub async fn accept(&self) -> (Device, Device) {
        while sys::is_hung_up(self.0.get_ref()) {
            tokio::time::sleep(LOOK).await;
        }
        (self.clone(), self.clone())
    }
}

impl AsyncRead for Device {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context,
        to: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(context))?;
            let room = to.initialize_unfilled();
            match ready.try_io(|device| device.get_ref().read(room)) {
                Ok(Ok(n)) => {
                    to.advance(n);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(e)) => return Poll::Ready(Err(e)),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Device {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.0.poll_write_ready(context))?;
            if let Ok(done) = ready.try_io(|device| device.get_ref().write(bytes)) {
                return Poll::Ready(done);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
