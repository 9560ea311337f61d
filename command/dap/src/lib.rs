//! `ulpf dap`: a debug adapter for IDEs (docs/dap.md).
//!
//! It controls the real GDB through MI, with the program under an `ulpf server`. The plugin adds what GDB cannot do:
//! data breakpoints of any size and number. `session` has a drawing.
#![forbid(unsafe_code)]

mod breakpoints;
mod client;
mod data;
mod evaluate;
mod exceptions;
mod feed;
#[doc(hidden)]
pub mod fuzzing;
mod info;
mod launch;
mod memory;
mod mi;
mod plugin;
mod program;
mod protocol;
mod requests;
mod session;
mod stack;
mod state;
mod stops;
mod token;
mod variables;
mod wire;

use clap::Args;
use client::Client;
use session::Session;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use token::Token;
use tokio::io::BufReader;
use tokio::sync::watch;
use tokio::task::JoinSet;
use ulpf_host::listen::{Listener, Protocol, Rules};
use ulpf_host::signals::Incoming;

/// Time limit for sessions to end when a signal ends the adapter.
const LEAVE: Duration = Duration::from_secs(15);
/// Limit of simultaneous sessions.
const MOST: usize = 64;

const EXAMPLES: &str = "\
An IDE starts it; see docs/dap.md for VS Code, Neovim, Emacs. A launch configuration:
  { \"type\": \"ulpf\", \"request\": \"launch\", \"name\": \"Debug\", \"program\": \"./prog\", \"args\": [\"-v\"] }
  { \"type\": \"ulpf\", \"request\": \"attach\", \"name\": \"Attach\", \"pid\": 1234 }
  { \"type\": \"ulpf\", \"request\": \"attach\", \"name\": \"Connect\", \"address\": \"localhost:2345\", \"program\": \"./prog\" }";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DapArgs {
    /// Listen for IDEs instead of using stdin and stdout. Give the path of a new socket, which only you can connect
    /// to, or HOST:PORT or PORT with a token. A port is for this machine only, unless HOST says otherwise
    #[arg(long, value_name = "PATH|HOST:PORT")]
    listen: Option<OsString>,

    /// The token that clients of a port have to give ("token" in their launch configuration) is the content of
    /// FILE; it is made if it is not there. Without this, a new one is shown at each start
    #[arg(long, value_name = "FILE", requires = "listen")]
    token_file: Option<PathBuf>,

    /// Let all users of this machine connect to a port with the token, not only your own and root
    #[arg(long, requires = "listen")]
    any_user: bool,
}

/// Runs the adapter and returns the exit status.
pub async fn dap(args: DapArgs) -> i32 {
    let mut signals = Incoming::new(&[libc::SIGHUP, libc::SIGINT, libc::SIGTERM]);
    let (leave, leaving) = watch::channel(false);
    let work = async {
        match &args.listen {
            Some(place) => match listen(place, &args, leaving).await {
                Ok(()) => 0,
                Err(why) => {
                    ulpf_host::say::message!("ulpf dap: {why}");
                    1
                }
            },
            None => {
                let input = BufReader::new(tokio::io::stdin());
                let session = Session::new(Client::new(input, tokio::io::stdout(), None));
                session.serve(leaving).await;
                0
            }
        }
    };
    tokio::pin!(work);
    tokio::select! {
        status = &mut work => status,
        signal = signals.next() => {
            // Programs are ended or detached first.
            let _ = leave.send(true);
            let _ = tokio::time::timeout(LEAVE, work).await;
            128 + signal
        }
    }
}

/// Serves each client in a session of its own. The error is text for the user.
async fn listen(
    place: &OsString,
    args: &DapArgs,
    mut leave: watch::Receiver<bool>,
) -> Result<(), String> {
    // A bare number is a port.
    let mut comm = place.clone();
    if place
        .to_str()
        .is_some_and(|text| text.parse::<u16>().is_ok())
    {
        comm = OsString::from(":");
        comm.push(place);
    }
    let rules = Rules {
        name: "ulpf dap",
        protocol: Protocol::Adapter,
        any_user: args.any_user,
    };
    let mut listener = Listener::bind(&comm, rules).await?;
    if listener.is_stdio() {
        return Err(
            "standard input and output are used without --listen; name a path, or HOST:PORT."
                .into(),
        );
    }
    // A socket protected by file permissions needs no token.
    let guarded = listener.address().is_none();
    let token = match &args.token_file {
        Some(file) => Some(Token::of_file(file)?),
        None if guarded => None,
        None => Some(Token::new()?),
    };
    if let Some(text) = listener.announcement() {
        ulpf_host::say::message!("{text}");
    }
    match (&token, &args.token_file) {
        (None, _) => {}
        (Some(_), Some(file)) => ulpf_host::say::message!(
            "Clients have to give the token in {}: \"token\" in their launch or attach configuration",
            file.display()
        ),
        (Some(token), None) => ulpf_host::say::message!(
            "Clients have to give this in their launch or attach configuration: \"token\": \"{}\"",
            token.text()
        ),
    }
    if let Some(address) = listener.beyond_this_machine() {
        ulpf_host::say::message!(
            "ulpf dap: whoever reaches {address} and has the token can run programs as you; what is said there is not encrypted."
        );
    }
    let token = token.map(Arc::new);
    let mut sessions = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept(), if sessions.len() < MOST => accepted,
            _ = sessions.join_next(), if !sessions.is_empty() => continue,
            _ = leave.changed() => break,
        };
        match accepted {
            Ok(connection) => {
                let input = BufReader::new(connection.reader);
                let client = Client::new(input, connection.writer, token.clone());
                sessions.spawn(Session::new(client).serve(leave.clone()));
            }
            Err(e) => {
                ulpf_host::say::message!("ulpf dap: {e}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
    while sessions.join_next().await.is_some() {}
    Ok(())
}
