//! Cases that random operands do not reach: long repeats, faults half-way, atomicity, the site
//! table.
#![allow(unsafe_code)]
#![allow(clippy::undocumented_unsafe_blocks)]

use super::super::*;
use super::differential::{difference, random_state};
use super::machine::*;
use crate::access::{AccessList, Decoder, state};
use crate::cpu::{Cpu, Gprs};
use crate::tests::corpus::Rng;
use std::sync::Arc;

/// Runs a repeated instruction by the engine to its end; the number of iterations.
fn repeat(m: &Machine, bytes: &[u8], s: &mut State) -> usize {
    let mut list = AccessList::new();
    for n in 1..10_000 {
        match m.engine(bytes, s, &mut list).unwrap() {
            Outcome::Done => return n,
            Outcome::Repeat => assert_eq!(s.gprs.rip, m.code),
            other => panic!("{other:?}"),
        }
    }
    panic!("does not end");
}

/// The same natively: the judge steps, so one call is one iteration.
fn repeat_native(m: &Machine, bytes: &[u8], s: &mut State) {
    for _ in 0..10_000 {
        let signal = m.native(bytes, s);
        assert_eq!(signal.signo, libc::SIGTRAP);
        s.gprs.rflags &= !(1 << 8 | 1 << 16);
        if s.gprs.rip != m.code {
            return;
        }
    }
    panic!("does not end");
}

#[test]
fn repeated_strings() {
    let m = Machine::new();
    let mut rng = Rng(0x5151_5151_aaaa_bbbb);
    let mut runs = 0;
    for op in [0xa4u8, 0xa5, 0xa6, 0xa7, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf] {
        for prefix in [&[][..], &[0xf3], &[0xf2], &[0xf2, 0xf3], &[0xf3, 0xf2]] {
            for size in [&[][..], &[0x66], &[0x48], &[0x66, 0x48]] {
                for address in [&[][..], &[0x67], &[0x65]] {
                    if op & 1 == 0 && !size.is_empty() {
                        continue;
                    }
                    for round in 0..6u64 {
                        let mut bytes = address.to_vec();
                        bytes.extend(prefix);
                        bytes.extend(size);
                        bytes.push(op);
                        let mut s = random_state(&mut rng, &m);
                        s.gprs.rflags = 0x202 | (round & 1) << 10;
                        s.gprs.rcx = [0, 1, 2, 9, 40, 1 << 32 | 3][round as usize];
                        if round == 5 && address != [0x67] {
                            s.gprs.rcx = 3;
                        }
                        s.gprs.rsi = m.base + 0x4000 - rng.below(40);
                        s.gprs.rdi = m.base + 0x5000 - rng.below(40);
                        if address == [0x65] {
                            s.gprs.rsi -= gs_base();
                        }
                        if rng.chance(4) {
                            // Overlapping, as memmove by hand or an LZ decoder does.
                            s.gprs.rdi = s.gprs.rsi + 1;
                        }
                        // Equal stretches, so that cmps and scas go on for a while.
                        m.fill(s.gprs.rax as u8);
                        for at in [0x4003, 0x5001, 0x3ff1, 0x4fe8] {
                            m.put(at, &[s.gprs.rax as u8 ^ rng.below(2) as u8]);
                        }
                        let memory = m.memory();
                        m.open_all();
                        let mut want = s.clone();
                        repeat_native(&m, &bytes, &mut want);
                        let want_memory = m.memory();
                        m.put(0, &memory);
                        m.close_all();
                        let mut got = s.clone();
                        repeat(&m, &bytes, &mut got);
                        m.open_all();
                        if let Some(d) = difference(&want, &got) {
                            panic!("{bytes:02x?} count {:x}: {d}", s.gprs.rcx);
                        }
                        assert!(want_memory == m.memory(), "{bytes:02x?}");
                        runs += 1;
                    }
                }
            }
        }
    }
    println!("{runs} repeated strings");
}

