//! Every opcode, random operands: natively against through the engine.

use super::super::*;
use super::machine::*;
use crate::access::{AccessList, Class, state};
use crate::tests::corpus::{self, Rng, Shape};
use std::collections::BTreeMap;

/// Random registers; `wide` fills vector, mask and x87 registers too.
pub fn random_state(rng: &mut Rng, m: &Machine) -> State {
    let mut s = State::new();
    for r in 0..16 {
        *s.gprs.get_mut(r).unwrap() = match rng.below(4) {
            0 => rng.next(),
            1 => rng.below(1 << 16),
            2 => m.base + rng.below(LEN as u64),
            _ => (rng.next() as i8) as i64 as u64,
        };
    }
    s.gprs.rflags = 0x202 | rng.next() & 0x8d5 | (rng.below(2) << 10);
    let mut bv = 0u64;
    if !rng.chance(8) {
        bv = state::xcr0() & 0xe7;
        // x87: empty or full stack of ordinary numbers, exceptions masked.
        s.xsave[4] = if rng.chance(2) { 0xff } else { 0 };
        for i in 0..8 {
            let at = 32 + i * 16;
            s.xsave[at..at + 8].copy_from_slice(&(rng.next() | 1 << 63).to_le_bytes());
            s.xsave[at + 8..at + 10]
                .copy_from_slice(&(0x3fffu16.wrapping_add(rng.below(40) as u16)).to_le_bytes());
        }
        let mut fill = |from: usize, len: usize, rng: &mut Rng| {
            for at in (from..from + len).step_by(4) {
                let v = match rng.below(4) {
                    0 => rng.next() as u32,
                    1 => 0x3f80_0000 + (rng.next() as u32 & 0xffffff),
                    2 => rng.below(64) as u32,
                    _ => 0x8000_0000 | rng.below(1 << 20) as u32,
                };
                s.xsave[at..at + 4].copy_from_slice(&v.to_le_bytes());
            }
        };
        fill(160, 256, rng);
        for i in 2..8 {
            if let Some((o, n)) = state::component(i)
                && bv >> i & 1 != 0
            {
                fill(o as usize, n as usize, rng);
            }
        }
        if let Some((o, _)) = state::component(5) {
            for k in 0..8 {
                let mask = match rng.below(4) {
                    0 => u64::MAX,
                    1 => rng.next(),
                    2 => rng.next() & rng.next(),
                    _ => 1 << rng.below(16),
                };
                s.xsave[o as usize + k * 8..][..8].copy_from_slice(&mask.to_le_bytes());
            }
        }
        if rng.chance(4) {
            bv &= !(1 << rng.below(8));
        }
    }
    s.xsave[512..520].copy_from_slice(&bv.to_le_bytes());
    s
}

