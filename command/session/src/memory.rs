//! A program's memory, for resolving names, and its auxiliary vector.

use std::cell::{OnceCell, RefCell};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use ulpf_host::apart::Apart;
use ulpf_symbols::Memory;

/// A process's memory, by `/proc/PID/mem`.
pub struct ProcessMemory {
    mem: File,
    thread_pointer: Option<u64>,
}

impl ProcessMemory {
    /// `thread_pointer`: of the thread whose thread-local variables are read.
    pub fn of(pid: i32, thread_pointer: Option<u64>) -> io::Result<ProcessMemory> {
        Ok(ProcessMemory {
            mem: File::open(format!("/proc/{pid}/mem"))?,
            thread_pointer,
        })
    }

    /// A word, or `None` if it cannot be read.
    pub fn read_u64(&self, addr: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(addr, &mut bytes)
            .then_some(u64::from_le_bytes(bytes))
    }
}

impl Memory for ProcessMemory {
    fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
        self.mem.read_exact_at(buf, addr).is_ok()
    }
    fn thread_pointer(&self) -> Option<u64> {
        self.thread_pointer
    }
}

/// A running program's memory, opened on first use because Yama may forbid it. A separate process reads it: if a file
/// system of the program's hangs, reads fail and this process does not hang.
pub struct LazyMemory(i32, OnceCell<Option<RefCell<Apart>>>);

impl LazyMemory {
    /// Opens nothing yet.
    pub fn of(pid: i32) -> LazyMemory {
        LazyMemory(pid, OnceCell::new())
    }

    fn open(&self) -> Option<RefCell<Apart>> {
        let memory = File::open(format!("/proc/{}/mem", self.0)).ok()?;
        Some(RefCell::new(Apart::new(&memory).ok()?))
    }
}

impl Memory for LazyMemory {
    fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
        let memory = self.1.get_or_init(|| self.open()).as_ref();
        let read = memory.map(|m| m.borrow_mut().read_at(addr, buf));
        read.is_some_and(|n| n.is_ok_and(|n| n == buf.len()))
    }
    fn thread_pointer(&self) -> Option<u64> {
        None
    }
}

const AT_PHDR: u64 = 3;
const AT_PHENT: u64 = 4;
const AT_PHNUM: u64 = 5;
const AT_ENTRY: u64 = 9;

/// The auxiliary vector of the program (`/proc/PID/auxv`).
pub struct Auxv(Vec<(u64, u64)>);

impl Auxv {
    /// Reads the vector of a process.
    pub fn of(pid: i32) -> io::Result<Auxv> {
        Ok(Auxv::parse(&std::fs::read(format!("/proc/{pid}/auxv"))?))
    }

    fn parse(bytes: &[u8]) -> Auxv {
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|c| u64::from_le_bytes(c.try_into().unwrap_or_default()))
            .collect();
        Auxv(
            words
                .chunks_exact(2)
                .map(|p| (p[0], p[1]))
                .take_while(|(key, _)| *key != 0)
                .collect(),
        )
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0
            .iter()
            .find(|(k, _)| *k == key)
            .map(|(_, value)| *value)
    }

    /// The executable's entry point in memory.
    pub fn entry(&self) -> Option<u64> {
        self.get(AT_ENTRY)
    }

    /// The address that ld.so calls after it has changed the list of loaded libraries (`r_debug.r_brk`, see
    /// `<link.h>`), and the address of the state word. `None` without a dynamic linker.
    pub fn library_event(&self, memory: &ProcessMemory) -> Option<(u64, u64)> {
        const PT_DYNAMIC: u64 = 2;
        const PT_PHDR: u64 = 6;
        const DT_DEBUG: u64 = 21;
        let (table, size, count) = (self.get(AT_PHDR)?, self.get(AT_PHENT)?, self.get(AT_PHNUM)?);
        let headers: Vec<(u64, u64)> = (0..count.min(256))
            .filter_map(|i| {
                let at = table + i * size;
                Some((
                    memory.read_u64(at)? & 0xffff_ffff,
                    memory.read_u64(at + 16)?,
                ))
            })
            .collect();
        let linked_at = headers
            .iter()
            .find(|h| h.0 == PT_PHDR)
            .map_or(table, |h| h.1);
        let bias = table.wrapping_sub(linked_at);
        let dynamic = headers
            .iter()
            .find(|h| h.0 == PT_DYNAMIC)?
            .1
            .wrapping_add(bias);
        for i in 0..512 {
            let (tag, value) = (
                memory.read_u64(dynamic + 16 * i)?,
                memory.read_u64(dynamic + 16 * i + 8)?,
            );
            match tag {
                0 => return None,
                DT_DEBUG if value != 0 => return Some((memory.read_u64(value + 16)?, value + 24)),
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_auxv_and_memory() {
        let pid = std::process::id() as i32;
        let auxv = Auxv::of(pid).unwrap();
        let memory = ProcessMemory::of(pid, None).unwrap();
        let entry = auxv.entry().unwrap();
        let mut code = [0; 4];
        assert!(memory.read(entry, &mut code));
        assert!(!memory.read(8, &mut code));
        let (breakpoint, state) = auxv.library_event(&memory).unwrap();
        assert!(memory.read_u64(breakpoint).is_some());
        assert_eq!(
            memory.read_u64(state).unwrap() & 0xffff_ffff,
            0,
            "the list is consistent"
        );
        assert!(Auxv::parse(&[0; 16]).entry().is_none());
    }
}
