//! Loads the stub image into a stopped process and starts it there.
//!
//! ```text
//!   mmap, socketpair, memfd_create (injected) → write image → mprotect (injected) → ulpf_stub_boot on one thread
//!   → ulpf_stub_boot_thread on every other → registers back → detach with PARK_SIGNAL
//! ```
//! None of the program's memory is written to: the injected system calls use the `syscall` instruction of the vDSO. In
//! a sandbox that an earlier stub knows, they use that of the image ([`crate::confined`]).

use crate::address_space;
use crate::channel::Channel;
use crate::confined::Confined;
use crate::error::StartError;
use crate::gate::Gate;
use crate::image::{Image, PAGE, align_up};
use crate::keeper;
use crate::remains::Remains;
use crate::rseq;
use crate::tracee::{Memory, Tracee};
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::OnceLock;
use ulpf_host::cache::hot_folder;
use ulpf_host::{process, sys};
use ulpf_lib::boot::{
    AUXV_WORDS, BOOT_LAUNCHED, BOOT_MAGIC, BOOT_VERSION, BootArgs, CACHE_LEN, Home, PAD_LEN,
    PARK_SIGNAL,
};
use ulpf_lib::place;

/// Number of addresses that are tried for the image.
const ATTEMPTS: u64 = 64;
/// Distance of the addresses in a program whose addresses are not random.
const STEP: u64 = 64 << 20;

/// A running stub, and our ends of the connection.
#[derive(Debug)]
pub struct Loaded {
    pub stub_pid: i32,
    pub control: UnixStream,
    /// The file of the shared area, with its full length.
    pub shared: File,
    pub remains: Remains,
}

/// Loads the stub with all `threads` of `pid` stopped under ptrace, then releases them: they stop in the stub. On
/// failure the threads are as they were, and still stopped. `confined`: the only thread has seccomp filters that an
/// earlier stub knew.
pub fn load(
    pid: i32,
    threads: &mut [Tracee],
    image: &Image,
    flags: u32,
    confined: Option<&Confined>,
) -> Result<Loaded, StartError> {
    let memory =
        Memory::open(pid).map_err(|e| StartError::step("open the memory of the program", e))?;
    let registers = |e| StartError::step("read the registers of the program", e);
    for t in threads.iter_mut() {
        t.save().map_err(registers)?;
    }
    let first = threads.first().map(Tracee::home);
    let first = first.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()));
    let first = first.map_err(registers)?;
    // A program that `ulpf` has started ends with it.
    if flags & BOOT_LAUNCHED == 0 {
        keeper::begins(pid);
    }
    let result = Gate::find(pid, &memory, &first.regs)
        .map_err(|e| StartError::step("find a place for system calls in the program", e))
        .and_then(|gate| {
            let inside = match (confined, threads.first_mut()) {
                (Some(confined), Some(first)) => {
                    confined.enter(first, &memory, image, &gate).map(Some)
                }
                _ => Ok(None),
            };
            let result = inside.and_then(|inside| {
                let gate = inside.as_ref().unwrap_or(&gate);
                let areas = without_rseq(threads, &memory, gate).map_err(|e| {
                    StartError::step("take the areas of restartable sequences from the kernel", e)
                })?;
                let program = Program {
                    pid,
                    memory: &memory,
                    gate,
                };
                start(&program, threads, image, flags, confined, &areas)
            });
            gate.close(&memory)
                .map_err(|e| StartError::step("restore the code of the program", e))?;
            result
        });
    for t in threads.iter_mut() {
        match t.restore() {
            // A thread that was killed meanwhile has no registers.
            Err(e) if e.raw_os_error() != Some(libc::ESRCH) => {
                return Err(StartError::step("restore the registers of the program", e));
            }
            _ => {}
        }
        t.release_held(pid);
    }
    let loaded = result?;
    for t in threads.iter() {
        match t.detach(PARK_SIGNAL) {
            Err(e) if e.raw_os_error() != Some(libc::ESRCH) => {
                return Err(StartError::step("let go of the program", e));
            }
            _ => {}
        }
    }
    Ok(loaded)
}