/// Changes the registers of an operand's address so that the access lands in the machine's memory. False if the operand
/// has no such register.
pub fn aim(m: &Machine, bytes: &[u8], s: &mut State, rng: &mut Rng) -> bool {
    let Ok(insn) = m.decoder.decode(m.code, bytes) else {
        return false;
    };
    let middle = m.base + LEN as u64 / 2;
    let somewhere = |rng: &mut Rng| match rng.below(3) {
        // Across a page edge.
        0 => middle - rng.below(64),
        1 => middle + rng.below(64) * 64,
        _ => middle + rng.below(8192),
    };
    use Class::*;
    if matches!(
        insn.class,
        Push | PushMem
            | Pop
            | PopMem
            | Pushf
            | Popf
            | Call
            | CallMem
            | Ret
            | Enter
            | FarRet
            | Iret
            | FarCallMem
    ) {
        s.gprs.rsp = somewhere(rng) & if rng.chance(4) { !0 } else { !7 };
    }
    match insn.class {
        Leave => s.gprs.rbp = somewhere(rng),
        Enter => s.gprs.rbp = somewhere(rng),
        Xlat => s.gprs.rbx = somewhere(rng).wrapping_sub(insn.segment_base(&s.cpu())),
        Movs | Stos | Lods | Scas | Cmps => {
            s.gprs.rsi = somewhere(rng).wrapping_sub(insn.segment_base(&s.cpu()));
            s.gprs.rdi = somewhere(rng);
            s.gprs.rcx = rng.below(5);
        }
        MaskMov => s.gprs.rdi = somewhere(rng).wrapping_sub(insn.segment_base(&s.cpu())),
        Clzero => s.gprs.rax = somewhere(rng).wrapping_sub(insn.segment_base(&s.cpu())),
        Movdir64b => {
            let Some(r) = s.gprs.get_mut(insn.layout.reg) else {
                return false;
            };
            *r = somewhere(rng) & !63;
        }
        _ => {}
    }
    if insn.layout.has_mem() {
        if insn.class == Gather || insn.class == Scatter {
            for i in 0..16 {
                let cpu = &mut s.cpu();
                let v = rng.below(256).wrapping_sub(128);
                if insn.layout.opcode & 1 == 0 {
                    cpu.set_vector(insn.mem.index, i * 4, 4, v);
                } else if i < 8 {
                    cpu.set_vector(insn.mem.index, i * 8, 8, v);
                }
            }
        }
        let mut target = somewhere(rng);
        let size = u64::from(insn.mem.size).max(1).next_power_of_two().min(64);
        if !rng.chance(3) {
            target &= !(size - 1);
        }
        if matches!(insn.class, Xsave | Xsavec | Xrstor) || insn.mem.size == 512 {
            target &= !63;
        }
        if insn.class == BitString {
            // Keep the bit near.
            if let Some(r) = s.gprs.get_mut(insn.layout.reg) {
                *r = rng.below(4096).wrapping_sub(2048);
            }
        }
        for _ in 0..2 {
            let ea = insn.effective(&s.cpu());
            let move_by = target.wrapping_sub(ea);
            if move_by == 0 {
                break;
            }
            let base = insn.mem.base;
            if base == crate::access::insn::NO_REG {
                break;
            }
            let Some(r) = s.gprs.get_mut(base) else {
                return false;
            };
            *r = if base == insn.mem.index && insn.class != Gather && insn.class != Scatter {
                // (1 + scale) * r: the nearest multiple.
                r.wrapping_add(move_by / (1 + u64::from(insn.mem.scale)))
            } else {
                r.wrapping_add(move_by)
            };
            if insn.layout.addr32 {
                *r &= 0xffff_ffff;
            }
        }
    }
    let mut list = AccessList::new();
    insn.accesses(&s.cpu(), &mut list);
    list.iter()
        .all(|a| a.addr.0 >= m.base && a.addr.0 + a.len <= m.base + LEN as u64)
}

/// Flags that a comparison sets: OF, SF, ZF, AF, PF, CF.
const STATUS: u64 = 0x8d5;

/// The differences between two states, as text.
pub fn difference(a: &State, b: &State) -> Option<String> {
    let mut out = String::new();
    let names = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12",
        "r13", "r14", "r15",
    ];
    for (r, name) in names.iter().enumerate() {
        let (x, y) = (a.gprs.get(r as u8), b.gprs.get(r as u8));
        if x != y {
            out += &format!(" {name} {x:x}/{y:x}");
        }
    }
    if a.gprs.rip != b.gprs.rip {
        out += &format!(" rip {:x}/{:x}", a.gprs.rip, b.gprs.rip);
    }
    // TF is the judge's way of stepping; RF is a matter of how the state was taken; NT and ID stay
    // behind from an earlier popf, because sigreturn does not restore them.
    let flags = |s: &State| s.gprs.rflags & !(1 << 8 | 1 << 14 | 1 << 16 | 1 << 21);
    if flags(a) != flags(b) {
        out += &format!(" flags {:x}/{:x}", flags(a), flags(b));
    }
    let (x, y) = (a.normal(), b.normal());
    if let Some(at) = (0..x.len()).find(|&i| x[i] != y[i]) {
        let n = (0..x.len()).filter(|&i| x[i] != y[i]).count();
        out += &format!(
            " xsave at {at}: {:02x?}/{:02x?} ({n} bytes)",
            &x[at & !7..(at & !7) + 8],
            &y[at & !7..(at & !7) + 8]
        );
    }
    (!out.is_empty()).then_some(out)
}

/// Memory contents to start from: windows of one random block.
pub struct Pool(Vec<u8>);

impl Pool {
    pub fn new(rng: &mut Rng) -> Pool {
        let words = (0..LEN / 4).flat_map(|_| {
            (if rng.chance(2) {
                rng.next()
            } else {
                rng.below(256)
            })
            .to_le_bytes()
        });
        Pool(words.collect())
    }
    pub fn fresh(&self, rng: &mut Rng) -> &[u8] {
        let at = rng.below(LEN as u64) as usize;
        &self.0[at..at + LEN]
    }
}

