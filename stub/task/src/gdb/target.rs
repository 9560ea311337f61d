//! The program as gdbstub sees it: a thin layer from gdbstub's traits to [`Inferior`].

use super::arch::{Amd64, Layout, RegisterBytes, RegisterNumber};
use super::packet::{Action, Go};
use super::registers;
use crate::inferior::{Inferior, Refusal, Resume, Tid};
use alloc::vec::Vec;
use core::convert::Infallible;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use gdbstub::common::{Pid, Signal, Tid as StubTid};
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::multithread::{
    MultiThreadBase, MultiThreadResume, MultiThreadResumeOps,
};
use gdbstub::target::ext::base::single_register_access::{
    SingleRegisterAccess, SingleRegisterAccessOps,
};
use gdbstub::target::ext::breakpoints::{
    Breakpoints, BreakpointsOps, HwBreakpoint, HwBreakpointOps, HwWatchpoint, HwWatchpointOps,
    SwBreakpoint, SwBreakpointOps, WatchKind as StubWatchKind,
};
use gdbstub::target::ext::extended_mode::{
    Args, AttachKind, CurrentActivePid, CurrentActivePidOps, ExtendedMode, ExtendedModeOps,
    ShouldTerminate,
};
use gdbstub::target::ext::thread_extra_info::{ThreadExtraInfo, ThreadExtraInfoOps};
use gdbstub::target::{Target, TargetError, TargetResult};
use linux_raw_sys::errno;
use ulpf_lib::{TargetAddr, signals};

const EFAULT: u8 = errno::EFAULT as u8;
const EINVAL: u8 = errno::EINVAL as u8;
const ENOSYS: u8 = errno::ENOSYS as u8;
const ESRCH: u8 = errno::ESRCH as u8;

/// State for the whole session, plus the program for the time of one call.
pub struct Debuggee {
    pub pid: i32,
    pub layout: Layout,
    /// Why the last watch was refused, if it was refused here and the program does not know of it
    /// (`monitor ulpf why`).
    pub refusal: Option<Refusal>,
    /// Actions of the next resume for the threads, from `vCont` (see `beside/resume.rs`).
    pub actions: Vec<Action>,
    /// Set by [`Debuggee::lend`] only; gdbstub fixes the type of its target for the whole session,
    /// so a borrow of the program cannot be part of it.
    inferior: Option<NonNull<dyn Inferior>>,
}

impl Debuggee {
    pub fn new(pid: i32, layout: Layout) -> Debuggee {
        Debuggee {
            pid,
            layout,
            refusal: None,
            actions: Vec::new(),
            inferior: None,
        }
    }

    /// Runs `f` with the program at hand for gdbstub's callbacks.
    #[allow(unsafe_code)]
    pub fn lend<R>(&mut self, inf: &mut dyn Inferior, f: impl FnOnce(&mut Debuggee) -> R) -> R {
        // SAFETY: only the lifetime changes. The pointer is cleared below, before the borrow that
        // it was made from ends; there is no unwinding in the stub.
        let inf: NonNull<dyn Inferior> = unsafe {
            core::mem::transmute::<NonNull<dyn Inferior + '_>, NonNull<dyn Inferior + 'static>>(
                NonNull::from(inf),
            )
        };
        self.inferior = Some(inf);
        let result = f(self);
        self.inferior = None;
        result
    }

    #[allow(unsafe_code)]
    fn inf(&mut self) -> Option<&mut dyn Inferior> {
        // SAFETY: inside `lend`, whose exclusive borrow of the program is not used otherwise; the
        // result borrows `self`, so that there is one at a time.
        self.inferior.map(|mut p| unsafe { p.as_mut() })
    }

    /// The program and the registers' layout together.
    #[allow(unsafe_code)]
    fn inf_and_layout(&mut self) -> Option<(&mut dyn Inferior, &Layout)> {
        // SAFETY: as in `inf`.
        let inf = unsafe { self.inferior?.as_mut() };
        Some((inf, &self.layout))
    }

    /// How the program goes on: the first action that names a thread applies, and a thread that no action names stays
    /// parked.
    pub fn resume_with(&self, inf: &mut dyn Inferior, actions: &[Action]) {
        let pid = self.pid;
        inf.resume(&|tid| {
            let Some(action) = actions.iter().find(|a| a.thread.names(pid, tid)) else {
                return Resume::Hold;
            };
            resume_of(action.go)
        });
    }
}

