//! seccomp filters, which the program writes.

use ulpf_lib::seccomp::{self, Data, Instruction, MOST, Verdict, X86_64, always_allows, exempting};

pub const INPUTS: u64 = 200_000;

/// The next number of so many bytes; 0 behind the end.
fn take(data: &mut &[u8], bytes: usize) -> u64 {
    let (now, rest) = data.split_at(bytes.min(data.len()));
    *data = rest;
    now.iter()
        .rev()
        .fold(0, |n, byte| n << 8 | u64::from(*byte))
}

fn instruction(bytes: &[u8]) -> Instruction {
    let mut rest = bytes;
    Instruction {
        code: take(&mut rest, 2) as u16,
        jt: take(&mut rest, 1) as u8,
        jf: take(&mut rest, 1) as u8,
        k: take(&mut rest, 4) as u32,
    }
}

pub fn run(data: &[u8]) {
    let mut rest = data;
    let nr = take(&mut rest, 2) as i32;
    let arch = match take(&mut rest, 1) & 1 {
        0 => X86_64,
        _ => take(&mut rest, 4) as u32,
    };
    // An image, an instruction in it, and a call from somewhere near.
    let start = take(&mut rest, 6);
    let end = start + 1 + take(&mut rest, 4);
    let judged = start + 1 + take(&mut rest, 4) % (end - start);
    let near = [start, end, judged][take(&mut rest, 1) as usize % 3];
    let instruction_pointer = near.wrapping_add(take(&mut rest, 1) as i8 as u64);
    let args = std::array::from_fn(|_| take(&mut rest, 3));
    let data = Data {
        nr,
        arch,
        instruction_pointer,
        args,
    };
    let program: Vec<Instruction> = rest.chunks(8).take(MOST).map(instruction).collect();

    let value = seccomp::run(&program, &data);
    if arch == X86_64 && always_allows(&program, nr as u32) {
        assert_eq!(Verdict::of(value), Verdict::Allow);
    }
    // Calls of the image pass, but those at one instruction; for all others the filter is as it was.
    let kernels = [&exempting(start, end, judged)[..], &program].concat();
    let exempt = (start + 1..=end).contains(&instruction_pointer);
    let exempt = exempt && instruction_pointer != judged && arch == X86_64;
    let expected = match exempt {
        true => Verdict::Allow,
        false => Verdict::of(value),
    };
    assert_eq!(Verdict::of(seccomp::run(&kernels, &data)), expected);
}
