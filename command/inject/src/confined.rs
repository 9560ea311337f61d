//! Children and new programs of a thread with seccomp filters. Its stub has prefixed the filters with instructions
//! that exempt calls from the stub's own image (`ulpf_lib::seccomp::exempting`), and the kernel keeps them through fork
//! and exec. So the new stub's image must be at the old one's address, and injected calls are made from there.
//! ```text
//!  forked child   the old image is still there                     its `syscall` instruction
//!  after exec     one mmap that the filters decide about, for      a `syscall` instruction, written there through
//!                 memory that may be read and executed             /proc/PID/mem: from here on all pass
//! ```
//! The new stub receives the filters from us (`BootArgs::filters`), because it runs them on the program's calls.
//!
//! The old stub's list is in the program's memory, so the program may have written it. It is bounded and compared with
//! the kernel's ([`Confined::by_the_kernel`]): a filter that the kernel does not have is given to no stub. If the
//! kernel shows no filters (ulpf is not root), their number is compared, and the list is passed only to a program of
//! the same rights.
#![forbid(unsafe_code)]

use crate::error::StartError;
use crate::gate::Gate;
use crate::image::{Image, PAGE, SYSCALL, stub_image};
use crate::remains::Remains;
use crate::sandbox;
use crate::tracee::{Memory, Tracee};
use std::io;
use std::mem::offset_of;
use ulpf_host::process::Status;
use ulpf_lib::boot::BootArgs;
use ulpf_lib::seccomp::{
    Data, Instruction, Kept, PREFIX, Verdict, X86_64, exempting, run, strictest,
};

/// The kernel's limit for one thread; each filter counts as four instructions more (MAX_INSNS_PER_PATH).
const MOST_INSTRUCTIONS: usize = 32768;
const INSTRUCTION: usize = size_of::<Instruction>();

/// A stub's record of a thread's filters, and the base of the image that they exempt.
#[derive(Debug)]
pub struct Confined {
    pub base: u64,
    /// Oldest first.
    filters: Vec<Filter>,
    /// The exempt image is mapped there.
    pub image_stays: bool,
}

#[derive(Debug)]
struct Filter {
    /// The stub's record, with the instructions after it.
    bytes: Vec<u8>,
    program: Vec<Instruction>,
}

impl Confined {
    /// The filters of a thread that waits in its stub before exec, or of a forked child in its copy of its parent's
    /// stub. `None` if it has none.
    ///
    /// # Errors
    /// Its memory cannot be read, or it contains no list that a stub would have made.
    pub fn of(pid: i32, remains: Remains) -> io::Result<Option<Confined>> {
        let memory = Memory::open(pid)?;
        let mut at = word(&memory, remains.args + offset_of!(BootArgs, leaving) as u64)?;
        let mut filters = Vec::new();
        let mut all = 0;
        while at != 0 {
            let field = |offset: usize| word(&memory, at.wrapping_add(offset as u64));
            let len = field(offset_of!(Kept, len))?;
            let parent = field(offset_of!(Kept, parent))?;
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            all += len.min(MOST_INSTRUCTIONS) + PREFIX;
            if all > MOST_INSTRUCTIONS {
                return Err(io::Error::from(io::ErrorKind::InvalidData));
            }
            let mut bytes = vec![0; size_of::<Kept>() + (PREFIX + len) * INSTRUCTION];
            memory.read(at, &mut bytes)?;
            let own = bytes.get(size_of::<Kept>() + PREFIX * INSTRUCTION..);
            let (own, _) = own.unwrap_or(&[]).as_chunks::<INSTRUCTION>();
            let program = own.iter().map(instruction).collect();
            filters.push(Filter { bytes, program });
            at = parent;
        }
        filters.reverse();
        let image = stub_image().map_err(io::Error::other)?;
        Ok((!filters.is_empty()).then_some(Confined {
            base: remains.args - image.args_offset,
            filters,
            image_stays: false,
        }))
    }

