//! The bridge's front end between a debugger and a back end, both strange: lines are packets, after an
//! empty line they are the back end's answers.
#![no_main]

ulpf_fuzz::target!(|data| {
    let lines = ulpf_fuzz::lines(data);
    let end = lines.iter().position(|l| l.is_empty());
    let (packets, answers) = lines.split_at(end.unwrap_or(lines.len()));
    let answers = answers.get(1..).unwrap_or(&[]);
    ulpf_server::fuzzing::debugger_and_back_end(packets, answers);
});
