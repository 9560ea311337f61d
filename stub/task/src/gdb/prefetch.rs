//! Answers in advance. The server sends the questions that the debugger asked at the last stop
//! (`vUlpfAhead;QUESTION;…`). At the next stop the stub answers them unasked, and GDB gets its answers from the server
//! (`command/server/src/prefetch.rs`). That saves a hop for each.
//!
//! ```text
//! %UlpfAhead:NUMBER;LENGTH:ANSWER LENGTH:ANSWER …#xx      NUMBER: which question the first answer is to
//! ```
//! A question is answered only if its answer stays valid until another packet is sent to the stub. Length 0 means no
//! answer.

use super::beside::{memory, xfer};
use super::{GdbSession, packet};
use crate::inferior::Inferior;
use alloc::vec::Vec;
use ulpf_lib::TargetAddr;
use ulpf_rsp::{notification, push_number};

/// Number of answers that go with the stop. The debugger's first questions are among them; the rest may follow.
const AT_ONCE: usize = 8;
/// Answers that go out in one notification.
const TOGETHER: usize = 512;

#[derive(Default)]
pub struct Prefetch {
    questions: Vec<Vec<u8>>,
}

impl Prefetch {
    /// Sets the questions from the list behind `vUlpfAhead;`.
    pub fn set(&mut self, list: &[u8]) {
        let all = list.split(|b| *b == b';').filter(|q| !q.is_empty());
        self.questions = all.map(<[u8]>::to_vec).collect();
    }
}

/// Adds answers to a stop reply; answers that are not available at once are sent after it.
pub fn answer(
    session: &mut GdbSession,
    inf: &mut dyn Inferior,
    stop: &[u8],
    out: &mut dyn FnMut(&[u8]),
) {
    let mut all = stop.to_vec();
    if inf.is_steady() && !session.large.waits() {
        let questions = core::mem::take(&mut session.prefetch.questions);
        let (first, rest) = questions.split_at(questions.len().min(AT_ONCE));
        if !first.is_empty() {
            all.extend(answers(session, inf, 0, first));
        }
        if !rest.is_empty() {
            out(&core::mem::take(&mut all));
        }
        for (n, some) in rest.chunks(TOGETHER).enumerate() {
            let number = first.len() + n * TOGETHER;
            out(&answers(session, inf, number, some));
        }
        session.prefetch.questions = questions;
    }
    if !all.is_empty() {
        out(&all);
    }
}

fn answers(
    session: &mut GdbSession,
    inf: &mut dyn Inferior,
    number: usize,
    questions: &[Vec<u8>],
) -> Vec<u8> {
    let mut text = b"UlpfAhead:".to_vec();
    push_number(&mut text, number as u64);
    text.push(b';');
    for question in questions {
        let answer = one(session, inf, question).unwrap_or_default();
        push_number(&mut text, answer.len() as u64);
        text.push(b':');
        text.extend_from_slice(&answer);
    }
    notification(&text)
}

fn one(session: &mut GdbSession, inf: &mut dyn Inferior, question: &[u8]) -> Option<Vec<u8>> {
    let Some(range) = question.strip_prefix(b"m") else {
        return xfer::thread_list(session, inf, question);
    };
    let (addr, len) = packet::addr_len(range)?;
    let steady = len != 0 && inf.is_private(TargetAddr(addr), len);
    steady.then(|| memory::hex(inf, range)).flatten()
}
