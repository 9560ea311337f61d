//! The code of a patched system-call site: the calls that it makes without us, and the instructions that check their
//! arguments.
//!
//! ```text
//!   site (in the program)        near trampoline          slot (in our image)
//!   e9 → ──────────────────────▶ jmp [rip+0] ───────────▶ mov eax, nr      phase Mov
//!   (mov eax, nr | syscall)                               checks ─┐        phase Before
//!   syscall ◀──── dispatched, as ever ◀─────────────── slow ◀─────┘
//!                                                         syscall          exempt from dispatch
//!   next instruction ◀─────────────────────────────────── mov rcx, next    phase After
//!                                                         jmp rcx
//! ```
//! The slot uses only registers that a `syscall` destroys anyway, rcx and r11: no stack, no flags, no thread-local
//! storage. So the state is complete at every instruction. A handler that interrupts the slot needs only PC to determine
//! the corresponding state of the *original* code (`Phase`).
//!
//! If the instruction before the `syscall` is not that `mov`, the slot begins with it. A fault there counts as a fault of
//! the original instruction.

use ulpf_engine::patch::CLASS_WRITES;
use ulpf_lib::syscalls;
use ulpf_lib::syscalls::row::{ARGUMENTS, Blocks, Len, Special, Unit};

use ulpf_stub_tables::calls::{MAX_MARKS, Mark, Phase, Reg, SLOT};

/// Limit of system-call numbers for which one site (libc's `syscall`, Go's) may have code.
pub const MAX_NUMBERS: usize = 8;
/// Limit of checks for one call.
const MAX_CHECKS: usize = 6;

/// A condition on an argument, without which the call needs us.
#[derive(Clone, Copy)]
enum Check {
    /// No page of ours in the 64 KiB from this address on.
    Near(Reg),
    /// No page of ours in the 768 KiB from this address on.
    Wide(Reg),
    /// Less than 64 Ki.
    Short(Reg),
    /// Its upper half is zero.
    Int(Reg),
    Zero(Reg),
    Is(Reg, i32),
}

pub struct Class {
    checks: [Option<Check>; MAX_CHECKS],
    /// The argument with a relative time-out, an int. The slot keeps the time of its call in the upper half, which the
    /// kernel ignores. So if we interrupt the call, the rest of the time is known.
    timeout: Option<Reg>,
    /// After an interruption it may simply be made again.
    pub restart: bool,
    /// rdi is a futex word, by whose address threads find each other: if its page is ours, the kernel gets its alias
    /// (`buffers::word`).
    word: bool,
}

use Check::*;
use Reg::*;

impl Class {
    fn require(&mut self, check: Check) -> Option<()> {
        *self.checks.iter_mut().find(|c| c.is_none())? = Some(check);
        Some(())
    }
    fn needs_nothing(&self) -> bool {
        self.checks.iter().all(|c| c.is_none()) && self.timeout.is_none()
    }
}

/// The register of an argument.
fn register(arg: u8) -> Option<Reg> {
    [Rdi, Rsi, Rdx, R10, R8, R9].get(arg as usize).copied()
}

/// The calls that a slot makes by itself, by the table of calls. Left to dispatch are calls that change mappings,
/// threads or signals, calls with pointers to pointers, and sleeps.
pub fn class(nr: u64) -> Option<Class> {
    let row = syscalls::row(nr)?;
    let slot = row.slot?;
    let has = |bits: u8, arg: u8| bits >> arg & 1 != 0;
    let word = row.special == Some(Special::Futex);
    let mut class = Class {
        checks: [None; MAX_CHECKS],
        timeout: None,
        restart: row.blocks == Blocks::Interruptibly && !word,
        word,
    };
    if let Some((arg, value)) = slot.is {
        class.require(Is(register(arg)?, value))?;
    }
    if word {
        return Some(class);
    }
    for arg in (0..ARGUMENTS as u8).filter(|arg| has(slot.null, *arg)) {
        class.require(Zero(register(arg)?))?;
    }
    for b in row.buffers.iter().filter(|b| !has(slot.null, b.arg)) {
        let near = match b.len {
            Len::Fixed(_) | Len::Str | Len::Deref(_) => true,
            Len::Arg(len) => {
                class.require(Short(register(len)?))?;
                true
            }
            // Less than 64 Ki elements.
            Len::ArgTimes(count, size) if size <= 12 => {
                class.require(Short(register(count)?))?;
                false
            }
            _ => return None,
        };
        let at = register(b.arg)?;
        class.require(if near { Near(at) } else { Wide(at) })?;
    }
    for arg in (0..ARGUMENTS as u8).filter(|arg| has(slot.near, *arg)) {
        class.require(Near(register(arg)?))?;
    }
    if let Some(timeout) = row.timeout.filter(|t| t.unit == Unit::Millis) {
        class.timeout = register(timeout.arg);
    }
    Some(class)
}

