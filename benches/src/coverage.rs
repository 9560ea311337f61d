//! Static count of the stores and loads of a program's file that some tactic can patch.
//!
//! The code sections are decoded from one end to the other. Each instruction that names memory is a
//! site. It is passed to the engine as the stub would pass it ([`Group::new`], [`Trampoline::new`]), with a trampoline
//! that lies near. Implicit accesses to the stack (push, call, ret) are no sites: ulpf does not patch them,
//! and a guarded stack page is rare.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use iced_x86::{
    Code, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind,
    Register,
};
use object::{Object, ObjectSection, SectionKind};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use ulpf_engine::access::Decoder;
use ulpf_engine::patch::{Group, JUMP, Refusal, Target, Trampoline};

/// Sites of one kind, by what becomes of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sites {
    /// The jump fits into the instruction.
    pub near: u64,
    /// The instructions behind it move, too, or before it.
    pub relocated: u64,
    /// By reason.
    pub refused: BTreeMap<String, u64>,
}

impl Sites {
    pub fn patched(&self) -> u64 {
        self.near + self.relocated
    }
    pub fn all(&self) -> u64 {
        self.patched() + self.refused.values().sum::<u64>()
    }
    /// The reasons, the most frequent first.
    pub fn reasons(&self) -> Vec<(&str, u64)> {
        let mut all: Vec<(&str, u64)> = self
            .refused
            .iter()
            .map(|(why, n)| (why.as_str(), *n))
            .collect();
        all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        all
    }

    fn add(&mut self, outcome: Result<Tactic, String>) {
        match outcome {
            Ok(Tactic::Near) => self.near += 1,
            Ok(Tactic::Relocated) => self.relocated += 1,
            Err(why) => *self.refused.entry(why).or_default() += 1,
        }
    }
}

/// All sites of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Instructions that write memory, updates among them.
    pub stores: Sites,
    /// Instructions that only read it.
    pub loads: Sites,
}

/// Number of instructions before a site that are remembered.
const BEFORE: usize = 8;

enum Tactic {
    Near,
    Relocated,
}

/// The code of an ELF file.
pub fn of_file(path: &Path) -> Result<Coverage> {
    let whom = || format!("cannot read the code of {}", path.display());
    let data = std::fs::read(path).with_context(whom)?;
    let file = object::File::parse(&*data).with_context(whom)?;
    let mut coverage = Coverage::default();
    for section in file.sections().filter(|s| s.kind() == SectionKind::Text) {
        // Linkage tables have no sites of the program's.
        if !section.name().is_ok_and(|name| name.starts_with(".plt")) {
            let code = section.data().with_context(whom)?;
            of_code(section.address(), code, &mut coverage)?;
        }
    }
    Ok(coverage)
}

/// Adds the sites of `code`, which lies at `start`.
pub fn of_code(start: u64, code: &[u8], coverage: &mut Coverage) -> Result<()> {
    let engine = Decoder::new().context("there is no memory for the decoder")?;
    let mut info = InstructionInfoFactory::new();
    let mut decoder = iced_x86::Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut insn = Instruction::default();
    // Where the last instructions began, and this one does.
    let mut before: VecDeque<usize> = VecDeque::new();
    while decoder.can_decode() {
        let at = decoder.position();
        decoder.decode_out(&mut insn);
        if before.len() > BEFORE {
            before.pop_front();
        }
        before.push_back(at);
        if insn.is_invalid() {
            before.clear();
            // Data among code, as hand-written assembly has it.
            let _ = decoder.set_position(at + 1);
            decoder.set_ip(start + at as u64 + 1);
            continue;
        }
        let Some(writes) = explicit(&insn, &mut info) else {
            continue;
        };
        let sites = match writes {
            true => &mut coverage.stores,
            false => &mut coverage.loads,
        };
        sites.add(tactic(&engine, &insn, code, &before));
    }
    Ok(())
}

