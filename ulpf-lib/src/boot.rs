//! The boot block: what the command tells the stub when it loads it into a program.
//!
//! The command (see `command/inject`) maps the stub image, writes one [`BootArgs`] above it and runs
//! [`BootArgs`]-taking entry points with ptrace. Every entry ends with `int3` and its result in rax
//! (0, or a negative errno):
//!
//! ```text
//! ulpf_stub_boot(rdi = &BootArgs)         once, on one stopped thread
//! ulpf_stub_boot_thread(rdi = &BootArgs)  once on every further stopped thread (attach)
//! ```
//!
//! After its entry, the command takes each thread to a stop by [`PARK_SIGNAL`] and restores its registers there. At the end
//! it detaches from all of them with that signal. So each thread parks in the stub at its original position. If the command
//! is killed meanwhile, the `int3` is a signal for the stub, which restores the thread's registers ([`BootArgs::home`]) and
//! parks it there.

/// `BootArgs::magic`.
pub const BOOT_MAGIC: u64 = u64::from_le_bytes(*b"ulpfboot");
/// Raised whenever [`BootArgs`] or the shared area change shape.
pub const BOOT_VERSION: u32 = 10;

/// The signal that parks a thread. SIGRTMAX-1 (63): glibc gives it no meaning, and the stub hides
/// it from the program.
pub const PARK_SIGNAL: i32 = 63;

/// The program was started by us: when the command goes away, so does the program.
pub const BOOT_LAUNCHED: u32 = 1;
/// Default placement of watches; with neither bit the stub chooses.
pub const BOOT_PLACE_GUARD: u32 = 2;
/// The other one: debug registers.
pub const BOOT_PLACE_REGISTER: u32 = 4;
/// The program's code is never patched: every access to a guarded page, and every system call, raises a signal.
pub const BOOT_NO_PATCH: u32 = 8;

/// Guards by mprotect and signals only; guards by the kernel module (`/dev/ulpf`) only; neither bit: by
/// the module, if it can be used.
pub const BOOT_BACKEND_SIGNAL: u32 = 16;
/// The other one: the kernel module.
pub const BOOT_BACKEND_KERNEL: u32 = 32;

/// Data from the command to the stub, and (where a field says so) from the stub to the command.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BootArgs {
    /// [`BOOT_MAGIC`].
    pub magic: u64,
    /// [`BOOT_VERSION`].
    pub version: u32,
    /// `BOOT_*` bits.
    pub flags: u32,
    /// First byte and length of the whole stub mapping (text, data, this block, boot stack). System
    /// calls issued from within are the stub's own (syscall user dispatch's exempt range).
    pub image_base: u64,
    /// In bytes, whole pages.
    pub image_len: u64,
    /// Descriptors in the program's table while the stub boots; its own task inherits a copy of the table. The first is a
    /// stream socket for the remote serial protocol, the second the memfd of the shared area (`ulpf_lib::ring`). The
    /// stub closes both in the program afterwards.
    pub control_fd: i32,
    /// See `control_fd`.
    pub shared_fd: i32,
    /// Result: process id of the stub's own task (shares memory with the program, not its thread
    /// group, descriptors or signal handlers).
    pub stub_pid: i32,
    /// Base of our place ([`crate::place`]). Its memory may also hold mappings of an earlier stub or of libulpf.
    pub place: u64,
    /// The address from which on the place has room, away from those mappings.
    pub begin: u64,
    /// [`PAD_LEN`] bytes of unused executable memory (the end of the vDSO), or 0. A forked child may write its last
    /// instructions of ours there.
    pub pad: u64,
    /// After a detach: address and number of [`Left`], the mappings of ours that still have to be unmapped; 0 if not
    /// known.
    pub left: u64,
    /// How many.
    pub left_len: u64,
    /// After a detach: address, in the image, of the `syscall` instruction whose calls the program's seccomp filters let
    /// pass. The image stays. 0 if the program has no filters.
    pub left_gate: u64,
    /// Address of the program's earlier seccomp filters, which let calls from the image at this address pass; 0 if a stub
    /// knows none. The stub unmaps them, the oldest first (`ulpf_lib::seccomp::Kept`).
    pub filters: u64,
    /// Their size in bytes.
    pub filters_len: u64,
    /// For a thread that is about to execute another program, or for this forked child: address of its newest filter
    /// (`ulpf_lib::seccomp::Kept`), or 0.
    pub leaving: u64,
    /// Nonzero: after a detach, the command has stopped all threads, and threads that wait for that may continue.
    pub held: u64,
    /// Nonzero: a thread is about to run an entry, or runs it. If the command has been killed meanwhile, the stub does not
    /// leave before the entry's trap.
    pub entering: u64,
    /// Nonzero: this forked child gets a stub of its own in place of this image, which stays mapped for that.
    pub stays: u64,
    /// Registration of the entering thread for restartable sequences (rseq(2)): address, length and signature of its
    /// area, which the command has unregistered. Zeros without a registration.
    pub sequences: [u64; 3],
    /// State of the entering thread at its stop.
    pub home: Home,
    /// The user's cache folder, which stores the hot accesses for the next run: an absolute path, padded with zeros.
    /// Empty if nothing is to be stored.
    pub cache: [u8; CACHE_LEN],
    /// The program's auxiliary vector (getauxval(3)), padded with zeros. A program that has changed its user cannot read
    /// it in /proc.
    pub auxv: [u64; AUXV_WORDS],
    /// Path of the program's file when the stub was loaded: the target of /proc/PID/exe, padded with zeros.
    pub exe: [u8; EXE_LEN],
}

