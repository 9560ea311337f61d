//! `ulpf dap`: a debug adapter for IDEs (docs/dap.md).
//!
//! It drives the real GDB through MI, with the program under an `ulpf server`; what GDB cannot do (data
//! breakpoints of any size and number) its plugin does. [`session`] has the picture.
#![forbid(unsafe_code)]

mod breakpoints;
mod client;
mod data;
mod evaluate;
mod exceptions;
mod feed;
#[cfg(fuzzing)]
pub mod fuzzing;
mod info;
mod launch;
mod memory;
mod mi;
mod program;
mod protocol;
mod requests;
mod session;
mod stack;
mod stops;
mod variables;
mod wire;

use crate::signals::Incoming;
use clap::Args;
use client::Client;
use session::Session;
use std::time::Duration;
use tokio::io::BufReader;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long sessions may take to end when we are told to.
const LEAVE: Duration = Duration::from_secs(15);

const EXAMPLES: &str = "\
An IDE starts it; see docs/dap.md for VS Code, Neovim, Emacs. A launch configuration:
  { \"type\": \"ulpf\", \"request\": \"launch\", \"name\": \"Debug\", \"program\": \"./prog\", \"args\": [\"-v\"] }
  { \"type\": \"ulpf\", \"request\": \"attach\", \"name\": \"Attach\", \"pid\": 1234 }
  { \"type\": \"ulpf\", \"request\": \"attach\", \"name\": \"Connect\", \"address\": \"localhost:2345\", \"program\": \"./prog\" }";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DapArgs {
    /// Listen for IDEs at HOST:PORT (this machine only, unless HOST says otherwise) instead of using stdin and stdout
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
}

/// The exit status.
pub async fn dap(args: DapArgs) -> i32 {
    let mut signals = Incoming::new(&[libc::SIGHUP, libc::SIGINT, libc::SIGTERM]);
    let (leave, told) = watch::channel(false);
    let work = async {
        match &args.listen {
            Some(address) => listen(address, told).await,
            None => {
                let input = BufReader::new(tokio::io::stdin());
                let session = Session::new(Client::new(input, tokio::io::stdout()));
                session.serve(told).await;
                0
            }
        }
    };
    tokio::pin!(work);
    tokio::select! {
        status = &mut work => status,
        signal = signals.next() => {
            // Programs end or are let go of first.
            let _ = leave.send(true);
            let _ = tokio::time::timeout(LEAVE, work).await;
            128 + signal
        }
    }
}

/// Each client has a session of its own.
async fn listen(address: &str, mut leave: watch::Receiver<bool>) -> i32 {
    let (host, port) = address.rsplit_once(':').unwrap_or(("", address));
    let host = match host.trim_start_matches('[').trim_end_matches(']') {
        "" => "127.0.0.1",
        host => host,
    };
    let Ok(port) = port.parse::<u16>() else {
        eprintln!(
            "ulpf dap: {address} is no address: say HOST:PORT, or PORT for this machine only."
        );
        return 1;
    };
    let listener = match TcpListener::bind((host, port)).await {
        Ok(listener) => listener,
        Err(e) => {
            eprintln!(
                "ulpf dap: {address} cannot be listened at: {e}. Choose another port, or 0 for any."
            );
            return 1;
        }
    };
    if let Ok(local) = listener.local_addr() {
        eprintln!("Listening on port {}", local.port());
        if !local.ip().is_loopback() {
            eprintln!(
                "ulpf dap: whoever reaches {local} can run programs as you; there is no password."
            );
        }
    }
    let mut sessions = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = leave.changed() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                let (reader, writer) = stream.into_split();
                let client = Client::new(BufReader::new(reader), writer);
                sessions.spawn(Session::new(client).serve(leave.clone()));
                while sessions.try_join_next().is_some() {}
            }
            Err(e) => {
                eprintln!("ulpf dap: {e}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
    while sessions.join_next().await.is_some() {}
    0
}
