//! `ulpf-stub-host-tests PORT PROG ARGS…`: one debugger, one ptraced program, the stub's protocol
//! layer between them.
#![allow(clippy::print_stderr, clippy::print_stdout)]

use std::net::TcpListener;

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [port, argv @ ..] = &args[..] else {
        eprintln!("usage: ulpf-stub-host-tests PORT PROG ARGS…");
        std::process::exit(2);
    };
    let listener = TcpListener::bind(format!("127.0.0.1:{port}"))?;
    eprintln!("Listening on port {}", listener.local_addr()?.port());
    ulpf_stub_host_tests::server::serve(&listener, argv)
}
