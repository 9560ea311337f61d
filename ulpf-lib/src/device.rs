//! `/dev/ulpf`: user-level page faults by the machine itself. `kernel/include/uapi/ulpf.h` specifies the
//! interface in prose; here it has Rust's types.
//!
//! Raw system calls only, no allocation: a stub and a library that both live in other people's programs
//! use it, also in their handlers.
#![allow(unsafe_code)]

use core::ffi::CStr;

use linux_raw_sys::errno;
use linux_raw_sys::general::*;

use crate::sys;
use crate::sys::Errno;

/// Where the device is.
pub const PATH: &CStr = c"/dev/ulpf";
/// The version of the interface that this module speaks.
pub const VERSION: u32 = 1;

/// Offsets for mmap(2): the store, guarded; the store, open; PLI page n; the ring of events.
pub const MAP_GUARD: u64 = 0;
/// The store, open.
pub const MAP_ALIAS: u64 = 1 << 60;
/// PLI pages: page n at `MAP_PLI` + n pages.
pub const MAP_PLI: u64 = 2 << 60;
/// The ring of events: a [`RingHeader`], then the [`Event`]s.
pub const MAP_RING: u64 = 3 << 60;
/// Size of the store, sparse: any user address is an offset into it.
pub const STORE_SIZE: u64 = 1 << 47;

/// Loads can be forbidden ([`Permission::None`]).
pub const FEATURE_READ: u64 = 1 << 0;
/// [`Permission::Execute`] permits fetches only.
pub const FEATURE_EXE: u64 = 1 << 1;
/// A store to a PLI region that permits more holds at once.
pub const FEATURE_PLI_LOOSEN: u64 = 1 << 2;
/// A store to a PLI region that permits less holds at once, without [`Op::sync`].
pub const FEATURE_PLI_TIGHTEN: u64 = 1 << 3;
/// [`HANDLER_ONCE`].
pub const FEATURE_ONCE: u64 = 1 << 4;
/// Exception stacks of the device's own ([`Device::stack`]).
pub const FEATURE_STACK: u64 = 1 << 5;
/// The kernel's accesses are events.
pub const FEATURE_KERNEL: u64 = 1 << 6;
/// Ranges of which accesses are told and not forbidden.
pub const FEATURE_GUARD: u64 = 1 << 7;
/// The store is a file of its own ([`Device::store`]).
pub const FEATURE_STORE: u64 = 1 << 8;
/// [`HANDLER_SIGSTACK`].
pub const FEATURE_SIGSTACK: u64 = 1 << 9;
/// [`POLICY_EFAULT`].
pub const FEATURE_EFAULT: u64 = 1 << 10;

/// The handler takes the place of one that is registered.
pub const HANDLER_REPLACE: u32 = 1 << 0;
/// The thesis's write-once rule (section 3.2.3): a handler that returns has permitted this one access.
pub const HANDLER_ONCE: u32 = 1 << 1;
/// The frame lies on the thread's alternate signal stack (sigaltstack(2)).
pub const HANDLER_SIGSTACK: u32 = 1 << 2;
/// The kernel's accesses to what is forbidden fail with EFAULT, instead of being events.
pub const POLICY_EFAULT: u32 = 1 << 0;

/// [`Frame::info`]: a store, or a read-modify-write.
pub const INFO_WRITE: u64 = 1 << 0;
/// [`Frame::info`]: an instruction fetch.
pub const INFO_FETCH: u64 = 1 << 1;
/// [`Frame::info`]: the frame is on the exception stack.
pub const INFO_STACK: u64 = 1 << 2;

/// What the permissions of a page forbid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Permission {
    /// Nothing.
    ReadWrite = 0,
    /// Stores.
    ReadOnly = 1,
    /// Loads and stores (`FEATURE_EXE`).
    Execute = 2,
    /// Everything.
    None = 3,
}

/// `struct ulpf_frame`: what the handler finds at its stack pointer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// First byte of the access that is forbidden.
    pub addr: u64,
    /// `INFO_*` bits.
    pub info: u64,
    /// What was given with the handler.
    pub cookie: u64,
    /// The program's instruction pointer: the instruction that has not been made.
    pub ip: u64,
    /// Its code segment.
    pub cs: u64,
    /// Its flags.
    pub flags: u64,
    /// Its stack pointer.
    pub sp: u64,
    /// Its stack segment.
    pub ss: u64,
}

