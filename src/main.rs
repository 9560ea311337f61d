//! The `ulpf` binary: the command line of [`ulpf_cli`], and the image of the stub. Only this crate contains the image, so
//! a change of the stub compiles the stub, and links this binary.
#![forbid(unsafe_code)]

fn main() {
    std::process::exit(ulpf_cli::main(ulpf_image::STUB));
}
