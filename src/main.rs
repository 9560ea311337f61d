#![forbid(unsafe_code)]

fn main() {
    std::process::exit(ulpf::cli::main());
}