/// Does it access memory that an operand names, and write there?
fn explicit(insn: &Instruction, info: &mut InstructionInfoFactory) -> Option<bool> {
    let string = |kind| {
        use OpKind::*;
        matches!(
            kind,
            MemorySegSI
                | MemorySegESI
                | MemorySegRSI
                | MemorySegDI
                | MemorySegEDI
                | MemorySegRDI
                | MemoryESDI
                | MemoryESEDI
                | MemoryESRDI
        )
    };
    let info = info.info(insn);
    let mut found = None;
    for n in 0..insn.op_count() {
        if insn.op_kind(n) != OpKind::Memory && !string(insn.op_kind(n)) {
            continue;
        }
        use OpAccess::*;
        match info.op_access(n) {
            Write | CondWrite | ReadWrite | ReadCondWrite => found = Some(true),
            Read | CondRead => found = found.or(Some(false)),
            None | NoMemAccess => {}
        }
    }
    found
}

/// `before` are offsets in the code; the last one is that of `insn`.
fn tactic(
    engine: &Decoder,
    insn: &Instruction,
    code: &[u8],
    before: &VecDeque<usize>,
) -> Result<Tactic, String> {
    let at = before.back().copied().unwrap_or(0);
    let start = insn.ip() - at as u64;
    let rest = &code[at..];
    let site = engine
        .decode(insn.ip(), &rest[..rest.len().min(15)])
        .map_err(|_| "an instruction that the engine does not know".to_string())?;
    let mut group = Group::new(&site, rest, &mut |_, _| None);
    if matches!(group, Err(Refusal::Successor))
        && let Some(first) = before.front()
    {
        let starts = Group::starts(&site, start + *first as u64, &code[*first..]);
        let mut groups = starts.into_iter().map(|from| {
            let bytes = &code[(from - start) as usize..];
            Group::from(from, 0, &site, bytes, &mut |_, _| None)
        });
        group = groups.find(Result::is_ok).unwrap_or(group);
    }
    match group {
        Err(Refusal::Instruction) => Err(kind(insn)),
        Err(Refusal::Successor) => Err(successor(insn, rest)),
        Ok(group) => {
            // Somewhere near, as a room would be.
            let target = Target {
                at: insn.ip().wrapping_add(1 << 24),
                idle_count: 0,
                leaving: 0,
                tables: Default::default(),
                hit: 0,
                asks: 0,
                asking: None,
                step: 0,
                over_read: false,
                heap: None,
                before_access: false,
                writers: None,
                counts: true,
                whole: false,
            };
            match Trampoline::new(&group, target) {
                None => Err("no registers for its check".into()),
                Some(_) if group.bytes.len() == insn.len() => Ok(Tactic::Near),
                Some(_) => Ok(Tactic::Relocated),
            }
        }
    }
}

/// Why a trampoline cannot perform an instruction.
fn kind(insn: &Instruction) -> String {
    let mnemonic = format!("{:?}", insn.mnemonic()).to_lowercase();
    let rsp = |n| {
        let register = insn.op_register(n);
        insn.op_kind(n) == OpKind::Register && register.full_register() == Register::RSP
    };
    let x87 = matches!(insn.encoding(), iced_x86::EncodingKind::Legacy)
        && mnemonic.starts_with('f')
        && !mnemonic.starts_with("fx");
    if insn.is_string_instruction() {
        format!("a string instruction ({mnemonic})")
    } else if insn.segment_prefix() == Register::GS {
        "through gs".into()
    } else if x87 {
        "x87: the unit remembers where its last instruction was".into()
    } else if (0..insn.op_count()).any(rsp) {
        "it stores or loads rsp itself".into()
    } else if insn.op_mask() != Register::None {
        "AVX-512 with a mask".into()
    } else if insn.is_stack_instruction() {
        format!("a stack instruction ({mnemonic})")
    } else {
        format!("another instruction ({mnemonic})")
    }
}