/// True if a slot may make the call now.
pub fn may_serve(nr: u64) -> bool {
    syscalls::row(nr).is_some_and(|row| row.slot.is_some())
        && !super::timed::may_wait(nr)
        && !crate::uring::queries::may_close(nr)
}

/// Shift of the TSC in a register's upper half: one unit is about half a millisecond.
pub const STAMP_SHIFT: u8 = 20;

/// The input for a slot's code.
pub struct Plan<'a> {
    /// The `syscall` instruction of the slow path, and the instruction behind the original one.
    pub slow: u64,
    pub next: u64,
    /// The constant of the instruction before `syscall` that the patch has replaced.
    pub mov: Option<u32>,
    /// It is `xor eax, eax`.
    pub xor: bool,
    /// Another instruction before `syscall` that the patch has displaced: it is executed unchanged.
    pub first: &'a [u8],
    pub numbers: &'a [u16],
    /// Tables of pages that are ours, see `sites::Filter`.
    pub near: u64,
    pub wide: u64,
    /// Address of the word with the address of the page classes (`patches::Tables`); the word is 0 without classes.
    pub classes: u64,
    /// The processor has rorx and shrx.
    pub bmi2: bool,
}

pub struct Code {
    pub bytes: [u8; SLOT],
    len: usize,
    pub marks: [Mark; MAX_MARKS],
    marks_len: usize,
    /// Places of the displacements of jumps to the slow path.
    to_slow: [u16; 64],
    to_slow_len: usize,
    full: bool,
}

