//! Compiles the programs of the tables (`guest/`), static, and hands their paths to the crate. The
//! watchlist that their handlers ask is libulpf's own.

use std::path::{Path, PathBuf};
use std::process::Command;

fn run(command: &mut Command) {
    let done = command
        .status()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(done.success(), "{command:?} failed");
}

fn main() {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap());
    for path in ["build.rs", "guest", "../../ulpf-lib/c/benches/splay"] {
        println!("cargo:rerun-if-changed={path}");
    }
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let [fast, plain] = ["3", "0"].map(|level| {
        let list = out.join(format!("libwatchlist{level}.a"));
        run(Command::new(&rustc)
            .args(["--edition=2024", "--crate-type=staticlib", "-Cpanic=abort"])
            .args([&format!("-Copt-level={level}"), "-o"])
            .args([&list, &here.join("guest/watchlist.rs")]));
        list
    });
    let gcc = |source: &str, name: &str, options: &[&str], list: Option<&Path>| {
        let at = out.join(name);
        run(Command::new("gcc")
            .args([
                "-static",
                "-no-pie",
                "-s",
                "-Wl,--gc-sections",
                "-fno-tree-vectorize",
            ])
            .args(options)
            .arg("-o")
            .arg(&at)
            .arg(here.join("guest").join(source))
            .args(list));
        println!(
            "cargo:rustc-env=ULPF_GUEST_{}={}",
            name.to_uppercase(),
            at.display()
        );
    };
    gcc("sweep.c", "sweep", &["-O2"], Some(&fast));
    gcc("sweep.c", "sweep_o0", &["-O0"], Some(&plain));
    gcc("heap.c", "heap", &["-O2"], Some(&fast));
    gcc("signals.c", "signals", &["-O2"], None);
}
