//! Files that a target starts from: its corpus and its dictionary.

use std::fs;
use std::path::{Path, PathBuf};

/// Folder of this package.
pub const FUZZ: &str = env!("CARGO_MANIFEST_DIR");

/// The corpus of a target, in the order of file names; without one, a single empty input.
pub fn inputs(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(FUZZ).join("corpus").join(target);
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = files.map(|file| file.path()).collect();
    paths.sort();
    let mut inputs: Vec<Vec<u8>> = paths.iter().map(|path| read(path)).collect();
    if inputs.is_empty() {
        inputs.push(Vec::new());
    }
    inputs
}

/// The words of a target's dictionary, which has libFuzzer's format: `"word"` or `name="word"` in a line. It has the target's
/// name, or is packets.dict, whose first line names its targets.
pub fn words(target: &str) -> Vec<Vec<u8>> {
    let read = |name: &str| {
        let path = Path::new(FUZZ).join("dictionaries").join(name);
        fs::read_to_string(path.with_extension("dict")).unwrap_or_default()
    };
    let packets = read("packets");
    let first = packets.lines().next().unwrap_or_default();
    let text = match first.split_whitespace().any(|word| word == target) {
        true => packets,
        false => read(target),
    };
    let lines = text.lines().map(str::trim);
    let entries = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    entries
        .map(|line| word(line).unwrap_or_else(|| panic!("{target}.dict: not an entry: {line}")))
        .collect()
}

fn word(line: &str) -> Option<Vec<u8>> {
    let (_, quoted) = line.split_once('"')?;
    let mut rest = quoted.strip_suffix('"')?.as_bytes();
    let mut word = Vec::new();
    while let Some((&first, after)) = rest.split_first() {
        let (byte, len) = match (first, after.first()) {
            (b'\\', Some(b'x')) => {
                let digits = std::str::from_utf8(after.get(1..3)?).ok()?;
                (u8::from_str_radix(digits, 16).ok()?, 4)
            }
            (b'\\', Some(&escaped @ (b'\\' | b'"'))) => (escaped, 2),
            (b'\\', _) => return None,
            _ => (first, 1),
        };
        word.push(byte);
        rest = &rest[len..];
    }
    Some(word)
}

pub fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A hash that is the same in every build (FNV-1a).
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}