/// `struct ulpf_query`: what the machine can do.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Query {
    size: u32,
    flags: u32,
    /// Asked for: [`VERSION`]; answered: the machine's.
    pub version: u32,
    /// 1 the Linux module, 2 Unicorn, 3 gem5.
    pub machine: u32,
    /// `FEATURE_*` bits.
    pub features: u64,
    /// Most operations of one [`Device::batch`].
    pub batch_max: u32,
    /// Most events that a ring holds.
    pub ring_max: u32,
}

#[repr(C)]
struct Handler {
    size: u32,
    flags: u32,
    entry: u64,
    cookie: u64,
}

#[repr(C)]
struct Stack {
    size: u32,
    flags: u32,
    base: u64,
    length: u64,
}

#[repr(C)]
struct Policy {
    size: u32,
    flags: u32,
}

const OP_SET: u32 = 1;
const OP_SYNC: u32 = 2;
const OP_BIND: u32 = 4;
const OP_UNBIND: u32 = 5;

/// `struct ulpf_op`: one change.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Op {
    op: u32,
    flags: u32,
    addr: u64,
    length: u64,
    arg: u64,
}

impl Op {
    const fn new(op: u32, start: u64, end: u64, arg: u64) -> Op {
        Op {
            op,
            flags: 0,
            addr: start,
            length: end.wrapping_sub(start),
            arg,
        }
    }
    /// First address of the range.
    pub const fn start(&self) -> u64 {
        self.addr
    }
    /// `[start, end)`, whole pages of guarded mappings, shall have this permission.
    pub const fn set(start: u64, end: u64, permission: Permission) -> Op {
        Op::new(OP_SET, start, end, permission as u64)
    }
    /// What PLI regions say about the range holds from now on.
    pub const fn sync(start: u64, end: u64) -> Op {
        Op::new(OP_SYNC, start, end, 0)
    }
    /// The PLI region at `region` governs the 2 MiB from `prefix` on.
    pub const fn bind(prefix: u64, region: u64) -> Op {
        Op::new(OP_BIND, prefix, prefix.wrapping_add(1 << 21), region)
    }
    /// No PLI region governs the 2 MiB from `prefix` on.
    pub const fn unbind(prefix: u64) -> Op {
        Op::new(OP_UNBIND, prefix, prefix.wrapping_add(1 << 21), 0)
    }
}

#[repr(C)]
struct Batch {
    size: u32,
    flags: u32,
    ops: u64,
    count: u32,
    op_size: u32,
    done: u32,
    reserved: u32,
}

#[repr(C)]
struct Ring {
    size: u32,
    flags: u32,
    records: u32,
    watermark: u32,
    latency_us: u32,
    reserved: u32,
}

/// `struct ulpf_ring_header`: the first page of the mapped ring.
#[repr(C)]
#[derive(Debug)]
pub struct RingHeader {
    /// [`VERSION`].
    pub version: u32,
    /// Slots, each for one [`Event`].
    pub records: u32,
    /// Where they begin, in bytes from the header.
    pub data_offset: u32,
    /// What can be mapped, in bytes.
    pub length: u32,
    /// Events begun since the ring was made: number n lies in slot n modulo `records`.
    pub head: core::sync::atomic::AtomicU64,
    /// Events for which not even a slot was free.
    pub dropped: core::sync::atomic::AtomicU64,
}

/// `struct ulpf_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Event {
    /// Its number plus one, written last; 0: it is being written.
    pub stamp: u64,
    /// CLOCK_MONOTONIC in nanoseconds.
    pub time: u64,
    /// First byte touched; with [`EVENT_LOST`] how many events are lost.
    pub addr: u64,
    /// The program's next instruction: behind the `syscall` for the kernel's accesses; 0: not the program's access.
    pub ip: u64,
    /// The program's stack pointer, or 0.
    pub sp: u64,
    /// Process that made the access, 0 if it has no number in the reader's namespace.
    pub pid: u32,
    /// Thread that made it, likewise.
    pub tid: u32,
    /// `EVENT_*`.
    pub kind: u16,
    /// `INFO_*` bits, the lowest 16.
    pub info: u16,
    /// Number of the system call; -1: none of the program's.
    pub syscall: i32,
    /// 0.
    pub reserved: u64,
}

