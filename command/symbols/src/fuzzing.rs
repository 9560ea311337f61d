//! Entry points of the symbols for the fuzz targets in fuzz/. Nothing else calls them.
#![forbid(unsafe_code)]

use crate::dwarf_types::Types;
use crate::maps::{self, Module, Program};
use crate::object::ObjectFile;
use crate::{Memory, ParsedWatch, Spec, demangle};
use std::path::Path;
use std::rc::Rc;
use ulpf_lib::mapping::Mapping;

/// Memory whose bytes are derived from their addresses. Some addresses are unreadable.
struct Odd;

impl Memory for Odd {
    fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
        for (at, byte) in (addr..).zip(buf.iter_mut()) {
            *byte = (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
        }
        addr & 0x8000 == 0
    }
    fn thread_pointer(&self) -> Option<u64> {
        Some(0x7fff_0000)
    }
}

/// A program consisting of this file, if the file could be mapped.
pub fn program(file: Vec<u8>) -> Option<Program> {
    let object = ObjectFile::parse(Path::new("/nowhere/file"), file).ok()?;
    let object = Rc::new(object);
    let module = Module {
        types: Types::new(object.clone()),
        object,
        bias: 0,
        code: vec![(0, u64::MAX)],
        is_executable: true,
    };
    let mut program = Program::default();
    program.modules.push(Rc::new(module));
    Some(program)
}

/// Resolves a user's watch in this program, and formats its values.
pub fn watch(program: &Program, text: &str) {
    let _ = ParsedWatch::parse(text);
    let Ok(spec) = Spec::parse(text) else { return };
    let Ok(places) = program.resolve(&spec, &Odd) else {
        return;
    };
    let watched = &places[0];
    let (value, len) = ([0xa5; 64], watched.len.min(64));
    for (offset, len) in [(0, watched.len), (0, len), (1, 4), (watched.len / 2, 8)] {
        if offset + len <= watched.len {
            let (mut text, part) = watched.part(offset, len);
            part.render(&value[..len.min(64) as usize], len, &mut text);
        }
    }
}

/// Makes every kind of query that a mapped file is subject to.
pub fn everything(file: Vec<u8>) {
    let Some(program) = program(file) else { return };
    let module = program.modules[0].clone();
    let object = &module.object;
    let symbols = object.symbols();
    let mut names: Vec<String> = vec!["main".into(), "heap".into()];
    for symbol in symbols.iter().take(32) {
        names.push(symbol.name.into());
        demangle(symbol.name);
        let _ = program.locate(symbol.addr);
        let _ = program.locate_caller(symbol.addr.wrapping_add(symbol.len));
        let _ = symbols.data_at(symbol.addr);
        let _ = symbols.extent_at(symbol.addr);
        let _ = object.tls_offset_of_executable(symbol.addr);
        object.code(symbol.addr, &mut [0; 64]);
    }
    for segment in object.segments.iter().take(8) {
        let _ = program.locate(segment.vaddr);
        object.code(segment.vaddr, &mut [0; 64]);
    }
    if let Some(index) = object.index() {
        let variables = index.variables().take(32);
        names.extend(variables.map(|v| v.name.to_string()));
    }
    for name in &names {
        let _ = program.function(name);
        for form in [
            name.clone(),
            format!("*{name}"),
            format!("{name}[0..2].x"),
            format!("{name}->next if $new > {name}"),
            format!("file.c:{name}"),
            format!("{name}:4 from {name}"),
        ] {
            watch(&program, &form);
        }
    }
}

/// A text like /proc/PID/maps in which all files are this one.
pub fn maps(text: &[u8], file: &[u8]) {
    let mut program = Program::default();
    let open = |m: &Mapping| ObjectFile::parse(maps::path(m), file.to_vec());
    program.refresh(text, Path::new("/bin/true"), open);
    program.refresh(text, Path::new("/bin/true"), open);
    for addr in [0, 0x401000, 0x5555_5555_5000, u64::MAX] {
        let _ = program.locate(addr);
        let _ = program.module_of_data(addr);
    }
    let _ = program.modules_named("libc").count();
}
