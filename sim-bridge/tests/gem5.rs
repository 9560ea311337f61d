// SPDX-License-Identifier: GPL-2.0-or-later
//! gem5's files are compiled in gem5's tree, where ours is not; so what they say about the device is compared with
//! the header here.

use std::path::Path;
use std::process::Command;

#[test]
fn numbers_and_structures_are_those_of_the_header() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The one thing of gem5's that interface.hh needs.
    let stand_in = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gem5");
    std::fs::create_dir_all(stand_in.join("base")).unwrap();
    let types = "#include <cstdint>\nnamespace gem5 { using Addr = uint64_t; }\n";
    std::fs::write(stand_in.join("base/types.hh"), types).unwrap();
    let done = Command::new("g++")
        .args(["-std=c++17", "-fsyntax-only", "-I"])
        .arg(&stand_in)
        .arg("-I")
        .arg(here.join("gem5"))
        .arg("-I")
        .arg(here.join("../kernel/include/uapi"))
        .arg(here.join("tests/programs/interface.cc"))
        .output()
        .expect("g++");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
}
