//! Entry points of the debug adapter for the fuzz targets in fuzz/. Nothing else calls them.

use super::protocol::*;
use super::{mi, wire};
use serde::Deserialize;
use serde_json::Value;

/// Messages of a client; each is parsed as the arguments of every request.
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

/// Parses a line of GDB's machine interface, and quotes every text in it again.
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

/// A program's output in pieces; an incomplete character at the end of a piece is kept.
pub fn text(pieces: &[&[u8]]) {
    let mut held = Vec::new();
    for piece in pieces {
        held.extend_from_slice(piece);
        wire::take_text(&mut held);
        assert!(held.len() < 4);
    }
}
