//! The program's environment: its server, its standard output and error, and a folder for sockets and the plugin.

use super::wire::take_text;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;
use ulpf_heap::options::HeapOptions;
use ulpf_host::listen::socket_dir::SocketDir;
use ulpf_inject::settings::Settings;
use ulpf_server::options::Options;
use ulpf_server::{BackEnd, Terminal};

use tokio::net::unix::pipe;

/// How a session got its program, which determines how it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    #[default]
    None,
    Launched,
    Attached,
}

#[derive(Default)]
pub struct Program {
    pub origin: Origin,
    pub pid: Option<i32>,
    /// The back end, if the program is on another machine: simulated, or behind the bridge.
    pub backend: Option<BackEnd>,
    pub settings: Settings,
    /// Options of the heap check, if the heap is checked.
    pub check: Option<HeapOptions>,
    /// Last writers are recorded.
    pub blame: bool,
    dir: Option<SocketDir>,
    server: Option<std::thread::JoinHandle<()>>,
    streams: Vec<Stream>,
    exit: Option<i64>,
}

struct Stream {
    kind: &'static str,
    pipe: pipe::Receiver,
    bytes: Vec<u8>,
    ended: bool,
    /// The program's end of the pipe, kept for the next run.
    writer: OwnedFd,
}

impl Program {
    pub fn prepare(&mut self) -> Result<(), String> {
        self.dir = Some(SocketDir::new()?);
        Ok(())
    }

    pub fn file(&self, name: &str) -> Result<PathBuf, String> {
        let dir = self.dir.as_ref().ok_or("There is no session yet.")?;
        Ok(dir.file(name))
    }

    /// Starts a server for GDB in a thread of its own. Returns its socket.
    pub fn serve(&mut self) -> Result<PathBuf, String> {
        let socket = self.file("gdb")?;
        for kind in ["stdout", "stderr"] {
            let (writer, reader) =
                pipe::pipe().map_err(|e| format!("There are no pipes for the program: {e}."))?;
            self.streams.push(Stream {
                kind,
                pipe: reader,
                bytes: Vec::new(),
                ended: false,
                writer: writer
                    .into_blocking_fd()
                    .map_err(|e| format!("There are no pipes for the program: {e}."))?,
            });
        }
        let options = Options {
            comm: socket.clone().into(),
            multi: true,
            once: true,
            settings: self.settings,
            check: self.check.clone(),
            blame: self.blame,
            output: Some([0, 1].map(|n| self.streams[n].writer.as_raw_fd())),
            ..Options::default()
        };
        let backend = self.backend.clone();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let server = std::thread::Builder::new().name("server".into());
        let thread = server.spawn(move || {
            let runtime = match tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
            {
                Ok(runtime) => runtime,
                Err(e) => return drop(ready.send(Err(e.to_string()))),
            };
            runtime.block_on(async {
                let serving: Result<Pin<Box<dyn Future<Output = ()>>>, String> = match backend {
                    None => match ulpf_server::Bound::new(options, Terminal::Shared).await {
                        Ok(bound) => Ok(Box::pin(bound.serve())),
                        Err(why) => Err(why),
                    },
                    Some(backend) => {
                        match ulpf_server::BridgeBound::new(options, backend, Terminal::Shared)
                            .await
                        {
                            Ok(bound) => Ok(Box::pin(bound.serve())),
                            Err(why) => Err(why),
                        }
                    }
                };
                match serving {
                    Ok(serving) => {
                        let _ = ready.send(Ok(()));
                        serving.await;
                    }
                    Err(why) => drop(ready.send(Err(why))),
                }
            });
            runtime.shutdown_background();
        });
        self.server = Some(thread.map_err(|e| format!("There is no thread for the server: {e}."))?);
        match is_ready.recv() {
            Ok(Ok(())) => Ok(socket),
            Ok(Err(why)) => Err(format!("The connection to gdb cannot be set up: {why}")),
            Err(_) => Err("The server has ended.".into()),
        }
    }

    /// The program's next output, and its stream. Cancel-safe.
    pub async fn output(&mut self) -> (&'static str, String) {
        let (first, second) = match &mut self.streams[..] {
            [first, second] => (first, second),
            _ => return std::future::pending().await,
        };
        loop {
            let stream = tokio::select! {
                _ = first.pipe.readable(), if !first.ended => &mut *first,
                _ = second.pipe.readable(), if !second.ended => &mut *second,
                else => std::future::pending().await,
            };
            if let Some(text) = stream.take() {
                return (stream.kind, text);
            }
        }
    }

    /// All remaining output, when the program has ended.
    pub fn rest_of_output(&mut self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        for stream in &mut self.streams {
            while let Some(text) = stream.take() {
                all.push((stream.kind, text));
            }
        }
        all
    }

    /// Stores an exit code, which GDB writes in octal.
    pub fn exit_code(&mut self, code: &str) {
        self.exit = i64::from_str_radix(code, 8).ok();
    }

    pub fn take_exit(&mut self) -> Option<i64> {
        self.exit.take()
    }

    /// Waits for the server, which ends after GDB.
    pub async fn end(&mut self) {
        let Some(server) = self.server.take() else {
            return;
        };
        for _ in 0..500 {
            if server.is_finished() {
                return;
            }
            // A program that keeps writing must not block the server.
            self.rest_of_output();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Stream {
    fn take(&mut self) -> Option<String> {
        let mut buffer = [0; 16 << 10];
        match self.pipe.try_read(&mut buffer) {
            Ok(0) => self.ended = true,
            Ok(n) => {
                self.bytes.extend_from_slice(&buffer[..n]);
                return Some(take_text(&mut self.bytes)).filter(|t| !t.is_empty());
            }
            Err(_) => {}
        }
        None
    }
}