    /// The filters of a stopped thread, checked with the kernel; `claimed` is the old stub's list. With `gains`, the
    /// thread has more rights than that stub, and only the kernel's answer counts.
    ///
    /// # Errors
    /// The kernel has fewer filters than the list, or does not show those of a thread that has gained rights.
    pub fn by_the_kernel(
        thread: &Tracee,
        remains: Remains,
        claimed: Option<Confined>,
        gains: bool,
    ) -> io::Result<Option<Confined>> {
        let installed = Status::of(thread.tid)?.seccomp_filters() as usize;
        if installed == 0 && claimed.is_none() {
            return Ok(None);
        }
        let Some(shown) = sandbox::filters(thread) else {
            let number = claimed.as_ref().map_or(0, |claimed| claimed.filters.len());
            return match gains || number > installed {
                true => Err(io::Error::from(io::ErrorKind::PermissionDenied)),
                false => Ok(claimed),
            };
        };
        let image = stub_image().map_err(io::Error::other)?;
        let base = remains.args - image.args_offset;
        let claimed = claimed.map(|claimed| claimed.filters).unwrap_or_default();
        let nature = |program: &[Instruction]| {
            let same = claimed.iter().find(|filter| filter.program == program);
            same.map_or(0, Filter::nature)
        };
        let behind = |all: &Vec<Instruction>| {
            let (prefix, program) = all.split_first_chunk::<PREFIX>()?;
            let ours = is_exempting(prefix, base, base + image.len);
            ours.then(|| Filter::new(prefix, program, nature(program)))
        };
        let filters: Vec<Filter> = shown.iter().filter_map(behind).collect();
        Ok((!filters.is_empty()).then_some(Confined {
            base,
            filters,
            image_stays: false,
        }))
    }

    /// Makes the forked child leave the image where it is.
    pub fn keep_image(&mut self, pid: i32, remains: Remains) -> io::Result<()> {
        let at = remains.args + offset_of!(BootArgs, stays) as u64;
        Memory::open(pid)?.write(at, &1u64.to_le_bytes())?;
        self.image_stays = true;
        Ok(())
    }

    /// The filters for a new stub ([`BootArgs::filters`]).
    pub fn bytes(&self) -> Vec<u8> {
        self.filters
            .iter()
            .flat_map(|f| f.bytes.iter().copied())
            .collect()
    }

    /// Whether this call, made by the instruction at `gate`, passes.
    fn permits(&self, gate: u64, number: i64, args: [u64; 6]) -> bool {
        let data = Data {
            nr: number as i32,
            arch: X86_64,
            instruction_pointer: gate + SYSCALL.len() as u64,
            args,
        };
        let values = self.filters.iter().rev().map(|f| run(&f.program, &data));
        Verdict::of(strictest(values)) == Verdict::Allow
    }

    /// Maps memory for the image, empty except for a `syscall` instruction, which the filters exempt; that is the
    /// returned gate. The program can read and execute the memory, and we write the rest through the process's memory
    /// file.
    pub fn enter(
        &self,
        t: &mut Tracee,
        memory: &Memory,
        image: &Image,
        gate: &Gate,
    ) -> Result<Gate, StartError> {
        const WHAT: &str = "map memory in the program";
        let step = |e| StartError::step(WHAT, e);
        let inside = self.base + image.gate;
        let end = self.base + image.len;
        let prot = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let mut map = |gate: u64, from: u64, to: u64, how: i32| {
            let call = [from, to - from, prot, anonymous | how as u64, u64::MAX, 0];
            if gate != inside && !self.permits(gate, libc::SYS_mmap, call) {
                return Err(StartError::Confined);
            }
            let made = t.syscall(&Gate::at(gate), libc::SYS_mmap, call);
            match made.map_err(step)? {
                Ok(at) if at == from => Ok(()),
                Ok(_) => Err(step(io::Error::from_raw_os_error(libc::EEXIST))),
                Err(errno) => Err(step(io::Error::from_raw_os_error(errno))),
            }
        };
        if self.image_stays {
            // The old gate stays, and the memory around it is mapped again.
            let page = inside / PAGE * PAGE;
            // The instruction may cross a page boundary.
            let behind = (inside + SYSCALL.len() as u64).next_multiple_of(PAGE);
            for (from, to) in [(self.base, page), (behind, end)] {
                if from < to {
                    map(inside, from, to, libc::MAP_FIXED)?;
                }
            }
        } else {
            map(gate.addr, self.base, end, libc::MAP_FIXED_NOREPLACE)?;
            memory.write(inside, &SYSCALL).map_err(step)?;
        }
        // The part without a segment: the boot block and the boot stack.
        let rest = self.base + image.args_offset;
        let writable = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        t.syscall(
            &Gate::at(inside),
            libc::SYS_mprotect,
            [rest, end - rest, writable, 0, 0, 0],
        )
        .map_err(step)?
        .map_err(|errno| step(io::Error::from_raw_os_error(errno)))?;
        Ok(gate.moved(inside))
    }
}

impl Filter {
    fn new(prefix: &[Instruction; PREFIX], program: &[Instruction], nature: u64) -> Filter {
        let head = [0, program.len() as u64, nature];
        let head = head.iter().flat_map(|word| word.to_le_bytes());
        let code = prefix.iter().chain(program).flat_map(bytes_of);
        Filter {
            bytes: head.chain(code).collect(),
            program: program.to_vec(),
        }
    }

