//! Which memory a system call touches: for each pointer argument the direction and the length.
//! (syscalls(2) and arch/x86/entry/syscalls/syscall_64.tbl; sizes are those of the x86-64 ABI.)

/// Length of a buffer in bytes.
#[derive(Clone, Copy)]
pub enum Len {
    Fixed(u32),
    /// Argument number.
    Arg(u8),
    /// Argument times size.
    ArgTimes(u8, u32),
    /// Bits of an fd_set with as many descriptors as the argument says.
    FdSet(u8),
    /// A socklen_t that the argument points to.
    Deref(u8),
    /// NUL-terminated.
    Str,
}

/// What the kernel does with a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Dir {
    In,
    /// Written in full when the call succeeds.
    Out,
    /// As many bytes as the result says are written.
    OutRet,
    /// As many elements of that size as the result says.
    OutRetTimes(u32),
    InOut,
    /// An array of iovec: the kernel reads / writes what it points to.
    IovIn,
    IovOut,
    MsgIn,
    MsgOut,
}

#[derive(Clone, Copy)]
pub struct Buf {
    pub arg: u8,
    pub dir: Dir,
    pub len: Len,
}

const fn b(arg: u8, dir: Dir, len: Len) -> Buf {
    Buf { arg, dir, len }
}

use Dir::*;
use Len::*;

const S0: Buf = b(0, In, Str);
const S1: Buf = b(1, In, Str);
const STAT: u32 = 144;