/// One action, with the signal in Linux's numbering.
pub fn resume_of(go: Go) -> Resume {
    let signal = |s: Option<u8>| s.and_then(signals::from_gdb);
    match go {
        Go::Continue(s) => Resume::Continue { signal: signal(s) },
        Go::Step(s) => Resume::Step { signal: signal(s) },
        Go::Range(start, end) => Resume::RangeStep {
            start: TargetAddr(start),
            end: TargetAddr(end),
        },
        Go::Stop => Resume::Hold,
    }
}

fn linux_tid(tid: StubTid) -> Tid {
    Tid::try_from(tid.get()).unwrap_or(0)
}

impl Target for Debuggee {
    type Arch = Amd64;
    type Error = Infallible;

    fn base_ops(&mut self) -> BaseOps<'_, Amd64, Infallible> {
        BaseOps::MultiThread(self)
    }
    fn use_rle(&self) -> bool {
        false
    }
    fn use_fork_stop_reason(&self) -> bool {
        false
    }
    fn use_vfork_stop_reason(&self) -> bool {
        false
    }
    fn use_vforkdone_stop_reason(&self) -> bool {
        false
    }
    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }
    fn support_extended_mode(&mut self) -> Option<ExtendedModeOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadBase for Debuggee {
    fn read_registers(&mut self, regs: &mut RegisterBytes, tid: StubTid) -> TargetResult<(), Self> {
        let (inf, layout) = self.inf_and_layout().ok_or(TargetError::NonFatal)?;
        *regs =
            registers::read_all(inf, linux_tid(tid), layout).ok_or(TargetError::Errno(ESRCH))?;
        Ok(())
    }
    fn write_registers(&mut self, regs: &RegisterBytes, tid: StubTid) -> TargetResult<(), Self> {
        let (inf, layout) = self.inf_and_layout().ok_or(TargetError::NonFatal)?;
        registers::write_all(inf, linux_tid(tid), layout, regs).ok_or(TargetError::Errno(EINVAL))
    }
    fn support_single_register_access(
        &mut self,
    ) -> Option<SingleRegisterAccessOps<'_, StubTid, Self>> {
        Some(self)
    }
    // Memory packets are served beside gdbstub (`beside/memory.rs`).
    fn read_addrs(&mut self, _: u64, _: &mut [u8], _: StubTid) -> TargetResult<usize, Self> {
        Err(TargetError::Errno(EFAULT))
    }
    fn write_addrs(&mut self, _: u64, _: &[u8], _: StubTid) -> TargetResult<(), Self> {
        Err(TargetError::Errno(EFAULT))
    }
    fn list_active_threads(&mut self, each: &mut dyn FnMut(StubTid)) -> Result<(), Infallible> {
        let threads = self.inf().map(|inf| inf.threads()).unwrap_or_default();
        threads
            .iter()
            .filter_map(|t| NonZeroUsize::new(*t as usize))
            .for_each(each);
        Ok(())
    }
    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }
    fn support_thread_extra_info(&mut self) -> Option<ThreadExtraInfoOps<'_, Self>> {
        Some(self)
    }
}

impl SingleRegisterAccess<StubTid> for Debuggee {
    fn read_register(
        &mut self,
        tid: StubTid,
        reg: RegisterNumber,
        buf: &mut [u8],
    ) -> TargetResult<usize, Self> {
        let (inf, layout) = self.inf_and_layout().ok_or(TargetError::NonFatal)?;
        let reg = layout
            .registers
            .get(reg.0)
            .ok_or(TargetError::Errno(EINVAL))?;
        let out = buf.get_mut(..reg.size).ok_or(TargetError::Errno(EINVAL))?;
        registers::read(inf, linux_tid(tid), reg.place, out).ok_or(TargetError::Errno(EINVAL))?;
        Ok(reg.size)
    }
    fn write_register(
        &mut self,
        tid: StubTid,
        reg: RegisterNumber,
        val: &[u8],
    ) -> TargetResult<(), Self> {
        let (inf, layout) = self.inf_and_layout().ok_or(TargetError::NonFatal)?;
        let reg = layout
            .registers
            .get(reg.0)
            .ok_or(TargetError::Errno(EINVAL))?;
        let val = val.get(..reg.size).ok_or(TargetError::Errno(EINVAL))?;
        registers::write(inf, linux_tid(tid), reg.place, val).ok_or(TargetError::Errno(EINVAL))
    }
}

