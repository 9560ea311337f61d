//! seccomp(2) filters of a program, decided without the kernel.
//!
//! The stub makes a program's system calls from its own code, with other pointers where memory has moved. A filter must
//! see the calls as the program makes them. So the stub runs it here, as `kernel/seccomp.c` does (`seccomp_run_filters`,
//! `__seccomp_filter`), on the classic BPF of `net/core/filter.c` as far as `seccomp_check_filter` accepts it. In the
//! kernel, [`exempting`] precedes the same filter and lets the stub's own calls pass.

use alloc::vec;
use alloc::vec::Vec;
use core::mem::offset_of;

/// One instruction: `struct sock_filter` of `<linux/filter.h>`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Class, size and mode, or operation.
    pub code: u16,
    /// Instructions to skip if a comparison holds.
    pub jt: u8,
    /// Instructions to skip if it does not.
    pub jf: u8,
    /// The constant.
    pub k: u32,
}

/// A filter's input: `struct seccomp_data` of `<linux/seccomp.h>`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Number of the system call.
    pub nr: i32,
    /// `AUDIT_ARCH_*`: [`X86_64`].
    pub arch: u32,
    /// The address behind the `syscall` instruction.
    pub instruction_pointer: u64,
    /// The call's arguments.
    pub args: [u64; 6],
}

/// AUDIT_ARCH_X86_64 of `<linux/audit.h>`.
pub const X86_64: u32 = 0xc000_003e;
/// AUDIT_ARCH_I386: what `int 0x80` calls.
pub const I386: u32 = 0x4000_0003;
/// BPF_MAXINSNS: instructions that the kernel takes in one filter.
pub const MOST: usize = 4096;

const LD_IMM: u16 = 0x00;
const LD_ABS: u16 = 0x20;
const JA: u16 = 0x05;
const JEQ: u16 = 0x15;
const JGT: u16 = 0x25;
const JGE: u16 = 0x35;
const JSET: u16 = 0x45;
const RET: u16 = 0x06;

const RET_ERRNO: u32 = 0x0005_0000;
const RET_KILL_PROCESS: u32 = 0x8000_0000;
const RET_KILL_THREAD: u32 = 0;
const RET_TRAP: u32 = 0x0003_0000;
const RET_USER_NOTIF: u32 = 0x7fc0_0000;
const RET_TRACE: u32 = 0x7ff0_0000;
const RET_LOG: u32 = 0x7ffc_0000;
const RET_ALLOW: u32 = 0x7fff_0000;
const RET_ACTION_FULL: u32 = 0xffff_0000;
const MAX_ERRNO: u16 = 4095;

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The call is made. (SECCOMP_RET_LOG, too: the kernel's log then lacks its entry.)
    Allow,
    /// It fails with this errno.
    Errno(u16),
    /// SIGSYS instead of the call, with this `si_errno`.
    Trap(u16),
    /// A process that holds the filter's listener decides.
    Notify,
    /// A tracer decides; without one the call fails with ENOSYS.
    Trace,
    /// The thread ends.
    KillThread,
    /// The process ends.
    KillProcess,
}

impl Verdict {
    /// Decodes a filter's value. Unknown actions kill the process, as in the kernel.
    pub fn of(value: u32) -> Verdict {
        let data = value as u16;
        match value & RET_ACTION_FULL {
            RET_ALLOW | RET_LOG => Verdict::Allow,
            RET_ERRNO => Verdict::Errno(data.min(MAX_ERRNO)),
            RET_TRAP => Verdict::Trap(data),
            RET_USER_NOTIF => Verdict::Notify,
            RET_TRACE => Verdict::Trace,
            RET_KILL_THREAD => Verdict::KillThread,
            _ => Verdict::KillProcess,
        }
    }
}

/// The combined value of filters, the newest first: the least permissive action; of equal ones the newest's data.
pub fn strictest(values: impl Iterator<Item = u32>) -> u32 {
    let action = |value: u32| (value & RET_ACTION_FULL) as i32;
    values.fold(RET_ALLOW, |strictest, value| {
        match action(value) < action(strictest) {
            true => value,
            false => strictest,
        }
    })
}

/// Runs a filter that the kernel has accepted. An invalid instruction ends with 0 (kill).
pub fn run(program: &[Instruction], data: &Data) -> u32 {
    interpret(program, |offset| word(data, offset)).unwrap_or(RET_KILL_THREAD)
}

