use ulpf_lib::{AccessKind, AliasAddr, TargetAddr};
use crate::{access::*, cpu::*};
pub enum Open { Plain, Alias(AliasAddr), Split }
pub trait AliasMap { fn open(&self, addr: TargetAddr, len: u64, kind: AccessKind) -> Open; }
pub struct CodeArena { pub rw: *mut u8, pub rx: *const u8, pub len: usize }
pub struct Engine(CodeArena);
pub struct Site(Insn);
impl Site { pub fn insn(&self) -> &Insn { &self.0 } }
pub enum Outcome { Done, Repeat, Fault { addr: TargetAddr, write: bool }, NeedSlow(u8) }
impl Engine {
    pub fn new(a: CodeArena) -> Option<Engine> { Some(Engine(a)) }
    pub fn recover(&self, _g: &mut Gprs) -> bool { false }
    pub fn site(&self, _pc: u64, _b: &[u8]) -> Option<&Site> { None }
    pub fn execute(&self, _s: &Site, _c: &mut Cpu, _m: &dyn AliasMap) -> Outcome { Outcome::NeedSlow(0) }
}
