//! Breakpoints in code: at lines, functions, instructions. Each is a breakpoint of GDB and has its number.
//!
//! GDB supports conditions and ignore counts. The adapter evaluates other hit conditions at every stop, and formats log
//! messages.

use super::mi::parse::{Fields, quote};
use super::protocol::{
    FunctionBreakpoint, InstructionBreakpoint, SetBreakpoints, SetOf, SourceBreakpoint,
};
use super::session::{Answer, Session};
use super::state::breakpoints::{Breakpoint, Kind, NEVER, Verdict, Wanted, ignored, wanted};
use super::state::sources::source;
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl Session {
    pub async fn set_breakpoints(&mut self, asked: SetBreakpoints) -> Answer {
        let Some(path) = asked.source.path.or(asked.source.name) else {
            return Err(
                "A source without a path has no breakpoints here; set them at instructions.".into(),
            );
        };
        let mut list = asked.breakpoints;
        if list.is_empty() {
            list = asked
                .lines
                .iter()
                .map(|line| SourceBreakpoint {
                    line: *line,
                    ..Default::default()
                })
                .collect();
        }
        let first = i64::from(self.asked.linesStartAt1 == Some(false));
        let all = list.iter().map(|b| {
            let place = format!(
                "--source {} --line {}",
                quote(&path),
                b.line.saturating_add(first)
            );
            wanted(&path, place, &b.condition, &b.hitCondition, &b.logMessage)
        });
        self.set_wanted(Kind::Source, &path, all.collect()).await
    }

    pub async fn set_function_breakpoints(&mut self, asked: SetOf<FunctionBreakpoint>) -> Answer {
        let all = asked.breakpoints.iter().map(|b| {
            let place = format!("--function {}", quote(b.name.trim()));
            wanted("functions", place, &b.condition, &b.hitCondition, &None)
        });
        self.set_wanted(Kind::Function, "functions", all.collect())
            .await
    }

    pub async fn set_instruction_breakpoints(
        &mut self,
        asked: SetOf<InstructionBreakpoint>,
    ) -> Answer {
        let all = asked.breakpoints.iter().map(|b| {
            let address = super::memory::address(&b.instructionReference)
                .map(|a| a.wrapping_add_signed(b.offset))
                .ok_or_else(|| format!("{} is no address.", b.instructionReference))?;
            let place = format!("*{address:#x}");
            wanted("instructions", place, &b.condition, &b.hitCondition, &None)
        });
        self.set_wanted(Kind::Instruction, "instructions", all.collect())
            .await
    }

    /// Changes a group's breakpoints to those that the client wants, while the program is stopped.
    async fn set_wanted(
        &mut self,
        kind: Kind,
        group: &str,
        all: Vec<Result<Wanted, String>>,
    ) -> Answer {
        self.gdb()?;
        let was_running = self.stop_program().await?;
        let kept: Vec<&Wanted> = all.iter().flatten().collect();
        let here = |b: &Breakpoint| b.kind == kind && b.wanted.group == group;
        let gone: Vec<i64> = self
            .breakpoints
            .set
            .iter()
            .filter(|(_, b)| here(b) && !kept.contains(&&b.wanted))
            .map(|(n, _)| *n)
            .collect();
        for number in gone {
            let _ = self.mi(&format!("-break-delete {number}")).await;
            self.breakpoints.set.remove(&number);
        }
        let mut known: BTreeMap<Wanted, i64> = self
            .breakpoints
            .set
            .iter()
            .filter(|(_, b)| here(b))
            .map(|(n, b)| (b.wanted.clone(), *n))
            .collect();
        let mut answers = Vec::new();
        for wanted in all {
            let one = match wanted {
                Err(why) => Err(why),
                Ok(wanted) => match known.get(&wanted) {
                    Some(number) => Ok(*number),
                    None => {
                        let made = self.insert(kind, &wanted).await;
                        if let Ok(number) = &made {
                            known.insert(wanted, *number);
                        }
                        made
                    }
                },
            };
            answers.push(match one {
                Ok(number) => self.breakpoints.set[&number].reported.clone(),
                Err(why) => json!({"verified": false, "message": why, "reason": "failed"}),
            });
        }
        self.go_on(was_running).await?;
        Ok(json!({"breakpoints": answers}))
    }

    async fn insert(&mut self, kind: Kind, wanted: &Wanted) -> Result<i64, String> {
        let mut command = String::from("-break-insert -f");
        if let Some(condition) = &wanted.condition {
            command += &format!(" -c {}", quote(condition));
        }
        if ignored(wanted.hit) > 0 {
            command += &format!(" -i {}", ignored(wanted.hit));
        }
        command += &format!(" {}", wanted.place);
        let answer = self.mi(&command).await?;
        let fields = answer
            .fields("bkpt")
            .ok_or("gdb has not said which breakpoint this is.")?;
        let number = fields
            .number("number")
            .ok_or("gdb's breakpoint has no number.")?;
        let reported = describe(fields);
        let one = Breakpoint {
            kind,
            wanted: wanted.clone(),
            stops: 0,
            reported,
        };
        self.breakpoints.set.insert(number, one);
        Ok(number)
    }

    /// Decides whether a hit breakpoint stops the program.
    pub async fn judge(&mut self, number: i64) -> Verdict {
        let Some(one) = self.breakpoints.set.get_mut(&number) else {
            return Verdict::Stop;
        };
        one.stops += 1;
        let (stops, hit, log) = (one.stops, one.wanted.hit, one.wanted.log.clone());
        let next = match hit {
            Some(("==", _)) => Some(NEVER),
            Some(("<=", n)) if stops >= n => Some(NEVER),
            Some(("%", n)) => Some(n - 1),
            _ => None,
        };
        if let Some(count) = next {
            let _ = self.mi(&format!("-break-after {number} {count}")).await;
        }
        let Some(message) = log else {
            return Verdict::Stop;
        };
        let text = self.interpolate(&message).await;
        self.client.output("console", &format!("{text}\n")).await;
        Verdict::GoOn
    }

    /// Resets the hit counts for a new run.
    pub async fn count_anew(&mut self) {
        let counted: Vec<(i64, i64)> = self
            .breakpoints
            .set
            .iter()
            .filter(|(_, b)| b.wanted.hit.is_some())
            .map(|(n, b)| (*n, ignored(b.wanted.hit)))
            .collect();
        for (number, count) in counted {
            let _ = self.mi(&format!("-break-after {number} {count}")).await;
            if let Some(one) = self.breakpoints.set.get_mut(&number) {
                one.stops = 0;
            }
        }
    }

    /// A log message with the values of its expressions in braces.
    async fn interpolate(&mut self, message: &str) -> String {
        let (mut text, mut stop_program) = (String::new(), message);
        while let Some(at) = stop_program.find('{') {
            let Some(end) = stop_program[at..].find('}') else {
                break;
            };
            text += &stop_program[..at];
            let expression = &stop_program[at + 1..at + end];
            let command = format!("-data-evaluate-expression {}", quote(expression));
            match self.mi(&command).await {
                Ok(value) => text += value.text("value"),
                Err(why) => text += &format!("<{why}>"),
            }
            stop_program = &stop_program[at + end + 1..];
        }
        text + stop_program
    }

    /// Handles GDB's notification about a breakpoint, for example that a library has brought its location.
    pub async fn breakpoint_changed(&mut self, class: &str, fields: &Fields) {
        if class == "breakpoint-deleted" {
            let number = fields.number("id").unwrap_or(0);
            if self.breakpoints.set.remove(&number).is_some() {
                let body =
                    json!({"reason": "removed", "breakpoint": {"id": number, "verified": false}});
                self.client.event("breakpoint", body).await;
            }
            return;
        }
        let Some(bkpt) = fields.fields("bkpt") else {
            return;
        };
        let number = bkpt.number("number").unwrap_or(0);
        if let Some(one) = self.breakpoints.set.get_mut(&number) {
            let now = describe(bkpt);
            if one.reported != now {
                one.reported = now.clone();
                let body = json!({"reason": "changed", "breakpoint": now});
                self.client.event("breakpoint", body).await;
            }
        }
    }

    /// Lines of a file with code.
    pub async fn breakpoint_locations(&mut self, asked: super::protocol::GotoTargets) -> Answer {
        let path = asked.source.path.unwrap_or_default();
        let answer = self
            .mi(&format!("-symbol-list-lines {}", quote(&path)))
            .await
            .unwrap_or_default();
        let (first, last) = (asked.line, asked.endLine.unwrap_or(asked.line));
        let mut lines: Vec<i64> = answer
            .tuples("lines")
            .filter_map(|l| l.number("line"))
            .filter(|l| (first..=last).contains(l))
            .collect();
        lines.sort_unstable();
        lines.dedup();
        let lines: Vec<Value> = lines.iter().map(|l| json!({"line": l})).collect();
        Ok(json!({"breakpoints": lines}))
    }
}

/// Converts GDB's breakpoint to the protocol's.
fn describe(bkpt: &Fields) -> Value {
    let mut breakpoint = json!({"id": bkpt.number("number"), "verified": !bkpt.has("pending")});
    // The first of several locations.
    let place = match bkpt.tuples("locations").next() {
        Some(first) if !bkpt.has("line") => first,
        _ => bkpt,
    };
    if let Some(line) = place.number("line") {
        breakpoint["line"] = line.into();
    }
    let path = place.text("fullname");
    if !path.is_empty() {
        breakpoint["source"] = source(path);
    }
    if let Some(address) = place.address("addr") {
        breakpoint["instructionReference"] = format!("{address:#x}").into();
    }
    if bkpt.has("pending") {
        breakpoint["reason"] = "pending".into();
        breakpoint["message"] = "No code is there yet; it is set when a library brings it. (Is the program compiled with -g?)".into();
    }
    breakpoint
}
