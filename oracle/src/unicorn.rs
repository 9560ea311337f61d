//! The judge that is independent of ulpf: Unicorn with hooks on every memory access. The hooks report an
//! instruction's accesses, not a decoder. Unicorn accesses wide operands in pieces, which are joined again.
//! Contiguous reads of one instruction are one access, and so are contiguous writes. A read-modify-write of one
//! operand is one access, too. A string instruction's accesses are those of one iteration, each by itself.

use crate::children;
use crate::generate::Windows;
use crate::hits::{Access, Expected, Recorder};
use crate::kernel::{Kernel, Memory, Verdict};
use crate::program::*;
use crate::seccomp::{Call, Filters};
use anyhow::{Result, anyhow, bail};
use iced_x86::{Code, Decoder, DecoderOptions, InstructionInfoFactory, OpAccess};
use std::collections::HashMap;
use std::rc::Rc;
use ulpf_lib::{AccessKind, eflags};
use unicorn_engine::unicorn_const::{Arch, HookType, MemType, Mode, Prot};
use unicorn_engine::{RegisterX86 as R, Unicorn, X86Insn};

/// One hook call.
struct Piece {
    addr: u64,
    len: u64,
    write: bool,
    old: [u8; 16],
}

/// Properties of an instruction that decide how its pieces are joined.
#[derive(Clone, Copy)]
struct Nature {
    /// `movsxd` with a 16-bit destination reads two bytes on Intel's processors; Unicorn reads four, as AMD's do.
    half: bool,
    string: bool,
    /// One operand is read and written.
    modifies: bool,
}

pub struct Machine {
    code_at: u64,
    control_at: u64,
    /// The memory that a thread may touch, if it is one of several.
    windows: Option<Rc<Windows>>,
    arenas: [Vec<u8>; 3],
    control: Vec<u8>,
    code: Vec<u8>,
    /// Code that the program has made.
    made: Vec<u8>,
    contents: Vec<u8>,
    natures: HashMap<u64, Nature>,
    pieces: Vec<Piece>,
    pub pc: u64,
    /// The last one outside of code that the program has made.
    own_pc: u64,
    pub recorder: Recorder,
    epochs: Vec<Vec<Watch>>,
    next_epoch: usize,
    pub kernel: Kernel,
    /// Number of children so far.
    pub children: u32,
    pub end: Option<Verdict>,
    limit: u64,
}

impl Memory for Machine {
    fn bytes(&mut self, addr: u64, len: usize) -> Option<&mut [u8]> {
        let (n, at) = arena_of(addr).unwrap_or((3, addr.checked_sub(self.control_at)? as usize));
        let region = match n {
            3 => &mut self.control,
            n => &mut self.arenas[n],
        };
        region.get_mut(at..at.checked_add(len)?)
    }
}

fn nature(code: &[u8], pc: u64) -> Nature {
    let i = Decoder::with_ip(64, code, pc, DecoderOptions::NONE).decode();
    let mut factory = InstructionInfoFactory::new();
    let modifies = factory
        .info(&i)
        .used_memory()
        .iter()
        .any(|m| matches!(m.access(), OpAccess::ReadWrite | OpAccess::ReadCondWrite));
    Nature {
        half: i.code() == Code::Movsxd_r16_rm16 && !crate::step::amd(),
        string: i.is_string_instruction(),
        modifies,
    }
}

impl Machine {
    /// The memory that a forked child gets a copy of.
    pub fn private(&mut self) -> [&mut [u8]; 3] {
        let [file, anonymous, _] = &mut self.arenas;
        [file, anonymous, &mut self.control]
    }

    fn nature(&mut self, pc: u64) -> Nature {
        if is_made(pc) {
            return nature(&self.made[(pc - MADE) as usize..], pc);
        }
        let (code, base) = (&self.code, self.code_at);
        let of = |pc: &u64| nature(&code[(pc - base) as usize..], *pc);
        *self.natures.entry(pc).or_insert_with_key(of)
    }

    fn touch(&mut self, addr: u64, len: u64, write: bool) {
        if arena_of(addr).is_none() && arena_of(addr + len - 1).is_none() {
            return;
        }
        let half = len == 4 && !write && self.nature(self.pc).half;
        let len = if half { 2 } else { len };
        self.stays(addr, len);
        let mut old = [0; 16];
        if let Some(now) = self.bytes(addr, len as usize) {
            old[..len as usize].copy_from_slice(now);
        }
        self.pieces.push(Piece {
            addr,
            len,
            write,
            old,
        });
    }

    /// Accesses to bytes of others end the run.
    fn stays(&mut self, addr: u64, len: u64) {
        if let Some(w) = &self.windows
            && !w.hold(addr, len)
            && self.end.is_none()
        {
            self.end = Some(Verdict::Stray(self.own_pc));
        }
    }

