//! Dispatch of requests.

use super::protocol::{Request, arguments};
use super::session::{Answer, Session, State};
use serde_json::{Value, json};
use std::time::Duration;

/// Delay of the answer to a wrong token.
const WRONG_TOKEN: Duration = Duration::from_secs(1);

impl Session {
    pub async fn dispatch(&mut self, request: &Request) -> Answer {
        let name = request.command.as_str();
        self.admit(request).await?;
        macro_rules! with {
            ($handler:ident) => {
                match arguments(name, &request.arguments) {
                    Ok(arguments) => self.$handler(arguments).await,
                    Err(why) => Err(why),
                }
            };
        }
        match name {
            "initialize" => {
                self.asked = arguments(name, &request.arguments)?;
                if self.asked.pathFormat.as_deref() == Some("uri") {
                    return Err("Paths as URIs are not understood; use pathFormat \"path\".".into());
                }
                Ok(capabilities())
            }
            "launch" => with!(launch),
            "attach" => with!(attach),
            "configurationDone" => self.configuration_done().await,
            "restart" => with!(restart),
            "terminate" => self.terminate().await,
            "disconnect" => with!(disconnect),
            // The reading task has already handled it.
            "cancel" => Ok(Value::Null),

            "setBreakpoints" => with!(set_breakpoints),
            "setFunctionBreakpoints" => with!(set_function_breakpoints),
            "setInstructionBreakpoints" => with!(set_instruction_breakpoints),
            "setExceptionBreakpoints" => with!(set_exception_breakpoints),
            "exceptionInfo" => self.exception_info(),
            "breakpointLocations" => with!(breakpoint_locations),
            "dataBreakpointInfo" => with!(data_breakpoint_info),
            "setDataBreakpoints" => with!(set_data_breakpoints),

            "threads" => self.threads().await,
            "stackTrace" => with!(stack_trace),
            "scopes" => with!(scopes),
            "variables" => with!(variables),
            "setVariable" => with!(set_variable),
            "evaluate" => with!(evaluate),
            "setExpression" => with!(set_expression),
            "completions" => with!(completions),

            "continue" => with!(continue_),
            "next" => with!(next),
            "stepIn" => with!(step_in),
            "stepOut" => with!(step_out),
            "pause" => self.pause().await,
            "gotoTargets" => with!(goto_targets),
            "goto" => with!(goto),

            "readMemory" => with!(read_memory),
            "writeMemory" => with!(write_memory),
            "disassemble" => with!(disassemble),
            "modules" => with!(modules),
            "loadedSources" => self.loaded_sources().await,
            "source" => with!(source),

            "ulpf/watches" => self.list_watches().await,
            "ulpf/watch" => self.watch_by_text(&request.arguments).await,
            "ulpf/unwatch" => self.unwatch(&request.arguments).await,
            other => Err(format!("There is no request {other}.")),
        }
    }

    /// At a port, the client must give the token before other requests. `initialize` comes first in the protocol and
    /// has no effect.
    async fn admit(&mut self, request: &Request) -> Result<(), String> {
        let command = request.command.as_str();
        // The reading task has checked the token.
        if self.client.shared.is_admitted()
            || matches!(command, "initialize" | "disconnect" | "cancel")
        {
            return Ok(());
        }
        self.leave();
        // The delay slows down guessing.
        tokio::time::sleep(WRONG_TOKEN).await;
        let what = match &request.arguments["token"] {
            Value::String(_) => "This is not the token of this adapter".to_string(),
            _ => format!("{command} needs the token of this adapter first"),
        };
        Err(format!(
            "{what}: set \"token\" in the launch or attach configuration to what `ulpf dap --listen` has said at its start, or to the content of its --token-file."
        ))
    }

    /// Actions that must follow the answer.
    pub async fn after(&mut self, command: &str) {
        match command {
            // The program is stopped at its first instruction: breakpoints that the client sets now are armed.
            "launch" | "attach" if self.state == State::Stopped && self.configuring => {
                self.client.event("initialized", json!({})).await;
            }
            "disconnect" => self.leave(),
            _ => {}
        }
    }
}

fn capabilities() -> Value {
    let filter = |id: &str, label: &str, on: bool, what: &str| {
        json!({"filter": id, "label": label, "default": on, "supportsCondition": id != "signals",
               "conditionDescription": what})
    };
    let types = "A regular expression for the exception's type";
    json!({
        "supportsConfigurationDoneRequest": true,
        "supportsFunctionBreakpoints": true,
        "supportsConditionalBreakpoints": true,
        "supportsHitConditionalBreakpoints": true,
        "supportsLogPoints": true,
        "supportsInstructionBreakpoints": true,
        "supportsDataBreakpoints": true,
        "supportsDataBreakpointBytes": true,
        "supportsBreakpointLocationsRequest": true,
        "supportsExceptionFilterOptions": true,
        "supportsExceptionInfoRequest": true,
        "exceptionBreakpointFilters": [
            filter("throw", "C++: thrown", false, types),
            filter("rethrow", "C++: thrown again", false, types),
            filter("catch", "C++: caught", false, types),
            filter("signals", "Signals that GDB stops at", true, ""),
        ],
        "supportsEvaluateForHovers": true,
        "supportsSetVariable": true,
        "supportsSetExpression": true,
        "supportsCompletionsRequest": true,
        "completionTriggerCharacters": [" ", ".", "-", "/", ">"],
        "supportsValueFormattingOptions": true,
        "supportsDelayedStackTraceLoading": true,
        "supportsSteppingGranularity": true,
        "supportsGotoTargetsRequest": true,
        "supportsReadMemoryRequest": true,
        "supportsWriteMemoryRequest": true,
        "supportsDisassembleRequest": true,
        "supportsModulesRequest": true,
        "supportsLoadedSourcesRequest": true,
        "supportsRestartRequest": true,
        "supportsTerminateRequest": true,
        "supportTerminateDebuggee": true,
        "supportsCancelRequest": true,
        "supportsStepBack": false,
    })
}
