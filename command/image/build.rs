//! Builds the stub (the freestanding image that this crate loads into the watched program) with a
//! nested cargo run and hands its path to the crate as `ULPF_STUB_IMAGE`.
//!
//! Set `ULPF_STUB_IMAGE=/path/to/image.so` to embed an image that was built elsewhere.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The image runs without a C library and without a dynamic linker. So all symbols must be bound inside, and an
/// undefined one must be an error here rather than a crash in the program.
const LINK_ARGS: &str =
    "link-args=-nostdlib -nostartfiles -Wl,-z,defs -Wl,-Bsymbolic -Wl,-z,now -Wl,--build-id=none";

fn main() {
    println!("cargo:rerun-if-env-changed=ULPF_STUB_IMAGE");
    println!("cargo:rerun-if-changed=build.rs");
    if let Some(image) = env::var_os("ULPF_STUB_IMAGE") {
        let image = PathBuf::from(image);
        println!("cargo:rerun-if-changed={}", image.display());
        println!("cargo:rustc-env=ULPF_STUB_IMAGE={}", image.display());
        return;
    }
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let root = here.join("../..");
    // Cargo.toml holds the profiles of the stub.
    println!(
        "cargo:rerun-if-changed={}",
        root.join("Cargo.toml").display()
    );
    for dir in ["stub", "engine", "ulpf-lib"] {
        watch(&root.join(dir));
    }
    // TARGET_DIR/PROFILE/build/ulpf-image-HASH/out. The stub's profiles have their own folders there, with their own
    // locks, so the cargo that runs this script does not wait for the nested one.
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let above = |levels| {
        let folder = out_dir.ancestors().nth(levels);
        folder.expect("OUT_DIR lies in cargo's target folder")
    };
    let out = above(4);
    let profile = if above(3).ends_with("packaged") {
        "stub-packaged"
    } else {
        "stub"
    };
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args([
            "rustc",
            "--profile",
            profile,
            "--package",
            "ulpf-stub",
            "--lib",
            "--manifest-path",
        ])
        .arg(root.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(out)
        .args(["--", "-C", LINK_ARGS]);
    // Variables that this build's cargo has set for us (features, profile, flags, wrappers such as clippy's) must not
    // leak into a build with another profile.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let keep = [
            "CARGO_HOME",
            "CARGO_NET_",
            "CARGO_REGISTRIES_",
            "CARGO_HTTP_",
            "CARGO_SOURCE_",
        ];
        let leaks = text.starts_with("CARGO")
            || text.starts_with("RUSTC")
            || text.starts_with("RUSTFLAGS")
            || [
                "CLIPPY_ARGS",
                "TARGET",
                "HOST",
                "PROFILE",
                "OPT_LEVEL",
                "DEBUG",
                "OUT_DIR",
                "NUM_JOBS",
            ]
            .contains(&&*text);
        if leaks && !keep.iter().any(|k| text.starts_with(k)) {
            cargo.env_remove(&name);
        }
    }
    cargo.env("CFLAGS", "-fno-stack-protector -ffreestanding");
    let status = cargo
        .status()
        .expect("cargo cannot be started to build the stub");
    if !status.success() {
        panic!(
            "The stub (stub/) did not build, so there is nothing to load into a program; see the messages above."
        );
    }
    let image = out.join(profile).join("libulpf_stub.so");
    println!("cargo:rustc-env=ULPF_STUB_IMAGE={}", image.display());
}

/// Watches all files below `dir` except build output.
fn watch(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name != "target" && name != "tests" && name != "benches" {
            println!("cargo:rerun-if-changed={}", entry.path().display());
        }
    }
}
