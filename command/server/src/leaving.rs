//! Ends of a session: the program is killed or detached, and its stub is reaped.
#![forbid(unsafe_code)]

use super::common::reap_later;
use super::target::Target;
use std::time::Duration;
use ulpf_host::say::message;
use ulpf_inject::inferior::{self, Woken};

impl Target {
    pub async fn kill(&mut self) {
        let _ = self.process.signal(libc::SIGKILL);
        let _ = tokio::time::timeout(Duration::from_secs(10), self.exit.wait()).await;
    }

    /// Detaches: the program continues without the stub. If a signal has stopped it, it is stopped afterwards, too.
    pub async fn detach(&mut self) -> bool {
        let (process, mut woken) = (self.process.clone(), Woken::default());
        inferior::waking(&process, &mut woken, self.release()).await
    }

    async fn release(&mut self) -> bool {
        if self.replaced {
            return self.exit.now().is_none();
        }
        if !self.stop().await {
            return false;
        }
        match self.request(b"D").await {
            Some(reply) if reply == b"OK" => {
                if let Some(text) =
                    inferior::leave_nothing(&self.process, self.remains, &self.control).await
                {
                    message!("ulpf server: {text}");
                }
                true
            }
            Some(_) => false,
            // It resumed and ended before the stub's reply was read.
            None => self.exit.now().is_some(),
        }
    }
}

impl Drop for Target {
    /// The stub of a launched program is our grandchild or our child, depending on how the program made its task. In
    /// the second case the server must reap it.
    fn drop(&mut self) {
        reap_later(self.stub_pid);
    }
}
