//! Debugging a program with a checked heap (`--check`). The program stops at its errors, and the server explains each
//! error to the user before it reports the stop.
//!
//! ```text
//!     stub ── T91…ulpfheap:N; ──▶ report N of the shared area, in words ──▶ O… , T91… ──▶ debugger
//!     stub ── T05…ulpfheapend:; ▶ what is left, and the sums ─────────────▶ O…        (and it goes on to its end)
//! ```
#![forbid(unsafe_code)]

use super::checked::Checked;
use super::client::Client;
use super::packets::{action_for, pc_in, thread_in, with_reason};
use super::state::Server;
use super::target::Target;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use ulpf_heap::error::Error;
use ulpf_heap::options::HeapOptions;
use ulpf_heap::sums::{Ended, Sums};
use ulpf_heap::{before, blocks, functions, pointers};
use ulpf_host::foreign::text::{Text, lines};
use ulpf_host::say::message;
use ulpf_lib::command::{Command, HeapAsk, HeapCheck, Reply};
use ulpf_lib::ring::findings::{ASKED, Report, Wrong};
use ulpf_symbols::Program;

/// Field of a stop reply with the number of the report (stub/task/src/gdb/amend.rs).
const ERROR: &[u8] = b"ulpfheap:";
/// Field of the stop reply before the program ends.
const END: &[u8] = b"ulpfheapend:;";
/// Stop reason that LLDB shows with a description.
const LLDB: &[u8] = b"reason:exception;";

/// The answer to `heap-error`. `line` is one line of JSON.
fn last(line: &str, text: &str) -> String {
    let error: Value = serde_json::from_str(line).unwrap_or_default();
    format!("{}\n", json!({"heap_error": error, "text": text}))
}

/// Whether this reply announces the end of a program with a checked heap.
pub(super) fn is_end(reply: &[u8]) -> bool {
    reply.first() == Some(&b'T') && reply.windows(END.len()).any(|w| w == END)
}

/// The number of the report in a stop reply.
fn report_in(reply: &[u8]) -> Option<usize> {
    let fields = reply.strip_prefix(b"T")?.get(2..)?.split(|b| *b == b';');
    let mut numbers = fields.filter_map(|f| f.strip_prefix(ERROR));
    usize::try_from(ulpf_rsp::hex_number(numbers.next()?)?).ok()
}

impl Target {
    /// Switches the heap check on. `running`: the program already has blocks. Returns messages for the user; the error
    /// is text for the user, too.
    pub(super) async fn check_heap(
        &mut self,
        options: Arc<HeapOptions>,
        running: bool,
    ) -> Result<Vec<String>, String> {
        let how = HeapCheck {
            running,
            ..options.how
        };
        self.heap_command(&Command::HeapCheck(how)).await?;
        let mut heap = Checked::new(options.clone());
        let mut notices = Vec::from_iter(before::text(self.shared().findings()));
        let (all, missing) = functions::find(heap.program(self.pid), &options.allocator);
        self.heap = Some(heap);
        for some in all.chunks(functions::AT_ONCE) {
            self.heap_command(&Command::HeapFunctions(some.to_vec()))
                .await?;
        }
        let missing = missing.iter().map(|one| Text(&one.function));
        notices.extend(missing.map(|name| {
            format!("--allocator: the program has no function {name} yet; only what is there now is looked at")
        }));
        Ok(notices)
    }

    /// From now on the last writers of heap and data are recorded. The error is text for the user.
    pub(super) async fn record_writers(&mut self) -> Result<(), String> {
        self.command(&Command::LastWriters, &Reply::LastWriters)
            .await
    }

    async fn heap_command(&mut self, command: &Command) -> Result<(), String> {
        self.command(command, &Reply::HeapChecked).await
    }

    /// Sends a command that is answered with `done`.
    async fn command(&mut self, command: &Command, done: &Reply) -> Result<(), String> {
        let answer = self.monitor(&command.to_string()).await.unwrap_or_default();
        match serde_json::from_str(answer.trim()) {
            Ok(reply) if reply == *done => Ok(()),
            Ok(Reply::Refused(r)) => Err(format!("{}: {}; {}", r.what, r.why, r.what_to_do)),
            _ => Err(format!("the stub answered `{}`", answer.trim())),
        }
    }