/// Whether a call of this number always passes, whatever its arguments and its address. (As the kernel's
/// `seccomp_is_const_allow`.)
pub fn always_allows(program: &[Instruction], nr: u32) -> bool {
    let known = |offset| match offset {
        0 => Some(nr),
        4 => Some(X86_64),
        _ => None,
    };
    interpret(program, known).is_some_and(|value| Verdict::of(value) == Verdict::Allow)
}

/// The program's return value, or `None` if it needs a word that `load` does not give.
fn interpret(program: &[Instruction], load: impl Fn(u32) -> Option<u32>) -> Option<u32> {
    let mut memory = [0u32; 16];
    let (mut a, mut x) = (0u32, 0u32);
    let mut at = 0usize;
    // Each jump leads forward, so there are no more steps than instructions.
    while let Some(&Instruction { code, jt, jf, k }) = program.get(at) {
        at += 1;
        let slot = k as usize & 15;
        match code {
            LD_ABS => a = load(k)?,
            // The length of what can be loaded.
            0x80 => a = size_of::<Data>() as u32,
            0x81 => x = size_of::<Data>() as u32,
            0x00 => a = k,
            0x01 => x = k,
            0x60 => a = memory[slot],
            0x61 => x = memory[slot],
            0x02 => memory[slot] = a,
            0x03 => memory[slot] = x,
            0x07 => x = a,
            0x87 => a = x,
            0x84 => a = a.wrapping_neg(),
            JA => at = at.saturating_add(k as usize),
            RET => return Some(k),
            0x16 => return Some(a),
            _ => {
                let operand = if code & 0x08 != 0 { x } else { k };
                match code & !0x08 {
                    0x04 => a = a.wrapping_add(operand),
                    0x14 => a = a.wrapping_sub(operand),
                    0x24 => a = a.wrapping_mul(operand),
                    0x34 => match a.checked_div(operand) {
                        Some(quotient) => a = quotient,
                        None => return Some(RET_KILL_THREAD),
                    },
                    0x44 => a |= operand,
                    0x54 => a &= operand,
                    0xa4 => a ^= operand,
                    0x64 => a = a.wrapping_shl(operand),
                    0x74 => a = a.wrapping_shr(operand),
                    jump => {
                        let holds = match jump {
                            JEQ => a == operand,
                            JGT => a > operand,
                            JGE => a >= operand,
                            JSET => a & operand != 0,
                            _ => return Some(RET_KILL_THREAD),
                        };
                        at += usize::from(if holds { jt } else { jf });
                    }
                }
            }
        }
    }
    Some(RET_KILL_THREAD)
}

/// The word at `offset` of the data, as the kernel lays them out.
fn word(data: &Data, offset: u32) -> Option<u32> {
    let half = |value: u64, at: u32| (value >> (at % 8 * 8)) as u32;
    match offset {
        0 => Some(data.nr as u32),
        4 => Some(data.arch),
        8 | 12 => Some(half(data.instruction_pointer, offset)),
        16..=60 if offset.is_multiple_of(4) => data
            .args
            .get((offset as usize - 16) / 8)
            .map(|arg| half(*arg, offset)),
        _ => None,
    }
}

/// Instructions of [`exempting`].
pub const PREFIX: usize = 18;

/// The prefix of a program's filter in the kernel. A call from `[start, end)` passes, unless it comes from `judged`; all
/// others continue to the filter behind. (The instruction pointer is the address behind the instruction.)
pub fn exempting(start: u64, end: u64, judged: u64) -> [Instruction; PREFIX] {
    const LOW: u32 = 8;
    const HIGH: u32 = 12;
    let i = |code, jt, jf, k| Instruction { code, jt, jf, k };
    let high = |at: u64| (at >> 32) as u32;
    let low = |at: u64| at as u32;
    // An address behind an instruction at the end of the range is the end itself.
    let (first, last) = (start + 1, end);
    // Target of each jump, counted from the beginning: at `AFTER` the filter begins with the registers of a fresh start.
    const AFTER: u8 = PREFIX as u8 - 1;
    let to = |from: u8, target: u8| target - from - 1;
    [
        i(LD_ABS, 0, 0, HIGH),                // 0
        i(JEQ, 0, to(1, 4), high(judged)),    // 1
        i(LD_ABS, 0, 0, LOW),                 // 2
        i(JEQ, to(3, AFTER), 0, low(judged)), // 3
        i(LD_ABS, 0, 0, HIGH),                // 4: at or above the first
        i(JGT, to(5, 9), 0, high(first)),     // 5
        i(JEQ, 0, to(6, AFTER), high(first)), // 6
        i(LD_ABS, 0, 0, LOW),                 // 7
        i(JGE, 0, to(8, AFTER), low(first)),  // 8
        i(LD_ABS, 0, 0, HIGH),                // 9: at or below the last
        i(JGT, to(10, AFTER), 0, high(last)), // 10
        i(JEQ, 0, to(11, 14), high(last)),    // 11
        i(LD_ABS, 0, 0, LOW),                 // 12
        i(JGT, to(13, AFTER), 0, low(last)),  // 13
        i(LD_ABS, 0, 0, 4),                   // 14: the calls of 32-bit code are not ours
        i(JEQ, 0, to(15, AFTER), X86_64),     // 15
        i(RET, 0, 0, RET_ALLOW),              // 16
        i(LD_IMM, 0, 0, 0),                   // 17
    ]
}