fn without_rseq(threads: &mut [Tracee], memory: &Memory, gate: &Gate) -> io::Result<Vec<[u64; 3]>> {
    let unregister = |t| match rseq::unregister(t, memory, gate) {
        // The thread was killed meanwhile.
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok([0; 3]),
        result => result,
    };
    threads.iter_mut().map(unregister).collect()
}

/// The folder for hot accesses, unless the user has switched it off. Not for attached programs: their filters may not
/// expect these calls, and apply to the stub's task as well.
fn cache(flags: u32) -> [u8; CACHE_LEN] {
    static FOLDER: OnceLock<[u8; CACHE_LEN]> = OnceLock::new();
    if flags & BOOT_LAUNCHED == 0 {
        return [0; CACHE_LEN];
    }
    *FOLDER.get_or_init(|| padded(&hot_folder().unwrap_or_default()))
}

/// A path for the boot block, with zeros behind it; empty if there is no space for one.
fn padded<const N: usize>(path: &Path) -> [u8; N] {
    let name = path.as_os_str().as_bytes();
    let mut block = [0; N];
    if let Some(to) = block.get_mut(..name.len()).filter(|_| name.len() < N) {
        to.copy_from_slice(name);
    }
    block
}

/// The program's auxiliary vector for the boot block; empty if the kernel does not show it.
fn auxiliary_vector(pid: i32) -> [u64; AUXV_WORDS] {
    let vector = process::auxiliary_vector(pid).unwrap_or_default();
    let mut block = [0; AUXV_WORDS];
    for (to, word) in block.iter_mut().zip(vector.as_flattened()) {
        *to = *word;
    }
    block
}

/// The program that the stub is loaded into.
struct Program<'a> {
    pid: i32,
    memory: &'a Memory,
    gate: &'a Gate,
}