    /// Whether a suppression matches the error of this stop. If so, it is not reported.
    pub(super) fn is_suppressed(&mut self, reply: &[u8]) -> bool {
        let Some(number) = report_in(reply) else {
            return false;
        };
        let (shared, pid) = (self.shared().clone(), self.pid);
        let report = shared.findings().reports.get(number);
        let (Some(report), Some(heap)) = (report, self.heap.as_mut()) else {
            return false;
        };
        !heap.options.suppressions.is_empty() && {
            heap.program(pid);
            heap.hides(report)
        }
    }

    /// Explains the heap error of this stop: text for the user, and the error in one sentence. `None` if the stop is
    /// not a heap error.
    fn heap_error(&mut self, reply: &[u8]) -> Option<(String, String)> {
        let number = report_in(reply)?;
        let shared = self.shared().clone();
        // (The program may have written any value there.)
        let report = shared.findings().reports.get(number)?;
        let wrong = Wrong::of(report.wrong.load(Relaxed))
            .filter(|w| !w.is_leak() && report.published.load(Acquire) == 1)?;
        let pid = self.pid;
        let heap = self.heap.as_mut()?;
        let program = heap.program(pid);
        let error = Error::of(wrong, report, program);
        let (text, what) = (error.text(number + 1), error.what());
        heap.last = Some(last(&error.json(), &text));
        heap.sums.count(wrong);
        Some((text, what))
    }

    /// Whether the thread has stopped before the instruction for which it was resumed. Most errors stop a thread before
    /// the access.
    pub(super) fn is_before_its_step(&self, reply: &[u8]) -> bool {
        let thread = thread_in(reply).unwrap_or_default();
        self.is_before(reply, &action_for(&self.resumed, thread))
    }

    /// As [`Target::is_before_its_step`], for a thread that was resumed by `how`.
    pub(super) fn is_before(&self, reply: &[u8], how: &[u8]) -> bool {
        let findings = self.shared().findings();
        let report = report_in(reply).and_then(|n| findings.reports.get(n));
        let pc = report.map(|r| r.pc.load(Relaxed));
        how == b"c" || pc.is_some() && pc == pc_in(reply)
    }

    /// Non-stop mode: notes which threads step from now on.
    pub(super) fn note_steps(&mut self, packet: &[u8]) {
        for action in packet
            .strip_prefix(b"vCont;")
            .unwrap_or_default()
            .split(|b| *b == b';')
        {
            let mut parts = action.splitn(2, |b| *b == b':');
            let (Some(verb), Some(thread)) = (parts.next(), parts.next()) else {
                continue;
            };
            match verb.first() {
                Some(b's' | b'S') => drop(self.steps.insert(thread.to_vec(), b"s".to_vec())),
                Some(b'r') => drop(self.steps.insert(thread.to_vec(), verb.to_vec())),
                _ => drop(self.steps.remove(thread)),
            }
        }
    }

    /// The report at the program's end, or `None` if it was given before.
    fn heap_end(&mut self, alive: bool) -> Option<String> {
        let shared = self.shared().clone();
        let pid = self.pid;
        let heap = self.heap.as_mut().filter(|h| !h.ended)?;
        heap.ended = true;
        let f = shared.findings();
        if alive {
            heap.program(pid);
        }
        let mut text = String::new();
        let mut suppressed = 0u64;
        let published = |r: &&Report| r.published.load(Acquire) == 1;
        for (number, report) in f.reports.iter().take_while(published).enumerate() {
            let Some(wrong) = Wrong::of(report.wrong.load(Relaxed)) else {
                continue;
            };
            let hidden = heap.hides(report);
            if !wrong.is_leak() {
                let count = if hidden {
                    report.count.load(Relaxed)
                } else {
                    0
                };
                suppressed = suppressed.saturating_add(count);
                continue;
            }
            let error = Error::of(wrong, report, heap.program.get_or_insert_default());
            heap.sums.left(wrong, hidden, (error.count, error.len));
            if wrong != Wrong::Reachable && !hidden {
                heap.sums.count(wrong);
                text += &error.text(number + 1);
            }
        }
        heap.sums.add_unreported(f);
        let how = Ended {
            leaks: heap.options.how.leaks,
            suppressed,
            ..Ended::default()
        };
        Some(text + &heap.sums.text(f, how))
    }
}

// ---- queries --------------------------------------------------------------------------------------

