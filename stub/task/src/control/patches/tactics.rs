//! Ways to make room for the jump of a patch: most accesses are shorter than a jump.
//!
//! The lists name the tactics in the order in which they are tried. A new tactic is a function here and a line in them.

use ulpf_engine::access::{Class, Insn};
use ulpf_engine::patch::{Group, JUMP, Pun, stretch};
use ulpf_lib::ring::Unpatched::{self, *};

use super::Patches;
use crate::control::{functions, generated};
use ulpf_stub_handlers::engine;
use ulpf_stub_handlers::patches;
use ulpf_stub_handlers::stopped::Stopped;

/// Result of a tactic. `Err(None)`: it is for other code, and says nothing about this one.
type Tried = Result<(), Option<Unpatched>>;
/// Patches the access at this address.
type Tactic = fn(&mut Patches, &mut Stopped, u64) -> Tried;

/// For an access that has no patch.
pub(super) const AT_FIRST: [Tactic; 4] =
    [displace_before_end, displace_behind, displace_before, pun];
/// After threads have often jumped into the middle of its jump.
pub(super) const AFTER_JUMPS_INTO_IT: [Tactic; 2] = [pun_unless_jumped_over, displace_before];
/// For an access that another patch's jump has reached: its own code makes room, or its bytes do.
pub(super) const DISPLACING: [Tactic; 2] = [displace_before_end, displace_behind];
/// See [`DISPLACING`].
pub(super) const PUNNING: [Tactic; 1] = [pun];

impl Patches {
    /// Tries these tactics in turn. The error is that of the first one.
    pub(super) fn try_each(
        &mut self,
        stopped: &mut Stopped,
        pc: u64,
        tactics: &[Tactic],
    ) -> Result<(), Unpatched> {
        let mut first = None;
        for tactic in tactics {
            match tactic(self, stopped, pc) {
                Ok(()) => return Ok(()),
                Err(why) => first = first.or(why),
            }
            // Whatever moves, other reasons remain.
            if first.is_some_and(|why| !matches!(why, Successor | Room | JumpedInto)) {
                break;
            }
        }
        Err(first.unwrap_or(JumpedInto))
    }
}

/// The instructions behind the access move.
fn displace_behind(patches: &mut Patches, stopped: &mut Stopped, pc: u64) -> Tried {
    if let Some(Class::Call | Class::CallMem) = last_before_other_code(patches, pc) {
        // Each return would land in the jump's middle.
        return Err(Some(Successor));
    }
    let maps = patches.maps()?;
    Ok(patches.place(stopped, pc, pc, None, &maps)?)
}

/// The code before the access moves, since behind it another function may begin.
fn displace_before_end(patches: &mut Patches, stopped: &mut Stopped, pc: u64) -> Tried {
    last_before_other_code(patches, pc).ok_or(None)?;
    displace_before(patches, stopped, pc)
}

/// The code before the access moves: that behind it cannot, or loops jump there. The instructions before the access are
/// decoded from the beginning of the function, which the unwind tables know.
fn displace_before(patches: &mut Patches, stopped: &mut Stopped, pc: u64) -> Tried {
    let maps = patches.maps().map_err(|_| None)?;
    let vma = maps.at(pc).ok_or(None)?;
    if generated::is_generated(vma) {
        return Err(None); // what has faulted once may be other code by now
    }
    let start = functions::start(pc, &maps).or_else(|| stretch_before(pc, vma.start));
    let start = start.ok_or(None)?;
    let mut code = alloc::vec![0; (pc - start) as usize + 15];
    let n = patches.window.read(start, &mut code);
    let code = code.get(..n).ok_or(None)?;
    let own = code.get((pc - start) as usize..).ok_or(None)?;
    let insn = engine::decode(pc, own).ok_or(None)?;
    for from in Group::starts(&insn, start, code) {
        let tried = patches::table().refused.get(&from) == Some(&JumpedInto);
        if !tried && patches.place(stopped, pc, from, None, &maps).is_ok() {
            return Ok(());
        }
    }
    Err(None)
}

/// The bytes behind the access stay, since other code jumps there: they complete the jump.
fn pun(patches: &mut Patches, stopped: &mut Stopped, pc: u64) -> Tried {
    let maps = patches.maps().map_err(|_| None)?;
    let placed = [Pun::Plain, Pun::Prefixed]
        .into_iter()
        .any(|pun| patches.place(stopped, pc, pc, Some(pun), &maps).is_ok());
    if placed { Ok(()) } else { Err(None) }
}

/// As [`pun`], unless the next access is hot and a jump target: then the jump must not reach it.
fn pun_unless_jumped_over(patches: &mut Patches, stopped: &mut Stopped, pc: u64) -> Tried {
    match patches.jumped_over.contains(&pc) {
        true => Err(None),
        false => pun(patches, stopped, pc),
    }
}

/// The kind of the instruction at `pc`, if it is shorter than a jump and does not continue behind itself.
fn last_before_other_code(patches: &Patches, pc: u64) -> Option<Class> {
    let mut code = [0; 15];
    let n = patches.window.read(pc, &mut code);
    let insn = engine::decode(pc, code.get(..n)?)?;
    let short = (insn.len as usize) < JUMP;
    (short && !goes_on_behind(&insn)).then_some(insn.class)
}

/// Returns whether the instruction behind it may be executed next.
fn goes_on_behind(insn: &Insn) -> bool {
    use Class::{Call, CallMem, JmpMem, Ret};
    !matches!(insn.class, Call | CallMem | JmpMem | Ret)
}

/// Start of the straight-line code that leads to `pc`, from known instructions, for code without unwind tables; not
/// before `lowest`.
fn stretch_before(pc: u64, lowest: u64) -> Option<u64> {
    const FURTHEST: u64 = 512;
    let start = pc.saturating_sub(FURTHEST).max(lowest);
    let code = functions::block(start, pc.checked_sub(start)? as usize);
    let all = engine::sites().map(|s| s.insn.pc);
    let near = all.filter(|at| (start..pc).contains(at));
    let whole = start + code.len() as u64 == pc;
    whole.then(|| stretch(start, &code, near)).flatten()
}