    /// The instruction at `self.pc` is done.
    fn finish(&mut self) {
        if self.pieces.is_empty() {
            return;
        }
        let nature = self.nature(self.pc);
        let pieces = std::mem::take(&mut self.pieces);
        let mut spans: Vec<(u64, u64, AccessKind)> = Vec::new();
        for write in [false, true] {
            let kind = if write {
                AccessKind::Write
            } else {
                AccessKind::Read
            };
            let mut own: Vec<_> = pieces
                .iter()
                .filter(|p| p.write == write)
                .map(|p| (p.addr, p.addr + p.len))
                .collect();
            if !nature.string {
                own.sort();
                own.dedup_by(|next, last| {
                    let joined = next.0 <= last.1;
                    if joined {
                        last.1 = last.1.max(next.1);
                    }
                    joined
                });
            }
            for (from, to) in own {
                let read = (from, to, AccessKind::Read);
                match spans.iter().position(|s| *s == read) {
                    Some(n) if write && nature.modifies => spans[n].2 = AccessKind::ReadWrite,
                    _ => spans.push((from, to, kind)),
                }
            }
        }
        let mut accesses = Vec::with_capacity(spans.len());
        for (from, to, kind) in spans {
            if self.recorder.watched_page(from, to - from) {
                self.recorder.out.accesses += 1;
            }
            if !self.recorder.any_overlap(from, to - from) {
                continue;
            }
            let Some(new) = self.bytes(from, (to - from) as usize) else {
                continue;
            };
            let new = new.to_vec();
            // A byte's value before the instruction is what its first piece saw.
            let mut old = new.clone();
            for p in pieces.iter().rev() {
                for i in 0..p.len {
                    if let Some(at) = (p.addr + i).checked_sub(from)
                        && let Some(byte) = old.get_mut(at as usize)
                    {
                        *byte = p.old[i as usize];
                    }
                }
            }
            accesses.push(Access {
                addr: from,
                kind,
                old,
                new,
            });
        }
        if !accesses.is_empty() {
            self.recorder.group(self.pc, None, &accesses);
        }
        self.pieces = pieces;
        self.pieces.clear();
    }
}

/// The instruction at this address touches what belongs to others.
#[derive(Debug)]
pub struct Stray(pub u64);

impl std::fmt::Display for Stray {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{:#x} touches what belongs to others", self.0)
    }
}
impl std::error::Error for Stray {}

const RW: Prot = Prot(3);

/// `Err` when the program cannot be judged (it faults, or never ends). It begins with these filters, and leaves those
/// that it has at its end.
pub fn judge(p: &Program, filters: &mut Filters) -> Result<Expected> {
    let mut contents_of = contents(p.memory_seed, 1);
    contents_of.extend(contents(p.memory_seed, 2));
    contents_of.resize(contents_of.len().next_multiple_of(4096), 0);
    let mut code = p.code.clone();
    code.resize(code.len().next_multiple_of(4096) + 4096, 0xcc);
    let member = p.number.is_some();
    // Threads find everything made.
    let filled = |arena| match member {
        true => contents(p.memory_seed, arena),
        false => vec![0; ARENA_LEN],
    };
    let mut kernel = match p.number {
        Some(n) => Kernel::with_file(n * crate::generate::DESCRIPTORS, contents(p.memory_seed, 0)),
        None => Kernel::default(),
    };
    kernel.filters = std::mem::take(filters);
    let machine = Box::new(Machine {
        code_at: p.code_at,
        control_at: p.control_at,
        windows: p.windows.clone(),
        // 1 and 2 are empty until the program fills them; it does so before the first marker.
        arenas: [contents(p.memory_seed, 0), filled(1), filled(2)],
        control: p.control(),
        code,
        made: vec![0; MADE_LEN],
        contents: contents_of,
        natures: HashMap::new(),
        pieces: vec![],
        pc: 0,
        own_pc: 0,
        recorder: Recorder::new(),
        epochs: p.epochs.clone(),
        next_epoch: 0,
        kernel,
        children: 0,
        end: None,
        limit: 4_000_000,
    });
    let mut uc = Unicorn::new_with_data(Arch::X86, Mode::MODE_64, machine)
        .map_err(|e| anyhow!("unicorn: {e:?}"))?;
    map(&mut uc).map_err(|e| anyhow!("unicorn: {e:?}"))?;
    let fail = |e| anyhow!("unicorn: {e:?}");
    for (from, len) in [(CODE, 1 << 24), (MADE, MADE_LEN as u64)] {
        uc.add_code_hook(from, from + len, |uc, pc, _| {
            let m = uc.get_data_mut();
            m.finish();
            m.pc = pc;
            if !is_made(pc) {
                m.own_pc = pc;
            }
            m.recorder.out.instructions += 1;
            if m.recorder.out.instructions > m.limit {
                m.end = Some(Verdict::Stuck);
            }
            if m.end.is_some() {
                let _ = uc.emu_stop();
            }
        })
        .map_err(fail)?;
    }
    uc.add_mem_hook(
        HookType::MEM_READ | HookType::MEM_WRITE,
        CONTROL,
        0x3000_0000,
        |uc, kind, addr, len, _| {
            let m = uc.get_data_mut();
            m.touch(addr, len as u64, kind == MemType::WRITE);
            true
        },
    )
    .map_err(fail)?;
    let later = p.number.is_some_and(|n| n > 0);
    uc.add_intr_hook(move |uc, number| {
        let m = uc.get_data_mut();
        m.finish();
        if number != 3 {
            m.end = Some(Verdict::Fault(format!("exception {number}")));
            let _ = uc.emu_stop();
            return;
        }
        // The last marker, before the end, begins no epoch.
        if let Some(w) = m.epochs.get(m.next_epoch) {
            m.recorder.epoch(&w.clone());
        }
        m.next_epoch += 1;
        if later {
            // Another thread, which the first one has made.
            m.kernel.filters = Filters::default();
        }
    })
    .map_err(fail)?;
    uc.add_insn_sys_hook(X86Insn::SYSCALL, 1, 0, syscall)
        .map_err(fail)?;
    uc.reg_write(R::EFLAGS, eflags::INITIAL).map_err(fail)?;
    // OSFXSR, OSXMMEXCPT: SSE is usable; the x87 unit too.
    let cr4 = uc.reg_read(R::CR4).map_err(fail)?;
    uc.reg_write(R::CR4, cr4 | 0x600).map_err(fail)?;
    let (mut at, mut parent) = (p.code_at, None);
    let run = loop {
        let run = uc.emu_start(at, u64::MAX, 0, 0);
        match children::turn(&mut uc, &mut parent).map_err(fail)? {
            Some(next) => at = next,
            None => break run,
        }
    };
    let m = uc.get_data_mut();
    match (m.end.take(), run) {
        (Some(Verdict::Exit), _) => {
            *filters = std::mem::take(&mut m.kernel.filters);
            Ok(std::mem::take(&mut m.recorder.out))
        }
        (Some(Verdict::Stray(pc)), _) => Err(Stray(pc).into()),
        (Some(Verdict::Stuck), _) => bail!("does not end"),
        (Some(Verdict::Child { .. }), _) => bail!("a child has a child at {:#x}", m.pc),
        _ if member => Err(Stray(m.own_pc).into()),
        (Some(Verdict::Fault(why)), _) => bail!("{why} at {:#x}", m.pc),
        (_, run) => bail!("unicorn: {run:?}\n{}", crate::bench::listing(p, Some(m.pc))),
    }
}

