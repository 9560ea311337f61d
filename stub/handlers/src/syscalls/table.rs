//! Which memory a system call touches: for each pointer argument the direction and the length.
//! (syscalls(2) and arch/x86/entry/syscalls/syscall_64.tbl; sizes are those of the x86-64 ABI.)
//! Calls whose memory depends on a command argument are in `commands.rs`.

use super::{Args, commands};

/// Length of a buffer in bytes.
#[derive(Clone, Copy)]
pub enum Len {
    Fixed(u32),
    /// Argument number.
    Arg(u8),
    /// Argument times size.
    ArgTimes(u8, u32),
    /// Argument and so many bytes more.
    ArgAnd(u8, u32),
    /// Bits of an fd_set with as many descriptors as the argument says.
    FdSet(u8),
    /// One byte for each page of as many bytes as the argument says.
    Pages(u8),
    /// A socklen_t that the argument points to.
    Deref(u8),
    /// A structure that begins with its own size, in 32 bits.
    OwnSize,
    /// NUL-terminated.
    Str,
}

/// What the kernel does with a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Dir {
    In,
    /// As many bytes as the result says are read.
    InRet,
    /// Written in full when the call succeeds.
    Out,
    /// As many bytes as the result says are written.
    OutRet,
    /// As many elements of that size as the result says.
    OutRetTimes(u32),
    /// A message queue's long, then as many bytes as the result says.
    OutRetAfter(u32),
    InOut,
    /// An array of iovec: the kernel reads / writes what it points to.
    IovIn,
    IovOut,
    /// A msghdr.
    MsgIn,
    MsgOut,
    /// An array of mmsghdr.
    MMsgIn,
    MMsgOut,
    /// An array of futex_waitv.
    WaitV,
}

#[derive(Clone, Copy)]
pub struct Buf {
    pub arg: u8,
    pub dir: Dir,
    pub len: Len,
}

pub const fn b(arg: u8, dir: Dir, len: Len) -> Buf {
    Buf { arg, dir, len }
}

