//! An [`Inferior`] of two threads and one page that records its calls.

use crate::inferior::*;
use std::collections::BTreeSet;
use ulpf_engine::cpu::Gprs;
use ulpf_lib::sys::Errno;
use ulpf_lib::{TargetAddr, WatchKind, WatchRange};

pub const PAGE: u64 = 0x10000;

pub struct Recorder {
    pub gprs: [Gprs; 2],
    pub xsave: Vec<u8>,
    pub memory: Vec<u8>,
    pub watches: BTreeSet<(u64, u64, u8)>,
    pub breakpoints: BTreeSet<u64>,
    pub log: Vec<String>,
    pub siginfo: [u8; 128],
    /// All threads are parked.
    pub steady: bool,
    /// The page is mapped by this process only.
    pub private: bool,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder {
            gprs: Default::default(),
            xsave: vec![0; 4096],
            memory: vec![0xa5; 4096],
            watches: BTreeSet::new(),
            breakpoints: BTreeSet::new(),
            log: Vec::new(),
            siginfo: [0; 128],
            steady: true,
            private: true,
        }
    }
}

pub const TIDS: [Tid; 2] = [100, 101];

impl Inferior for Recorder {
    fn pid(&self) -> i32 {
        TIDS[0]
    }
    fn threads(&self) -> Vec<Tid> {
        TIDS.to_vec()
    }
    fn gprs(&mut self, tid: Tid) -> Option<&mut Gprs> {
        let i = TIDS.iter().position(|t| *t == tid)?;
        Some(&mut self.gprs[i])
    }
    fn xsave(&mut self, tid: Tid) -> Option<&mut [u8]> {
        TIDS.contains(&tid).then_some(&mut self.xsave)
    }
    fn fs_gs_base(&self, _: Tid) -> Option<(u64, u64)> {
        Some((0x1111, 0x2222))
    }
    fn set_fs_gs_base(&mut self, tid: Tid, fs: u64, gs: u64) -> Result<(), Errno> {
        self.log.push(format!("bases {tid} {fs:#x} {gs:#x}"));
        Ok(())
    }
    fn orig_rax(&self, _: Tid) -> i64 {
        -1
    }
    fn siginfo(&mut self, _: Tid) -> Option<&mut [u8; 128]> {
        Some(&mut self.siginfo)
    }
    fn thread_name(&self, tid: Tid) -> String {
        format!("<{tid}>")
    }
    fn read_memory(&mut self, addr: TargetAddr, buf: &mut [u8]) -> usize {
        let Some(at) = addr
            .0
            .checked_sub(PAGE)
            .filter(|a| *a < self.memory.len() as u64)
        else {
            return 0;
        };
        let from = &self.memory[at as usize..];
        let n = from.len().min(buf.len());
        buf[..n].copy_from_slice(&from[..n]);
        n
    }
    fn is_steady(&self) -> bool {
        self.steady
    }
    fn is_private(&mut self, _: TargetAddr, _: u64) -> bool {
        self.private
    }
    fn write_memory(&mut self, addr: TargetAddr, data: &[u8]) -> Result<(), Errno> {
        let at = addr.0.checked_sub(PAGE).ok_or(Errno(14))? as usize;
        let to = self
            .memory
            .get_mut(at..at.saturating_add(data.len()))
            .ok_or(Errno(14))?;
        to.copy_from_slice(data);
        Ok(())
    }
    fn insert_breakpoint(
        &mut self,
        addr: TargetAddr,
        conditions: Vec<AgentExpr>,
        _hardware: bool,
    ) -> Result<(), Refusal> {
        self.log.push(format!("break {addr} {conditions:02x?}"));
        self.breakpoints.insert(addr.0);
        Ok(())
    }
    fn remove_breakpoint(&mut self, addr: TargetAddr) -> bool {
        self.breakpoints.remove(&addr.0)
    }
    fn insert_watch(&mut self, range: WatchRange, kind: WatchKind) -> Result<(), Refusal> {
        if range.start.0 < PAGE {
            return Err(Refusal {
                what: format!("cannot watch {}", range.start),
                why: "nothing is mapped there".into(),
                what_to_do: "watch something else".into(),
            });
        }
        self.watches.insert((range.start.0, range.len, kind as u8));
        Ok(())
    }
    fn remove_watch(&mut self, range: WatchRange, kind: WatchKind) -> bool {
        self.watches.remove(&(range.start.0, range.len, kind as u8))
    }
    fn set_catch_syscalls(&mut self, on: bool, numbers: &[u64]) {
        self.log.push(format!("catch {on} {numbers:?}"));
    }
    fn set_pass_signals(&mut self, mask: u64) {
        self.log.push(format!("pass {mask:#x}"));
    }
    fn resume(&mut self, action: &dyn Fn(Tid) -> Resume) {
        let all: Vec<_> = TIDS
            .iter()
            .map(|t| format!("{t}: {:?}", action(*t)))
            .collect();
        self.log.push(format!("resume {}", all.join(", ")));
    }
    fn interrupt(&mut self) {
        self.log.push("interrupt".into());
    }
    fn detach(&mut self, _: bool) {
        self.log.push("detach".into());
    }
    fn kill(&mut self) {
        self.log.push("kill".into());
    }
    fn monitor(&mut self, command: &str, out: &mut dyn std::fmt::Write) -> bool {
        if command == "help" {
            let _ = out.write_str("helpful\n");
            return true;
        }
        false
    }
}
