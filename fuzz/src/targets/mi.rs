//! Output of GDB, and of a program that shares it: a line is a record.

pub const INPUTS: u64 = 50_000;

pub fn run(data: &[u8]) {
    let lines = crate::lines(data);
    for line in &lines {
        ulpf_dap::fuzzing::mi_line(line);
    }
    ulpf_dap::fuzzing::text(&lines);
}
