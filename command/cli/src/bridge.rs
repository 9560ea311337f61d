//! `ulpf bridge`: offers a program of this machine as a back end of the bridge. In a guest, a debugger outside reaches
//! the guest's stub or kernel module this way.
//!
//! ```text
//!   front end ⇄ TCP, a socket, virtio-serial ⇄ Proxy ⇄ a socket ⇄ ulpf server: ours, or one that is there ⇄ stub
//! ```
#![forbid(unsafe_code)]

use clap::Args;
use std::ffi::OsString;
use std::path::Path;
use tokio::net::{TcpStream, UnixStream};
use ulpf_host::programs::locate;
use ulpf_host::say::message;
use ulpf_host::signals::Incoming;
use ulpf_host::sys;
use ulpf_server::listen::socket_dir::SocketDir;
use ulpf_server::listen::{Listener, Protocol, Reader, Rules, Writer};
use ulpf_server::options::{Options, Target};
use ulpf_server::{BackEnd, Bound, Device, Flavour, Proxy, Terminal};

const EXAMPLES: &str = "\
In a guest, with the kernel module, for a debugger outside:
  ulpf bridge 0.0.0.0:9000 --backend kernel -- ./prog args     a TCP port that is forwarded
  ulpf bridge /dev/virtio-ports/ulpf -- ./prog args            a port of virtio-serial
and outside:
  ulpf gdb --backend bridge:localhost:9000 ./prog
  ulpf gdb --backend bridge:/path/of/the/port's/socket ./prog

There is no password. At a port of this machine, and at a socket, only your own user and root are served;
beyond this machine (0.0.0.0), whoever reaches ADDR has the program.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BridgeArgs {
    /// Where to listen: HOST:PORT, :PORT (this machine only), a new socket's path, or a character device
    #[arg(value_name = "ADDR")]
    listen: OsString,
    /// Let all users of this machine connect, not only your own and root
    #[arg(long)]
    any_user: bool,
    /// A remote port that is there already: HOST:PORT, :PORT or a socket's path
    #[arg(
        value_name = "REMOTE",
        required_unless_present = "command",
        conflicts_with = "command"
    )]
    remote: Option<String>,
    /// Backend of the program's watches: auto, kernel or signal
    #[arg(long, value_name = "NAME", requires = "command")]
    backend: Option<String>,
    /// Where watches live: auto, guard or debug-register
    #[arg(long, value_name = "WHERE", requires = "command")]
    placement: Option<String>,
    /// Leave the program's code as it is
    #[arg(long, requires = "command")]
    no_patch: bool,
    /// A program to start, and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

async fn connect(remote: &str) -> std::io::Result<(Reader, Writer)> {
    if remote.contains('/') || !remote.contains(':') {
        let (r, w) = UnixStream::connect(remote).await?.into_split();
        return Ok((Box::new(r), Box::new(w)));
    }
    let place = match remote.strip_prefix(':') {
        Some(port) => format!("127.0.0.1:{port}"),
        None => remote.to_owned(),
    };
    let stream = TcpStream::connect(place).await?;
    stream.set_nodelay(true)?;
    let (r, w) = stream.into_split();
    Ok((Box::new(r), Box::new(w)))
}

/// Runs the command and returns the exit status.
pub async fn bridge(args: BridgeArgs) -> i32 {
    let done = match (&args.remote, args.command.is_empty()) {
        (Some(remote), _) => there_already(&args, remote).await,
        (None, _) => a_program(&args).await,
    };
    match done {
        Ok(()) => 0,
        Err(why) => {
            message!("ulpf bridge: {why}");
            1
        }
    }
}

async fn there_already(args: &BridgeArgs, remote: &str) -> Result<(), String> {
    let place = Place::bind(args).await?;
    let (reader, writer) = connect(remote).await.map_err(|e| {
        format!("{remote} cannot be reached: {e}. Start `ulpf server` there first.")
    })?;
    let name = format!("the remote port at {remote}");
    serve(place, reader, writer, name, String::new()).await
}