/// A filter as a stub keeps it, followed by [`PREFIX`] and the program's own instructions. The command reads the filters
/// of a thread that executes another program, or of a forked child, and passes them to the stub that it loads there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Kept {
    /// Address of the filter that was installed before, or 0. (Unused in the list that a stub gets.)
    pub parent: u64,
    /// Number of instructions of the program's own filter.
    pub len: u64,
    /// [`Kept::STRICT`], [`Kept::HEARD`].
    pub nature: u64,
}

impl Kept {
    /// The filter represents the strict mode.
    pub const STRICT: u64 = 1;
    /// It was made with a listener, through which a supervisor is notified of calls.
    pub const HEARD: u64 = 2;
}

/// The strict mode as a filter: read, write, exit and rt_sigreturn pass. (Any other call kills the thread; the caller
/// must make sure that the signal is SIGKILL.)
pub const STRICT: [Instruction; 8] = {
    const fn i(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
        Instruction { code, jt, jf, k }
    }
    use linux_raw_sys::general as k;
    [
        i(LD_ABS, 0, 0, 0),
        i(JEQ, 4, 0, k::__NR_read),
        i(JEQ, 3, 0, k::__NR_write),
        i(JEQ, 2, 0, k::__NR_exit),
        i(JEQ, 1, 0, k::__NR_rt_sigreturn),
        i(RET, 0, 0, RET_KILL_PROCESS),
        i(RET, 0, 0, RET_ALLOW),
        i(RET, 0, 0, RET_ALLOW),
    ]
};

/// A filter that lets calls of these numbers pass, and those of `first` if the condition on their first argument holds.
/// Any other call fails with EPERM.
pub fn only(numbers: &[u32], first: &[(u32, First)]) -> Vec<Instruction> {
    let step = |code, jt: usize, jf: u8, k| Instruction {
        code,
        jt: jt as u8,
        jf,
        k,
    };
    let offset = |field: usize| field as u32;
    // Jumps to the last two instructions: the error, and the pass.
    let mut all = vec![
        step(LD_ABS, 0, 0, offset(offset_of!(Data, arch))),
        step(JEQ, 1, 0, X86_64),
        step(RET, 0, 0, RET_ERRNO | linux_raw_sys::errno::EPERM),
        step(LD_ABS, 0, 0, offset(offset_of!(Data, nr))),
    ];
    let tail = 4 * first.len() + 1;
    for (n, nr) in numbers.iter().enumerate() {
        all.push(step(JEQ, numbers.len() - 1 - n + tail, 0, *nr));
    }
    for (n, (nr, which)) in first.iter().enumerate() {
        let rest = 4 * (first.len() - 1 - n);
        all.push(step(JEQ, 0, 3, *nr));
        all.push(step(LD_ABS, 0, 0, offset(offset_of!(Data, args))));
        let (code, k) = match which {
            First::Is(value) => (JEQ, *value),
            First::Has(bits) => (JSET, *bits),
        };
        // (Its low half; no number has another one.)
        all.push(step(code, rest + 2, 0, k));
        all.push(step(RET, 0, 0, RET_ERRNO | linux_raw_sys::errno::EPERM));
    }
    all.push(step(RET, 0, 0, RET_ERRNO | linux_raw_sys::errno::EPERM));
    all.push(step(RET, 0, 0, RET_ALLOW));
    all
}

