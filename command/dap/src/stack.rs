//! Threads, frames, scopes.

use super::protocol::{Scopes, StackTrace};
use super::session::{Answer, Session};
use super::state::variables::Kind;
use serde_json::{Value, json};

/// The reported total exceeds the frames sent so far by at most this number, to show that there are more.
const AHEAD: i64 = 20;

impl Session {
    pub async fn threads(&mut self) -> Answer {
        if self.gdb.is_none() {
            return Ok(json!({"threads": []}));
        }
        // GDB requests names from its target. While the program runs, those of the last stop are used.
        if let Ok(answer) = self.mi("-thread-info").await {
            self.threads.clear();
            for thread in answer.tuples("threads") {
                let (name, target) = (thread.text("name"), thread.text("target-id"));
                // "Thread 12.34" is the name in the remote protocol.
                let number = target.rsplit(['.', ' ']).next().unwrap_or(target);
                let name = match name {
                    "" => target.to_string(),
                    name => format!("{name} ({number})"),
                };
                let id = thread.number("id").unwrap_or(0);
                self.threads.insert(id, name);
            }
        }
        let threads = self.threads.iter();
        let threads: Vec<Value> = threads
            .map(|(id, name)| json!({"id": id, "name": name}))
            .collect();
        Ok(json!({"threads": threads}))
    }

    /// `--thread T --frame L` for a frame of the client, or for the last stop without one.
    pub fn frame(&self, frame: Option<i64>) -> Result<(i64, i64), String> {
        match frame {
            None => Ok((self.thread, 0)),
            Some(number) => self
                .frames
                .get(number)
                .ok_or("That frame is gone: the program has run since.".into()),
        }
    }

    /// Selects a frame in GDB, for commands without a frame argument.
    pub async fn choose_frame(&mut self, frame: Option<i64>) -> Result<(), String> {
        if self.need_rest().is_err() && frame.is_none() {
            return Ok(());
        }
        let (thread, level) = self.frame(frame)?;
        self.mi(&format!("-thread-select {thread}")).await?;
        self.mi(&format!("-stack-select-frame {level}")).await?;
        Ok(())
    }

    pub async fn stack_trace(&mut self, asked: StackTrace) -> Answer {
        self.need_rest()?;
        let thread = asked.threadId;
        let first = asked.startFrame.max(0);
        let most = if asked.levels > 0 { asked.levels } else { 1000 };
        let deep = first.saturating_add(most).saturating_add(AHEAD);
        let depth = self
            .mi(&format!("-stack-info-depth --thread {thread} {deep}"))
            .await?
            .number("depth")
            .unwrap_or(0);
        if first >= depth {
            return Ok(json!({"stackFrames": [], "totalFrames": depth}));
        }
        let last = first.saturating_add(most).min(depth) - 1;
        let answer = self
            .mi(&format!(
                "-stack-list-frames --thread {thread} {first} {last}"
            ))
            .await?;
        let back = i64::from(self.asked.linesStartAt1 == Some(false));
        let mut frames = Vec::new();
        for frame in answer.tuples("stack") {
            let level = frame.number("level").unwrap_or(0);
            let address = frame.address("addr");
            let name = match (frame.text("func"), address) {
                ("", Some(address)) => format!("{address:#x}"),
                (name, _) => name.to_string(),
            };
            let line = frame.number("line").unwrap_or(0);
            let mut described = json!({"id": self.frames.number(thread, level), "name": name, "line": (line - back).max(0), "column": 0});
            if let Some(address) = address {
                described["instructionPointerReference"] = format!("{address:#x}").into();
            }
            let file = match frame.text("fullname") {
                "" => frame.text("file"),
                full => full,
            };
            if line > 0 && !file.is_empty() {
                described["source"] = self.variables.sources.describe(file, address);
            } else {
                described["presentationHint"] = "subtle".into();
            }
            let library = frame.text("from");
            if !library.is_empty() {
                described["moduleId"] = library.into();
            }
            frames.push(described);
        }
        Ok(json!({"stackFrames": frames, "totalFrames": depth}))
    }

    pub async fn scopes(&mut self, asked: Scopes) -> Answer {
        self.need_rest()?;
        let frame = self.frame(Some(asked.frameId))?;
        let list = self
            .mi(&format!(
                "-stack-list-variables --thread {} --frame {} --no-values",
                frame.0, frame.1
            ))
            .await
            .unwrap_or_default();
        let (mut arguments, mut locals) = (Vec::new(), Vec::new());
        for variable in list.tuples("variables") {
            let name = variable.text("name").to_string();
            let of = match variable.has("arg") {
                true => &mut arguments,
                false => &mut locals,
            };
            // The innermost variable of a name comes first.
            if !of.contains(&name) {
                of.push(name);
            }
        }
        let mut scopes = Vec::new();
        for (name, hint, kind, expensive) in [
            ("Arguments", "arguments", Kind::Named(arguments), false),
            ("Locals", "locals", Kind::Named(locals), false),
            ("Globals of this file", "globals", Kind::Globals, true),
            ("Registers", "registers", Kind::Registers, true),
        ] {
            let count = match &kind {
                Kind::Named(names) if names.is_empty() && name == "Arguments" => continue,
                Kind::Named(names) => Some(names.len()),
                _ => None,
            };
            let reference = self.variables.scope(frame, kind);
            let mut one =
                json!({"name": name, "variablesReference": reference, "expensive": expensive});
            // "globals" is not a hint of the protocol.
            if hint != "globals" {
                one["presentationHint"] = hint.into();
            }
            if let Some(count) = count {
                one["namedVariables"] = count.into();
            }
            scopes.push(one);
        }
        Ok(json!({"scopes": scopes}))
    }
}
