//! Steps from a frame to its caller's by the row remembered for its place ([`rows`](ulpf_stub_tables::rows)). No tables
//! are read, and the words of the stack are read directly.
//!
//! A row is remembered if framehop's result at that place does not depend on the contents of registers and memory.
//! To find out, [`learn`] calls framehop once with registers from whose values the origin of each result can be seen.

use framehop::x86_64::UnwindRegsX86_64;
use framehop::{FrameAddress, Unwinder as _};
use ulpf_lib::PAGE_SIZE;
use ulpf_stub_tables::code::{Cache, Unwinder};
use ulpf_stub_tables::rows::{CfaRule, Row};

use crate::runtime::asm::ulpf_copy;
use crate::runtime::{debug_registers, memory};

/// The registers of a frame that matter for unwinding.
#[derive(Clone, Copy)]
pub struct Frame {
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    /// The thread is at `ip` itself, rather than in a call from there.
    pub first: bool,
}

impl Frame {
    fn regs(&self) -> UnwindRegsX86_64 {
        UnwindRegsX86_64::new(self.ip, self.sp, self.bp)
    }

    fn address(&self) -> Option<FrameAddress> {
        match self.first {
            true => Some(FrameAddress::InstructionPointer(self.ip)),
            false => FrameAddress::from_return_address(self.ip),
        }
    }
}

/// Reads words of the stack from the program's memory.
pub struct Stack {
    page: u64,
    /// Distance from that page to where it can be read.
    away: u64,
    direct: bool,
}

impl Stack {
    pub fn begin() -> Stack {
        Stack {
            page: u64::MAX,
            away: 0,
            direct: !debug_registers::active(),
        }
    }

    #[inline]
    pub fn word(&mut self, at: u64) -> Option<u64> {
        if !self.direct || !at.is_multiple_of(8) {
            return memory::get(at);
        }
        let page = at / PAGE_SIZE;
        if page != self.page {
            self.page = page;
            self.away = memory::reachable(at).wrapping_sub(at);
        }
        let mut word = [0u8; 8];
        // SAFETY: eight bytes of ours; a fault at the source ends the copy.
        let left = unsafe {
            ulpf_copy(
                word.as_mut_ptr(),
                at.wrapping_add(self.away) as *const u8,
                8,
            )
        };
        (left == 0).then_some(u64::from_ne_bytes(word))
    }
}

/// The caller's frame, by the unwind tables.
pub fn by_tables(
    tables: &Unwinder,
    cache: &mut Cache,
    frame: Frame,
    stack: &mut Stack,
) -> Option<Frame> {
    let mut regs = frame.regs();
    let mut read = |at| stack.word(at).ok_or(());
    let at = tables.unwind_frame(frame.address()?, &mut regs, cache, &mut read);
    let at = at.ok().flatten()?;
    Some(Frame {
        ip: at,
        sp: regs.sp(),
        bp: regs.bp(),
        first: false,
    })
}

/// The caller's frame, by the remembered row; `None` if the tables must be read.
#[inline]
pub fn by_row(row: Row, frame: Frame, stack: &mut Stack) -> Option<Frame> {
    let from = match row.cfa {
        CfaRule::Rsp => frame.sp,
        CfaRule::Rbp => frame.bp,
        CfaRule::End | CfaRule::Tables => return None,
    };
    let end = from
        .checked_add(u64::from(row.end))
        .filter(|end| *end > frame.sp)?;
    let bp = match row.rbp {
        0 => frame.bp,
        below => stack.word(end.wrapping_sub(u64::from(below)))?,
    };
    let ip = stack.word(end - 8).filter(|ip| *ip != 0)?;
    Some(Frame {
        ip,
        sp: end,
        bp,
        first: false,
    })
}

/// Registers that are far apart, and the value of every word of a memory that does not exist.
const SP: u64 = 1 << 44;
const BP: u64 = 1 << 45;
const WORD: u64 = 1 << 46;

/// The row to remember for the place of this frame.
pub fn learn(tables: &Unwinder, cache: &mut Cache, frame: Frame, stack: &mut Stack) -> Row {
    // Two calls at most: then framehop has a rule for the place in its cache, if the rule depends on nothing else.
    let mut has_rule = || {
        let before = cache.stats().hits();
        by_tables(tables, cache, frame, stack);
        cache.stats().hits() != before
    };
    let Some(address) = frame.address().filter(|_| has_rule() || has_rule()) else {
        return Row::TABLES;
    };
    let mut regs = UnwindRegsX86_64::new(frame.ip, SP, BP);
    let mut read = |at: u64| Ok(at ^ WORD);
    match tables.unwind_frame(address, &mut regs, cache, &mut read) {
        Ok(None) => Row {
            cfa: CfaRule::End,
            ..Row::TABLES
        },
        Ok(Some(at)) => row(at, regs.sp(), regs.bp()).unwrap_or(Row::TABLES),
        Err(_) => Row::TABLES,
    }
}

/// The row that leads from [`SP`] and [`BP`] to these.
fn row(at: u64, sp: u64, bp: u64) -> Option<Row> {
    const FAR: u64 = 1 << 24;
    let (cfa, end) = match (sp.wrapping_sub(SP), sp.wrapping_sub(BP)) {
        (end @ 8..FAR, _) => (CfaRule::Rsp, end),
        (_, end @ 8..FAR) => (CfaRule::Rbp, end),
        _ => return None,
    };
    let rbp = match bp {
        BP => 0,
        _ => u16::try_from(sp.wrapping_sub(bp ^ WORD))
            .ok()
            .filter(|below| *below != 0)?,
    };
    (at == (sp - 8) ^ WORD).then_some(Row {
        cfa,
        end: end as u32,
        rbp,
    })
}
