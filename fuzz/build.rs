//! Finds the targets, and compiles a small program with types, in which SPECs are resolved.
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names a folder"));
    find_targets(&out);
    compile_program(&out);
}

/// Writes the table of targets for `src/lib.rs`, and a test for each of them for `tests/fuzz.rs`.
fn find_targets(out: &Path) {
    const FOLDER: &str = "src/targets";
    println!("cargo:rerun-if-changed={FOLDER}");
    let files = fs::read_dir(FOLDER).expect("the folder of targets");
    let paths = files.flatten().map(|file| file.path());
    let rust = paths.filter(|path| path.extension().is_some_and(|e| e == "rs"));
    let stems = rust.filter_map(|path| Some(path.file_stem()?.to_str()?.to_string()));
    let mut names: Vec<String> = stems.filter(|name| name != "mod").collect();
    names.sort();
    let mut table = String::from("pub const TARGETS: &[Target] = &[\n");
    let mut tests = String::new();
    for name in &names {
        writeln!(
            table,
            "Target {{ name: {name:?}, inputs: targets::{name}::INPUTS, run: targets::{name}::run }},"
        )
        .expect("memory");
        writeln!(tests, "#[test] fn {name}() {{ run({name:?}); }}").expect("memory");
    }
    table.push_str("];\n");
    fs::write(out.join("table.rs"), table).expect("cargo's folder is writable");
    fs::write(out.join("tests.rs"), tests).expect("cargo's folder is writable");
}

fn compile_program(out: &Path) {
    const SOURCE: &str = "../command/symbols/tests/fixtures/conditions.c";
    println!("cargo:rerun-if-changed={SOURCE}");
    let status = Command::new("cc")
        .args(["-g", "-O0", "-no-pie", SOURCE, "-o"])
        .arg(out.join("conditions"))
        .arg("-lm")
        .status();
    let done = status.expect("a C compiler is needed: `cc` cannot be started");
    assert!(done.success(), "{SOURCE} does not compile");
}
