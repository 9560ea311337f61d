//! A small program with types, in which SPECs are resolved.
use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    const SOURCE: &str = "../command/symbols/fixtures/conditions.c";
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-changed=build.rs");
    let out = env::var_os("OUT_DIR").expect("cargo names a folder");
    let status = Command::new("cc")
        .args(["-g", "-O0", "-no-pie", SOURCE, "-o"])
        .arg(PathBuf::from(out).join("conditions"))
        .arg("-lm")
        .status();
    let done = status.expect("a C compiler is needed: `cc` cannot be started");
    assert!(done.success(), "{SOURCE} does not compile");
}
