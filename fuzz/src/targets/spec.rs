//! SPECs, filters and conditions, as users type them, as files, the control socket and `monitor ulpf filter`
//! bring them; each is also resolved in a program with types.

use std::sync::LazyLock;
use ulpf_symbols::Spec;

pub const INPUTS: u64 = 5_800;

/// Static variables of many types.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/conditions"));

thread_local! {
    static LOADED: LazyLock<ulpf_symbols::Program> = LazyLock::new(|| {
        ulpf_symbols::fuzzing::program(PROGRAM.to_vec()).expect("a program")
    });
}

pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for line in text.lines() {
        if let Ok(spec) = Spec::parse(line) {
            let again = Spec::parse(&spec.text);
            assert_eq!(again.as_ref(), Ok(&spec));
        }
        LOADED.with(|program| ulpf_symbols::fuzzing::watch(program, line));
    }
}