/// The actions come from `beside/resume.rs`; gdbstub only ever sees `vCont;c`.
impl MultiThreadResume for Debuggee {
    fn resume(&mut self) -> Result<(), Infallible> {
        let actions = core::mem::take(&mut self.actions);
        if let Some(mut inf) = self.inferior {
            // SAFETY: as in `inf`; `resume_with` does not reach the pointer through `self`.
            #[allow(unsafe_code)]
            self.resume_with(unsafe { inf.as_mut() }, &actions);
        }
        Ok(())
    }
    fn clear_resume_actions(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
    fn set_resume_action_continue(
        &mut self,
        _: StubTid,
        _: Option<Signal>,
    ) -> Result<(), Infallible> {
        Ok(())
    }
}

impl ThreadExtraInfo for Debuggee {
    fn thread_extra_info(&self, _: StubTid, _: &mut [u8]) -> Result<usize, Infallible> {
        Ok(0) // needs the program mutably: served in `beside/queries.rs`
    }
}

/// Declared so that gdbstub announces breakpoints and watches and reports their stops; the packets
/// are served beside it (`beside/points.rs`).
impl Breakpoints for Debuggee {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }
    fn support_hw_breakpoint(&mut self) -> Option<HwBreakpointOps<'_, Self>> {
        Some(self)
    }
    fn support_hw_watchpoint(&mut self) -> Option<HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

impl SwBreakpoint for Debuggee {
    fn add_sw_breakpoint(&mut self, _: u64, _: usize) -> TargetResult<bool, Self> {
        Err(TargetError::Errno(ENOSYS))
    }
    fn remove_sw_breakpoint(&mut self, _: u64, _: usize) -> TargetResult<bool, Self> {
        Err(TargetError::Errno(ENOSYS))
    }
}

impl HwBreakpoint for Debuggee {
    fn add_hw_breakpoint(&mut self, _: u64, _: usize) -> TargetResult<bool, Self> {
        Err(TargetError::Errno(ENOSYS))
    }
    fn remove_hw_breakpoint(&mut self, _: u64, _: usize) -> TargetResult<bool, Self> {
        Err(TargetError::Errno(ENOSYS))
    }
}

impl HwWatchpoint for Debuggee {
    fn add_hw_watchpoint(&mut self, _: u64, _: u64, _: StubWatchKind) -> TargetResult<bool, Self> {
        Err(TargetError::Errno(ENOSYS))
    }
    fn remove_hw_watchpoint(
        &mut self,
        _: u64,
        _: u64,
        _: StubWatchKind,
    ) -> TargetResult<bool, Self> {
        Err(TargetError::Errno(ENOSYS))
    }
}

/// gdbstub shows its target's process id only in extended mode. Starting, attaching to and ending
/// programs is the server's work: none of these packets reaches the stub.
impl ExtendedMode for Debuggee {
    fn run(&mut self, _: Option<&[u8]>, _: Args<'_, '_>) -> TargetResult<Pid, Self> {
        Err(TargetError::Errno(ENOSYS))
    }
    fn attach(&mut self, _: Pid) -> TargetResult<(), Self> {
        Err(TargetError::Errno(ENOSYS))
    }
    fn query_if_attached(&mut self, _: Pid) -> TargetResult<AttachKind, Self> {
        Err(TargetError::Errno(ENOSYS))
    }
    fn kill(&mut self, _: Option<Pid>) -> TargetResult<ShouldTerminate, Self> {
        Err(TargetError::Errno(ENOSYS))
    }
    fn restart(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
    fn support_current_active_pid(&mut self) -> Option<CurrentActivePidOps<'_, Self>> {
        Some(self)
    }
}

impl CurrentActivePid for Debuggee {
    fn current_active_pid(&mut self) -> Result<Pid, Infallible> {
        Ok(Pid::new(self.pid.max(1) as usize).unwrap_or(Pid::MIN))
    }
}