fn start(
    program: &Program,
    threads: &mut [Tracee],
    image: &Image,
    flags: u32,
    confined: Option<&Confined>,
    areas: &[[u64; 3]],
) -> Result<Loaded, StartError> {
    let &Program { pid, memory, gate } = program;
    let step = StartError::step;
    let (first, others) = threads
        .split_first_mut()
        .ok_or_else(|| step("find a thread", io::Error::from(io::ErrorKind::NotFound)))?;
    let random = address_space::random_bytes(pid, memory);
    let place = match confined {
        // The program has just started, so the place is free; and its filters may contain the address.
        Some(_) => place::base_for(random),
        None => address_space::base(pid, place::base_for(random)),
    };
    let images = place::of_images(place);
    let begin = address_space::widest_gap(pid, place::of_memory(place));
    let pad = pad(gate.vdso.as_ref(), memory);
    let home = first
        .home()
        .map_err(|e| step("read the registers of the program", e))?;
    let base = match confined {
        Some(confined) => confined.base,
        None => reserve(first, gate, image.len, images, random.is_some())?,
    };
    let unload = |t: &mut Tracee, error: StartError| -> StartError {
        let _ = t.syscall(gate, libc::SYS_munmap, [base, image.len, 0, 0, 0, 0]);
        error
    };
    let args_addr = base + image.args_offset;
    let mut args = BootArgs {
        magic: BOOT_MAGIC,
        version: BOOT_VERSION,
        flags,
        image_base: base,
        image_len: image.len,
        control_fd: -1,
        shared_fd: -1,
        stub_pid: 0,
        place,
        begin,
        pad,
        left: 0,
        left_len: 0,
        left_gate: 0,
        filters: 0,
        filters_len: 0,
        leaving: 0,
        held: 0,
        entering: 1,
        stays: 0,
        sequences: areas.first().copied().unwrap_or_default(),
        home: home.home(),
        cache: cache(flags),
        auxv: auxiliary_vector(pid),
        exe: padded(&process::executable(pid).unwrap_or_default()),
    };
    // If this process is killed, another one knows the image by its block.
    if let Err(e) = memory.write(args_addr, &args_bytes(&args)) {
        return Err(unload(first, step("copy the stub into the program", e)));
    }
    let channel = match Channel::open(pid, first, memory, gate, args_addr) {
        Ok(channel) => channel,
        Err(e) => return Err(unload(first, e)),
    };
    let unload = |t: &mut Tracee, error: StartError| -> StartError {
        channel.close_in_program(t, gate);
        unload(t, error)
    };
    let filters = match filters(first, memory, gate, place, confined) {
        Ok(filters) => filters,
        Err(e) => return Err(unload(first, step("copy its filters into the program", e))),
    };
    (args.control_fd, args.shared_fd) = (channel.theirs, channel.shared_fd);
    (args.filters, args.filters_len) = (filters.start, filters.end - filters.start);
    if let Err(e) =
        fill(memory, base, image).and_then(|()| memory.write(args_addr, &args_bytes(&args)))
    {
        return Err(unload(first, step("copy the stub into the program", e)));
    }
    for region in &image.regions {
        let call = [
            base + region.offset,
            region.len,
            region.prot as u64,
            0,
            0,
            0,
        ];
        match first.syscall(gate, libc::SYS_mprotect, call) {
            Ok(Ok(_)) => {}
            Ok(Err(errno)) => {
                let e = io::Error::from_raw_os_error(errno);
                return Err(unload(first, StartError::Protect { pid, source: e }));
            }
            Err(e) => return Err(step("protect the stub's memory", e)),
        }
    }
    let stack_top = base + image.stack_top;
    let result = first
        .call(base + image.boot, args_addr, stack_top)
        .map_err(|e| step("start the stub", e))?;
    if result < 0 {
        return Err(unload(
            first,
            StartError::Boot {
                pid,
                source: io::Error::from_raw_os_error(-result as i32),
            },
        ));
    }
    let mut stub_pid = [0; 4];
    memory
        .read(
            args_addr + offset_of!(BootArgs, stub_pid) as u64,
            &mut stub_pid,
        )
        .map_err(|e| step("read the stub's answer", e))?;
    let stub_pid = i32::from_le_bytes(stub_pid);
    let remains = Remains { args: args_addr };
    let field = |offset: usize| args_addr + offset as u64;
    let entering = |yes: u64| memory.write(field(offset_of!(BootArgs, entering)), &words(&[yes]));
    // (Before the next thread, since the block leads one home.)
    let leave = |t: &mut Tracee| match t.leave_call(pid, PARK_SIGNAL) {
        Err(e) if e.raw_os_error() != Some(libc::ESRCH) => Err(e),
        _ => entering(0),
    };
    let failed = |e| step("start the stub on every thread", e);
    // A program that `ulpf` has started ends with it.
    if flags & BOOT_LAUNCHED == 0 {
        keeper::note(pid, stub_pid, remains.args);
    }
    leave(first).map_err(failed)?;
    for (t, area) in others.iter_mut().zip(areas.iter().skip(1)) {
        t.home()
            .and_then(|saved| {
                memory.write(field(offset_of!(BootArgs, sequences)), &words(area))?;
                memory.write(
                    field(offset_of!(BootArgs, home)),
                    &home_bytes(&saved.home()),
                )?;
                entering(1)
            })
            .map_err(failed)?;
        match t.call(base + image.boot_thread, args_addr, stack_top) {
            Ok(result) if result >= 0 => {}
            Ok(errno) => {
                return Err(StartError::Boot {
                    pid,
                    source: io::Error::from_raw_os_error(-errno as i32),
                });
            }
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
            Err(e) => return Err(failed(e)),
        }
        leave(t).map_err(failed)?;
    }
    Ok(Loaded {
        stub_pid,
        control: channel.control,
        shared: channel.shared,
        remains,
    })
}

/// Memory with the filters for the stub; empty if it needs no filters.
fn filters(
    t: &mut Tracee,
    memory: &Memory,
    gate: &Gate,
    place: u64,
    confined: Option<&Confined>,
) -> io::Result<Range<u64>> {
    let Some(confined) = confined else {
        return Ok(0..0);
    };
    let bytes = confined.bytes();
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let hint = place::of_memory(place).end - align_up(bytes.len() as u64);
    let call = [hint, bytes.len() as u64, prot, flags, u64::MAX, 0];
    let at = t
        .syscall(gate, libc::SYS_mmap, call)?
        .map_err(io::Error::from_raw_os_error)?;
    memory.write(at, &bytes)?;
    Ok(at..at + bytes.len() as u64)
}

