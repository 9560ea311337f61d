//! A client of the debug adapter: frames, JSON, the arguments of every request.

pub const INPUTS: u64 = 41_000;

pub fn run(data: &[u8]) {
    ulpf_dap::fuzzing::messages(data);
    // The same message without its frame.
    let framed = [
        format!("Content-Length: {}\r\n\r\n", data.len()).as_bytes(),
        data,
    ]
    .concat();
    ulpf_dap::fuzzing::messages(&framed);
}