    /// The field [`Kept::nature`].
    fn nature(&self) -> u64 {
        let bytes = self.bytes.get(offset_of!(Kept, nature)..);
        let bytes = bytes.and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

/// Whether these instructions exempt the image at that range ([`exempting`]). The stub chooses the address of the one
/// call that is not exempt.
fn is_exempting(prefix: &[Instruction; PREFIX], start: u64, end: u64) -> bool {
    let judged = u64::from(prefix[1].k) << 32 | u64::from(prefix[3].k);
    *prefix == exempting(start, end, judged)
}

fn bytes_of(instruction: &Instruction) -> [u8; INSTRUCTION] {
    let &Instruction { code, jt, jf, k } = instruction;
    let ([c0, c1], [k0, k1, k2, k3]) = (code.to_le_bytes(), k.to_le_bytes());
    [c0, c1, jt, jf, k0, k1, k2, k3]
}

fn instruction(bytes: &[u8; INSTRUCTION]) -> Instruction {
    let [c0, c1, jt, jf, k @ ..] = *bytes;
    Instruction {
        code: u16::from_le_bytes([c0, c1]),
        jt,
        jf,
        k: u32::from_le_bytes(k),
    }
}

fn word(memory: &Memory, at: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    memory.read(at, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A filter as a stub keeps it; the prefix before the program's instructions is not checked here.
    fn kept(parent: u64, own: &[(u16, u32)]) -> Vec<u64> {
        let instructions = vec![0; PREFIX];
        let own = own
            .iter()
            .map(|&(code, k)| u64::from(code) | u64::from(k) << 32);
        let head = [parent, own.len() as u64, 0];
        head.into_iter().chain(instructions).chain(own).collect()
    }

    fn of(newest: u64) -> io::Result<Option<Confined>> {
        let mut block = [0u64; size_of::<BootArgs>() / 8];
        block[offset_of!(BootArgs, leaving) / 8] = newest;
        let args = block.as_ptr() as u64;
        crate::provide(ulpf_image::STUB);
        let image = stub_image().unwrap();
        // The base is computed as a difference.
        let lowest = args >= image.args_offset;
        assert!(lowest);
        Confined::of(std::process::id() as i32, Remains { args })
    }

    const RETURN: u16 = 6;
    const LOAD: u16 = 0x20;
    const ALLOW: u32 = 0x7fff_0000;

    #[test]
    fn the_oldest_comes_first_and_all_decide() {
        let oldest = kept(0, &[(RETURN, ALLOW)]);
        let newest = kept(oldest.as_ptr() as u64, &[(LOAD, 0), (RETURN, 0x0005_0001)]);
        let confined = of(newest.as_ptr() as u64).unwrap().unwrap();
        assert!(!confined.permits(0x1000, libc::SYS_mmap, [0; 6]));
        let words: Vec<u64> = confined
            .bytes()
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        assert_eq!(words, [oldest.clone(), newest].concat());
        let confined = of(oldest.as_ptr() as u64).unwrap().unwrap();
        assert!(confined.permits(0x1000, libc::SYS_mmap, [0; 6]));
        assert!(of(0).unwrap().is_none());
    }

    #[test]
    fn filters_of_the_kernel_are_kept_as_a_stub_keeps_them() {
        let allow = Instruction {
            code: RETURN,
            jt: 0,
            jf: 0,
            k: ALLOW,
        };
        let (start, end) = (0x7e80_0000_0000, 0x7e80_0010_0000);
        let prefix = exempting(start, end, start + 0x2002);
        assert!(is_exempting(&prefix, start, end));
        assert!(!is_exempting(&prefix, start + PAGE, end));
        let mut others = prefix;
        others[16] = Instruction {
            k: 0x0005_0000,
            ..allow
        };
        assert!(!is_exempting(&others, start, end));
        let filter = Filter::new(&prefix, &[allow], Kept::HEARD);
        assert_eq!(filter.nature(), Kept::HEARD);
        let expected = kept(0, &[(RETURN, ALLOW)]);
        assert_eq!(filter.bytes.len(), 8 * expected.len());
        let instructions = 8 * 3 + 8 * PREFIX;
        let own = expected.iter().flat_map(|word| word.to_le_bytes());
        assert!(
            own.skip(instructions)
                .eq(filter.bytes[instructions..].iter().copied())
        );
    }

    #[test]
    fn a_list_without_end_or_in_no_memory_is_refused() {
        let mut round = kept(0, &[(RETURN, ALLOW)]);
        round[0] = round.as_ptr() as u64;
        assert!(of(round.as_ptr() as u64).is_err());
        let mut long = kept(0, &[(RETURN, ALLOW)]);
        for len in [MOST_INSTRUCTIONS as u64, u64::MAX, 1 << 40] {
            long[1] = len;
            assert!(of(long.as_ptr() as u64).is_err());
        }
        assert!(of(8).is_err());
    }
}