/// Where two memories differ.
pub fn changed(a: &[u8], b: &[u8]) -> Vec<usize> {
    let mut out = Vec::new();
    for (n, (x, y)) in a.chunks(512).zip(b.chunks(512)).enumerate() {
        if x != y {
            out.extend((0..x.len()).filter(|&i| x[i] != y[i]).map(|i| n * 512 + i));
        }
    }
    out
}

#[test]
fn every_opcode_as_the_cpu_does() {
    let m = Machine::new();
    every_opcode(&m, 0x9876_5432_1234_5679);
}

/// Guarded and ordinary pages side by side: operands and elements on both.
#[test]
fn every_opcode_between_guarded_and_ordinary_pages() {
    let m = Machine::new();
    m.plain_from.set(PAGES / 2);
    every_opcode(&m, 0x2233_4455_6677_8899);
}

/// Result of an instruction on the processor: signal, registers, memory.
type Natively = (Signal, State, Vec<u8>);
/// Result of an instruction through the engine.
type Through = (Result<Outcome, SiteError>, State, Vec<u8>);

/// `None`: there is no such instruction on this processor.
fn both(
    m: &Machine,
    name: &str,
    bytes: &[u8],
    before: &State,
    memory: &[u8],
    list: &mut AccessList,
) -> Option<(Natively, Through)> {
    m.put(0, memory);
    m.open_all();
    let mut want = before.clone();
    let signal = m.native(bytes, &mut want);
    let mut want_memory = m.memory();
    if name.starts_with("Pushf") {
        // The judge steps with TF, which pushf shows.
        want_memory[(want.gprs.rsp - m.base) as usize + 1] &= !1;
    }
    if ["Sgdt", "Sidt", "Sldt", "Smsw", "Str_"]
        .iter()
        .any(|p| name.starts_with(p))
    {
        // The kernel emulates these (UMIP) and forgets TF: the judge stops at the int3 behind.
        want.gprs.rip -= 1;
    }
    if signal.signo == libc::SIGILL {
        return None;
    }
    m.put(0, memory);
    m.close_all();
    let mut got = before.clone();
    let outcome = m.engine(bytes, &mut got, list);
    m.open_all();
    let got_memory = m.memory();
    Some(((signal, want, want_memory), (outcome, got, got_memory)))
}

