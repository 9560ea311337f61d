#![forbid(unsafe_code)]
use std::ffi::OsString;
use ulpf::server::options::{self, Parsed};

fn main() {
    let mut args = std::env::args_os().skip(1).peekable();
    let status = match args.next().as_deref().and_then(|c| c.to_str()) {
        Some("server") => server(args),
        _ => {
            eprintln!("Usage: ulpf server …");
            1
        }
    };
    // Not by return: a blocked read of stdin must not keep the process.
    std::process::exit(status);
}

fn server(args: impl Iterator<Item = OsString>) -> i32 {
    match options::parse(args) {
        Parsed::Print(text) => {
            print!("{text}");
            0
        }
        Parsed::Refuse(text) => {
            eprint!("{text}");
            1
        }
        Parsed::Serve(options) => match tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build() {
            Ok(runtime) => runtime.block_on(ulpf::server::serve(*options)),
            Err(e) => {
                eprintln!("Cannot start: {e}.");
                1
            }
        },
    }
}