impl Code {
    fn emit(&mut self, bytes: &[u8]) {
        match self.bytes.get_mut(self.len..self.len + bytes.len()) {
            Some(to) => {
                to.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.full = true,
        }
    }
    /// Marks all code since the last mark as `phase`.
    fn mark(&mut self, phase: Phase) {
        match self.marks.get_mut(self.marks_len) {
            Some(m) => {
                *m = Mark {
                    end: self.len as u16,
                    phase,
                };
                self.marks_len += 1;
            }
            None => self.full = true,
        }
    }
    fn jump_slow(&mut self) {
        self.emit(&[0xe9, 0, 0, 0, 0]);
        match self.to_slow.get_mut(self.to_slow_len) {
            Some(at) => {
                *at = (self.len - 4) as u16;
                self.to_slow_len += 1;
            }
            None => self.full = true,
        }
    }
    /// Continues if rcx is zero.
    fn require(&mut self) {
        self.emit(&[0xe3, 0x05]); // jrcxz over the jump
        self.jump_slow();
    }
    fn mov_rcx(&mut self, value: u64) {
        self.emit(&[0x48, 0xb9]);
        self.emit(&value.to_le_bytes());
    }
    fn mov_rcx_reg(&mut self, r: u8) {
        self.emit(&[if r >= 8 { 0x4c } else { 0x48 }, 0x89, 0xc1 | (r & 7) << 3]);
    }
    /// r11 = reg rotated right.
    fn rorx_r11(&mut self, r: Reg, by: u8) {
        let (high, low) = (r as u8 >= 8, r as u8 & 7);
        self.emit(&[
            0xc4,
            if high { 0x43 } else { 0x63 },
            0xfb,
            0xf0,
            0xd8 | low,
            by,
        ]);
    }
    /// Puts the time into the upper half of a register, which is zero. Uses rcx and r11; flags stay.
    fn stamp(&mut self, r: Reg, nr: u16) {
        self.emit(&[0x49, 0x89, 0xd3]); // mov r11, rdx
        self.emit(&[0x0f, 0x31]); // rdtsc
        self.mark(Phase::Before);
        self.emit(&[0xc4, 0xe3, 0xfb, 0xf0, 0xca, 32]); // rorx rcx, rdx, 32
        self.emit(&[0x48, 0x8d, 0x0c, 0x01]); // lea rcx, [rcx+rax]
        self.emit(&[0xc4, 0xe3, 0xfb, 0xf0, 0xc9, STAMP_SHIFT]); // rorx rcx, rcx, 20
        self.emit(&[0x89, 0xc9]); // mov ecx, ecx
        self.emit(&[0xc4, 0xe3, 0xfb, 0xf0, 0xc9, 32]); // rorx rcx, rcx, 32
        self.emit(&[0x4c, 0x89, 0xda]); // mov rdx, r11
        self.emit(&[0xb8]); // mov eax, nr
        self.emit(&(nr as u32).to_le_bytes());
        let (high, low) = (r as u8 >= 8, r as u8 & 7);
        // lea reg, [reg+rcx]
        self.emit(&[
            if high { 0x4d } else { 0x48 },
            0x8d,
            0x04 | low << 3,
            low | 1 << 3,
        ]);
        self.mark(Phase::Lost { nr });
    }
    /// Removes it: mov of the lower half.
    fn unstamp(&mut self, r: Reg) {
        let (high, low) = (r as u8 >= 8, r as u8 & 7);
        if high {
            self.emit(&[0x45]);
        }
        self.emit(&[0x89, 0xc0 | low << 3 | low]);
    }
    /// rcx = reg >> by
    fn shrx_rcx(&mut self, r: Reg, by: u8) {
        let (high, low) = (r as u8 >= 8, r as u8 & 7);
        self.emit(&[0x41, 0xbb, by, 0, 0, 0]); // mov r11d, by
        self.emit(&[0xc4, if high { 0xc2 } else { 0xe2 }, 0xa3, 0xf7, 0xc8 | low]);
    }
    /// rcx = table[(reg >> by) & 0xffff]
    fn look_up(&mut self, r: Reg, by: u8, table: u64) {
        self.rorx_r11(r, by);
        self.emit(&[0x45, 0x0f, 0xb7, 0xdb]); // movzx r11d, r11w
        self.mov_rcx(table);
        self.emit(&[0x42, 0x0f, 0xb6, 0x0c, 0x19]); // movzx ecx, byte [rcx+r11]
    }
    fn check(&mut self, c: Check, p: &Plan) {
        match c {
            Near(r) => self.look_up(r, 12, p.near),
            Wide(r) => self.look_up(r, 16, p.wide),
            Short(r) => self.shrx_rcx(r, 16),
            Int(r) => self.shrx_rcx(r, 32),
            Zero(r) => self.mov_rcx_reg(r as u8),
            Is(r, v) => {
                let high = r as u8 >= 8;
                self.emit(&[if high { 0x49 } else { 0x48 }, 0x8d, 0x88 | (r as u8 & 7)]);
                self.emit(&(-v).to_le_bytes());
            }
        }
        self.require();
    }

    /// rcx = distance to the alias for stores to pages of the class in r11
    fn distance(&mut self) {
        self.emit(&[0x4a, 0x8b, 0x8c, 0xd9]); // mov rcx, [rcx+r11*8+…]
        self.emit(&CLASS_WRITES.to_le_bytes());
    }
    /// rcx = address of the classes
    fn classes(&mut self, p: &Plan) {
        self.mov_rcx(p.classes);
        self.emit(&[0x48, 0x8b, 0x09]); // mov rcx, [rcx]
    }

    /// Makes the call with the alias of its word if that is on a page of ours; otherwise continues.
    fn call_with_alias(&mut self, nr: u16, p: &Plan) {
        self.look_up(Rdi, 12, p.near);
        self.emit(&[0xe3, 0x02, 0xeb, 0x05]); // jrcxz over a jump over…
        self.emit(&[0xe9, 0, 0, 0, 0]); // a jump over all this
        let from = self.len;
        // Beyond user memory there are no classes.
        self.shrx_rcx(Rdi, 47);
        self.require();
        self.classes(p);
        self.emit(&[0xe3, 0]); // jrcxz to where there is no distance either
        let none = self.len;
        self.emit(&[0x41, 0xbb, 12, 0, 0, 0]); // mov r11d, 12
        self.emit(&[0xc4, 0x62, 0xa3, 0xf7, 0xdf]); // shrx r11, rdi, r11
        self.emit(&[0x46, 0x0f, 0xb6, 0x1c, 0x19]); // movzx r11d, byte [rcx+r11]
        self.distance();
        self.short(none);
        self.emit(&[0xe3, 0x02, 0xeb, 0x05]); // jrcxz over a jump over the jump
        self.jump_slow();
        self.emit(&[0xc4, 0x43, 0xfb, 0xf0, 0xdb, 32]); // rorx r11, r11, 32
        self.emit(&[0x4a, 0x8d, 0x34, 0x1e]); // lea rsi, [rsi+r11]
        self.mark(Phase::Before);
        self.emit(&[0x48, 0x8d, 0x3c, 0x0f]); // lea rdi, [rdi+rcx]
        self.mark(Phase::Word { alias: false });
        self.emit(&[0x0f, 0x05]);
        self.mark(Phase::Word { alias: true });
        self.emit(&[0xc4, 0x63, 0xfb, 0xf0, 0xde, 32]); // rorx r11, rsi, 32
        self.emit(&[0x45, 0x89, 0xdb]); // mov r11d, r11d
        self.classes(p);
        self.distance();
        self.emit(&[0x48, 0xf7, 0xd1]); // not rcx
        self.emit(&[0x48, 0x8d, 0x7c, 0x0f, 1]); // lea rdi, [rdi+rcx+1]
        self.mark(Phase::AfterWord { nr, alias: true });
        self.emit(&[0x89, 0xf6]); // mov esi, esi
        self.back(nr, Phase::AfterWord { nr, alias: false }, p);
        self.near(from);
    }
    /// Returns to the original code, from `phase`.
    fn back(&mut self, nr: u16, phase: Phase, p: &Plan) {
        self.mov_rcx(p.next);
        self.mark(phase);
        self.emit(&[0xff, 0xe1]); // jmp rcx
        self.mark(Phase::After {
            nr,
            stamped: None,
            just: false,
        });
    }
    /// Sets the target of the near jump that ends at `from` to here.
    fn near(&mut self, from: usize) {
        let distance = ((self.len - from) as u32).to_le_bytes();
        match self.bytes.get_mut(from - 4..from) {
            Some(d) if !self.full => d.copy_from_slice(&distance),
            _ => self.full = true,
        }
    }
    /// Sets the target of the short jump that ends at `from` to here.
    fn short(&mut self, from: usize) {
        match (i8::try_from(self.len - from), self.bytes.get_mut(from - 1)) {
            (Ok(distance), Some(d)) => *d = distance as u8,
            _ => self.full = true,
        }
    }

    /// The checks, the call and the return, with rax = nr.
    fn call(&mut self, nr: u16, class: &Class, p: &Plan) {
        for c in class.checks.iter().flatten() {
            self.check(*c, p);
        }
        if let Some(r) = class.timeout {
            self.check(Int(r), p);
        }
        if class.word {
            self.call_with_alias(nr, p);
        }
        self.mark(Phase::Before);
        if let Some(r) = class.timeout {
            self.stamp(r, nr);
        }
        // The mark ends where the next instruction begins: at `syscall` nothing has happened yet.
        self.emit(&[0x0f, 0x05]);
        self.mark(Phase::Call {
            nr,
            stamped: class.timeout,
        });
        let after = |stamped, just| Phase::After { nr, stamped, just };
        let Some(r) = class.timeout else {
            return self.back(nr, after(None, true), p);
        };
        self.unstamp(r);
        self.mark(after(class.timeout, true));
        self.back(nr, after(None, false), p);
    }

    /// Generates the code of a slot; `None` if it does not fit, or if all numbers need us.
    pub fn generate(p: &Plan) -> Option<Code> {
        let mut c = Code {
            bytes: [0xcc; SLOT],
            len: 0,
            marks: [Mark::NONE; MAX_MARKS],
            marks_len: 0,
            to_slow: [0; 64],
            to_slow_len: 0,
            full: false,
        };
        let usable = |nr: u16| {
            class(nr as u64).filter(|k| may_serve(nr as u64) && (p.bmi2 || k.needs_nothing()))
        };
        if let Some(nr) = p.mov {
            if p.xor {
                c.emit(&[0x31, 0xc0]); // xor eax, eax, as the original
            } else {
                c.emit(&[0xb8]);
                c.emit(&nr.to_le_bytes());
            }
            c.mark(Phase::Mov);
            c.call(nr as u16, &usable(nr as u16)?, p);
        } else {
            if !p.first.is_empty() {
                c.emit(p.first);
                c.mark(Phase::Mov);
            }
            for &nr in p.numbers {
                let k = usable(nr)?;
                c.emit(&[0x48, 0x8d, 0x88]); // lea rcx, [rax-nr]
                c.emit(&(-(nr as i32)).to_le_bytes());
                c.emit(&[0xe3, 0x05, 0xe9, 0, 0, 0, 0]); // jrcxz over a jump to the next number
                let from = c.len;
                c.call(nr, &k, p);
                c.near(from);
            }
        }
        let slow = c.len;
        c.emit(&[0xff, 0x25, 0, 0, 0, 0]);
        c.emit(&p.slow.to_le_bytes());
        c.mark(Phase::Before);
        let jumps = c.to_slow;
        for &at in jumps.iter().take(c.to_slow_len) {
            let at = at as usize;
            let distance = (slow as i32 - (at as i32 + 4)).to_le_bytes();
            if let Some(d) = c.bytes.get_mut(at..at + 4) {
                d.copy_from_slice(&distance);
            }
        }
        let any = p.mov.is_some() || !p.numbers.is_empty();
        (any && !c.full).then_some(c)
    }
}