/// [`Event::kind`]: events are lost, [`Event::addr`] of them.
pub const EVENT_LOST: u16 = 1;
/// [`Event::kind`]: the kernel has read.
pub const EVENT_KERNEL_READ: u16 = 2;
/// [`Event::kind`]: the kernel has written.
pub const EVENT_KERNEL_WRITE: u16 = 3;
/// [`Event::kind`]: an access to a guard range.
pub const EVENT_GUARD: u16 = 4;
/// [`Event::kind`]: a forbidden access, and no handler.
pub const EVENT_UNHANDLED: u16 = 5;
/// [`Event::kind`]: an upcall, and no room for its frame.
pub const EVENT_UNDELIVERED: u16 = 6;

/// `struct ulpf_counts`: how often what has happened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    size: u32,
    flags: u32,
    /// Entries of the handler.
    pub upcalls: u64,
    /// Events of the kernel's loads.
    pub kernel_reads: u64,
    /// Events of the kernel's stores.
    pub kernel_writes: u64,
    /// Accesses to guard ranges.
    pub guards: u64,
    /// Forbidden accesses without a handler.
    pub unhandled: u64,
    /// Upcalls without room for a frame.
    pub undelivered: u64,
    /// Operations carried out.
    pub changes: u64,
    /// How often the processors had to forget mappings for them.
    pub flushes: u64,
}

const fn number(direction: u32, nr: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | 0xde << 8 | nr
}
const W: u32 = 1;
const RW: u32 = 3;
const QUERY: u32 = number(RW, 0x20, size_of::<Query>());
const HANDLER: u32 = number(W, 0x21, size_of::<Handler>());
const STACK: u32 = number(W, 0x22, size_of::<Stack>());
const APPLY: u32 = number(W, 0x23, size_of::<Op>());
const BATCH: u32 = number(RW, 0x24, size_of::<Batch>());
const RING: u32 = number(W, 0x25, size_of::<Ring>());
const COUNTS: u32 = number(RW, 0x27, size_of::<Counts>());
const POLICY: u32 = number(W, 0x28, size_of::<Policy>());
const STORE: u32 = number(0, 0x29, 0);

/// Why the device cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// open(2) has failed.
    Open(Errno),
    /// Something is there that does not answer as the device does.
    Strange(Errno),
    /// The machine speaks this version of the interface.
    Version(u32),
    /// It lacks these of the features that were asked for.
    Features(u64),
}

impl Unusable {
    /// Why, for people.
    pub fn why(self) -> &'static str {
        match self {
            Unusable::Open(Errno(e)) => match e as u32 {
                errno::ENOENT | errno::ENXIO | errno::ENODEV => {
                    "there is no /dev/ulpf: the kernel module is not loaded"
                }
                errno::EACCES | errno::EPERM => "/dev/ulpf may not be opened by this user",
                errno::EMFILE | errno::ENFILE => "/dev/ulpf: too many open files",
                errno::ENOMEM => "/dev/ulpf: out of memory",
                _ => "/dev/ulpf cannot be opened",
            },
            Unusable::Strange(_) => "/dev/ulpf is not the device of ulpf's kernel module",
            Unusable::Version(_) => {
                "the kernel module speaks another version of the interface of /dev/ulpf"
            }
            Unusable::Features(_) => "the kernel module is too old: it lacks what is needed here",
        }
    }
    /// What the user can do about it.
    pub fn what_to_do(self) -> &'static str {
        match self {
            Unusable::Open(Errno(e)) => match e as u32 {
                errno::EACCES | errno::EPERM => {
                    "join the group that owns it (kernel/README.md), or have root load the module with mode=0666"
                }
                errno::EMFILE | errno::ENFILE | errno::ENOMEM => {
                    "raise the limit, or use the back end `signal`"
                }
                _ => "build and load it (kernel/README.md), or use the back end `signal`",
            },
            _ => "build and load the module of this version of ulpf (kernel/README.md)",
        }
    }
}

