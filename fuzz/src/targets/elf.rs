//! A file that the target has mapped: ELF, symbols, DWARF, where its separate debug information would be.

pub const INPUTS: u64 = 2_500;

pub fn run(data: &[u8]) {
    ulpf_symbols::fuzzing::everything(data.to_vec());
}
