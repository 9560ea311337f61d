//! The unwind tables of the program's files, for backtraces in the log (`ulpf_stub_handlers::unwind`), and for naming
//! the program's own call of a library's function. Not before some watch logs or records: copies take memory, of a C library
//! some hundred kilobytes.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use framehop::{ExplicitModuleSectionInfo, Module, Unwinder};
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::guard::PROT_EXEC;
use ulpf_lib::guard::maps::Snapshot;

use super::Control;
use super::allocator;
use super::functions::Object;
use super::text;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_tables::attributes::Attributes;
use ulpf_stub_tables::code::{Code, File};

/// Tables larger than that are not read.
const MOST: u64 = 256 << 20;

impl Control {
    /// Before the program goes on: loads tables if some watch needs callers and no table is loaded.
    pub fn prepare_backtraces(&mut self) {
        let by_caller =
            |a: &Attributes| a.filter.as_ref().is_some_and(|f| f.filter.caller.is_some());
        let wanted = || {
            let mut all = g().watches().attributes.all();
            all.any(|a| a.backtrace > 0 || by_caller(a))
        };
        let stopped = self.world.stopped();
        // (A debugger's watch stops, and the user sees the callers at the stop.)
        let named = || {
            let mut all = g().watches().attributes.all();
            all.any(|a| a.log && !a.stop || a.writers)
        };
        // (A store by the allocator is not a hit of a watch that follows pointers.)
        let follows = ulpf_stub_handlers::paths::some();
        if stopped.tables().code.is_none() && (wanted() || named() || follows) {
            load(stopped, None);
        }
    }

    /// The mappings of `[start, end)` are about to change.
    pub fn forget_code(&mut self, start: u64, end: u64) {
        let Some(code) = self.world.stopped().tables_mut().code.as_deref_mut() else {
            return;
        };
        if !code.files.iter().any(|f| f.meets(start, end)) {
            return;
        }
        for file in code.files.iter().filter(|f| f.meets(start, end)) {
            code.tables.remove_module(file.start);
        }
        code.files.retain(|f| !f.meets(start, end));
        code.executable.retain(|r| r.0 >= end || start >= r.1);
        code.sort();
        code.unknown.clear();
        code.forgotten = true;
    }

    /// A change of mappings is over. It may have left, or never touched, code that was forgotten before: a call names a
    /// wider range than it changes (shmdt(2)), gives code other rights, or fails.
    pub fn remember_code(&mut self) {
        let stopped = self.world.stopped();
        let code = stopped.tables_mut().code.as_deref_mut();
        if code.is_some_and(|code| mem::take(&mut code.forgotten)) {
            load(stopped, None);
        }
    }
}

/// Reads the mapped code: at first, when a file was mapped since, or when a thread has met unknown code at `missed`.
pub fn load(stopped: &mut Stopped, missed: Option<u64>) {
    let Ok(maps) = Snapshot::read() else { return };
    let code = stopped
        .tables_mut()
        .code
        .get_or_insert_with(|| Box::new(Code::new()));
    let executable = maps.vmas.iter().filter(|v| v.prot & PROT_EXEC != 0);
    code.executable = executable.map(|v| (v.start, v.end)).collect();
    for (n, vma) in maps.vmas.iter().enumerate() {
        let known = |f: &File| f.meets(vma.start, vma.end);
        if vma.prot & PROT_EXEC == 0 || code.files.iter().any(known) {
            continue;
        }
        let Some(object) = Object::at(n, &maps) else {
            continue;
        };
        // Its code may be in several pieces.
        if let Some(file) = code.files.iter_mut().find(|f| f.start == object.start) {
            file.code.1 = file.code.1.max(vma.end);
        } else if let Some(module) = module(&object) {
            code.files.push(File {
                start: object.start,
                code: (vma.start, vma.end),
                runtime: object.is_runtime(),
                allocator: allocator::functions(&object),
            });
            code.tables.add_module(module);
        }
    }
    code.sort();
    if let Some(page) = missed.map(|at| at / PAGE_SIZE)
        && let Err(n) = code.unknown.binary_search(&page)
    {
        // If it is code after all, it is in `executable` now, which is searched first.
        code.unknown.insert(n, page);
    }
}

/// The unwind table `[start, end)` belongs to a file without a header for it.
pub fn add_table(stopped: &mut Stopped, (start, end): (u64, u64), maps: &Snapshot) {
    let at = maps.index(start);
    let Some(object) = Object::at(at, maps) else {
        return;
    };
    let Some(code) = stopped.tables_mut().code.as_deref_mut() else {
        return;
    };
    let mut own = maps
        .vmas
        .iter()
        .filter(|v| v.prot & PROT_EXEC != 0 && object.start <= v.start && v.end <= object.end);
    let Some(first) = own.next() else { return };
    let last = own.next_back().unwrap_or(first);
    if code.files.iter().any(|f| f.start == object.start) {
        return;
    }
    let bias = object.bias;
    let sections = ExplicitModuleSectionInfo {
        eh_frame_svma: Some(start.wrapping_sub(bias)..end.wrapping_sub(bias)),
        eh_frame: copy(start, end),
        ..Default::default()
    };
    code.tables.add_module(Module::new(
        String::new(),
        object.start..object.end,
        bias,
        sections,
    ));
    code.files.push(File {
        start: object.start,
        code: (first.start, last.end),
        runtime: false,
        allocator: Vec::new(),
    });
    code.sort();
}

fn copy(start: u64, end: u64) -> Option<Vec<u8>> {
    let len = end.checked_sub(start).filter(|len| *len <= MOST)?;
    let mut bytes = vec![0; len as usize];
    (text::read(start, &mut bytes) == bytes.len()).then_some(bytes)
}

fn module(object: &Object) -> Option<Module<Vec<u8>>> {
    let (header, frames) = (object.unwind_header()?, object.frames()?);
    let bias = object.bias;
    let own = |r: &(u64, u64)| r.0.wrapping_sub(bias)..r.1.wrapping_sub(bias);
    let sections = ExplicitModuleSectionInfo {
        eh_frame_hdr_svma: Some(own(&header)),
        eh_frame_hdr: Some(copy(header.0, header.1)?),
        eh_frame_svma: Some(own(&frames)),
        eh_frame: Some(copy(frames.0, frames.1)?),
        ..Default::default()
    };
    Some(Module::new(
        String::new(),
        object.start..object.end,
        bias,
        sections,
    ))
}
