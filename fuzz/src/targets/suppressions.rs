//! Files of suppressions for `ulpf check`. The first line's words are names of functions.

pub const INPUTS: u64 = 26_000;

pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let names = text.lines().next().unwrap_or_default();
    let names: Vec<&str> = names.split(' ').take(40).collect();
    let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
    ulpf_run::fuzzing::suppressions(rest, &names);
}
