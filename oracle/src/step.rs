//! The judge for programs that Unicorn does not support, and a check on Unicorn. It is the processor
//! itself, one instruction at a time under ptrace. iced-x86 gives the addresses that an instruction
//! reads and writes (ulpf decodes with capstone and its own tables). The values come from the
//! program's memory. At the end of each epoch every byte of the arenas has to be explained by a
//! reported write.

use crate::hits::{Access, Expected, Recorder};
use crate::kernel::{Kernel, Memory, SOME_PROCESS, Verdict};
use crate::masks;
use crate::program::*;
use crate::seccomp::Call;
use crate::tracee::{Registers, Tracee, Vectors};
use anyhow::{Result, bail, ensure};
use iced_x86::*;
use std::collections::HashMap;
use std::path::Path;
use ulpf_lib::AccessKind;

/// Arenas as they are believed to be.
struct Shadow([Vec<u8>; 3]);

impl Memory for Shadow {
    fn bytes(&mut self, addr: u64, len: usize) -> Option<&mut [u8]> {
        let (n, at) = arena_of(addr)?;
        self.0[n].get_mut(at..at.checked_add(len)?)
    }
}

/// The shadow, and beside it the control area as it is now (vectors, pipes' contents).
struct World<'a> {
    shadow: &'a mut Shadow,
    control: Vec<u8>,
}

impl Memory for World<'_> {
    fn bytes(&mut self, addr: u64, len: usize) -> Option<&mut [u8]> {
        if arena_of(addr).is_some() {
            return self.shadow.bytes(addr, len);
        }
        let at = addr.checked_sub(CONTROL)? as usize;
        self.control.get_mut(at..at.checked_add(len)?)
    }
}

const LIMIT: u64 = 400_000;

pub fn judge(p: &Program, elf: &Path) -> Result<Expected> {
    let mut t = Tracee::start(elf)?;
    let mut recorder = Recorder::new();
    let mut shadow = Shadow([vec![], vec![], vec![]]);
    let mut kernel = Kernel::with_file(0, contents(p.memory_seed, 0));
    let mut decoded: HashMap<u64, Instruction> = HashMap::new();
    let mut factory = InstructionInfoFactory::new();
    t.run_to_trap()?;
    let mut epoch = 0;
    loop {
        // Just behind a marker.
        if epoch > 0 {
            ensure_explained(&t, &shadow)?;
        }
        for (n, arena) in shadow.0.iter_mut().enumerate() {
            arena.resize(ARENA_LEN, 0);
            t.read(ARENAS[n], arena)?;
        }
        let Some(watches) = p.epochs.get(epoch) else {
            return Ok(recorder.out);
        };
        recorder.epoch(watches);
        epoch += 1;
        loop {
            let r = t.registers()?;
            let pc = r.rip;
            let i = match decoded.get(&pc) {
                Some(i) => *i,
                None if is_made(pc) => {
                    let mut code = [0; 15];
                    t.read(pc, &mut code)?;
                    Decoder::with_ip(64, &code, pc, DecoderOptions::NONE).decode()
                }
                None => {
                    let Some(code) = pc
                        .checked_sub(CODE)
                        .and_then(|at| p.code.get(at as usize..))
                    else {
                        bail!("ran away to {pc:#x}")
                    };
                    let i = Decoder::with_ip(64, code, pc, DecoderOptions::NONE).decode();
                    decoded.insert(pc, i);
                    i
                }
            };
            if i.mnemonic() == Mnemonic::Int3 {
                t.run_to_trap()?;
                break;
            }
            recorder.out.instructions += 1;
            ensure!(recorder.out.instructions < LIMIT, "does not end");
            if i.mnemonic() == Mnemonic::Syscall {
                let mut control = p.control();
                t.read(CONTROL, &mut control)?;
                let mut world = World {
                    shadow: &mut shadow,
                    control,
                };
                let args = [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9];
                let call = Call {
                    nr: r.rax,
                    args: &args,
                    ip: i.next_ip(),
                };
                let done = kernel.call(&call, &mut world);
                if let Some(Verdict::Fault(why)) = done.verdict {
                    bail!(why);
                }
                match done.verdict {
                    // A child is not to be stepped.
                    Some(Verdict::Child { .. }) => t.call()?,
                    _ => t.step()?,
                }
                let result = t.registers()?.rax as i64;
                ensure!(
                    result == done.result || done.result == SOME_PROCESS && result > 0,
                    "system call {}: {result}, {} expected",
                    r.rax,
                    done.result
                );
                count(&mut recorder, &done.accesses);
                recorder.group(pc, Some(r.rax as u32), &done.accesses);
                if r.rax as i64 == libc::SYS_wait4 {
                    // The child may have stored in shared memory.
                    t.read(ARENAS[2], &mut shadow.0[2])?;
                }
                continue;
            }
            let vectors = || t.vectors();
            let list = accesses(&mut factory, &i, &r, &vectors)?;
            let inside: Vec<_> = list
                .into_iter()
                .filter(|a| arena_of(a.0).is_some() || arena_of(a.0 + a.1 - 1).is_some())
                .collect();
            if let Err(e) = t.step() {
                bail!("{e:#}\n{}", crate::bench::listing(p, Some(pc)));
            }
            // The processor may take a trap between the elements of a scatter.
            while i.is_vsib() && t.registers()?.rip == pc {
                t.step()?;
            }
            if matches!(i.mnemonic(), Mnemonic::Pushf | Mnemonic::Pushfq) {
                t.clean_pushed_flags()?;
            }
            if inside.is_empty() {
                continue;
            }
            let mut done = Vec::new();
            for &(addr, len, kind) in &inside {
                let Some(old) = shadow.bytes(addr, len as usize) else {
                    bail!("an access at the edge of an arena");
                };
                let old = old.to_vec();
                let mut new = old.clone();
                if inside.iter().any(|a| a.2.writes()) {
                    t.read(addr, &mut new)?;
                }
                done.push(Access {
                    addr,
                    kind,
                    old,
                    new,
                });
            }
            for a in done.iter().filter(|a| a.kind.writes()) {
                if let Some(to) = shadow.bytes(a.addr, a.new.len()) {
                    to.copy_from_slice(&a.new);
                }
            }
            count(&mut recorder, &done);
            recorder.group(pc, None, &done);
        }
    }
}