/// Words of [`BootArgs::auxv`], two for each entry. Linux has at most 51 entries (AT_VECTOR_SIZE).
pub const AUXV_WORDS: usize = 104;

/// Size of [`BootArgs::exe`]; a path of this length or longer is not passed.
pub const EXE_LEN: usize = 1024;

/// State of a thread.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Home {
    /// General registers in the order of a signal frame (`struct sigcontext`): r8 to r15, rdi, rsi, rbp, rbx, rdx, rax,
    /// rcx, rsp, rip, flags.
    pub gprs: [u64; 18],
    /// As FXSAVE writes it.
    pub fx: [u8; 512],
}

/// Size of [`BootArgs::cache`]; a path of this length or longer is not passed.
pub const CACHE_LEN: usize = 256;

/// See [`BootArgs::pad`].
pub const PAD_LEN: u64 = 64;

/// The instructions before each value of [`pad_code`].
const PAD_PARTS: [&[u8]; 3] = [
    &[0x0f, 0x05, 0xb8, 0, 0, 0, 0, 0x48, 0xbf], // syscall; mov eax, 0; mov rdi, …
    &[0x48, 0xbe],                               // mov rsi, …
    &[0x48, 0xb9],                               // mov rcx, …
];
const PAD_JUMP: &[u8] = &[0xff, 0xe1]; // jmp rcx

/// The last instructions of ours in a forked child, for [`BootArgs::pad`]. They make the call whose registers are
/// loaded. Then they continue with 0 in rax and with these values in rdi, rsi and rip. (`syscall` itself changes rcx.)
pub fn pad_code(values: [u64; 3]) -> [u8; PAD_LEN as usize] {
    let values = values.map(u64::to_le_bytes);
    let parts = PAD_PARTS.iter().zip(&values);
    let bytes = parts.flat_map(|(part, value)| part.iter().chain(value));
    let mut code = [0; PAD_LEN as usize];
    for (to, byte) in code.iter_mut().zip(bytes.chain(PAD_JUMP)) {
        *to = *byte;
    }
    code
}

/// The values in such code.
pub fn pad_registers(code: &[u8]) -> Option<[u64; 3]> {
    let (mut rest, mut values) = (code, [0; 3]);
    for (part, to) in PAD_PARTS.iter().zip(&mut values) {
        let (value, behind) = rest.strip_prefix(*part)?.split_first_chunk()?;
        (*to, rest) = (u64::from_le_bytes(*value), behind);
    }
    rest.starts_with(PAD_JUMP).then_some(values)
}

/// A mapping.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Left {
    /// Its first address.
    pub start: u64,
    /// In bytes.
    pub len: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pad_tells_its_registers() {
        let values = [1, u64::MAX - 1, 0x7fff_1234_5678];
        let code = pad_code(values);
        assert_eq!(pad_registers(&code), Some(values));
        assert_eq!(pad_registers(&code[1..]), None);
        assert_eq!(pad_registers(&[0; PAD_LEN as usize]), None);
    }
}
