//! One instruction on real hardware, from and to a full register state.
//!
//! ```text
//!   BASE - 64K   code page: the instruction
//!   BASE         8 pages, primary view  (open for the judge, PROT_NONE for the engine)
//!   anywhere     the same pages, alias
//! ```
//! To load a state, the thread traps; the handler swaps the signal frame's registers and vector
//! image for the wanted ones, with TF set. The next trap or fault comes after one instruction;
//! the handler takes the state away and puts the original back.
#![allow(unsafe_code)]
// Test bench: memory is mapped at the top, registers are swapped in signal frames. The drawing
// above shows the assumptions of each block; a mistake here fails the test.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::super::*;
use crate::access::{AccessList, Decoder, state};
use crate::cpu::{Cpu, Gprs};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

pub const PAGES: usize = 8;
pub const LEN: usize = PAGES * 4096;
const XSAVE_MAX: usize = 4096;

/// A full user state.
#[derive(Clone, PartialEq)]
#[repr(C, align(64))]
pub struct State {
    pub xsave: [u8; XSAVE_MAX],
    pub gprs: Gprs,
}

impl State {
    pub fn new() -> State {
        let mut s = State {
            xsave: [0; XSAVE_MAX],
            gprs: Gprs::default(),
        };
        s.xsave[0] = 0x7f;
        s.xsave[1] = 0x03;
        s.xsave[24..28].copy_from_slice(&0x1f80u32.to_le_bytes());
        s.gprs.rflags = 0x202;
        s
    }
    pub fn cpu(&mut self) -> Cpu<'_> {
        Cpu {
            gprs: &mut self.gprs,
            fs_base: fs_base(),
            gs_base: gs_base(),
            xsave: self.xsave.as_mut_ptr(),
            xsave_len: XSAVE_MAX,
        }
    }
    pub fn bv(&self) -> u64 {
        u64::from_le_bytes(self.xsave[512..520].try_into().unwrap())
    }
    /// The image with components in initial state spelled out, so that images compare.
    pub fn normal(&self) -> Vec<u8> {
        let mut v = self.xsave.to_vec();
        let init = State::new();
        let bv = self.bv();
        if bv & 1 == 0 {
            v[..24].copy_from_slice(&init.xsave[..24]);
            v[32..160].fill(0);
        }
        if bv & 2 == 0 {
            v[160..416].fill(0);
        }
        v[28..32].fill(0);
        v[416..576].fill(0);
        let end = (2..8)
            .filter_map(state::component)
            .map(|(o, s)| o + s)
            .max()
            .unwrap_or(576);
        for i in 2..8 {
            if let Some((o, s)) = state::component(i)
                && bv >> i & 1 == 0
            {
                v[o as usize..(o + s) as usize].fill(0);
            }
        }
        v.truncate(end as usize);
        // Between components nothing is defined.
        let mut known = vec![false; v.len()];
        known[..576].fill(true);
        for i in 2..8 {
            if let Some((o, s)) = state::component(i) {
                known[o as usize..(o + s) as usize].fill(true);
            }
        }
        for (b, k) in v.iter_mut().zip(known) {
            if !k {
                *b = 0;
            }
        }
        v
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signal {
    pub signo: i32,
    pub code: i32,
    pub addr: u64,
}

struct Run {
    /// 0: the next trap installs `state`; 1: the next signal takes it; 2: done.
    phase: u32,
    state: *mut State,
    signal: Signal,
    saved: State,
}

thread_local! {
    static RUN: Cell<*mut Run> = const { Cell::new(null_mut()) };
    static CURRENT: Cell<[u8; 15]> = const { Cell::new([0; 15]) };
    static ENGINE: Cell<*const Thunks> = const { Cell::new(std::ptr::null()) };
}

/// arch_prctl(2), because rdfsbase is not everywhere.
fn arch_prctl_get(what: i32) -> u64 {
    let mut v = 0u64;
    unsafe { libc::syscall(libc::SYS_arch_prctl, what, &mut v) };
    v
}
pub fn fs_base() -> u64 {
    arch_prctl_get(0x1003)
}
pub fn gs_base() -> u64 {
    arch_prctl_get(0x1004)
}
pub fn set_gs_base(v: u64) {
    unsafe { libc::syscall(libc::SYS_arch_prctl, 0x1001, v) };
}

unsafe fn swap_in(uc: &mut libc::ucontext_t, s: &State) {
    unsafe {
        std::ptr::copy_nonoverlapping(&s.gprs, uc.uc_mcontext.gregs.as_mut_ptr().cast::<Gprs>(), 1);
        let fp = uc.uc_mcontext.fpregs.cast::<u8>();
        let size = fp.add(464 + 16).cast::<u32>().read() as usize;
        std::ptr::copy_nonoverlapping(s.xsave.as_ptr(), fp, 464);
        std::ptr::copy_nonoverlapping(
            s.xsave.as_ptr().add(512),
            fp.add(512),
            size.min(XSAVE_MAX) - 512,
        );
    }
}

unsafe fn swap_out(uc: &libc::ucontext_t, s: &mut State) {
    unsafe {
        std::ptr::copy_nonoverlapping(uc.uc_mcontext.gregs.as_ptr().cast::<Gprs>(), &mut s.gprs, 1);
        let fp = uc.uc_mcontext.fpregs.cast::<u8>();
        let size = fp.add(464 + 16).cast::<u32>().read() as usize;
        std::ptr::copy_nonoverlapping(fp, s.xsave.as_mut_ptr(), 464);
        std::ptr::copy_nonoverlapping(
            fp.add(512),
            s.xsave.as_mut_ptr().add(512),
            size.min(XSAVE_MAX) - 512,
        );
    }
}

extern "C" fn handler(signo: i32, info: *mut libc::siginfo_t, uc: *mut libc::c_void) {
    unsafe {
        // A popf of the program's may have set AC; the kernel leaves it set for handlers.
        std::arch::asm!("pushfq", "and qword ptr [rsp], -0x40001", "popfq");
        let uc = &mut *uc.cast::<libc::ucontext_t>();
        let signal = Signal {
            signo,
            code: (*info).si_code,
            addr: (*info).si_addr() as u64,
        };
        let run = RUN.get();
        if !run.is_null() {
            let run = &mut *run;
            if run.phase == 0 {
                swap_out(uc, &mut run.saved);
                swap_in(uc, &*run.state);
                let tf = &mut uc.uc_mcontext.gregs[libc::REG_EFL as usize];
                *tf |= 1 << 8;
                run.phase = 1;
                return;
            }
            if run.phase == 1 {
                swap_out(uc, &mut *run.state);
                run.signal = signal;
                run.phase = 2;
                swap_in(uc, &run.saved);
                return;
            }
        }
        let engine = ENGINE.get();
        if !engine.is_null() {
            let error = uc.uc_mcontext.gregs[libc::REG_ERR as usize] as u64;
            let nested = &mut *uc.uc_mcontext.gregs.as_mut_ptr().cast::<Gprs>();
            let fault = FaultInfo {
                signo,
                code: signal.code,
                addr: signal.addr,
                error,
                more: [0; 2],
            };
            if (*engine).recover(nested, fault) {
                return;
            }
        }
        // Not ours: say what is known and fall back to the default action.
        let g = &uc.uc_mcontext.gregs;
        eprintln!(
            "unexpected {signal:x?} at {:x}, rsp {:x}, instruction {:02x?}",
            g[libc::REG_RIP as usize],
            g[libc::REG_RSP as usize],
            CURRENT.get()
        );
        libc::signal(signo, libc::SIG_DFL);
    }
}

fn remember(bytes: &[u8]) {
    let mut b = [0; 15];
    b[..bytes.len()].copy_from_slice(bytes);
    CURRENT.set(b);
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| unsafe {
        let mut sa: libc::sigaction = std::mem::zeroed();
        sa.sa_sigaction = handler as *const () as usize;
        sa.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        for s in [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGTRAP,
            libc::SIGFPE,
            libc::SIGILL,
        ] {
            assert_eq!(libc::sigaction(s, &sa, null_mut()), 0);
        }
    });
}

