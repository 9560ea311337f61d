//! `ulpf bridge`: a remote port as a back end of the bridge, for whoever connects. In a guest, beside
//! `ulpf server`, it is how a debugger's side outside reaches the guest's stub or kernel module.
#![forbid(unsafe_code)]

use super::proxy::{Flavour, Proxy};
use crate::server::listen::{Listener, Reader, Writer};
use clap::Args;
use std::ffi::OsString;
use tokio::net::{TcpStream, UnixStream};

#[derive(Debug, Args)]
pub struct BridgeArgs {
    /// Where to listen: HOST:PORT, :PORT (this machine only) or a new socket's path
    #[arg(value_name = "ADDR")]
    listen: OsString,
    /// The remote port: HOST:PORT, :PORT or a socket's path
    #[arg(value_name = "REMOTE")]
    remote: String,
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

/// The exit status.
pub async fn offer(args: BridgeArgs) -> i32 {
    match serve(&args).await {
        Ok(()) => 0,
        Err(why) => {
            message!("ulpf bridge: {why}");
            1
        }
    }
}

async fn serve(args: &BridgeArgs) -> Result<(), String> {
    let remote = &args.remote;
    let (reader, writer) = connect(remote).await.map_err(|e| {
        format!("{remote} cannot be reached: {e}. Start `ulpf server` there first.")
    })?;
    let name = format!("the remote port at {remote}");
    let mut proxy = Proxy::new(reader, writer, Flavour::Packets, name, String::new(), None).await?;
    let listener = Listener::bind(&args.listen).await?;
    if let Some(text) = listener.announcement() {
        message!("{text}");
    }
    loop {
        let (mut reader, mut writer, _) = listener.accept().await.map_err(|e| e.to_string())?;
        if proxy.serve(&mut reader, &mut writer).await.is_err() {
            return Ok(());
        }
    }
}
