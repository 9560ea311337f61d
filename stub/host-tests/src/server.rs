//! The server's part of the protocol, for one client: acks, no-ack mode, exit replies.

use crate::gdb::{Event, GdbSession};
use crate::inferior::Inferior;
use crate::ptrace::{Happened, Traced};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

/// Starts the program and serves the first client until one of them leaves.
pub fn serve(listener: &TcpListener, argv: &[String]) -> std::io::Result<()> {
    let mut program = Traced::launch(argv);
    let (mut client, _) = listener.accept()?;
    client.set_nodelay(true)?;
    client.set_read_timeout(Some(Duration::from_millis(1)))?;
    let mut session = GdbSession::new(program.pid());
    let mut acks = true;
    let mut event = Event::Stopped;
    let mut buf = [0; 4096];
    loop {
        let mut out = Vec::new();
        if let Ok(n) = client.read(&mut buf) {
            let bytes = &buf[..n];
            if acks {
                out.extend(bytes.iter().filter(|b| **b == b'#').map(|_| b'+'));
            }
            event = session.incoming(&mut program, bytes, &mut |f| out.extend_from_slice(f));
            client.write_all(&out)?;
            acks &= !bytes.windows(15).any(|w| w == b"QStartNoAckMode");
            if n == 0 || matches!(event, Event::Detached | Event::Killed) {
                return Ok(());
            }
        }
        if event != Event::Running {
            continue;
        }
        match program.poll(1) {
            None => {}
            Some(Happened::Stop(stop)) => {
                event = session.stopped(&mut program, stop, &mut |f| out.extend_from_slice(f));
                client.write_all(&out)?;
            }
            Some(Happened::Exited(n)) => return client.write_all(&exit_reply('W', n)),
            Some(Happened::Killed(n)) => return client.write_all(&exit_reply('X', n)),
        }
    }
}

fn exit_reply(kind: char, n: i32) -> Vec<u8> {
    ulpf_rsp::frame(format!("{kind}{n:02x}").as_bytes())
}