/// The first instruction behind a site that cannot be displaced.
fn successor(insn: &Instruction, code: &[u8]) -> String {
    let mut len = insn.len();
    while len < JUMP {
        let rest = &code[len.min(code.len())..];
        let mut decoder = iced_x86::Decoder::with_ip(64, rest, 0, DecoderOptions::NONE);
        let next = decoder.decode();
        if next.is_invalid() {
            return "the code ends, or no instruction follows".into();
        }
        let mnemonic = format!("{:?}", next.mnemonic()).to_lowercase();
        match (next.flow_control(), next.code()) {
            (_, Code::Int3 | Code::Int1) => return "int3 follows".into(),
            (FlowControl::IndirectCall, _) => return "an indirect call follows".into(),
            (FlowControl::Call, _) if next.mnemonic() == iced_x86::Mnemonic::Syscall => {
                return "a system call follows".into();
            }
            (FlowControl::ConditionalBranch, _) if !next.is_jcc_short_or_near() => {
                return format!("{mnemonic} follows");
            }
            (
                FlowControl::Exception | FlowControl::Interrupt | FlowControl::XbeginXabortXend,
                _,
            ) => {
                return format!("{mnemonic} follows");
            }
            _ => len += next.len(),
        }
    }
    "what follows cannot move".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &[u8]) -> Coverage {
        let mut coverage = Coverage::default();
        of_code(0x5555_5555_0000, code, &mut coverage).unwrap();
        coverage
    }

    #[test]
    fn a_long_store_and_a_short_one() {
        // mov dword ptr [rdi+4], 1; mov [rdi], al; inc rdi; ret
        let code = [
            0xc7, 0x47, 4, 1, 0, 0, 0, 0x88, 0x07, 0x48, 0xff, 0xc7, 0xc3,
        ];
        let c = of(&code);
        assert_eq!((c.stores.near, c.stores.relocated), (1, 1));
        assert_eq!((c.stores.all(), c.loads.all()), (2, 0));
    }

    #[test]
    fn reasons() {
        // mov [rdi], al; call [rax] · rep stosb [edi] · mov gs:[0], eax
        let code = [
            0x88, 0x07, 0xff, 0x10, 0x67, 0xf3, 0xaa, 0x65, 0x89, 0x04, 0x25, 0, 0, 0, 0,
        ];
        let c = of(&code);
        assert_eq!(c.stores.patched(), 0);
        let why: Vec<_> = c.stores.refused.keys().map(String::as_str).collect();
        let all = [
            "a string instruction (stosb)",
            "an indirect call follows",
            "through gs",
        ];
        assert_eq!(why, all);
    }

    #[test]
    fn what_cannot_move_stays() {
        // xor eax, eax; mov [rdi], al; call [rax] · mov fs:[rbx], ebp; add rsp, 24
        let code = [
            0x31, 0xc0, 0x66, 0x90, 0x88, 0x07, 0xff, 0x10, 0x64, 0x89, 0x2b, 0x48, 0x83, 0xc4,
            0x18,
        ];
        let c = of(&code);
        assert_eq!((c.stores.relocated, c.stores.all()), (2, 2));
    }

    /// An update is a store, a pushed register no site.
    #[test]
    fn what_is_a_site() {
        // add [rdi+0x11223344], eax; push rax; mov eax, [rdi+0x11223344]; lea rax, [rdi]; nop [rax]
        let code = [
            0x01, 0x87, 0x44, 0x33, 0x22, 0x11, 0x50, 0x8b, 0x87, 0x44, 0x33, 0x22, 0x11, 0x48,
            0x8d, 0x07, 0x0f, 0x1f, 0x00,
        ];
        let c = of(&code);
        assert_eq!((c.stores.near, c.stores.all()), (1, 1));
        assert_eq!((c.loads.near, c.loads.all()), (1, 1));
    }

    #[test]
    fn a_file() {
        let c = of_file(Path::new("/bin/sh")).unwrap();
        let (patched, all) = (c.stores.patched(), c.stores.all());
        assert!(all > 500 && patched * 10 > all * 9, "{c:?}");
    }
}
