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
//! After the entries have run, the command restores each thread's registers and detaches from it
//! with [`PARK_SIGNAL`], so that the thread comes to rest in the stub exactly where it was.

/// `BootArgs::magic`.
pub const BOOT_MAGIC: u64 = u64::from_le_bytes(*b"ulpfboot");
/// Raised whenever [`BootArgs`] or the shared area change shape.
pub const BOOT_VERSION: u32 = 7;

/// The signal that parks a thread. SIGRTMAX-1 (63): glibc gives it no meaning, and the stub hides
/// it from the program.
pub const PARK_SIGNAL: i32 = 63;

/// The program was started by us: when the command goes away, so does the program.
pub const BOOT_LAUNCHED: u32 = 1;
/// Where watches go unless they say it themselves; neither bit: the stub chooses.
pub const BOOT_PLACE_GUARD: u32 = 2;
/// The other one: debug registers.
pub const BOOT_PLACE_REGISTER: u32 = 4;
/// The program's code stays as it is: every access to a guarded page, and every system call, is met by
/// a signal.
pub const BOOT_NO_PATCH: u32 = 8;

/// Guards by mprotect and signals only; guards by the kernel module (`/dev/ulpf`) only; neither bit: by
/// the module, if it can be used.
pub const BOOT_BACKEND_SIGNAL: u32 = 16;
/// The other one: the kernel module.
pub const BOOT_BACKEND_KERNEL: u32 = 32;

/// What the command tells the stub, and (where it says so) the stub the command.
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
    /// In the program's table while the stub boots (its own task inherits a copy of the table): stream
    /// socket that carries the remote serial protocol, and the memfd of the shared area
    /// (`ulpf_lib::ring`). The command closes both in the program afterwards.
    pub control_fd: i32,
    /// See `control_fd`.
    pub shared_fd: i32,
    /// Result: process id of the stub's own task (shares memory with the program, not its thread
    /// group, descriptors or signal handlers).
    pub stub_pid: i32,
    /// Base of our place ([`crate::place`]), and where in its memory there is room: what an earlier stub has
    /// left behind, or libulpf uses, lies elsewhere.
    pub place: u64,
    /// The address at which the stub begins to look for room.
    pub begin: u64,
    /// Memory of the program that a forked child may write its last instructions of ours to: [`PAD_LEN`] bytes
    /// of executable memory that nobody uses (the end of the vDSO); 0: there is none.
    pub pad: u64,
    /// After a detach: address and number of [`Left`], what there is still of ours and has to be unmapped. 0: not
    /// known.
    pub left: u64,
    /// How many.
    pub left_len: u64,
    /// After a detach: the program has seccomp filters, which let pass what the `syscall` instruction at this address
    /// of the image makes; the image stays. 0: it has none.
    pub left_gate: u64,
    /// The program has seccomp filters from before, which let pass what this image makes at this address: they lie here,
    /// the oldest first (`ulpf_lib::seccomp::Kept`), until the entry has ended. 0: it has none that a stub knows.
    pub filters: u64,
    /// How many bytes.
    pub filters_len: u64,
    /// Of a thread that is about to execute another program, or of this forked child: address of its newest filter
    /// (`ulpf_lib::seccomp::Kept`); 0: it has none.
    pub leaving: u64,
    /// Not 0: after a detach, the command has all threads, and those that wait for that may go on.
    pub held: u64,
    /// Not 0: this forked child gets a stub of its own in the place of this image, which it leaves there for that.
    pub stays: u64,
    /// What the thread that enters had registered for restartable sequences (rseq(2)): address, length and signature of its
    /// area, which the command has unregistered. Zeros: nothing.
    pub sequences: [u64; 3],
    /// The user's cache folder, where it is kept for the next run which accesses were hot: an absolute path, zeroes behind
    /// it. Empty: nothing is kept.
    pub cache: [u8; CACHE_LEN],
}

/// Longer names of folders, and one of just so many bytes, are not told ([`BootArgs::cache`]).
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