fn every_opcode(m: &Machine, seed: u64) {
    let seeds: u64 = std::env::var("ULPF_TEST_ROUNDS")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(12);
    let mut rng = Rng(seed);
    let pool = Pool::new(&mut rng);
    let mut wrong: BTreeMap<String, String> = BTreeMap::new();
    let mut slow: BTreeMap<String, String> = BTreeMap::new();
    let (mut compared, mut faults, mut codes, mut split) = (0, 0, 0, 0);
    let mut list = AccessList::new();
    for code in corpus::codes() {
        let mut any = false;
        for _ in 0..seeds {
            let shape = Shape {
                target: m.base + LEN as u64 / 2 + (rng.below(128) & !15),
                pc: m.code,
            };
            let Some(bytes) = corpus::make(code, &mut rng, shape) else {
                continue;
            };
            let name = format!("{code:?}");
            if skip(&name) {
                continue;
            }
            let mut before = random_state(&mut rng, m);
            if !aim(m, &bytes, &mut before, &mut rng) {
                continue;
            }
            let memory = pool.fresh(&mut rng);
            let mut once = || both(m, &name, &bytes, &before, memory, &mut list);
            let Some(mut run) = once() else { break };
            // The processor may decide differently each time which components are initial and not saved (SDM volume 1,
            // section 13.6: XINUSE).
            for _ in 0..8 {
                if !name.starts_with("Xsave") || run.0.2 == run.1.2 {
                    break;
                }
                run = once().unwrap();
            }
            let ((signal, want, want_memory), (outcome, mut got, got_memory)) = run;
            // Between two iterations of a repeated comparison older processors have the flags of the last one, those with
            // fast short REP CMPS and SCAS the flags from before the instruction. Programs see them after the last one.
            if outcome == Ok(Outcome::Repeat)
                && (want.gprs.rflags ^ before.gprs.rflags) & STATUS == 0
            {
                got.gprs.rflags = want.gprs.rflags;
            }
            let text = || {
                format!(
                    "{bytes:02x?} {}",
                    iced_x86::Decoder::with_ip(64, &bytes, m.code, 0).decode()
                )
            };
            match outcome {
                Err(e) => {
                    wrong
                        .entry(name)
                        .or_insert_with(|| format!("{} {e:?}", text()));
                }
                Ok(Outcome::NeedSlow(Slow::Split)) => {
                    let edge = m.base + m.plain_from.get() as u64 * 4096;
                    let splits = list
                        .iter()
                        .any(|a| a.addr.0 < edge && edge < a.addr.0 + a.len)
                        || matches!(
                            m.decoder.decode(m.code, &bytes).unwrap().class,
                            Class::MaskedEvex
                                | Class::MaskedVex
                                | Class::MaskMov
                                | Class::BroadcastEvex
                                | Class::Packed
                                | Class::Xsave
                                | Class::Xsavec
                                | Class::Xrstor
                                | Class::Enter
                        );
                    if !splits {
                        wrong.entry(name).or_insert_with(|| {
                            format!("{} splits nothing: {:x?}", text(), &list[..])
                        });
                    }
                    split += 1;
                }
                Ok(Outcome::NeedSlow(why)) => {
                    slow.entry(name)
                        .or_insert_with(|| format!("{} {why:?}", text()));
                }
                Ok(Outcome::Fault(f)) => {
                    faults += 1;
                    if signal.signo == libc::SIGTRAP {
                        wrong
                            .entry(name)
                            .or_insert_with(|| format!("{} {f:x?}", text()));
                    } else if f.signo != signal.signo
                        || f.code != signal.code
                        || f.addr != signal.addr && f.signo != libc::SIGFPE
                        || difference(&before, &got).is_some_and(|d| !d.starts_with(" rip"))
                    {
                        wrong
                            .entry(name)
                            .or_insert_with(|| format!("{} {f:x?} wanted {signal:x?}", text()));
                    }
                }
                Ok(_) => {
                    compared += 1;
                    any = true;
                    if signal.signo != libc::SIGTRAP {
                        wrong
                            .entry(name)
                            .or_insert_with(|| format!("{} should fault {signal:x?}", text()));
                        continue;
                    }
                    if let Some(d) = difference(&want, &got) {
                        wrong
                            .entry(name)
                            .or_insert_with(|| format!("{}:{d}", text()));
                    } else if let Some(at) = changed(&want_memory, &got_memory).first().copied() {
                        wrong.entry(name).or_insert_with(|| {
                            format!(
                                "{}: memory at {at:x} {:02x?}/{:02x?}",
                                text(),
                                &want_memory[at..at + 8],
                                &got_memory[at..at + 8]
                            )
                        });
                    }
                    // Whatever changed must lie in a reported write.
                    let reported = |i: &usize| {
                        let at = m.base + *i as u64;
                        list.iter()
                            .any(|a| a.kind.writes() && (a.addr.0..a.addr.0 + a.len).contains(&at))
                    };
                    if let Some(i) = changed(memory, &want_memory)
                        .into_iter()
                        .find(|i| !reported(i))
                    {
                        wrong
                            .entry(format!("{code:?}!"))
                            .or_insert_with(|| format!("{}: unreported write at {i:x}", text()));
                    }
                }
            }
        }
        codes += usize::from(any);
    }
    println!(
        "{compared} compared, {faults} faults, {codes} opcodes, {split} split, {} slow, {} wrong",
        slow.len(),
        wrong.len()
    );
    for (c, w) in &slow {
        println!("slow  {c}: {w}");
    }
    for (c, w) in &wrong {
        println!("WRONG {c}: {w}");
    }
    assert!(wrong.is_empty());
}

/// Cannot run under the judge.
pub fn skip(name: &str) -> bool {
    // Waits, changes this process, or loads segment registers.
    [
        "Syscall", "Sysenter", "Call_m16", "Jmp_m16", "Int", "Iret", "Ret_", "Retf", "Hlt",
        "Mwait", "Monitor", "Umwait", "Tpause", "Xbegin", "Wrfsbase", "Wrgsbase", "Mov_Sreg",
        "Pop_FS", "Popw_FS", "Popq_FS", "Popw_GS", "Popq_GS", "Lss", "Lfs", "Lgs", "Uiret",
        "Eretu", "Ud",
    ]
    .iter()
    .any(|p| name.starts_with(p))
}