/// An open device: a guarded address space of this process's memory.
#[derive(Debug)]
pub struct Device(i32);

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours alone.
        let _ = unsafe { sys!(__NR_close, self.0) };
    }
}

impl Device {
    /// Opens it and makes sure that it has all of `features`.
    ///
    /// # Errors
    /// [`Unusable`] says which of the four reasons it is.
    pub fn open(features: u64) -> Result<Device, Unusable> {
        Device::open_at(PATH, features)
    }

    /// As [`Device::open`], for a device at another path.
    ///
    /// # Errors
    /// As [`Device::open`]'s.
    pub fn open_at(path: &CStr, features: u64) -> Result<Device, Unusable> {
        // SAFETY: the path is a C string; open touches no memory of ours.
        let fd = unsafe {
            sys!(
                __NR_openat,
                AT_FDCWD as i64,
                path.as_ptr(),
                O_RDWR | O_CLOEXEC,
                0
            )
        }
        .map_err(Unusable::Open)?;
        let device = Device(fd as i32);
        let query = device.query()?;
        match features & !query.features {
            0 => Ok(device),
            lacking => Err(Unusable::Features(lacking)),
        }
    }

    /// Its descriptor, for mmap(2).
    pub fn descriptor(&self) -> i32 {
        self.0
    }

    /// What the machine can do.
    ///
    /// # Errors
    /// [`Unusable::Version`] from a machine of another version, [`Unusable::Strange`] with ioctl(2)'s error else.
    pub fn query(&self) -> Result<Query, Unusable> {
        let mut query = Query {
            size: size_of::<Query>() as u32,
            flags: 0,
            version: VERSION,
            machine: 0,
            features: 0,
            batch_max: 0,
            ring_max: 0,
        };
        // SAFETY: the structure that the call takes and fills.
        match unsafe { self.call(QUERY, &mut query) } {
            Ok(_) => Ok(query),
            Err(Errno(e)) if e as u32 == errno::EPROTONOSUPPORT => {
                Err(Unusable::Version(query.version))
            }
            Err(e) => Err(Unusable::Strange(e)),
        }
    }

    /// From now on forbidden accesses of the program enter `entry`, whose frames carry `cookie`.
    ///
    /// # Safety
    /// `entry` keeps to the rules of a handler (the header's "The upcall"), for as long as it is
    /// registered.
    ///
    /// # Errors
    /// EBUSY if one is registered and `HANDLER_REPLACE` is not given, EFAULT or EACCES if `entry` is not code,
    /// EOPNOTSUPP for a flag without its feature.
    pub unsafe fn handler(&self, entry: u64, cookie: u64, flags: u32) -> Result<(), Errno> {
        let mut handler = Handler {
            size: size_of::<Handler>() as u32,
            flags,
            entry,
            cookie,
        };
        // SAFETY: the structure that the call takes.
        unsafe { self.call(HANDLER, &mut handler) }.map(drop)
    }

    /// Forbidden accesses are SIGSEGV again.
    ///
    /// # Errors
    /// ENOENT if there is none.
    pub fn no_handler(&self) -> Result<(), Errno> {
        // SAFETY: registers nothing.
        unsafe { self.handler(0, 0, 0) }
    }

    /// The calling thread's exception stack; `length` 0: none.
    ///
    /// # Safety
    /// The memory is used for nothing else meanwhile.
    ///
    /// # Errors
    /// EFAULT or EINVAL for a range that cannot be one, ENOENT if there is none to take away, ENOMEM.
    pub unsafe fn stack(&self, base: u64, length: u64) -> Result<(), Errno> {
        let mut stack = Stack {
            size: size_of::<Stack>() as u32,
            flags: 0,
            base,
            length,
        };
        // SAFETY: the structure that the call takes.
        unsafe { self.call(STACK, &mut stack) }.map(drop)
    }

    /// `POLICY_*`, for the whole space.
    ///
    /// # Errors
    /// EINVAL for an unknown one.
    pub fn policy(&self, flags: u32) -> Result<(), Errno> {
        let mut policy = Policy {
            size: size_of::<Policy>() as u32,
            flags,
        };
        // SAFETY: the structure that the call takes.
        unsafe { self.call(POLICY, &mut policy) }.map(drop)
    }