/// A fault of the program's own in the middle of things leaves the state as it was.
#[test]
fn faults_change_nothing() {
    let m = Machine::new();
    let hole = m.base + LEN as u64 + 0x1000; // not mapped, not ours
    let mut rng = Rng(0x7777_1234_5678_9abc);
    type Case = (&'static [u8], fn(&mut Gprs, u64, u64));
    let cases: [Case; 9] = [
        // add [rdi], rax
        (&[0x48, 0x01, 0x07], |g, hole, _| g.rdi = hole),
        // movs: source ours, destination not there
        (&[0x48, 0xa5], |g, hole, ours| (g.rsi, g.rdi) = (ours, hole)),
        (&[0xf3, 0xa4], |g, hole, ours| {
            (g.rsi, g.rdi, g.rcx) = (hole, ours, 5)
        }),
        // push [rbx]
        (&[0xff, 0x33], |g, hole, ours| {
            (g.rbx, g.rsp) = (ours, hole + 8)
        }),
        // pop [rbx]
        (&[0x8f, 0x03], |g, hole, ours| (g.rbx, g.rsp) = (hole, ours)),
        // call [rbx]
        (&[0xff, 0x13], |g, hole, ours| (g.rbx, g.rsp) = (hole, ours)),
        // movups [rdi], xmm1
        (&[0x0f, 0x11, 0x0f], |g, hole, _| g.rdi = hole),
        // fld qword [rdi]
        (&[0xdd, 0x07], |g, hole, _| g.rdi = hole),
        // xchg [rdi], rsp
        (&[0x48, 0x87, 0x27], |g, hole, _| g.rdi = hole),
    ];
    for (bytes, aim) in cases {
        let mut s = random_state(&mut rng, &m);
        s.gprs.rflags = 0x246;
        s.xsave[0..8].copy_from_slice(&[0x7f, 3, 0, 0, 0, 0, 0, 0]);
        aim(&mut s.gprs, hole, m.base + 0x800);
        s.gprs.rip = m.code;
        m.fill(0);
        let mut want = s.clone();
        m.open_all();
        let signal = m.native(bytes, &mut want);
        m.close_all();
        let mut got = s.clone();
        let outcome = m.engine(bytes, &mut got, &mut AccessList::new()).unwrap();
        m.open_all();
        let Outcome::Fault(f) = outcome else {
            panic!("{bytes:02x?}: {outcome:?}")
        };
        assert_eq!(
            (f.signo, f.code, f.addr),
            (signal.signo, signal.code, signal.addr),
            "{bytes:02x?}"
        );
        assert_eq!(difference(&s, &got), None, "{bytes:02x?}");
        assert!(m.memory().iter().all(|b| *b == 0));
    }
}

/// Division by a zero in guarded memory is the program's SIGFPE.
#[test]
fn traps_are_the_programs() {
    let m = Machine::new();
    let mut s = State::new();
    (s.gprs.rax, s.gprs.rdx, s.gprs.rbx) = (7, 0, m.base);
    m.fill(0);
    m.close_all();
    // div qword [rbx]
    let outcome = m
        .engine(&[0x48, 0xf7, 0x33], &mut s, &mut AccessList::new())
        .unwrap();
    m.open_all();
    let Outcome::Fault(f) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!((f.signo, f.addr), (libc::SIGFPE, m.code));
    assert_eq!(s.gprs.rax, 7);
}

/// Two threads, one guarded word, locked instructions: nothing is lost.
#[test]
fn locked_instructions_stay_atomic() {
    const N: u64 = 100_000;
    // lock inc [rdi]; lock xadd [rdi], rax; xchg-free cmpxchg loops are covered by the first two
    let cases: [&[u8]; 3] = [
        &[0xf0, 0x48, 0xff, 0x07],
        &[0xf0, 0x48, 0x0f, 0xc1, 0x07],
        &[0xf0, 0x48, 0x83, 0x07, 0x01],
    ];
    for bytes in cases {
        let m = Machine::new();
        m.fill(0);
        m.close_all();
        let at = m.base;
        let m = Arc::new(Share(m));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let m = m.clone();
                std::thread::spawn(move || {
                    let m = &m.as_ref().0;
                    for _ in 0..N {
                        let mut s = Gprs {
                            rdi: at,
                            rax: 1,
                            rip: m.code,
                            rflags: 0x202,
                            ..Gprs::default()
                        };
                        let site = m.thunks.site(&m.decoder, m.code, bytes).unwrap();
                        let mut cpu = Cpu {
                            gprs: &mut s,
                            fs_base: 0,
                            gs_base: 0,
                            xsave: std::ptr::null_mut(),
                            xsave_len: 0,
                        };
                        assert_eq!(m.thunks.execute(site, &mut cpu, m), Outcome::Done);
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        let value = u64::from_le_bytes(m.0.memory()[..8].try_into().unwrap());
        assert_eq!(value, 2 * N);
        assert!(m.0.thunks.len() <= 2, "both threads may decode, one wins");
    }
}

/// A `Machine` is shared read-only here; its `Cell` is set before the threads start.
struct Share(Machine);
// SAFETY: see above.
unsafe impl Sync for Share {}
// SAFETY: see above.
unsafe impl Send for Share {}

/// Code that changes under one address gets a site of its own, and comes back to its old one.
#[test]
fn changed_code_is_decoded_again() {
    let m = Machine::new();
    let a = m
        .thunks
        .site(&m.decoder, 0x1000, &[0x88, 0x07, 0x90])
        .unwrap();
    let b = m
        .thunks
        .site(&m.decoder, 0x1000, &[0x8a, 0x07, 0x90])
        .unwrap();
    assert!(!std::ptr::eq(a, b));
    assert!(std::ptr::eq(
        a,
        m.thunks.site(&m.decoder, 0x1000, &[0x88, 0x07]).unwrap()
    ));
    assert!(a.insn.mem.kind.writes() && b.insn.mem.kind.reads());
    assert!(m.thunks.site(&m.decoder, 0x1000, &[0x88]).is_err());
    assert!(m.thunks.site(&m.decoder, 0x1000, &[]).is_err());
}

/// Many threads meet the same new sites at once.
#[test]
fn sites_from_many_threads() {
    let m = Arc::new(Share(Machine::new()));
    let threads: Vec<_> = (0..8u64)
        .map(|t| {
            let m = m.clone();
            std::thread::spawn(move || {
                let m = &m.as_ref().0;
                for n in 0..2000u64 {
                    let pc = 0x10_0000 + (n ^ (t % 3)) * 5;
                    let disp = (pc as u32).to_le_bytes();
                    let bytes = [0x8b, 0x87, disp[0], disp[1], disp[2], disp[3]];
                    let site = m.thunks.site(&m.decoder, pc, &bytes).unwrap();
                    assert_eq!((site.insn.pc, site.insn.mem.disp as u64), (pc, pc));
                }
            })
        })
        .collect();
    for t in threads {
        t.join().unwrap();
    }
}

/// A full table and a full arena result in the slow path.
#[test]
fn full_table_and_full_arena() {
    let decoder = Decoder::new().unwrap();
    let len = Thunks::data_size(16);
    let mut data = vec![0u64; len / 8 + 16];
    let mut code = vec![0u8; 512];
    let base = ((data.as_mut_ptr() as usize + 63) & !63) as *mut u8;
    let arena = CodeArena {
        rw: code.as_mut_ptr(),
        rx: code.as_ptr(),
        len: code.len(),
    };
    let thunks = Thunks::new(arena, DataArena { base, len }).unwrap();
    let mut full = 0;
    let mut no_code = 0;
    for pc in 0..64u64 {
        match thunks.site(&decoder, pc * 16, &[0x88, 0x07]) {
            Ok(site) => {
                let mut g = Gprs::default();
                let mut cpu = Cpu {
                    gprs: &mut g,
                    fs_base: 0,
                    gs_base: 0,
                    xsave: std::ptr::null_mut(),
                    xsave_len: 0,
                };
                if site.thunk_is_missing() {
                    assert_eq!(
                        thunks.execute(site, &mut cpu, &Nothing),
                        Outcome::NeedSlow(Slow::ArenaFull)
                    );
                    no_code += 1;
                }
            }
            Err(SiteError::Full) => full += 1,
            Err(e) => panic!("{e:?}"),
        }
    }
    assert!(full >= 48 && no_code > 0, "{full} {no_code}");
}

struct Nothing;
impl AliasMap for Nothing {
    fn open(&self, _: ulpf_lib::TargetAddr, _: u64, _: ulpf_lib::AccessKind) -> Open {
        Open::Split
    }
}

/// Without vector state in the frame, vector instructions take the slow path.
#[test]
fn no_vector_state() {
    let m = Machine::new();
    let mut g = Gprs {
        rdi: m.base,
        rip: m.code,
        rflags: 0x202,
        ..Gprs::default()
    };
    let site = m
        .thunks
        .site(&m.decoder, m.code, &[0x0f, 0x11, 0x0f])
        .unwrap();
    let mut cpu = Cpu {
        gprs: &mut g,
        fs_base: 0,
        gs_base: 0,
        xsave: std::ptr::null_mut(),
        xsave_len: 0,
    };
    assert_eq!(
        m.thunks.execute(site, &mut cpu, &m),
        Outcome::NeedSlow(Slow::NoState)
    );
}

/// A vector image that the processor refuses must not take us down.
#[test]
fn malformed_vector_state() {
    let m = Machine::new();
    let mut s = State::new();
    s.xsave[27] = 0x80; // a reserved bit of MXCSR
    s.gprs.rdi = m.base;
    m.close_all();
    let outcome = m
        .engine(&[0x0f, 0x11, 0x0f], &mut s, &mut AccessList::new())
        .unwrap();
    m.open_all();
    assert!(matches!(outcome, Outcome::Fault(f) if f.signo == libc::SIGSEGV));
}

/// The x87 unit must point at the program's instruction and operand, not at a thunk.
#[test]
fn x87_pointers() {
    let m = Machine::new();
    let mut s = State::new();
    s.xsave[512] = 3;
    s.gprs.rdi = m.base + 8;
    let bytes = [0xdc, 0x47, 0x08]; // fadd qword [rdi+8]
    m.fill(0x3f);
    let mut want = s.clone();
    m.open_all();
    m.native(&bytes, &mut want);
    m.close_all();
    let mut got = s.clone();
    assert_eq!(
        m.engine(&bytes, &mut got, &mut AccessList::new()).unwrap(),
        Outcome::Done
    );
    m.open_all();
    assert_eq!(want.xsave[..24], got.xsave[..24]);
}

/// rsp as an explicit operand: of the instruction, never of the thunk.
#[test]
fn stack_pointer_operands() {
    let m = Machine::new();
    let mut rng = Rng(0x4242_4242_1111_2222);
    let cases: &[&[u8]] = &[
        &[0x48, 0x89, 0x23],             // mov [rbx], rsp
        &[0x48, 0x8b, 0x23],             // mov rsp, [rbx]
        &[0x48, 0x03, 0x23],             // add rsp, [rbx]
        &[0x48, 0x21, 0x23],             // and [rbx], rsp
        &[0x66, 0x8b, 0x23],             // mov sp, [rbx]
        &[0x8b, 0x23],                   // mov esp, [rbx]
        &[0x40, 0x8a, 0x23],             // mov spl, [rbx]
        &[0x8a, 0x23],                   // mov ah, [rbx]
        &[0x48, 0x87, 0x23],             // xchg [rbx], rsp
        &[0x48, 0x0f, 0xb1, 0x23],       // cmpxchg [rbx], rsp
        &[0x48, 0x0f, 0xbe, 0x23],       // movsx rsp, byte [rbx]
        &[0x48, 0x8b, 0x64, 0x24, 0x08], // mov rsp, [rsp+8]
        &[0xc4, 0xe2, 0xd8, 0xf2, 0x03], // andn rax, rsp, [rbx]
        &[0xc4, 0xe2, 0xe0, 0xf2, 0x23], // andn rsp, rbx, [rbx]
        &[0xc4, 0xe2, 0xdb, 0xf6, 0x03], // mulx rax, rsp, [rbx]
        &[0xc4, 0xe2, 0xd9, 0xf7, 0x23], // shlx rsp, [rbx], rsp
        &[0xc4, 0xe2, 0xd8, 0xf3, 0x0b], // blsr rsp, [rbx]
    ];
    for bytes in cases {
        for _ in 0..20 {
            let mut s = random_state(&mut rng, &m);
            s.gprs.rflags = 0x202;
            s.gprs.rbx = m.base + 0x900;
            s.gprs.rsp = m.base + 0x900;
            for at in (0x900..0x920).step_by(8) {
                m.put(at, &rng.next().to_le_bytes());
            }
            let memory = m.memory();
            m.open_all();
            let mut want = s.clone();
            assert_eq!(
                m.native(bytes, &mut want).signo,
                libc::SIGTRAP,
                "{bytes:02x?}"
            );
            let want_memory = m.memory();
            m.put(0, &memory);
            m.close_all();
            let mut got = s.clone();
            assert_eq!(
                m.engine(bytes, &mut got, &mut AccessList::new()).unwrap(),
                Outcome::Done
            );
            m.open_all();
            assert_eq!(difference(&want, &got), None, "{bytes:02x?}");
            assert!(want_memory == m.memory());
        }
    }
}

/// A fork may leave every capstone handle claimed for ever.
#[test]
fn decoding_without_a_handle() {
    let decoder = Decoder::new().unwrap();
    let with = decoder.decode(0x1000, &[0x88, 0x47, 0x10]).unwrap();
    decoder.claim_all();
    let without = decoder.decode(0x1000, &[0x88, 0x47, 0x10]).unwrap();
    assert_eq!(
        (with.mem, with.len, with.class),
        (without.mem, without.len, without.class)
    );
    decoder.after_fork();
}

/// Cost of one instruction through the engine: `cargo test --release -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost() {
    let m = Machine::new();
    let mut s = State::new();
    s.gprs.rdi = m.base;
    s.gprs.rsi = m.base + 64;
    s.gprs.rsp = m.base + 4096;
    s.xsave[512] = (state::xcr0() & 0xe7) as u8;
    let cases: [(&str, &[u8]); 6] = [
        ("mov [rdi], al", &[0x88, 0x07]),
        ("lock inc qword [rdi]", &[0xf0, 0x48, 0xff, 0x07]),
        ("push rax", &[0x50]),
        ("movsb", &[0xa4]),
        ("movups [rdi], xmm1", &[0x0f, 0x11, 0x0f]),
        ("vmovups ymm1, [rdi]", &[0xc5, 0xfc, 0x10, 0x0f]),
    ];
    for (name, bytes) in cases {
        let mut list = AccessList::new();
        let (mut lookup, mut accesses, mut execute) = (0, 0, 0);
        let n = 20_000;
        for _ in 0..n {
            let mut regs = s.gprs;
            let mut cpu = s.cpu();
            cpu.gprs = &mut regs;
            let t0 = unsafe { core::arch::x86_64::_rdtsc() };
            let site = m.thunks.site(&m.decoder, m.code, bytes).unwrap();
            let t1 = unsafe { core::arch::x86_64::_rdtsc() };
            site.insn.accesses(&cpu, &mut list);
            let t2 = unsafe { core::arch::x86_64::_rdtsc() };
            assert_eq!(m.thunks.execute(site, &mut cpu, &m), Outcome::Done);
            let t3 = unsafe { core::arch::x86_64::_rdtsc() };
            (lookup, accesses, execute) = (lookup + t1 - t0, accesses + t2 - t1, execute + t3 - t2);
        }
        println!(
            "{name:24} site {} accesses {} execute {} cycles",
            lookup / n,
            accesses / n,
            execute / n
        );
    }
}
