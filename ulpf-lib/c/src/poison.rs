//! Client requests by which the program describes its memory to a checker, in Valgrind's form; without a checker they
//! have no effect. `include/ulpf_check.h` has the same for programs without the library.

use core::arch::asm;

/// Memcheck's numbers: MAKE_MEM_NOACCESS, MAKE_MEM_UNDEFINED.
pub const FORBIDDEN: u64 = 0x4d43_0000;
pub const USABLE: u64 = FORBIDDEN + 1;

pub fn tell(what: u64, addr: u64, len: u64) {
    let request = [what, addr, len, 0, 0, 0];
    // SAFETY: turns rdi by 128 bits and exchanges rbx with itself. A checker reads the request, and changes rdx.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") &request,
            inout("rdx") 0u64 => _,
        );
    }
}