    /// One change.
    ///
    /// # Errors
    /// As the header says for each operation; then nothing has changed.
    pub fn apply(&self, op: &Op) -> Result<(), Errno> {
        let mut op = *op;
        // SAFETY: the structure that the call takes. Permissions only forbid: what then cannot be
        // accessed at its own address faults, and that is the handler's business.
        unsafe { self.call(APPLY, &mut op) }.map(drop)
    }

    /// Many changes in one crossing, in order; on failure also how many were carried out.
    ///
    /// # Errors
    /// How many were carried out, and why the next one was not.
    pub fn batch(&self, ops: &[Op]) -> Result<(), (usize, Errno)> {
        // Any machine takes as many at once.
        const MOST: usize = 1024;
        let mut before = 0;
        for part in ops.chunks(MOST) {
            let mut batch = Batch {
                size: size_of::<Batch>() as u32,
                flags: 0,
                ops: part.as_ptr() as u64,
                count: part.len() as u32,
                op_size: size_of::<Op>() as u32,
                done: 0,
                reserved: 0,
            };
            // SAFETY: as for `apply`; the operations outlive the call.
            unsafe { self.call(BATCH, &mut batch) }
                .map_err(|e| (before + batch.done as usize, e))?;
            before += part.len();
        }
        Ok(())
    }

    /// Makes the ring of events, a power of two of them.
    ///
    /// # Errors
    /// EBUSY if there is one, EINVAL for a number that cannot be, ENOMEM beyond RLIMIT_MEMLOCK.
    pub fn ring(&self, records: u32, watermark: u32, latency_us: u32) -> Result<(), Errno> {
        let mut ring = Ring {
            size: size_of::<Ring>() as u32,
            flags: 0,
            records,
            watermark,
            latency_us,
            reserved: 0,
        };
        // SAFETY: the structure that the call takes.
        unsafe { self.call(RING, &mut ring) }.map(drop)
    }

    /// How often what has happened since the device was opened.
    ///
    /// # Errors
    /// That of ioctl(2).
    pub fn counts(&self) -> Result<Counts, Errno> {
        let mut counts = Counts {
            size: size_of::<Counts>() as u32,
            ..Counts::default()
        };
        // SAFETY: the structure that the call fills.
        unsafe { self.call(COUNTS, &mut counts) }.map(|_| counts)
    }

    /// A new descriptor of the store.
    ///
    /// # Errors
    /// EMFILE if no descriptor is left.
    pub fn store(&self) -> Result<i32, Errno> {
        // SAFETY: makes a descriptor, which is the caller's.
        unsafe { sys!(__NR_ioctl, self.0, STORE) }.map(|fd| fd as i32)
    }