pub struct Machine {
    pub base: u64,
    pub alias: u64,
    pub code: u64,
    pub decoder: Decoder,
    pub thunks: Box<Thunks>,
    /// Pages from this one on are not guarded.
    pub plain_from: Cell<usize>,
}

unsafe fn map(addr: u64, len: usize, prot: i32, flags: i32, fd: i32) -> u64 {
    let p = unsafe { libc::mmap(addr as *mut _, len, prot, flags, fd, 0) };
    assert_ne!(
        p,
        libc::MAP_FAILED,
        "mmap: {}",
        std::io::Error::last_os_error()
    );
    p as u64
}

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

impl Machine {
    pub fn new() -> Machine {
        install();
        // Low addresses, so that absolute and 32-bit operands reach them; one slot per machine.
        static NEXT: AtomicU64 = AtomicU64::new(0x4000_0000);
        let slot = NEXT.fetch_add(0x10_0000, Ordering::Relaxed);
        let base = slot + 0x1_0000;
        unsafe {
            let stack = map(0, 1 << 18, RW, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
            let ss = libc::stack_t {
                ss_sp: stack as *mut _,
                ss_flags: 0,
                ss_size: 1 << 18,
            };
            assert_eq!(libc::sigaltstack(&ss, null_mut()), 0);
            let fd = libc::memfd_create(c"engine-test".as_ptr(), 0);
            assert!(fd >= 0);
            assert_eq!(libc::ftruncate(fd, LEN as i64), 0);
            map(
                base,
                LEN,
                RW,
                libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE,
                fd,
            );
            let alias = map(0, LEN, RW, libc::MAP_SHARED, fd);
            libc::close(fd);
            let code = map(
                slot,
                4096,
                RW | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
            );
            let size = 4 << 20;
            let fd = libc::memfd_create(c"engine-code".as_ptr(), 0);
            assert_eq!(libc::ftruncate(fd, size as i64), 0);
            let rw = map(0, size, RW, libc::MAP_SHARED, fd);
            let rx = map(
                0,
                size,
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_SHARED,
                fd,
            );
            libc::close(fd);
            let arena = CodeArena {
                rw: rw as *mut u8,
                rx: rx as *const u8,
                len: size,
            };
            let len = Thunks::data_size(1 << 14);
            let data = map(0, len, RW, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
            let thunks = Box::new(
                Thunks::new(
                    arena,
                    DataArena {
                        base: data as *mut u8,
                        len,
                    },
                )
                .unwrap(),
            );
            let m = Machine {
                base,
                alias,
                code,
                decoder: Decoder::new().unwrap(),
                thunks,
                plain_from: Cell::new(PAGES),
            };
            set_gs_base(0x100);
            m
        }
    }

    pub fn protect(&self, from: usize, pages: usize, prot: i32) {
        let r = unsafe {
            libc::mprotect(
                (self.base as usize + from * 4096) as *mut _,
                pages * 4096,
                prot,
            )
        };
        assert_eq!(r, 0);
    }
    pub fn open_all(&self) {
        self.protect(0, PAGES, RW);
    }
    pub fn close_all(&self) {
        self.protect(0, self.plain_from.get(), libc::PROT_NONE);
    }

    /// Contents of all pages.
    pub fn memory(&self) -> Vec<u8> {
        unsafe { std::slice::from_raw_parts(self.alias as *const u8, LEN) }.to_vec()
    }
    /// Writes bytes at this offset.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= LEN);
        unsafe {
            (self.alias as *mut u8)
                .add(at)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }
    pub fn fill(&self, byte: u8) {
        unsafe { (self.alias as *mut u8).write_bytes(byte, LEN) };
    }

    /// Runs the instruction natively on memory as it is protected now.
    pub fn native(&self, bytes: &[u8], state: &mut State) -> Signal {
        assert!(bytes.len() <= 15);
        unsafe {
            let code = self.code as *mut u8;
            code.write_bytes(0xcc, 64);
            code.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            state.gprs.rip = self.code;
            remember(bytes);
            let mut run = Run {
                phase: 0,
                state,
                signal: Signal {
                    signo: 0,
                    code: 0,
                    addr: 0,
                },
                saved: State::new(),
            };
            RUN.set(&mut run);
            std::arch::asm!("int3", clobber_abi("C"));
            RUN.set(null_mut());
            assert_eq!((&raw const run.phase).read_volatile(), 2);
            run.signal
        }
    }

    /// Does the instruction by the engine. Accesses are left in `list`.
    pub fn engine(
        &self,
        bytes: &[u8],
        state: &mut State,
        list: &mut AccessList,
    ) -> Result<Outcome, SiteError> {
        state.gprs.rip = self.code;
        remember(bytes);
        // Not through the table: thousands of instructions at one address would fill it.
        self.thunks.reset();
        let insn = self
            .decoder
            .decode(self.code, bytes)
            .map_err(SiteError::Decode)?;
        let site = &self.thunks.build(insn);
        ENGINE.set(&*self.thunks);
        let mut cpu = state.cpu();
        site.insn.accesses(&cpu, list);
        let outcome = self.thunks.execute(site, &mut cpu, self);
        ENGINE.set(std::ptr::null());
        Ok(outcome)
    }
}

impl AliasMap for Machine {
    fn open(&self, addr: ulpf_lib::TargetAddr, len: u64, _: ulpf_lib::AccessKind) -> Open {
        let (start, end) = (addr.0, addr.0.wrapping_add(len));
        let (low, high) = (self.base, self.base + self.plain_from.get() as u64 * 4096);
        if start >= low && end <= high {
            Open::Alias(ulpf_lib::AliasAddr(start - low + self.alias))
        } else if end <= low || start >= high {
            Open::Plain
        } else {
            Open::Split
        }
    }
}
