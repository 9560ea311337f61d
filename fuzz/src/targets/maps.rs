//! /proc/PID/maps, in which paths are the target's, for the command and for the stub.

use ulpf_lib::guard::maps::Vma;
use ulpf_lib::mapping::mappings;

pub const INPUTS: u64 = 1_300;

/// Small, and with a code segment.
const FILE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/conditions"));

pub fn run(data: &[u8]) {
    ulpf_symbols::fuzzing::maps(data, FILE);
    for mapping in mappings(data) {
        assert!(mapping.start < mapping.end);
        assert!(mapping.is_of(mapping.path()));
        let _ = Vma::from(mapping);
    }
}
