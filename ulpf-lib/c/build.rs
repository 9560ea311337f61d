//! Sets the C library's soname; a change that breaks programs raises the number.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libulpf.so.0");
    // Resolves all symbols when the library is loaded, not at the first call.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
}
