//! The C library's soname; a change that breaks programs raises the number.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libulpf.so.0");
    // Our functions, not whoever else's of the same name, from everywhere inside.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
}