/// Writes the image into new memory, which is zero.
fn fill(memory: &Memory, base: u64, image: &Image) -> io::Result<()> {
    let mut pieces = image.relocated(base);
    pieces.try_for_each(|(offset, data)| memory.write(base + offset, &data))
}

/// Address of the end of the vDSO's last page, if it is unused ([`BootArgs::pad`]).
fn pad(vdso: Option<&Range<u64>>, memory: &Memory) -> u64 {
    let Some(vdso) = vdso else {
        return 0;
    };
    // Code that ends with zeros may need a few of them.
    let mut end = [0; 2 * PAD_LEN as usize];
    let at = vdso.end - end.len() as u64;
    match memory.read(at, &mut end) {
        Ok(()) if end.iter().all(|b| *b == 0) => vdso.end - PAD_LEN,
        _ => 0,
    }
}

/// Reserves memory for the image, at a random address unless the program's own addresses are not random.
fn reserve(
    t: &mut Tracee,
    gate: &Gate,
    len: u64,
    images: Range<u64>,
    random: bool,
) -> Result<u64, StartError> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mut last = 0;
    // An earlier stub's image may be there, if it could not be removed.
    let places = (images.end - images.start - len) / PAGE;
    let hints = (0..ATTEMPTS).map(|n| match random {
        true => images.start + sys::random() % places * PAGE,
        false => images.start + n * STEP,
    });
    let hints = hints.map(|hint| (hint, libc::MAP_FIXED_NOREPLACE));
    for (hint, extra) in hints.chain([(0, 0)]) {
        let call = [hint, len, prot, (flags | extra) as u64, u64::MAX, 0];
        match t
            .syscall(gate, libc::SYS_mmap, call)
            .map_err(|e| StartError::step("map memory in the program", e))?
        {
            // Kernels before 4.17 take MAP_FIXED_NOREPLACE for a hint, which is as good.
            Ok(base) => return Ok(base),
            Err(errno) => last = errno,
        }
    }
    Err(StartError::NoMemory {
        bytes: len,
        source: io::Error::from_raw_os_error(last),
    })
}

/// The words in memory order.
fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn home_bytes(home: &Home) -> Vec<u8> {
    [&words(&home.gprs)[..], &home.fx].concat()
}

/// The block in memory order.
fn args_bytes(args: &BootArgs) -> [u8; size_of::<BootArgs>()] {
    let mut bytes = [0; size_of::<BootArgs>()];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(offset_of!(BootArgs, magic), &args.magic.to_ne_bytes());
    put(offset_of!(BootArgs, version), &args.version.to_ne_bytes());
    put(offset_of!(BootArgs, flags), &args.flags.to_ne_bytes());
    put(
        offset_of!(BootArgs, image_base),
        &args.image_base.to_ne_bytes(),
    );
    put(
        offset_of!(BootArgs, image_len),
        &args.image_len.to_ne_bytes(),
    );
    put(
        offset_of!(BootArgs, control_fd),
        &args.control_fd.to_ne_bytes(),
    );
    put(
        offset_of!(BootArgs, shared_fd),
        &args.shared_fd.to_ne_bytes(),
    );
    put(offset_of!(BootArgs, place), &args.place.to_ne_bytes());
    put(offset_of!(BootArgs, sequences), &words(&args.sequences));
    put(offset_of!(BootArgs, home), &home_bytes(&args.home));
    put(offset_of!(BootArgs, entering), &args.entering.to_ne_bytes());
    put(offset_of!(BootArgs, cache), &args.cache);
    put(offset_of!(BootArgs, auxv), &words(&args.auxv));
    put(offset_of!(BootArgs, exe), &args.exe);
    put(offset_of!(BootArgs, begin), &args.begin.to_ne_bytes());
    put(offset_of!(BootArgs, pad), &args.pad.to_ne_bytes());
    put(offset_of!(BootArgs, filters), &args.filters.to_ne_bytes());
    put(
        offset_of!(BootArgs, filters_len),
        &args.filters_len.to_ne_bytes(),
    );
    bytes
}
