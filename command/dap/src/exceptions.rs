//! Stops at C++ exceptions (GDB's catchpoints) and at signals.

use super::mi::parse::quote;
use super::protocol::SetExceptionBreakpoints;
use super::session::{Answer, Session};
use super::state::breakpoints::{Breakpoint, Kind, Wanted, some};
use serde_json::json;

impl Session {
    pub async fn set_exception_breakpoints(&mut self, asked: SetExceptionBreakpoints) -> Answer {
        self.gdb()?;
        let was_running = self.stop_program().await?;
        let plain = asked.filters.iter().map(|f| (f.clone(), None));
        let options = asked
            .filterOptions
            .iter()
            .map(|o| (o.filterId.clone(), some(&o.condition)));
        let wanted: Vec<(String, Option<String>)> = plain.chain(options).collect();
        let old: Vec<i64> = self
            .breakpoints
            .set
            .iter()
            .filter(|(_, b)| matches!(b.kind, Kind::Exception(_)))
            .map(|(n, _)| *n)
            .collect();
        for number in old {
            let _ = self.mi(&format!("-break-delete {number}")).await;
            self.breakpoints.set.remove(&number);
        }
        let mut answers = Vec::new();
        let mut signals = false;
        for (filter, condition) in wanted {
            let what = match filter.as_str() {
                "throw" => "throw",
                "rethrow" => "rethrow",
                "catch" => "catch",
                "signals" => {
                    signals = true;
                    answers.push(json!({"verified": true}));
                    continue;
                }
                other => {
                    let message = format!("There is no filter {other}.");
                    answers.push(json!({"verified": false, "message": message}));
                    continue;
                }
            };
            answers.push(match self.catch(what, condition).await {
                Ok(number) => json!({"id": number, "verified": true}),
                Err(why) => json!({"verified": false, "message": why}),
            });
        }
        self.stop_at_signals(signals).await?;
        self.go_on(was_running).await?;
        Ok(json!({"breakpoints": answers}))
    }

    async fn catch(&mut self, what: &'static str, regex: Option<String>) -> Result<i64, String> {
        let regex = regex.map_or(String::new(), |r| format!(" -r {}", quote(&r)));
        let answer = self.mi(&format!("-catch-{what}{regex}")).await?;
        let number = answer.fields("bkpt").and_then(|b| b.number("number"));
        let number = number.ok_or("gdb's catchpoint has no number.")?;
        let one = Breakpoint {
            kind: Kind::Exception(what),
            wanted: Wanted::default(),
            stops: 0,
            reported: json!({"id": number, "verified": true}),
        };
        self.breakpoints.set.insert(number, one);
        Ok(number)
    }

    /// Sets the handling of signals. GDB's default stays until the client requests another.
    async fn stop_at_signals(&mut self, wanted: bool) -> Result<(), String> {
        let before = self.breakpoints.signals.replace(wanted).unwrap_or(true);
        if before == wanted {
            return Ok(());
        }
        if !wanted {
            self.console("handle all nostop noprint pass").await?;
        } else {
            self.console("handle all stop print pass").await?;
            // Signals that GDB does not regard as errors.
            self.console("handle SIGALRM SIGURG SIGIO SIGVTALRM SIGPROF SIGCHLD SIGPOLL SIGWINCH SIGLWP SIGPRIO SIGCANCEL nostop noprint pass").await?;
        }
        self.console("handle SIGINT SIGTRAP EXC_BAD_ACCESS stop print nopass")
            .await?;
        Ok(())
    }

    /// The exception that is being thrown or caught, if the C++ library makes it visible to GDB.
    pub async fn exception_text(&mut self, what: &str) -> String {
        match self.mi("-data-evaluate-expression $_exception").await {
            Ok(value) => value.text("value").to_string(),
            Err(_) => format!("A C++ exception: {what}"),
        }
    }

    pub fn exception_info(&mut self) -> Answer {
        let (id, text) = self
            .exception
            .clone()
            .ok_or("The program has not stopped for an exception or a signal.")?;
        Ok(json!({"exceptionId": id, "description": text, "breakMode": "always"}))
    }
}
