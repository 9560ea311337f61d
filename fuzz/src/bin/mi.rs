//! What GDB writes, and a program that shares its output: a line is a record.
#![no_main]

ulpf_fuzz::target!(|data| {
    let lines = ulpf_fuzz::lines(data);
    for line in &lines {
        ulpf_dap::fuzzing::mi_line(line);
    }
    ulpf_dap::fuzzing::text(&lines);
});
