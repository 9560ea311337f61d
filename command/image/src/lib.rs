//! The stub image, built by build.rs: an ELF shared object that `ulpf_inject` loads into programs.
#![forbid(unsafe_code)]

/// The file, aligned to 16 bytes, because its headers are read in place.
pub static STUB: &[u8] = &ALIGNED.0;

static ALIGNED: &Aligned<[u8]> = &Aligned(*include_bytes!(env!("ULPF_STUB_IMAGE")));

#[repr(C, align(16))]
struct Aligned<T: ?Sized>(T);
