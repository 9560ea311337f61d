//! One target, driven by libFuzzer. `fuzz/run` builds this once for each target that it runs.
#![no_main]

use ulpf_fuzz::{memory, stack, target};

/// A constant, so that the linker drops all other targets: libFuzzer looks at every counter after every input.
const RUN: fn(&[u8]) = target(env!("ULPF_FUZZ_TARGET")).run;

libfuzzer_sys::fuzz_target!(init: stack::catch_overflow(), |data: &[u8]| {
    memory::bounded(|| RUN(data));
});
