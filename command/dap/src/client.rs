//! The connection to the client. Requests are served in order, and answers and events are sent in order. The reading
//! task handles requests that must overtake a long one (cancel, pause).

use super::protocol::{Cancel, Request, arguments};
use super::token::Token;
use super::wire;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use ulpf_host::foreign::text::lines;
use ulpf_host::sys;

/// Limit of messages that wait for a client that does not read.
const BACKLOG: usize = 4096;

/// Limits for a client before it has given the token: it may send `initialize` and the request with the token.
const STRANGERS_MESSAGES: usize = 16;
const STRANGERS_TIME: Duration = Duration::from_secs(60);

/// State shared by the session and the reading task.
#[derive(Default)]
pub struct Shared {
    /// The client may send any request: it has given the token, or needs none.
    admitted: AtomicBool,
    /// Requests and progress reports that the client has cancelled.
    cancelled: Mutex<HashSet<String>>,
    /// The request in progress, or 0.
    serving: AtomicI64,
    /// GDB's process number while one of its commands may be interrupted, or 0.
    pub gdb: AtomicI32,
}

impl Shared {
    /// Interrupts GDB's present work (an evaluation that calls a function of the program, say).
    fn interrupt(&self) {
        let pid = self.gdb.load(Ordering::Acquire);
        if pid > 0 {
            let _ = sys::kill(pid, libc::SIGINT);
        }
    }

    pub fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::Acquire)
    }

    pub fn is_cancelled(&self, key: &str) -> bool {
        self.cancelled.lock().is_ok_and(|c| c.contains(key))
    }

    fn cancel(&self, key: String) {
        if let Ok(mut cancelled) = self.cancelled.lock() {
            // Requests that were answered before remain in the set, so it is emptied from time to time.
            if cancelled.len() > 10_000 {
                cancelled.clear();
            }
            cancelled.insert(key);
        }
    }
}

pub enum Input {
    Request(Request),
    /// A message that is not a request; the error.
    Garbage(String),
    /// An answer to a request of the adapter.
    Answer(Value),
}

pub struct Client {
    out: mpsc::Sender<Value>,
    input: mpsc::UnboundedReceiver<Input>,
    seq: i64,
    pub shared: Arc<Shared>,
    writer: tokio::task::JoinHandle<()>,
}

impl Client {
    pub fn new(
        reader: impl AsyncBufRead + Unpin + Send + 'static,
        writer: impl AsyncWrite + Unpin + Send + 'static,
        token: Option<Arc<Token>>,
    ) -> Client {
        let (out, messages) = mpsc::channel(BACKLOG);
        let (sender, input) = mpsc::unbounded_channel();
        let shared = Arc::<Shared>::default();
        shared.admitted.store(token.is_none(), Ordering::Release);
        let writer = tokio::spawn(wire::write(writer, messages));
        tokio::spawn(read(
            wire::Reader::new(reader),
            sender,
            shared.clone(),
            token,
        ));
        Client {
            out,
            input,
            seq: 0,
            shared,
            writer,
        }
    }

    /// The next message of the client, or `None` if it has disconnected. Cancel-safe.
    pub async fn next(&mut self) -> Option<Input> {
        self.input.recv().await
    }

    pub fn begin(&self, seq: i64) {
        self.shared.serving.store(seq, Ordering::Release);
    }

    pub fn done(&self) {
        self.shared.serving.store(0, Ordering::Release);
    }

    pub async fn event(&mut self, name: &str, mut body: Value) {
        let programs =
            |body: &Value| matches!(body["category"].as_str(), Some("stdout" | "stderr"));
        if name == "output" && !programs(&body) {
            // A debug console interprets escape sequences as a terminal does.
            body["output"] = lines(body["output"].as_str().unwrap_or_default()).into();
        }
        self.send(json!({"type": "event", "event": name, "body": body}))
            .await;
    }

    pub async fn output(&mut self, category: &str, text: &str) {
        if !text.is_empty() {
            self.event("output", json!({"category": category, "output": text}))
                .await;
        }
    }

    pub async fn send(&mut self, mut message: Value) {
        self.seq += 1;
        message["seq"] = self.seq.into();
        // If the client has disconnected, the reading task notices it.
        let _ = self.out.send(message).await;
    }

    /// Sends a request to the client; its answer comes as `Input::Answer`.
    pub async fn ask(&mut self, command: &str, arguments: Value) -> i64 {
        self.send(json!({"type": "request", "command": command, "arguments": arguments}))
            .await;
        self.seq
    }

    /// Closes the connection when all messages have been written, unless the client does not read.
    pub async fn close(self) {
        drop(self.out);
        let _ = tokio::time::timeout(std::time::Duration::from_secs(2), self.writer).await;
    }
}

async fn read<R: AsyncBufRead + Unpin>(
    mut reader: wire::Reader<R>,
    to: mpsc::UnboundedSender<Input>,
    shared: Arc<Shared>,
    token: Option<Arc<Token>>,
) {
    let end = Instant::now() + STRANGERS_TIME;
    for count in 0.. {
        let message = match shared.is_admitted() {
            true => reader.next(wire::LONGEST).await,
            false if count == STRANGERS_MESSAGES => break,
            false => {
                let next = reader.next(wire::STRANGERS_LONGEST);
                timeout_at(end, next).await.ok().flatten()
            }
        };
        let Some(message) = message else { break };
        let input = match message {
            Err(why) => Input::Garbage(why),
            Ok(message) if message["type"] == "response" => Input::Answer(message),
            Ok(message) if message["type"] == "request" => {
                match serde_json::from_value::<Request>(message) {
                    Ok(request) => {
                        if token.as_ref().is_some_and(|t| gives(&request, t)) {
                            shared.admitted.store(true, Ordering::Release);
                        }
                        overtake(&request, &shared);
                        Input::Request(request)
                    }
                    Err(e) => Input::Garbage(format!("this is no request: {e}")),
                }
            }
            Ok(_) => Input::Garbage(
                "a message has a \"type\", \"request\" or \"response\"; this one has not".into(),
            ),
        };
        if to.send(input).is_err() {
            return;
        }
    }
    // The result of GDB's present work is no longer needed.
    shared.interrupt();
}

/// Whether this request begins a session and has the right token.
fn gives(request: &Request, token: &Token) -> bool {
    matches!(request.command.as_str(), "launch" | "attach")
        && request.arguments["token"]
            .as_str()
            .is_some_and(|given| token.is(given))
}

/// Handles a request that affects the one in progress.
fn overtake(request: &Request, shared: &Shared) {
    let serving = shared.serving.load(Ordering::Acquire);
    match request.command.as_str() {
        "cancel" => {
            let Ok(cancel) = arguments::<Cancel>("cancel", &request.arguments) else {
                return;
            };
            if let Some(id) = cancel.requestId {
                shared.cancel(id.to_string());
                if id == serving {
                    shared.interrupt();
                }
            }
            if let Some(id) = cancel.progressId {
                shared.cancel(id);
            }
        }
        "pause" | "disconnect" | "terminate" if serving != 0 => shared.interrupt(),
        _ => {}
    }
}