impl Target {
    /// The answer to a query about the heap.
    pub(super) async fn ask_heap(&mut self, what: HeapAsk) -> String {
        if what == HeapAsk::Error {
            let last = self.heap.as_ref().and_then(|h| h.last.clone());
            return last.unwrap_or_else(|| "{\"heap_error\":null}\n".into());
        }
        let command = Command::HeapAsk(what).to_string();
        let answer = self.monitor(&command).await.unwrap_or_default();
        let Ok(Reply::HeapAsked(count)) = serde_json::from_str(answer.trim()) else {
            return answer;
        };
        let shared = self.shared().clone();
        let reports = shared.findings().answer(count);
        let pid = self.pid;
        let program = self.heap.get_or_insert_default().program(pid);
        match (what, reports) {
            (HeapAsk::Leaks, _) => leaks(reports, program),
            (HeapAsk::Pointers(_), _) => pointers::text(reports, program),
            (_, [report, ..]) => Error::of(Wrong::Outside, report, program).block_text(),
            (_, []) => String::new(),
        }
    }
}

impl Target {
    /// The blocks of the heap, for an observer such as `ulpf top`.
    pub(super) async fn blocks(&mut self) -> Result<String, String> {
        let command = Command::HeapAsk(HeapAsk::Leaks).to_string();
        let said = self.monitor(&command).await.unwrap_or_default();
        let Ok(Reply::HeapAsked(count)) = serde_json::from_str(said.trim()) else {
            return Err(said.trim().to_string());
        };
        let (shared, pid) = (self.shared().clone(), self.pid);
        let reports = shared.findings().answer(count);
        let program = self.heap.get_or_insert_default().program(pid);
        Ok(blocks::answer(reports, program))
    }
}

fn leaks(reports: &[Report], program: &Program) -> String {
    let (mut sums, mut text) = (Sums::default(), String::new());
    let mut number = 0;
    for report in reports {
        // (The program may have written any value there.)
        let wrong = Wrong::of(report.wrong.load(Relaxed));
        let Some(wrong) = wrong.filter(|w| w.is_leak()) else {
            continue;
        };
        let error = Error::of(wrong, report, program);
        sums.left(wrong, false, (error.count, error.len));
        if wrong != Wrong::Reachable {
            number += 1;
            text += &error.text(number);
        }
    }
    if number == 0 {
        text += "ulpf: nothing is lost\n";
    }
    sums.lost.write(&mut text, Ended::default());
    if reports.len() == ASKED {
        text += &format!("ulpf: (those of {ASKED} places; there may be more)\n");
    }
    text
}

impl Server {
    /// See [`Target::is_suppressed`].
    pub(super) fn is_suppressed(&mut self, number: i32, reply: &[u8]) -> bool {
        let target = self.targets.iter_mut().find(|t| t.number == number);
        target.is_some_and(|t| t.is_suppressed(reply))
    }

    /// Explains the stop of process `number` if it is a heap error. Returns the reply for the debugger.
    pub(super) async fn tell_heap_error(
        &mut self,
        client: &mut Client,
        number: i32,
        reply: Vec<u8>,
    ) -> Vec<u8> {
        let target = self.targets.iter_mut().find(|t| t.number == number);
        let Some((text, what)) = target.and_then(|t| t.heap_error(&reply)) else {
            return reply;
        };
        self.print_found(client, &text).await;
        match reply.windows(LLDB.len()).any(|w| w == LLDB) {
            true => {
                let description = format!("description:{};", ulpf_rsp::to_hex(what.as_bytes()));
                with_reason(&reply, &description)
            }
            false => reply,
        }
    }

    /// Reports the results of the check of process `number`, which is about to end or (not `alive`) has ended.
    pub(super) async fn tell_heap_end(&mut self, client: &mut Client, number: i32, alive: bool) {
        let target = self.targets.iter_mut().find(|t| t.number == number);
        if let Some(text) = target.and_then(|t| t.heap_end(alive)) {
            self.print_found(client, &text).await;
        }
    }

    /// Prints lines through the debugger. In non-stop mode it takes no output, so the server prints them.
    async fn print_found(&self, client: &mut Client, text: &str) {
        if self.stops.on {
            message!("{}", lines(text.trim_end()));
            return;
        }
        for part in text.split_inclusive('\n') {
            let _ = client.send(super::requests::output(part).as_bytes()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_named_by_their_number() {
        assert_eq!(report_in(b"T91thread:p1.2;core:0;ulpfheap:1f;"), Some(31));
        assert_eq!(report_in(b"T05thread:p1.2;"), None);
        assert_eq!(report_in(b"T91ulpfheap:;"), None);
        assert_eq!(report_in(b"S91"), None);
        assert_eq!(report_in(b"E.ulpfheap:1;"), None);
        assert!(is_end(b"T05thread:1;ulpfheapend:;"));
        assert!(!is_end(b"T91thread:1;ulpfheap:1;"));
    }
}