    /// # Safety
    /// `T` is what the call takes.
    unsafe fn call<T>(&self, number: u32, arg: &mut T) -> Result<u64, Errno> {
        // SAFETY: the caller's promise.
        unsafe { sys!(__NR_ioctl, self.0, number, arg as *mut T) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::string::String;
    use std::vec::Vec;

    /// The C compiler evaluates the header's names; ours are the same.
    #[test]
    fn the_header_says_the_same() {
        let ours: &[(&str, u64)] = &[
            ("ULPF_VERSION", VERSION.into()),
            ("ULPF_MAP_GUARD", MAP_GUARD),
            ("ULPF_MAP_ALIAS", MAP_ALIAS),
            ("ULPF_MAP_PLI", MAP_PLI),
            ("ULPF_MAP_RING", MAP_RING),
            ("ULPF_STORE_SIZE", STORE_SIZE),
            ("ULPF_RW", Permission::ReadWrite as u64),
            ("ULPF_RO", Permission::ReadOnly as u64),
            ("ULPF_EXE", Permission::Execute as u64),
            ("ULPF_NONE", Permission::None as u64),
            ("ULPF_FEATURE_READ", FEATURE_READ),
            ("ULPF_FEATURE_EXE", FEATURE_EXE),
            ("ULPF_FEATURE_PLI_LOOSEN", FEATURE_PLI_LOOSEN),
            ("ULPF_FEATURE_PLI_TIGHTEN", FEATURE_PLI_TIGHTEN),
            ("ULPF_FEATURE_ONCE", FEATURE_ONCE),
            ("ULPF_FEATURE_STACK", FEATURE_STACK),
            ("ULPF_FEATURE_KERNEL", FEATURE_KERNEL),
            ("ULPF_FEATURE_GUARD", FEATURE_GUARD),
            ("ULPF_FEATURE_STORE", FEATURE_STORE),
            ("ULPF_FEATURE_SIGSTACK", FEATURE_SIGSTACK),
            ("ULPF_FEATURE_EFAULT", FEATURE_EFAULT),
            ("ULPF_HANDLER_REPLACE", HANDLER_REPLACE.into()),
            ("ULPF_HANDLER_ONCE", HANDLER_ONCE.into()),
            ("ULPF_HANDLER_SIGSTACK", HANDLER_SIGSTACK.into()),
            ("ULPF_POLICY_EFAULT", POLICY_EFAULT.into()),
            ("ULPF_INFO_WRITE", INFO_WRITE),
            ("ULPF_INFO_FETCH", INFO_FETCH),
            ("ULPF_INFO_STACK", INFO_STACK),
            ("ULPF_OP_SET", OP_SET.into()),
            ("ULPF_OP_SYNC", OP_SYNC.into()),
            ("ULPF_OP_BIND", OP_BIND.into()),
            ("ULPF_OP_UNBIND", OP_UNBIND.into()),
            ("ULPF_EVENT_LOST", EVENT_LOST.into()),
            ("ULPF_EVENT_KERNEL_READ", EVENT_KERNEL_READ.into()),
            ("ULPF_EVENT_KERNEL_WRITE", EVENT_KERNEL_WRITE.into()),
            ("ULPF_EVENT_GUARD", EVENT_GUARD.into()),
            ("ULPF_EVENT_UNHANDLED", EVENT_UNHANDLED.into()),
            ("ULPF_EVENT_UNDELIVERED", EVENT_UNDELIVERED.into()),
            ("ULPF_QUERY", QUERY.into()),
            ("ULPF_HANDLER", HANDLER.into()),
            ("ULPF_STACK", STACK.into()),
            ("ULPF_APPLY", APPLY.into()),
            ("ULPF_BATCH", BATCH.into()),
            ("ULPF_RING", RING.into()),
            ("ULPF_COUNTS", COUNTS.into()),
            ("ULPF_POLICY", POLICY.into()),
            ("ULPF_STORE", STORE.into()),
            ("sizeof(struct ulpf_frame)", size_of::<Frame>() as u64),
            ("sizeof(struct ulpf_event)", size_of::<Event>() as u64),
            (
                "sizeof(struct ulpf_ring_header)",
                size_of::<RingHeader>() as u64,
            ),
        ];
        let folder = std::env::temp_dir().join(std::format!("ulpf-header-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let lines: String = ours
            .iter()
            .map(|(name, value)| {
                std::format!("_Static_assert({name} == {value}ULL, \"{name}\");\n")
            })
            .collect();
        let source = folder.join("header.c");
        std::fs::write(&source, std::format!("#include <ulpf.h>\n{lines}")).unwrap();
        let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernel/include/uapi");
        let said = Command::new("cc")
            .args(["-fsyntax-only", "-I", include])
            .arg(&source)
            .output();
        let _ = std::fs::remove_dir_all(&folder);
        let said = said.expect("a C compiler");
        assert!(
            said.status.success(),
            "{}",
            String::from_utf8_lossy(&said.stderr)
        );
    }

    #[test]
    fn what_is_not_there_is_said() {
        let missing = Device::open_at(c"/dev/ulpf-that-is-not", 0).unwrap_err();
        assert_eq!(missing, Unusable::Open(Errno(2)));
        assert!(missing.why().contains("not loaded"));
        let strange = Device::open_at(c"/dev/null", 0).unwrap_err();
        assert_eq!(strange, Unusable::Strange(Errno(25)));
        let all: Vec<Unusable> = [2, 13, 24, 5]
            .into_iter()
            .map(|e| Unusable::Open(Errno(e)))
            .collect();
        assert!(
            all.iter()
                .all(|u| !u.why().is_empty() && !u.what_to_do().is_empty())
        );
    }
}
