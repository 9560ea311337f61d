use ulpf_lib::{AccessKind, TargetAddr};
use crate::cpu::Cpu;
#[derive(Clone, Copy)]
pub struct Access { pub addr: TargetAddr, pub len: u32, pub kind: AccessKind }
#[derive(Clone, Copy)]
pub struct AccessList { n: usize, v: [Access; 64] }
impl AccessList {
    pub fn new() -> Self { AccessList { n: 0, v: [Access { addr: TargetAddr(0), len: 0, kind: AccessKind::Read }; 64] } }
    pub fn iter(&self) -> impl Iterator<Item = &Access> { self.v.iter().take(self.n) }
    pub fn push_if_room(&mut self, addr: TargetAddr, len: u32, kind: AccessKind) { if let Some(s) = self.v.get_mut(self.n) { *s = Access { addr, len, kind }; self.n += 1; } }
}
pub struct Insn;
impl Insn { pub fn accesses(&self, _c: &Cpu, _l: &mut AccessList) -> Result<(), ()> { Err(()) } }
