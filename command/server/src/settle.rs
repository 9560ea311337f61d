//! Updates the stub before its program runs: removed and re-inserted watches and breakpoints, and the questions of the
//! next stop.
#![forbid(unsafe_code)]

use super::target::Target;
use super::{watchdog, watches};
use std::io;
use tokio::time::Instant;

impl Target {
    /// Sends the stub the removals of watches that the debugger has not re-inserted. Returns a text for the debugger if
    /// the stub does not answer.
    pub async fn settle_watches(&mut self) -> Option<String> {
        if let Some(why) = self.still_hangs(watchdog::HUNG_TIMEOUT).await {
            return Some(why);
        }
        loop {
            let batch = self.watches.overdue(watches::BATCH);
            if batch.is_empty() {
                return None;
            }
            let frames: Vec<u8> = batch.iter().flat_map(|p| ulpf_rsp::frame(p)).collect();
            if self.write(&frames).await.is_err() {
                return None; // its end shows with the next request
            }
            let limit = watchdog::timeout_of(&batch[0]);
            let end = Instant::now() + limit;
            for answered in 0..batch.len() {
                match self.reply_by(end, &mut Vec::new()).await {
                    Ok(Some(_)) => {}
                    Ok(None) => return None,
                    Err(_) => {
                        self.unread += batch.len() - answered - 1;
                        return Some(self.hangs(limit));
                    }
                }
            }
        }
    }

    /// Resumes the program at the debugger's request.
    pub async fn resume(&mut self, payload: &[u8]) -> io::Result<()> {
        let first = [self.prefetch.resuming(), self.watches.renewal()];
        // Neither packet has an answer.
        let first = first.iter().flatten();
        let mut frames: Vec<u8> = first.flat_map(|p| ulpf_rsp::frame(p)).collect();
        frames.extend(self.frame(payload));
        self.write(&frames).await
    }
}