/// Condition on the first argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum First {
    /// This value.
    Is(u32),
    /// A value with some of these bits.
    Has(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(nr: u32, instruction_pointer: u64) -> Data {
        Data {
            nr: nr as i32,
            arch: X86_64,
            instruction_pointer,
            args: [1, 2, 3, 4, 5, 0xffff_ffff_0000_0001],
        }
    }

    #[test]
    fn only_what_is_named_passes() {
        let numbers: Vec<u32> = (0..70).map(|n| 3 * n).collect();
        let program = only(
            &numbers,
            &[
                (1, First::Is(1)),
                (4, First::Has(6)),
                (5, First::Is(1 << 31)),
            ],
        );
        let said = |nr, first, arch| {
            let mut data = Data {
                arch,
                ..data(nr, 0)
            };
            data.args[0] = first;
            Verdict::of(run(&program, &data))
        };
        for nr in 0..400 {
            let named = numbers.contains(&nr) || nr == 1;
            let expected = if named {
                Verdict::Allow
            } else {
                Verdict::Errno(1)
            };
            assert_eq!(said(nr, 1, X86_64), expected, "{nr}");
            assert_eq!(said(nr, 1, I386), Verdict::Errno(1));
        }
        assert_eq!(said(1, 2, X86_64), Verdict::Errno(1));
        for (first, may) in [
            (0, false),
            (1, false),
            (2, true),
            (4, true),
            (6, true),
            (7, true),
        ] {
            assert_eq!(said(4, first, X86_64) == Verdict::Allow, may, "{first}");
        }
        assert_eq!(said(5, 1 << 31, X86_64), Verdict::Allow);
    }

    #[test]
    fn calls_of_the_range_pass_and_all_others_meet_the_filter() {
        let ranges = [
            (0x7e80_0000_0000, 0x7e80_0010_0000),
            (0x7e80_fff0_0000, 0x7e81_0010_0000),
        ];
        for (start, end) in ranges {
            let judged = start + 0x2002;
            let mut program = exempting(start, end, judged).to_vec();
            program.push(Instruction {
                code: RET,
                jt: 0,
                jf: 0,
                k: RET_TRAP,
            });
            let passes = |at: u64| run(&program, &data(1, at)) == RET_ALLOW;
            for at in [
                start + 2,
                judged - 2,
                judged + 2,
                0x7e81_0000_0000.min(end),
                end,
            ] {
                assert!(passes(at), "{at:#x} of {start:#x}");
            }
            for at in [
                0,
                start - 0x1_0000_0000,
                start,
                judged,
                end + 1,
                end + 0x1_0000_0000,
                u64::MAX,
            ] {
                assert!(!passes(at), "{at:#x} of {start:#x}");
            }
        }
    }

    #[test]
    fn the_least_permissive_action_counts_and_of_equal_ones_the_newest() {
        assert_eq!(strictest([].into_iter()), RET_ALLOW);
        assert_eq!(
            strictest([RET_ERRNO | 1, RET_ERRNO | 2].into_iter()),
            RET_ERRNO | 1
        );
        assert_eq!(
            strictest([RET_ALLOW, RET_TRAP | 7, RET_ERRNO].into_iter()),
            RET_TRAP | 7
        );
        assert_eq!(
            strictest([RET_KILL_THREAD, RET_KILL_PROCESS].into_iter()),
            RET_KILL_PROCESS
        );
        assert_eq!(Verdict::of(RET_ERRNO | 0xffff), Verdict::Errno(MAX_ERRNO));
        assert_eq!(Verdict::of(0x1234_0000), Verdict::KillProcess);
    }

    #[test]
    fn the_strict_mode() {
        use linux_raw_sys::general as k;
        for nr in 0..400 {
            let passes = run(&STRICT, &data(nr, 0)) == RET_ALLOW;
            let may = [
                k::__NR_read,
                k::__NR_write,
                k::__NR_exit,
                k::__NR_rt_sigreturn,
            ];
            assert_eq!(passes, may.contains(&nr), "{nr}");
        }
    }

    #[test]
    fn what_depends_on_the_number_alone() {
        let i = |code, jt, jf, k| Instruction { code, jt, jf, k };
        let program = [
            i(LD_ABS, 0, 0, 0),
            i(JEQ, 0, 1, 7),
            i(RET, 0, 0, RET_ALLOW),
            i(JEQ, 0, 1, 8),
            i(RET, 0, 0, RET_ERRNO),
            i(LD_ABS, 0, 0, 16),
            i(RET, 0, 0, RET_ALLOW),
        ];
        let passes = [7, 8, 9].map(|nr| always_allows(&program, nr));
        assert_eq!(passes, [true, false, false]);
    }

    #[test]
    fn what_no_kernel_has_taken_ends() {
        let i = |code, k| Instruction {
            code,
            jt: 255,
            jf: 255,
            k,
        };
        for code in 0..=u16::MAX {
            for k in [0, 1, 63, u32::MAX] {
                run(&[i(code, k), i(JA, u32::MAX), i(RET, 1)], &data(1, 1));
            }
        }
    }
}
