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
//! After the entries have run, the command restores each thread's registers and detaches from it with [`PARK_SIGNAL`]. So
//! the thread parks in the stub at its original position.

/// `BootArgs::magic`.
pub const BOOT_MAGIC: u64 = u64::from_le_bytes(*b"ulpfboot");
/// Raised whenever [`BootArgs`] or the shared area change shape.
pub const BOOT_VERSION: u32 = 7;

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
    /// command closes both in the program afterwards.
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
    /// knows none. They are valid until the entry has ended, the oldest first (`ulpf_lib::seccomp::Kept`).
    pub filters: u64,
    /// Their size in bytes.
    pub filters_len: u64,
    /// For a thread that is about to execute another program, or for this forked child: address of its newest filter
    /// (`ulpf_lib::seccomp::Kept`), or 0.
    pub leaving: u64,
    /// Nonzero: after a detach, the command has stopped all threads, and threads that wait for that may continue.
    pub held: u64,
    /// Nonzero: this forked child gets a stub of its own in place of this image, which stays mapped for that.
    pub stays: u64,
    /// Registration of the entering thread for restartable sequences (rseq(2)): address, length and signature of its
    /// area, which the command has unregistered. Zeros without a registration.
    pub sequences: [u64; 3],
    /// The user's cache folder, which stores the hot accesses for the next run: an absolute path, padded with zeros.
    /// Empty if nothing is to be stored.
    pub cache: [u8; CACHE_LEN],
}

/// Size of [`BootArgs::cache`]; a path of this length or longer is not passed.
pub const CACHE_LEN: usize = 256;

/// See [`BootArgs::pad`].
pub const PAD_LEN: u64 = 64;

/// A mapping.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Left {
    /// Its first address.
    pub start: u64,
    /// In bytes.
    pub len: u64,
}