/// What is known of a call's memory.
#[derive(Clone, Copy)]
pub enum Memory {
    /// These buffers and nothing else.
    Buffers(&'static [Buf]),
    One(Buf),
    /// Its arguments are addresses as such: they must reach the kernel unchanged.
    Addresses,
    /// Pointers to pointers, or sizes that only the kernel knows. Such calls do not block: they are
    /// made with all guards lifted and everybody else at rest.
    Open,
    /// A call that this table has never heard of.
    Unknown,
}

use Dir::*;
use Len::*;

const S0: Buf = b(0, In, Str);
const S1: Buf = b(1, In, Str);
const S2: Buf = b(2, In, Str);
const S3: Buf = b(3, In, Str);
const STAT: Len = Fixed(144);
/// timespec, timeval, rlimit, utimbuf
const TIME: Len = Fixed(16);
const INFO: Len = Fixed(128);

macro_rules! bufs {
    ($($b:expr),* $(,)?) => { const { &[$($b),*] } };
}

#[rustfmt::skip]
pub fn memory(nr: u64, a: &Args) -> Memory {
    if let Some(known) = commands::memory(nr, a) {
        return known;
    }
    if addresses_only(nr) {
        return Memory::Addresses;
    }
    Memory::Buffers(match nr {
        // Data.
        0 | 17 => bufs![b(1, OutRet, Arg(2))],
        1 | 18 => bufs![b(1, InRet, Arg(2))],
        19 | 295 | 327 => bufs![b(1, IovOut, Arg(2))],
        20 | 296 | 328 => bufs![b(1, IovIn, Arg(2))],
        40 => bufs![b(2, InOut, Fixed(8))],
        275 | 326 => bufs![b(1, InOut, Fixed(8)), b(3, InOut, Fixed(8))],
        78 | 217 => bufs![b(1, OutRet, Arg(2))],
        318 => bufs![b(0, OutRet, Arg(1))],
        212 => bufs![b(1, OutRet, Arg(2))],
        // Paths.
        2 | 21 | 76 | 80 | 83 | 84 | 85 | 87 | 90 | 92 | 94 | 133 | 134 | 161 | 163 | 166..=168 | 176 | 241 | 319 | 430 => bufs![S0],
        82 | 86 | 88 | 155 => bufs![S0, S1],
        254 | 257..=260 | 263 | 268 | 269 | 428 | 433 | 439 | 452 => bufs![S1],
        264 | 265 | 316 | 429 => bufs![S1, S3],
        266 => bufs![S0, S2],
        89 => bufs![S0, b(1, OutRet, Arg(2))],
        267 => bufs![S1, b(2, OutRet, Arg(3))],
        79 => bufs![b(0, OutRet, Arg(1))],
        132 => bufs![S0, b(1, In, TIME)],
        235 => bufs![S0, b(1, In, Fixed(32))],
        261 | 280 => bufs![S1, b(2, In, Fixed(32))],
        437 => bufs![S1, b(2, In, Arg(3))],
        442 => bufs![S1, b(3, In, Arg(4))],
        165 => bufs![S0, S1, S2, b(4, In, Str)],
        301 => bufs![b(4, In, Str)],
        313 => bufs![S1],
        320 => bufs![b(3, In, Arg(2))],
        175 => bufs![b(0, In, Arg(1)), S2],
        169 => bufs![S3],
        // File attributes.
        4 | 6 => bufs![S0, b(1, Out, STAT)],
        5 => bufs![b(1, Out, STAT)],
        262 => bufs![S1, b(2, Out, STAT)],
        332 => bufs![S1, b(4, Out, Fixed(256))],
        137 => bufs![S0, b(1, Out, Fixed(120))],
        138 => bufs![b(1, Out, Fixed(120))],
        136 => bufs![b(1, Out, Fixed(32))],
        188 | 189 => bufs![S0, S1, b(2, In, Arg(3))],
        190 => bufs![S1, b(2, In, Arg(3))],
        191 | 192 => bufs![S0, S1, b(2, OutRet, Arg(3))],
        193 => bufs![S1, b(2, OutRet, Arg(3))],
        194 | 195 => bufs![S0, b(1, OutRet, Arg(2))],
        196 => bufs![b(1, OutRet, Arg(2))],
        197 | 198 => bufs![S0, S1],
        199 => bufs![S1],
        451 => bufs![b(1, In, Fixed(16)), b(2, Out, Fixed(40))],
        // Waiting.
        7 => bufs![b(0, InOut, ArgTimes(1, 8))],
        271 => bufs![b(0, InOut, ArgTimes(1, 8)), b(2, InOut, TIME), b(3, In, Arg(4))],
        23 => bufs![b(1, InOut, FdSet(0)), b(2, InOut, FdSet(0)), b(3, InOut, FdSet(0)), b(4, InOut, TIME)],
        270 => bufs![b(1, InOut, FdSet(0)), b(2, InOut, FdSet(0)), b(3, InOut, FdSet(0)), b(4, InOut, TIME), b(5, In, Fixed(16))],
        232 => bufs![b(1, OutRetTimes(12), ArgTimes(2, 12))],
        281 => bufs![b(1, OutRetTimes(12), ArgTimes(2, 12)), b(4, In, Arg(5))],
        441 => bufs![b(1, OutRetTimes(12), ArgTimes(2, 12)), b(3, In, TIME), b(4, In, Arg(5))],
        233 => bufs![b(3, In, Fixed(12))],
        208 => bufs![b(3, OutRetTimes(32), ArgTimes(2, 32)), b(4, In, TIME)],
        333 => bufs![b(3, OutRetTimes(32), ArgTimes(2, 32)), b(4, In, TIME), b(5, In, Fixed(16))],
        61 => bufs![b(1, Out, Fixed(4)), b(3, Out, Fixed(144))],
        247 => bufs![b(2, Out, INFO), b(4, Out, Fixed(144))],
        449 => bufs![b(0, WaitV, ArgTimes(1, 24)), b(3, In, TIME)],
        454 => bufs![b(0, In, Fixed(4))],
        455 => bufs![b(0, In, Fixed(4)), b(4, In, TIME)],
        456 => bufs![b(0, WaitV, Fixed(48))],
        // Time.
        35 => bufs![b(0, In, TIME), b(1, Out, TIME)],
        230 => bufs![b(2, In, TIME), b(3, Out, TIME)],
        36 => bufs![b(1, Out, Fixed(32))],
        38 => bufs![b(1, In, Fixed(32)), b(2, Out, Fixed(32))],
        96 => bufs![b(0, Out, TIME), b(1, Out, Fixed(8))],
        164 => bufs![b(0, In, TIME), b(1, In, Fixed(8))],
        201 => bufs![b(0, Out, Fixed(8))],
        227 => bufs![b(1, In, TIME)],
        228 | 229 => bufs![b(1, Out, TIME)],
        159 => bufs![b(0, InOut, Fixed(208))],
        305 => bufs![b(1, InOut, Fixed(208))],
        222 => bufs![b(1, In, Fixed(64)), b(2, Out, Fixed(4))],
        223 | 286 => bufs![b(2, In, Fixed(32)), b(3, Out, Fixed(32))],
        224 | 287 => bufs![b(1, Out, Fixed(32))],
        // Sockets and other channels.
        22 | 293 => bufs![b(0, Out, Fixed(8))],
        53 => bufs![b(3, Out, Fixed(8))],
        42 | 49 => bufs![b(1, In, Arg(2))],
        43 | 51 | 52 | 288 => bufs![b(1, Out, Deref(2)), b(2, InOut, Fixed(4))],
        44 => bufs![b(1, InRet, Arg(2)), b(4, In, Arg(5))],
        45 => bufs![b(1, OutRet, Arg(2)), b(4, Out, Deref(5)), b(5, InOut, Fixed(4))],
        46 => bufs![b(1, MsgIn, Fixed(56))],
        47 => bufs![b(1, MsgOut, Fixed(56))],
        307 => bufs![b(1, MMsgIn, ArgTimes(2, 64))],
        299 => bufs![b(1, MMsgOut, ArgTimes(2, 64)), b(4, InOut, TIME)],
        55 => bufs![b(3, Out, Deref(4)), b(4, InOut, Fixed(4))],
        65 => bufs![b(1, In, ArgTimes(2, 6))],
        220 => bufs![b(1, In, ArgTimes(2, 6)), b(3, In, TIME)],
        70 => bufs![b(1, OutRetAfter(8), ArgAnd(2, 8))],
        240 => bufs![S0, b(3, In, Fixed(64))],
        242 => bufs![b(1, In, Arg(2)), b(4, In, TIME)],
        243 => bufs![b(1, OutRet, Arg(2)), b(3, Out, Fixed(4)), b(4, In, TIME)],
        244 => bufs![b(1, In, Fixed(64))],
        245 => bufs![b(1, In, Fixed(64)), b(2, Out, Fixed(64))],
        206 => bufs![b(1, InOut, Fixed(8))],
        // Signals.
        127 => bufs![b(0, Out, Arg(1))],
        128 => bufs![b(0, In, Arg(3)), b(1, Out, INFO), b(2, In, TIME)],
        129 | 424 => bufs![b(2, In, INFO)],
        297 => bufs![b(3, In, INFO)],
        282 | 289 => bufs![b(1, In, Arg(2))],
        // Who and how much.
        63 => bufs![b(0, Out, Fixed(390))],
        97 => bufs![b(1, Out, TIME)],
        160 => bufs![b(1, In, TIME)],
        302 => bufs![b(2, In, TIME), b(3, Out, TIME)],
        98 => bufs![b(1, Out, Fixed(144))],
        99 => bufs![b(0, Out, Fixed(112))],
        100 => bufs![b(0, Out, Fixed(32))],
        115 => bufs![b(1, OutRetTimes(4), ArgTimes(0, 4))],
        116 => bufs![b(1, In, ArgTimes(0, 4))],
        118 | 120 => bufs![b(0, Out, Fixed(4)), b(1, Out, Fixed(4)), b(2, Out, Fixed(4))],
        125 => bufs![b(0, InOut, Fixed(8)), b(1, Out, Fixed(24))],
        126 => bufs![b(0, InOut, Fixed(8)), b(1, In, Fixed(24))],
        142 => bufs![b(1, In, Fixed(4))],
        143 => bufs![b(1, Out, Fixed(4))],
        144 => bufs![b(2, In, Fixed(4))],
        148 => bufs![b(1, Out, TIME)],
        203 => bufs![b(2, In, Arg(1))],
        204 => bufs![b(2, OutRet, Arg(1))],
        314 => bufs![b(1, In, OwnSize)],
        315 => bufs![b(1, Out, Arg(2))],
        309 => bufs![b(0, Out, Fixed(4)), b(1, Out, Fixed(4))],
        103 => bufs![b(1, OutRet, Arg(2))],
        170 | 171 => bufs![b(0, In, Arg(1))],
        205 | 211 => bufs![b(0, InOut, Fixed(16))],
        248 => bufs![S0, S1, b(2, In, Arg(3))],
        249 => bufs![S0, S1, S2],
        274 => bufs![b(1, Out, Fixed(8)), b(2, Out, Fixed(8))],
        444 => bufs![b(0, In, Arg(1))],
        445 => bufs![b(2, In, Fixed(16))],
        457 => bufs![b(0, In, OwnSize), b(1, Out, Arg(2))],
        458 => bufs![b(0, In, OwnSize), b(1, OutRetTimes(8), ArgTimes(2, 8))],
        // Memory of this and other processes.
        27 => bufs![b(2, Out, Pages(1))],
        279 => bufs![b(2, In, ArgTimes(1, 8)), b(3, In, ArgTimes(1, 4)), b(4, Out, ArgTimes(1, 4))],
        310 => bufs![b(1, IovOut, Arg(2)), b(3, In, ArgTimes(4, 16))],
        311 => bufs![b(1, IovIn, Arg(2)), b(3, In, ArgTimes(4, 16))],
        440 => bufs![b(1, In, ArgTimes(2, 16))],
        // ptrace, semctl, msgctl, sysfs, quotactl(_fd), io_submit, io_cancel, memory policies, kexec_load,
        // keyctl, perf_event_open, name_to_handle_at, open_by_handle_at, seccomp, bpf, fsconfig, lsm_*,
        // *xattrat.
        66 | 71 | 101 | 139 | 179 | 209 | 210 | 237..=239 | 246 | 250 | 256 | 298 | 303 | 304 | 317 | 321 | 431
        | 443 | 459..=461 | 463..=467 => return Memory::Open,
        // futex is served by itself.
        202 => &[],
        // No memory at all.
        3 | 8 | 24 | 29 | 32..=34 | 37 | 39 | 41 | 48 | 50 | 56..=60 | 62 | 64 | 68 | 73..=75 | 77 | 81 | 91 | 93 | 95
        | 102 | 104..=114 | 117 | 119 | 121..=124 | 130 | 131 | 135 | 140 | 141 | 145..=147 | 153 | 162 | 172..=174
        | 177 | 178 | 180..=187 | 200 | 207 | 213..=215 | 219 | 221 | 225 | 226 | 231 | 234 | 236 | 251..=253 | 255
        | 272 | 276 | 277 | 283..=285 | 290..=292 | 294 | 300 | 306 | 308 | 312 | 322..=324 | 335 | 425..=427 | 432
        | 434..=436 | 438 | 446 | 447 => &[],
        _ => return Memory::Unknown,
    })
}

/// Calls whose arguments are addresses as such: they must reach the kernel unchanged.
fn addresses_only(nr: u64) -> bool {
    // mmap family, msync, shm, m(un)lock, tid and robust lists, rseq, pkeys, …
    matches!(nr, 9..=15 | 25 | 26 | 28 | 30 | 67 | 149..=152 | 216 | 218 | 273 | 325 | 329..=331 | 334 | 448 | 450 | 453 | 462)
}

/// Calls that never block for long and may run with all signals blocked.
pub fn quick(nr: u64) -> bool {
    matches!(nr, 3..=6 | 8..=12 | 21 | 24 | 25 | 27 | 28 | 32 | 33 | 39 | 63 | 79 | 80 | 89 | 95..=99 | 102 | 104 | 107 | 108 | 110 | 111
        | 158 | 186 | 201 | 203 | 204 | 218 | 228 | 229 | 262 | 273 | 302 | 309 | 332 | 334)
}

/// Calls that take data from somewhere, or wait: EFAULT is their last word, because part of their work
/// may be done. All others may be made again with the pages open.
pub fn consumes(nr: u64) -> bool {
    matches!(nr, 0 | 1 | 7 | 17..=20 | 23 | 34 | 35 | 40..=47 | 61 | 65 | 69 | 70 | 78 | 202 | 208 | 217 | 220 | 230 | 232 | 242 | 243
        | 247 | 270 | 271 | 275 | 276 | 278 | 281 | 288 | 295 | 296 | 299 | 307 | 310 | 311 | 326..=328 | 333 | 441 | 449 | 454..=456)
}