/// Runs a server in this process, on a socket that no other user can reach.
async fn a_program(args: &BridgeArgs) -> Result<(), String> {
    let (program, rest) = args.command.split_first().ok_or("No program is named.")?;
    let place = Place::bind(args).await?;
    let (elsewhere, settings) = BackEnd::choose(
        args.placement.as_deref(),
        args.backend.as_deref(),
        args.no_patch,
    )?;
    if elsewhere.is_some() {
        return Err(
            "Only a program of this machine is offered here: --backend auto, kernel or signal."
                .into(),
        );
    }
    let path = locate(program)?;
    let dir = SocketDir::new()?;
    let socket = dir.file("gdb");
    let options = Options {
        comm: socket.clone().into(),
        once: true,
        settings,
        no_shell: true,
        target: Target::Program {
            program: path.clone().into(),
            args: rest.to_vec(),
        },
        ..Options::default()
    };
    // These signals end us, but not while the stub is only half-way in the program.
    let mut signals = Incoming::new(&[libc::SIGHUP, libc::SIGINT, libc::SIGTERM]);
    let mut bound = Bound::new(options, Terminal::Shared).await?;
    let name = "ulpf's stub in the program".to_owned();
    let offered = async {
        let (reader, writer) = UnixStream::connect(&socket)
            .await
            .map_err(|e| format!("our own server cannot be reached: {e}"))?
            .into_split();
        serve(place, reader, writer, name, path.display().to_string()).await
    };
    let mut signal = None;
    let done = tokio::select! {
        done = offered => done,
        // The server has printed the reason.
        _ = bound.run() => Err("the program's server has ended".into()),
        number = signals.next() => {
            signal = Some(number);
            Ok(())
        }
    };
    bound.end().await;
    match signal {
        Some(number) => sys::die_by(number),
        None => done,
    }
}

enum Place {
    Listener(Listener),
    Device(Device, OsString),
}

impl Place {
    async fn bind(args: &BridgeArgs) -> Result<Place, String> {
        let addr = &args.listen;
        if Device::is_one(Path::new(addr)) {
            let device = Device::open(Path::new(addr))?;
            return Ok(Place::Device(device, addr.clone()));
        }
        let rules = Rules {
            name: "ulpf bridge",
            protocol: Protocol::Bridge,
            any_user: args.any_user,
        };
        let listener = Listener::bind(addr, rules).await?;
        if let Some(address) = listener.beyond_this_machine() {
            message!(
                "ulpf bridge: whoever reaches {address} has the program: there is no password."
            );
        }
        Ok(Place::Listener(listener))
    }

    fn announce(&self) {
        match self {
            Place::Listener(listener) => {
                if let Some(text) = listener.announcement() {
                    message!("{text}");
                }
            }
            Place::Device(_, path) => message!("Listening on {}", path.to_string_lossy()),
        }
    }

    async fn accept(&mut self) -> Result<(Reader, Writer), String> {
        match self {
            Place::Listener(listener) => match listener.accept().await {
                Ok(client) => Ok((client.reader, client.writer)),
                Err(e) => Err(format!("no connection can be accepted: {e}")),
            },
            Place::Device(device, _) => {
                let (reader, writer) = device.accept().await;
                Ok((Box::new(reader), Box::new(writer)))
            }
        }
    }
}

/// Serves until the program has ended and the last client has gone.
async fn serve(
    mut place: Place,
    reader: impl tokio::io::AsyncRead + Unpin,
    writer: impl tokio::io::AsyncWrite + Unpin,
    name: String,
    program: String,
) -> Result<(), String> {
    let mut proxy = Proxy::new(reader, writer, Flavour::Packets, name, program, None).await?;
    place.announce();
    loop {
        let (mut reader, mut writer) = place.accept().await?;
        if proxy.serve(&mut reader, &mut writer).await.is_err() || proxy.is_over() {
            return Ok(());
        }
    }
}
