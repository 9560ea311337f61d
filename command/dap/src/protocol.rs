//! Requests, as far as the adapter reads them, in the names of the Debug Adapter Protocol. Answers are built by the
//! request handlers. tests/dap checks both sides of every conversation against the published schema.
//!
//! Fields outside the protocol are marked *ours*; docs/dap.md describes them.
#![allow(non_snake_case)]

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use ulpf_heap::options::{Asked, HeapOptions};

#[derive(Debug, Deserialize)]
pub struct Request {
    pub seq: i64,
    pub command: String,
    #[serde(default)]
    pub arguments: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Initialize {
    pub linesStartAt1: Option<bool>,
    pub pathFormat: Option<String>,
    pub supportsRunInTerminalRequest: bool,
    pub supportsProgressReporting: bool,
    pub supportsMemoryEvent: bool,
    pub supportsInvalidatedEvent: bool,
    pub supportsVariableType: bool,
}

/// `args`: words, or one line for a shell.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Words {
    List(Vec<String>),
    Line(String),
}

/// Arguments of `launch` and `attach`; all are ours.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Start {
    pub program: Option<String>,
    pub args: Option<Words>,
    pub cwd: Option<String>,
    /// `null` removes a variable.
    pub env: BTreeMap<String, Option<String>>,
    pub stop_on_entry: bool,
    pub no_debug: bool,
    /// `internalConsole`, `integratedTerminal`, `externalTerminal`.
    pub console: Option<String>,
    pub pid: Option<Pid>,
    /// `HOST:PORT` or a socket of a running `ulpf server`.
    pub address: Option<String>,
    pub gdb: Option<String>,
    pub gdb_args: Vec<String>,
    /// GDB commands to run before the program exists, and when it exists.
    pub init_commands: Vec<String>,
    pub post_commands: Vec<String>,
    pub sysroot: Option<String>,
    pub source_map: BTreeMap<String, String>,
    pub placement: Option<String>,
    /// Check the heap, and stop the program at its errors.
    pub check: Check,
    /// Record the last writer of each byte of heap and data.
    pub blame: bool,
    pub backend: Option<String>,
    /// Show every message from and to GDB, as output.
    pub trace: bool,
    /// The token of a port, for `ulpf dap --listen`.
    pub token: Option<String>,
}

/// Whether the heap is checked. A list contains options of a check (`--base`, `--redzone=64`) and may be empty.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Check {
    Wanted(bool),
    How(Vec<String>),
}

impl Default for Check {
    fn default() -> Check {
        Check::Wanted(false)
    }
}

impl Check {
    /// The options as words of a command line.
    pub fn words(&self) -> Vec<String> {
        let more = match self {
            Check::Wanted(false) => return Vec::new(),
            Check::Wanted(true) => &[][..],
            Check::How(words) => words,
        };
        let check = std::iter::once("--check".to_string());
        check.chain(more.iter().cloned()).collect()
    }

    /// The options, parsed; `None` without a check.
    pub fn options(&self) -> Result<Option<HeapOptions>, String> {
        let mut asked = Asked::default();
        let mut words = self.words().into_iter();
        while let Some(word) = words.next() {
            match asked.take(&word, || words.next()) {
                Ok(true) => {}
                Ok(false) => {
                    return Err(format!(
                        "\"check\" has no option `{word}`; `ulpf server --help` lists them."
                    ));
                }
                Err(why) => return Err(format!("\"check\": {why}.")),
            }
        }
        asked.done()
    }
}

/// A process number. VS Code's process picker gives a string.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Pid {
    Number(i32),
    Text(String),
}

impl Pid {
    pub fn number(&self) -> Option<i32> {
        match self {
            Pid::Number(n) => Some(*n),
            Pid::Text(text) => text.trim().parse().ok(),
        }
        .filter(|n| *n > 0)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Source {
    pub name: Option<String>,
    pub path: Option<String>,
    pub sourceReference: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SourceBreakpoint {
    pub line: i64,
    pub condition: Option<String>,
    pub hitCondition: Option<String>,
    pub logMessage: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SetBreakpoints {
    pub source: Source,
    pub breakpoints: Vec<SourceBreakpoint>,
    /// Deprecated, but still sent.
    pub lines: Vec<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct FunctionBreakpoint {
    pub name: String,
    pub condition: Option<String>,
    pub hitCondition: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct InstructionBreakpoint {
    pub instructionReference: String,
    pub offset: i64,
    pub condition: Option<String>,
    pub hitCondition: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct FilterOption {
    pub filterId: String,
    pub condition: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SetExceptionBreakpoints {
    pub filters: Vec<String>,
    pub filterOptions: Vec<FilterOption>,
}

#[derive(Debug, Deserialize)]
pub struct SetOf<T> {
    #[serde(default = "Vec::new")]
    pub breakpoints: Vec<T>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct DataBreakpointInfo {
    pub variablesReference: Option<i64>,
    pub name: String,
    pub frameId: Option<i64>,
    pub bytes: Option<u64>,
    pub asAddress: bool,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(default)]
pub struct DataBreakpoint {
    pub dataId: String,
    pub accessType: Option<String>,
    pub condition: Option<String>,
    pub hitCondition: Option<String>,
    /// Ours: record and print hits, and do not stop.
    pub log: bool,
    /// Ours: as for a source breakpoint; here any text means `log`.
    pub logMessage: Option<String>,
    /// Ours: also stop at writes that leave the value unchanged.
    pub silent: bool,
    /// Ours: number of callers whose return addresses are recorded with each hit.
    pub backtrace: u8,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Resume {
    pub threadId: i64,
    pub granularity: Option<String>,
    pub targetId: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct StackTrace {
    pub threadId: i64,
    pub startFrame: i64,
    pub levels: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Scopes {
    pub frameId: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Format {
    pub hex: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Variables {
    pub variablesReference: i64,
    pub filter: Option<String>,
    pub start: i64,
    pub count: i64,
    pub format: Format,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SetVariable {
    pub variablesReference: i64,
    pub name: String,
    pub value: String,
    pub format: Format,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Evaluate {
    pub expression: String,
    /// For `setExpression`.
    pub value: String,
    pub frameId: Option<i64>,
    pub context: Option<String>,
    pub format: Format,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Completions {
    pub frameId: Option<i64>,
    pub text: String,
    pub column: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Memory {
    pub memoryReference: String,
    pub offset: i64,
    pub count: i64,
    pub data: String,
    pub allowPartial: bool,
    /// For `disassemble`.
    pub instructionOffset: i64,
    pub instructionCount: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Page {
    pub startModule: usize,
    pub moduleCount: usize,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SourceText {
    pub source: Source,
    pub sourceReference: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct GotoTargets {
    pub source: Source,
    pub line: i64,
    /// For `breakpointLocations`.
    pub endLine: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Restart {
    pub arguments: Option<Start>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Disconnect {
    pub restart: bool,
    pub terminateDebuggee: Option<bool>,
    pub suspendDebuggee: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Cancel {
    pub requestId: Option<i64>,
    pub progressId: Option<String>,
}

/// Parses the arguments of a request. The error is a message.
pub fn arguments<T: for<'a> Deserialize<'a>>(command: &str, value: &Value) -> Result<T, String> {
    let value = match value {
        Value::Null => Value::Object(Default::default()),
        value => value.clone(),
    };
    serde_json::from_value(value)
        .map_err(|e| format!("{command}: its arguments are not understood: {e}."))
}