fn count(r: &mut Recorder, accesses: &[Access]) {
    for a in accesses {
        if r.watched_page(a.addr, a.old.len() as u64) {
            r.out.accesses += 1;
        }
    }
}

fn ensure_explained(t: &Tracee, shadow: &Shadow) -> Result<()> {
    let mut now = vec![0; ARENA_LEN];
    for (n, arena) in shadow.0.iter().enumerate() {
        t.read(ARENAS[n], &mut now)?;
        if let Some(at) = (0..ARENA_LEN).find(|i| now[*i] != arena[*i]) {
            bail!(
                "{:#x} has changed without a reported write",
                ARENAS[n] + at as u64
            );
        }
    }
    Ok(())
}

/// The two makers define a few instructions differently.
pub fn amd() -> bool {
    matches!(std::arch::x86_64::__cpuid(0).ecx, 0x444d_4163 | 0x656e_6975)
}

pub type Spans = Vec<(u64, u64, AccessKind)>;

/// Accesses that the instruction is about to make.
pub fn accesses(
    factory: &mut InstructionInfoFactory,
    i: &Instruction,
    r: &Registers,
    vectors: &dyn Fn() -> Result<Vectors>,
) -> Result<Spans> {
    let mut out: Spans = Vec::new();
    if matches!(
        i.mnemonic(),
        Mnemonic::Clflush | Mnemonic::Clflushopt | Mnemonic::Clwb
    ) {
        // iced calls it a read.
        return Ok(out);
    }
    let string = i.is_string_instruction();
    let counted = i.has_rep_prefix() || i.has_repne_prefix();
    if string && counted {
        let narrow = matches!(i.op0_kind(), OpKind::MemoryESEDI | OpKind::MemorySegESI)
            || matches!(i.op1_kind(), OpKind::MemoryESEDI | OpKind::MemorySegESI);
        let left = if narrow { r.rcx & 0xffff_ffff } else { r.rcx };
        if left == 0 {
            return Ok(out);
        }
    }
    let info = factory.info(i);
    for m in info.used_memory() {
        let kind = match m.access() {
            OpAccess::Read | OpAccess::CondRead => AccessKind::Read,
            OpAccess::Write | OpAccess::CondWrite => AccessKind::Write,
            OpAccess::ReadWrite | OpAccess::ReadCondWrite => AccessKind::ReadWrite,
            _ => continue,
        };
        let v = if masks::masked(i) {
            Some(vectors()?)
        } else {
            None
        };
        let address = |element: usize| {
            m.virtual_address(element, |reg, index, size| {
                Some(match reg {
                    Register::FS => r.fs_base,
                    Register::GS => r.gs_base,
                    Register::ES | Register::CS | Register::SS | Register::DS => 0,
                    reg if reg.is_vector_register() => {
                        v.as_ref()?.element(reg.number(), index * size, size)
                    }
                    reg => r.get(reg),
                })
            })
            .unwrap_or(0)
        };
        let mut size = m.memory_size().size() as u64;
        if i.code() == Code::Movsxd_r16_rm16 && amd() {
            size = 4;
        }
        if string && counted {
            // iced leaves the number of iterations open; one at a time is made.
            size = i.memory_size().size() as u64;
        }
        if let Some(v) = &v {
            for (at, len) in masks::parts(i, v, size, &address) {
                if i.is_vsib() {
                    out.push((at, len, kind));
                } else {
                    join(&mut out, at, len, kind);
                }
            }
            continue;
        }
        let mut at = address(0);
        if matches!(
            i.mnemonic(),
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
        ) && i.op1_kind() == OpKind::Register
        {
            // The bit may lie outside the named word.
            let bit = r.get(i.op1_register());
            let far = match size {
                8 => (bit as i64 >> 6) * 8,
                4 => i64::from(bit as i32 >> 5) * 4,
                _ => i64::from(bit as i16 >> 4) * 2,
            };
            at = at.wrapping_add(far as u64);
        }
        ensure!(size > 0, "no size for {:?}", i.code());
        if string || i.mnemonic() != Mnemonic::Enter {
            out.push((at, size, kind));
        } else {
            join(&mut out, at, size, kind);
        }
    }
    Ok(out)
}

fn join(out: &mut Spans, addr: u64, len: u64, kind: AccessKind) {
    // Neighbours may come in either order.
    for s in out.iter_mut().filter(|s| s.2 == kind) {
        if s.0 + s.1 == addr {
            s.1 += len;
            return;
        }
        if addr + len == s.0 {
            s.0 = addr;
            s.1 += len;
            return;
        }
    }
    out.push((addr, len, kind));
}
