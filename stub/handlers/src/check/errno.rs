//! The program's errno, for calls of its allocator that fail here.
//!
//! A function of three instructions in the C library, `__errno_location`, returns its address. The stub's task reads
//! the function when the library is mapped. The word that the first form refers to is relocated later.
//! ```text
//!  glibc          mov WORD(%rip),%rax    add %fs:0,%rax       ret
//!  glibc, static  mov $OFFSET,%rax       add %fs:0,%rax       ret
//!  musl           mov %fs:0,%rax         add $OFFSET,%rax     ret
//! ```

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_lib::sys;

use crate::runtime::memory;

/// Bytes of the function, at most.
pub const CODE: usize = 24;

/// Address of the word that has the offset of errno from the thread pointer, or 0.
static WORD: AtomicU64 = AtomicU64::new(0);
/// That offset itself, or 0.
static OFFSET: AtomicI64 = AtomicI64::new(0);

/// Reads the offset from the function with this code that begins at `at`. Called by the stub's task with the world
/// stopped.
pub fn learn(at: u64, code: &[u8]) {
    const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    let (at, code) = match code.strip_prefix(ENDBR64) {
        Some(rest) => (at + ENDBR64.len() as u64, rest),
        None => (at, code),
    };
    match form(at, code) {
        Some(Form::Word(at)) => WORD.store(at, Relaxed),
        Some(Form::Offset(offset)) => OFFSET.store(offset, Relaxed),
        None => {}
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Form {
    Word(u64),
    Offset(i64),
}

fn form(at: u64, code: &[u8]) -> Option<Form> {
    const ADD_FS: &[u8] = &[0x64, 0x48, 0x03, 0x04, 0x25, 0, 0, 0, 0, 0xc3];
    const MOV_FS: &[u8] = &[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0];
    const RET: u8 = 0xc3;
    let number = |bytes: &[u8; 4]| i64::from(i32::from_le_bytes(*bytes));
    if let Some(rest) = code.strip_prefix(MOV_FS) {
        return match *rest {
            [0x48, 0x83, 0xc0, byte, RET, ..] => Some(Form::Offset(i64::from(byte as i8))),
            [0x48, 0x05, a, b, c, d, RET, ..] => Some(Form::Offset(number(&[a, b, c, d]))),
            _ => None,
        };
    }
    let [0x48, opcode, operand, a, b, c, d, rest @ ..] = code else {
        return None;
    };
    let value = number(&[*a, *b, *c, *d]);
    match (opcode, operand, rest.starts_with(ADD_FS)) {
        (0x8b, 0x05, true) => Some(Form::Word(at.wrapping_add(7).wrapping_add_signed(value))),
        (0xc7, 0xc0, true) => Some(Form::Offset(value)),
        _ => None,
    }
}

/// Sets errno of the calling thread of the program.
pub fn set(error: u32) {
    let offset = match (WORD.load(Relaxed), OFFSET.load(Relaxed)) {
        (0, 0) => return,
        (0, offset) => offset,
        (word, _) => memory::get::<i64>(word).unwrap_or(0),
    };
    let tp = thread_pointer();
    if offset != 0 && tp != 0 {
        memory::put(tp.wrapping_add_signed(offset), &error);
    }
}

/// Asks the kernel: our image does not use fs.
fn thread_pointer() -> u64 {
    const ARCH_GET_FS: u64 = 0x1003;
    let mut tp = 0u64;
    // SAFETY: the kernel writes eight bytes.
    let _ = unsafe { sys!(k::__NR_arch_prctl, ARCH_GET_FS, &raw mut tp) };
    tp
}

#[cfg(test)]
mod tests {
    use super::*;

    const GLIBC: [u8; 17] = [
        0x48, 0x8b, 0x05, 0x79, 0xb7, 0x1a, 0, 0x64, 0x48, 0x03, 0x04, 0x25, 0, 0, 0, 0, 0xc3,
    ];

    #[test]
    fn forms_of_c_libraries() {
        assert_eq!(form(0x27660, &GLIBC), Some(Form::Word(0x1d2de0)));
        let mut fixed = GLIBC;
        fixed[..7].copy_from_slice(&[0x48, 0xc7, 0xc0, 0xc0, 0xff, 0xff, 0xff]);
        assert_eq!(form(0x403c70, &fixed), Some(Form::Offset(-64)));
        let musl = [
            0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0, 0x48, 0x83, 0xc0, 0x34, 0xc3,
        ];
        assert_eq!(form(0x1b3c0, &musl), Some(Form::Offset(0x34)));
        assert_eq!(form(0, &GLIBC[..16]), None);
        assert_eq!(form(0, &[0x90; 20]), None);
    }
}
