//! Embeds GDB's plugin in the command as text, so that a single file is enough to install.
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../../gdb-plugin");
    let mut files = Vec::new();
    plugin_files(&root, &mut files);
    files.sort();
    let mut text = String::from("&[\n");
    for file in &files {
        let name = file.strip_prefix(&root).unwrap();
        text += &format!("    ({name:?}, include_str!({file:?})),\n");
    }
    text += "]\n";
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap()).join("plugin.rs");
    fs::write(out, text).expect("the build folder cannot be written to");
}

fn plugin_files(dir: &Path, files: &mut Vec<PathBuf>) {
    println!("cargo:rerun-if-changed={}", dir.display());
    for entry in fs::read_dir(dir)
        .expect("gdb-plugin cannot be read")
        .flatten()
    {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "__pycache__" {
            plugin_files(&path, files);
        } else if path.extension().is_some_and(|e| e == "py" || e == "json") {
            println!("cargo:rerun-if-changed={}", path.display());
            files.push(path);
        }
    }
}
