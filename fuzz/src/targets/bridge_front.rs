//! The bridge's front end between a debugger and a remote stub, both strange: lines are packets, after an empty line they
//! are the stub's replies.

pub const INPUTS: u64 = 3_300;

pub fn run(data: &[u8]) {
    let lines = crate::lines(data);
    let end = lines.iter().position(|l| l.is_empty());
    let (packets, answers) = lines.split_at(end.unwrap_or(lines.len()));
    let answers = answers.get(1..).unwrap_or(&[]);
    ulpf_server::fuzzing::debugger_and_back_end(packets, answers);
}
