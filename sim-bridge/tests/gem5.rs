// SPDX-License-Identifier: GPL-2.0-or-later
//! gem5's files are compiled in gem5's tree, where ours is not; so what they say about the device is compared with
//! the header here.

use std::path::Path;
use std::process::Command;

/// Folders of headers: what of gem5's a file needs, and ours.
fn compiler(stand_in: &Path, headers: &[(&str, &str)]) -> Command {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, text) in headers {
        let path = stand_in.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let mut command = Command::new("g++");
    command.args(["-std=c++17", "-Wall", "-Wextra"]);
    for folder in [
        stand_in,
        &here.join("gem5"),
        &here.join("../kernel/include/uapi"),
    ] {
        command.arg("-I").arg(folder);
    }
    command
}

const TYPES: &str = "#include <cstdint>\nnamespace gem5 { using Addr = uint64_t; }\n";

#[test]
fn numbers_and_structures_are_those_of_the_header() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The one thing of gem5's that interface.hh needs.
    let stand_in = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gem5");
    let done = compiler(&stand_in, &[("base/types.hh", TYPES)])
        .arg("-fsyntax-only")
        .arg(here.join("tests/programs/interface.cc"))
        .output()
        .expect("g++");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
}

/// watches.cc needs little of gem5's: it runs.
#[test]
fn hits_say_what_was_done() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let stand_in = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gem5-watches");
    let printf = "#include <cstdint>\n#include <sstream>\n#include <string>\nnamespace gem5 {\n\
        std::string csprintf(const char *format, ...);\n}\n";
    let memory = "#include \"base/types.hh\"\nnamespace gem5 {\nstruct PortProxy\n{\n\
        bool tryReadBlob(Addr addr, void *to, uint64_t size);\n};\n}\n";
    let program = stand_in.join("watches");
    let headers = [
        ("base/types.hh", TYPES),
        ("base/cprintf.hh", printf),
        ("mem/port_proxy.hh", memory),
    ];
    let done = compiler(&stand_in, &headers)
        .arg(here.join("tests/programs/watches.cc"))
        .arg("-o")
        .arg(&program)
        .output()
        .expect("g++");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    let done = Command::new(&program).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert_eq!(
        said.lines().collect::<Vec<_>>(),
        [
            "store watch:2002;ulpf-access:w",
            "add watch:2000;ulpf-access:rw",
            "load awatch:2000;ulpf-access:r",
            "load rwatch:2000;ulpf-access:r",
            "add awatch:2000;ulpf-access:rw",
            "add rwatch:2000;ulpf-access:rw",
            "move awatch:2000;ulpf-access:w",
            "silent -",
        ]
    );
}
