//! Entry points of the debug adapter for the fuzz targets in fuzz/. Nothing else calls them.

use super::protocol::*;
use super::{mi, wire};
use serde::Deserialize;
use serde_json::Value;

/// Bytes of a client: its messages, each read as the arguments of every request that there is.
pub fn messages(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut reader = wire::Reader::new(bytes);
        while let Some(message) = reader.next(wire::LONGEST).await {
            let Ok(message) = message else { continue };
            if let Ok(request) = Request::deserialize(&message) {
                arguments_of_all(&request.command, &request.arguments);
            }
        }
    });
}

fn arguments_of_all(command: &str, value: &Value) {
    macro_rules! read {
        ($($kind:ty)*) => { $( let _ = arguments::<$kind>(command, value); )* };
    }
    read! {
        Initialize Start SetBreakpoints SetOf<FunctionBreakpoint> SetOf<InstructionBreakpoint>
        SetOf<DataBreakpoint> SetExceptionBreakpoints DataBreakpointInfo Resume StackTrace Scopes Variables
        SetVariable Evaluate Completions Memory Page SourceText GotoTargets Restart Disconnect Cancel
    }
    if let Ok(start) = arguments::<Start>(command, value) {
        let _ = start.pid.and_then(|pid| pid.number());
    }
}

/// A line of GDB's machine interface, and the way back of every text in it.
pub fn mi_line(line: &[u8]) {
    let record = mi::parse::line(line);
    if let mi::parse::Record::Stream(kind, text) = record {
        let again = format!("{kind}{}", mi::parse::quote(&text));
        assert_eq!(
            mi::parse::line(again.as_bytes()),
            mi::parse::Record::Stream(kind, text)
        );
    }
}

/// A program's output in pieces: what is no whole character yet stays.
pub fn text(pieces: &[&[u8]]) {
    let mut held = Vec::new();
    for piece in pieces {
        held.extend_from_slice(piece);
        wire::take_text(&mut held);
        assert!(held.len() < 4);
    }
}
