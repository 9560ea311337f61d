//! Expressions, GDB's commands in the console, and completion of both.

use super::mi::parse::quote;
use super::protocol::{Completions, Evaluate};
use super::session::{Answer, NOT_STOPPED, Session, State};
use super::variables::format_of;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

impl Session {
    /// Lets the client interrupt GDB, while GDB may call a function of the program.
    fn interruptible(&self, yes: bool) {
        let pid = self.gdb.as_ref().map_or(0, |g| g.pid);
        self.client
            .shared
            .gdb
            .store(if yes { pid } else { 0 }, Ordering::Release);
    }

    pub async fn evaluate(&mut self, asked: Evaluate) -> Answer {
        self.gdb()?;
        self.interruptible(true);
        let answer = match asked.context.as_deref() {
            Some("repl") => self.command(&asked).await,
            _ => self.expression(&asked).await,
        };
        self.interruptible(false);
        answer
    }

    async fn expression(&mut self, asked: &Evaluate) -> Answer {
        self.need_rest()?;
        let frame = self.frame(asked.frameId)?;
        let (expression, format) = format_of(&asked.expression);
        let format = format.or(asked.format.hex.then_some("hexadecimal"));
        let object = self.object(frame, expression, format).await?;
        let mut variable = self.variable("", &object, frame);
        let mut value = variable["value"].take();
        if asked.context.as_deref() == Some("hover")
            && let Some(writer) = self.writer(expression, frame).await
        {
            let text = value.as_str().unwrap_or_default();
            value = format!("{text} ← {writer}").into();
        }
        if let Some(variable) = variable.as_object_mut() {
            variable.remove("name");
            variable.remove("value");
            variable.insert("result".into(), value);
        }
        Ok(variable)
    }

    /// A line of the console: a GDB command, or otherwise an expression.
    async fn command(&mut self, asked: &Evaluate) -> Answer {
        let text = asked.expression.trim();
        // Prefixes that other adapters use.
        let line = text
            .strip_prefix("-exec ")
            .or(text.strip_prefix('`'))
            .unwrap_or(text);
        if line.is_empty() {
            return Ok(json!({"result": "", "variablesReference": 0}));
        }
        let word = line.split(' ').next().unwrap_or_default();
        // Commands that need the program stopped only for a moment.
        let ours = matches!(word, "ulpf" | "monitor") && self.state == State::Running;
        let was_running = if ours {
            self.stop_program().await?
        } else {
            false
        };
        if self.state == State::Stopped {
            self.choose_frame(asked.frameId).await?;
        }
        let said = self.console(line).await;
        if word == "ulpf" {
            self.after_ulpf(line).await;
        }
        self.go_on(was_running).await?;
        match said {
            Ok(said) => {
                // The command may have changed what the client shows.
                if self.state == State::Stopped
                    && self.asked.supportsInvalidatedEvent
                    && changes(word)
                {
                    self.client
                        .event("invalidated", json!({"areas": ["variables", "stacks"]}))
                        .await;
                }
                Ok(json!({"result": said.trim_end(), "variablesReference": 0}))
            }
            Err(why) if why.contains("Undefined command") && self.state == State::Stopped => {
                self.expression(asked).await.map_err(|_| why)
            }
            Err(why) if why.contains("while the target is running") => Err(NOT_STOPPED.into()),
            Err(why) => Err(why),
        }
    }

    /// Updates after a command that may have added or removed watches.
    async fn after_ulpf(&mut self, line: &str) {
        let verb = line.split_whitespace().nth(1).unwrap_or_default();
        if matches!(verb, "watch" | "delete" | "enable" | "disable" | "filter") {
            self.data.others = true;
            self.look_for_logs().await;
        }
    }

    pub async fn set_expression(&mut self, asked: Evaluate) -> Answer {
        self.need_rest()?;
        let frame = self.frame(asked.frameId)?;
        self.interruptible(true);
        let result = async {
            let (expression, _) = format_of(&asked.expression);
            let object = self.object(frame, expression, None).await?;
            let name = object.text("name").to_string();
            self.mi(&format!("-var-assign {name} {}", quote(&asked.value)))
                .await?;
            self.value_of(&name, frame, asked.format.hex).await
        }
        .await;
        self.interruptible(false);
        result
    }

    pub async fn completions(&mut self, asked: Completions) -> Answer {
        self.gdb()?;
        let end = asked.column.saturating_sub(1).max(0) as usize;
        let text: String = asked.text.chars().take(end).collect();
        if self.state == State::Stopped {
            self.choose_frame(asked.frameId).await?;
        }
        let answer = match self.mi(&format!("-complete {}", quote(&text))).await {
            Ok(answer) => answer,
            Err(_) => return Ok(json!({"targets": []})),
        };
        // Every match repeats the text before the last word.
        let head = answer.text("completion").to_string();
        let start = last_word(&text, head.len());
        let before = text[..start].chars().count();
        let targets: Vec<Value> = answer
            .list("matches")
            .iter()
            .filter_map(|m| m.text().get(start..))
            .filter(|label| !label.is_empty())
            .take(500)
            .map(|label| {
                json!({"label": label, "start": before, "length": text.chars().count() - before})
            })
            .collect();
        Ok(json!({"targets": targets}))
    }
}

/// Start of the last word in the first `bytes` bytes of a text.
fn last_word(text: &str, mut bytes: usize) -> usize {
    bytes = bytes.min(text.len());
    // GDB's count may end inside a character.
    while !text.is_char_boundary(bytes) {
        bytes -= 1;
    }
    let separators = [' ', '.', '>', '(', ',', '*', '&'];
    text[..bytes].rfind(separators).map_or(0, |at| at + 1)
}

/// Whether a console command may change state. Commands that only show something do not.
fn changes(word: &str) -> bool {
    !matches!(
        word,
        "info"
            | "p"
            | "print"
            | "x"
            | "bt"
            | "backtrace"
            | "help"
            | "list"
            | "ulpf"
            | "show"
            | "ptype"
            | "echo"
    )
}

#[cfg(test)]
mod tests {
    use super::last_word;

    #[test]
    fn words() {
        assert_eq!(last_word("print abc", 9), 6);
        assert_eq!(last_word("print a.b", 7), 6);
        assert_eq!(last_word("ab", 99), 0);
        // In the middle of a character.
        assert_eq!(last_word("p ñ", 3), 2);
    }
}
