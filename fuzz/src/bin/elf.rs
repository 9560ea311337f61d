//! A file that the target has mapped: ELF, symbols, DWARF, where its separate debug information would be.
#![no_main]

ulpf_fuzz::target!(|data| {
    ulpf_symbols::fuzzing::everything(data.to_vec());
});