/// The buffers of a call whose arguments are known. `None`: not listed, see [`addresses_only`].
pub fn buffers(nr: u64) -> Option<&'static [Buf]> {
    Some(match nr {
        0 => const { &[b(1, OutRet, Arg(2))] },
        1 | 18 => const { &[b(1, In, Arg(2))] },
        17 => const { &[b(1, OutRet, Arg(2))] },
        2 | 21 | 76 | 80 | 83 | 84 | 85 | 87 | 90 | 92 | 94 | 133 | 161 | 319 => const { &[S0] },
        4 | 6 => const { &[S0, b(1, Out, Fixed(STAT))] },
        5 => const { &[b(1, Out, Fixed(STAT))] },
        7 => const { &[b(0, InOut, ArgTimes(1, 8))] },
        19 | 295 | 327 => const { &[b(1, IovOut, Arg(2))] },
        20 | 296 | 328 => const { &[b(1, IovIn, Arg(2))] },
        22 | 293 => const { &[b(0, Out, Fixed(8))] },
        23 => {
            const {
                &[
                    b(1, InOut, FdSet(0)),
                    b(2, InOut, FdSet(0)),
                    b(3, InOut, FdSet(0)),
                    b(4, InOut, Fixed(16)),
                ]
            }
        }
        35 => const { &[b(0, In, Fixed(16)), b(1, Out, Fixed(16))] },
        36 => const { &[b(1, Out, Fixed(32))] },
        38 => const { &[b(1, In, Fixed(32)), b(2, Out, Fixed(32))] },
        40 => const { &[b(2, InOut, Fixed(8))] },
        42 | 49 => const { &[b(1, In, Arg(2))] },
        43 | 51 | 52 | 288 => const { &[b(1, Out, Deref(2)), b(2, InOut, Fixed(4))] },
        44 => const { &[b(1, In, Arg(2)), b(4, In, Arg(5))] },
        45 => {
            const {
                &[
                    b(1, OutRet, Arg(2)),
                    b(4, Out, Deref(5)),
                    b(5, InOut, Fixed(4)),
                ]
            }
        }
        46 => const { &[b(1, MsgIn, Fixed(56))] },
        47 => const { &[b(1, MsgOut, Fixed(56))] },
        53 => const { &[b(3, Out, Fixed(8))] },
        54 => const { &[b(3, In, Arg(4))] },
        55 => const { &[b(3, Out, Deref(4)), b(4, InOut, Fixed(4))] },
        61 => const { &[b(1, Out, Fixed(4)), b(3, Out, Fixed(STAT))] },
        63 => const { &[b(0, Out, Fixed(390))] },
        78 | 217 => const { &[b(1, OutRet, Arg(2))] },
        79 => const { &[b(0, OutRet, Arg(1))] },
        82 | 86 | 88 => const { &[S0, S1] },
        89 => const { &[S0, b(1, OutRet, Arg(2))] },
        96 => const { &[b(0, Out, Fixed(16)), b(1, Out, Fixed(8))] },
        97 => const { &[b(1, Out, Fixed(16))] },
        98 => const { &[b(1, Out, Fixed(STAT))] },
        99 => const { &[b(0, Out, Fixed(112))] },
        100 => const { &[b(0, Out, Fixed(32))] },
        115 => const { &[b(1, Out, ArgTimes(0, 4))] },
        118 | 120 => {
            const {
                &[
                    b(0, Out, Fixed(4)),
                    b(1, Out, Fixed(4)),
                    b(2, Out, Fixed(4)),
                ]
            }
        }
        137 => const { &[S0, b(1, Out, Fixed(120))] },
        138 => const { &[b(1, Out, Fixed(120))] },
        160 => const { &[b(1, In, Fixed(16))] },
        201 => const { &[b(0, Out, Fixed(8))] },
        203 => const { &[b(2, In, Arg(1))] },
        204 => const { &[b(2, OutRet, Arg(1))] },
        228 | 229 => const { &[b(1, Out, Fixed(16))] },
        227 => const { &[b(1, In, Fixed(16))] },
        230 => const { &[b(2, In, Fixed(16)), b(3, Out, Fixed(16))] },
        232 | 281 | 441 => const { &[b(1, OutRetTimes(12), ArgTimes(2, 12)), b(3, In, Fixed(0))] },
        233 => const { &[b(3, In, Fixed(12))] },
        247 => const { &[b(2, Out, Fixed(128)), b(4, Out, Fixed(STAT))] },
        254 | 257 | 258 | 259 | 260 | 263 | 268 | 269 | 439 => const { &[S1] },
        262 => const { &[S1, b(2, Out, Fixed(STAT))] },
        264 | 265 | 316 => const { &[S1, b(3, In, Str)] },
        266 => const { &[S0, b(2, In, Str)] },
        267 => const { &[S1, b(2, OutRet, Arg(3))] },
        280 => const { &[S1, b(2, In, Fixed(32))] },
        286 => const { &[b(2, In, Fixed(32)), b(3, Out, Fixed(32))] },
        287 => const { &[b(1, Out, Fixed(32))] },
        302 => const { &[b(2, In, Fixed(16)), b(3, Out, Fixed(16))] },
        309 => const { &[b(0, Out, Fixed(4)), b(1, Out, Fixed(4))] },
        318 => const { &[b(0, OutRet, Arg(1))] },
        326 => const { &[b(1, InOut, Fixed(8)), b(3, InOut, Fixed(8))] },
        332 => const { &[S1, b(4, Out, Fixed(256))] },
        437 => const { &[S1, b(2, In, Arg(3))] },
        // No memory at all.
        3
        | 8
        | 24
        | 32
        | 33
        | 34
        | 37
        | 39
        | 41
        | 48
        | 50
        | 62
        | 73..=75
        | 77
        | 81
        | 91
        | 93
        | 95
        | 102
        | 104..=114
        | 117
        | 119
        | 121
        | 124
        | 140
        | 141
        | 145..=147
        | 186
        | 200
        | 213
        | 231
        | 234
        | 284
        | 285
        | 290..=292
        | 306
        | 424
        | 434
        | 436 => const { &[] },
        _ => return None,
    })
}

/// Calls whose arguments are addresses as such: they must reach the kernel unchanged.
pub fn addresses_only(nr: u64) -> bool {
    // mmap family, shm, m(un)lock, msync, mincore, arch_prctl, tid and robust lists, rseq, ptrace,
    // process_vm_*, mbind and friends, pkeys.
    matches!(nr, 9..=12 | 25..=28 | 30 | 67 | 101 | 149..=152 | 158 | 216 | 218 | 237..=239 | 256 | 273 | 274 | 279
        | 310 | 311 | 325 | 329..=331 | 334 | 440 | 448 | 449..=462)
}

/// Calls that never block for long and may run with all signals blocked.
pub fn quick(nr: u64) -> bool {
    matches!(nr, 3..=6 | 8..=12 | 21 | 24 | 25 | 27 | 28 | 32 | 33 | 39 | 63 | 79 | 80 | 89 | 95..=99 | 102 | 104 | 107 | 108 | 110 | 111
        | 158 | 186 | 201 | 203 | 204 | 218 | 228 | 229 | 262 | 273 | 302 | 309 | 332 | 334)
}