fn map(uc: &mut Unicorn<Box<Machine>>) -> Result<(), unicorn_engine::uc_error> {
    let m = uc.get_data_mut();
    let mut regions = vec![
        (m.code_at, m.code.as_mut_ptr(), m.code.len(), Prot(5)),
        (m.control_at, m.control.as_mut_ptr(), m.control.len(), RW),
        (CONTENTS, m.contents.as_mut_ptr(), m.contents.len(), RW),
        (MADE, m.made.as_mut_ptr(), m.made.len(), Prot(7)),
    ];
    for (n, a) in m.arenas.iter_mut().enumerate() {
        regions.push((ARENAS[n], a.as_mut_ptr(), a.len(), RW));
    }
    for (addr, ptr, len, prot) in regions {
        // SAFETY: the vectors live in the machine's data, are never resized, and outlive it.
        unsafe { uc.mem_map_ptr(addr, len as u64, prot, ptr.cast())? };
    }
    Ok(())
}

fn syscall(uc: &mut Unicorn<Box<Machine>>) {
    let get = |uc: &Unicorn<Box<Machine>>, r: R| uc.reg_read(r).unwrap_or(0);
    let nr = get(uc, R::RAX);
    let args = [R::RDI, R::RSI, R::RDX, R::R10, R::R8, R::R9].map(|r| get(uc, r));
    let m = uc.get_data_mut();
    m.pieces.clear();
    let pc = m.pc;
    // The segment bases are registers here.
    if nr as i64 == libc::SYS_arch_prctl {
        let base = match args[0] {
            0x1001 => R::GS_BASE,
            _ => R::FS_BASE,
        };
        let _ = uc.reg_write(base, args[1]);
        let _ = uc.reg_write(R::RAX, 0);
        return;
    }
    let mut kernel = std::mem::take(&mut m.kernel);
    let call = Call {
        nr,
        args: &args,
        ip: pc + 2,
    };
    let done = kernel.call(&call, m.as_mut());
    m.kernel = kernel;
    for a in &done.accesses {
        m.stays(a.addr, a.old.len() as u64);
        if m.recorder.watched_page(a.addr, a.old.len() as u64) {
            m.recorder.out.accesses += 1;
        }
    }
    m.recorder.group(pc, Some(nr as u32), &done.accesses);
    if let Some(v) = done.verdict
        && m.end.is_none()
    {
        m.end = Some(v);
    }
    if m.end.is_some() {
        let _ = uc.emu_stop();
    }
    let _ = uc.reg_write(R::RAX, done.result as u64);
}
