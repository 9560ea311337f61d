//! A server for one debugger around the stub's protocol layer and a ptraced program:
//! `ulpf-stub-host-tests PORT PROG ARGS…`. Does what the real server does for the stub: acks,
//! no-ack mode, exit replies.

use std::io::{Read, Write};
use std::net::TcpListener;
use ulpf_stub_host_tests::gdb::{Event, GdbSession};
use ulpf_stub_host_tests::inferior::Inferior;
use ulpf_stub_host_tests::ptrace::{Happened, Traced};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let listener = TcpListener::bind(("127.0.0.1", args[0].parse().unwrap())).unwrap();
    eprintln!("Listening on port {}", listener.local_addr().unwrap().port());
    let mut program = Traced::launch(&args[1..]);
    let (mut client, _) = listener.accept().unwrap();
    client.set_nodelay(true).unwrap();
    client.set_read_timeout(Some(std::time::Duration::from_millis(1))).unwrap();
    let mut session = GdbSession::new(program.pid());
    let mut acks = true;
    let mut buf = [0; 4096];
    let mut event = Event::Stopped;
    loop {
        match client.read(&mut buf) {
            Ok(0) => return,
            Ok(n) => {
                let bytes = &buf[..n];
                if acks {
                    let frames = bytes.iter().filter(|b| **b == b'#').count();
                    client.write_all(&vec![b'+'; frames]).unwrap();
                }
                event = session.incoming(&mut program, bytes, &mut |f| client.write_all(f).unwrap());
                if bytes.windows(15).any(|w| w == b"QStartNoAckMode") {
                    acks = false;
                }
                if matches!(event, Event::Detached | Event::Killed) {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    return;
                }
            }
            Err(_) => {}
        }
        if event == Event::Running {
            let reply = match program.poll(1) {
                None => continue,
                Some(Happened::Stop(stop)) => {
                    event = session.stopped(&mut program, stop, &mut |f| client.write_all(f).unwrap());
                    continue;
                }
                Some(Happened::Exited(n)) => format!("W{n:02x};process:{:x}", program.pid()),
                Some(Happened::Killed(n)) => format!("X{n:02x};process:{:x}", program.pid()),
            };
            let sum = reply.bytes().fold(0u8, |a, b| a.wrapping_add(b));
            client.write_all(format!("${reply}#{sum:02x}").as_bytes()).unwrap();
        }
    }
}
