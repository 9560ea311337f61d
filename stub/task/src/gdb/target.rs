//! The program as gdbstub sees it: a thin layer from gdbstub's traits to [`Inferior`].

use super::registers;
use crate::inferior::{Inferior, Refusal, Tid};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::convert::Infallible;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use gdbstub::common::{Pid, Tid as StubTid};
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::multithread::MultiThreadBase;
use gdbstub::target::ext::base::single_register_access::{
    SingleRegisterAccess, SingleRegisterAccessOps,
};
use gdbstub::target::ext::catch_syscalls::{CatchSyscalls, CatchSyscallsOps, SyscallNumbers};
use gdbstub::target::ext::extended_mode::{
    Args, AttachKind, CurrentActivePid, CurrentActivePidOps, ExtendedMode, ExtendedModeOps,
    ShouldTerminate,
};
use gdbstub::target::ext::monitor_cmd::{ConsoleOutput, MonitorCmd, MonitorCmdOps};
use gdbstub::target::{Target, TargetError, TargetResult};
use linux_raw_sys::errno;
use ulpf_rsp::registers::Layout;
use ulpf_rsp::stub::{Amd64, RegisterBytes, RegisterNumber};

/// Console text goes out in packets of at most this many bytes before hex encoding.
const CONSOLE_CHUNK: usize = 8 << 10;
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
    // gdbstub has no breakpoints, but there are some (`beside/points.rs`).
    fn guard_rail_implicit_sw_breakpoints(&self) -> bool {
        true
    }
    fn support_monitor_cmd(&mut self) -> Option<MonitorCmdOps<'_, Self>> {
        Some(self)
    }
    fn support_catch_syscalls(&mut self) -> Option<CatchSyscallsOps<'_, Self>> {
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

/// `monitor …`.
impl MonitorCmd for Debuggee {
    fn handle_monitor_cmd(
        &mut self,
        command: &[u8],
        mut out: ConsoleOutput<'_>,
    ) -> Result<(), Infallible> {
        let command = String::from_utf8_lossy(command);
        let command = command.trim();
        let mut text = String::new();
        if let ("ulpf why", Some(r)) = (command, &self.refusal) {
            text = format!("{}: {}; {}.\n", r.what, r.why, r.what_to_do);
        } else if !self
            .inf()
            .is_some_and(|inf| inf.monitor(command, &mut text))
        {
            text += &format!(
                "Unknown monitor command \"{command}\"; \"monitor help\" lists what there is.\n"
            );
        }
        for part in text.as_bytes().chunks(CONSOLE_CHUNK) {
            out.write_raw(part);
            out.flush();
        }
        Ok(())
    }
}

impl CatchSyscalls for Debuggee {
    fn enable_catch_syscalls(
        &mut self,
        numbers: Option<SyscallNumbers<'_, u64>>,
    ) -> TargetResult<(), Self> {
        let some = numbers.is_some();
        let numbers: Vec<u64> = numbers.into_iter().flatten().collect();
        // Without a number that can be read: an empty list would mean all.
        if some && numbers.is_empty() {
            return Err(TargetError::Errno(EINVAL));
        }
        let inf = self.inf().ok_or(TargetError::NonFatal)?;
        inf.set_catch_syscalls(true, &numbers);
        Ok(())
    }
    fn disable_catch_syscalls(&mut self) -> TargetResult<(), Self> {
        let inf = self.inf().ok_or(TargetError::NonFatal)?;
        inf.set_catch_syscalls(false, &[]);
        Ok(())
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
        Ok(AttachKind::Attach)
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
