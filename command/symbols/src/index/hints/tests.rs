//! Hints that are stale, damaged, of another user, or malicious.

use super::*;
use crate::index::{Variable, last_component};
use crate::object::ObjectFile;
use crate::tests::{folder as fresh, sh};
use proptest::prelude::*;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

thread_local! {
    static FOLDER: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// Other tests have no folder.
pub fn folder() -> Option<PathBuf> {
    FOLDER.with(|folder| folder.borrow().clone())
}

const ONE: &str = "
    int total, other;
    static int hidden = 1;
    int one(void) { static int calls; return hidden + other + calls++; }
";
const TWO: &str = "
    static int hidden = 2, away;
    int one(void);
    int main(void) { static int calls; return one() + hidden + away + calls++; }
";

/// A program, and an empty folder for hints.
fn program() -> (PathBuf, PathBuf) {
    let folder = fresh();
    std::fs::write(folder.join("one.c"), ONE).unwrap();
    std::fs::write(folder.join("two.c"), TWO).unwrap();
    build(&folder, "");
    let cache = folder.join("cache");
    let _ = std::fs::remove_dir_all(&cache);
    FOLDER.with(|place| *place.borrow_mut() = Some(cache.clone()));
    (folder.join("out"), cache)
}

fn build(folder: &Path, options: &str) {
    sh(&format!(
        "cd {}; gcc -g -Wl,--build-id {options} one.c two.c -o out",
        folder.display()
    ));
}

/// Paths of the variables of a name, in a run of its own, and whether a hint led to them.
fn found(program: &Path, name: &str) -> (Vec<String>, bool) {
    let object = ObjectFile::open(program).unwrap();
    let index = object.index().unwrap();
    let hinted = index.hint(name, last_component(name)).is_some();
    let files = |v: &&Variable| {
        index.source_files(v)[0]
            .rsplit('/')
            .next()
            .unwrap()
            .to_string()
    };
    let mut all: Vec<String> = index.find(name).iter().map(files).collect();
    all.sort();
    (all, hinted)
}

fn both() -> Vec<String> {
    vec!["one.c".into(), "two.c".into()]
}

fn kept(cache: &Path) -> PathBuf {
    let all = std::fs::read_dir(cache)
        .unwrap()
        .flatten()
        .map(|e| e.path());
    let all: Vec<PathBuf> = all.collect();
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone()
}

fn change(cache: &Path, change: impl FnOnce(&mut Kept)) {
    let file = kept(cache);
    let mut known: Kept = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    change(&mut known);
    std::fs::write(file, serde_json::to_vec(&known).unwrap()).unwrap();
}

#[test]
fn the_second_run_knows() {
    let (program, cache) = program();
    assert_eq!(found(&program, "hidden"), (both(), false));
    assert_eq!(found(&program, "hidden"), (both(), true));
    // A missing name is searched again each time.
    assert_eq!(found(&program, "nothing"), (vec![], false));
    assert_eq!(found(&program, "nothing"), (vec![], false));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&cache), mode(&kept(&cache))), (0o700, 0o600));
    // Another name is added.
    assert_eq!(found(&program, "total"), (vec!["one.c".into()], false));
    assert_eq!(found(&program, "total"), (vec!["one.c".into()], true));
    assert_eq!(found(&program, "hidden"), (both(), true));
}

#[test]
fn of_another_state_of_the_file() {
    let (program, cache) = program();
    found(&program, "hidden");
    // The same bytes, written again: the times differ.
    let bytes = std::fs::read(&program).unwrap();
    std::fs::write(&program, &bytes).unwrap();
    assert_eq!(found(&program, "hidden"), (both(), false));
    assert_eq!(found(&program, "hidden"), (both(), true));
    // Another program with the same build ID and time.
    let other = program.with_file_name("other");
    std::fs::copy(&program, &other).unwrap();
    sh(&format!(
        "touch -r {} {}",
        program.display(),
        other.display()
    ));
    assert_eq!(found(&other, "hidden"), (both(), false));
    // (It has taken the place.)
    assert_eq!(found(&program, "hidden"), (both(), false));
    assert_eq!(found(&program, "hidden"), (both(), true));
    // Another version of ulpf.
    change(&cache, |kept| kept.file.version += "x");
    assert_eq!(found(&program, "hidden"), (both(), false));
}

#[test]
fn misleading_ones() {
    let (program, cache) = program();
    found(&program, "hidden");
    let original = std::fs::read(kept(&cache)).unwrap();
    let object = ObjectFile::open(&program).unwrap();
    let index = object.index().unwrap();
    let total = index.search("total", crate::index::openings::Tags::Things);
    let total = index.to_hint("hidden", "hidden", &total);
    // The place of another name, of no name, outside the table, and all places.
    let cases: [&dyn Fn(&mut Hint); 6] = [
        &|hint| *hint = total.clone(),
        &|hint| hint.places = vec![0, 1, 2],
        &|hint| hint.places = vec![u32::MAX; 3],
        &|hint| hint.units = vec![(false, 7)],
        &|hint| hint.units = vec![(true, u64::MAX)],
        &|hint| (hint.units.clear(), hint.places.clear()).1,
    ];
    for case in cases {
        std::fs::write(kept(&cache), &original).unwrap();
        change(&cache, |kept| case(&mut kept.names[0]));
        assert_eq!(found(&program, "hidden").0, both());
    }
    // The place of a variable with another path.
    assert_eq!(found(&program, "one::calls"), (vec!["one.c".into()], false));
    assert_eq!(
        found(&program, "main::calls"),
        (vec!["two.c".into()], false)
    );
    change(&cache, |kept| {
        kept.names[1].units = kept.names[0].units.clone();
    });
    assert_eq!(found(&program, "one::calls"), (vec!["one.c".into()], true));
    // More places than exist.
    std::fs::write(kept(&cache), &original).unwrap();
    change(&cache, |kept| kept.names[0].places.extend(0..200));
    assert_eq!(found(&program, "hidden"), (both(), true));
}

#[test]
fn damaged_ones() {
    let (program, cache) = program();
    found(&program, "hidden");
    let file = kept(&cache);
    let original = std::fs::read(&file).unwrap();
    for bytes in [
        &b""[..],
        b"{",
        &original[..original.len() / 2],
        &[0xff; 4096],
    ] {
        std::fs::write(&file, bytes).unwrap();
        assert_eq!(found(&program, "hidden"), (both(), false));
        assert_eq!(std::fs::read(&file).unwrap(), original);
    }
    // Too large to be read, or too many.
    std::fs::write(&file, [&original[..], &[b' '; 1 << 20]].concat()).unwrap();
    assert_eq!(found(&program, "hidden"), (both(), false));
    change(&cache, |kept| {
        kept.names = vec![kept.names[0].clone(); MOST_NAMES + 1]
    });
    assert_eq!(found(&program, "hidden"), (both(), false));
}

#[test]
fn where_others_may_write() {
    let (program, cache) = program();
    found(&program, "hidden");
    let file = kept(&cache);
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    mode(&file, 0o666);
    assert_eq!(found(&program, "hidden"), (both(), false));
    // (The file was rewritten.)
    assert_eq!(found(&program, "hidden"), (both(), true));
    mode(&cache, 0o777);
    assert_eq!(found(&program, "hidden"), (both(), false));
    mode(&cache, 0o700);
    // Links are not followed, neither to the file nor to the folder.
    let moved = file.with_file_name("moved");
    std::fs::rename(&file, &moved).unwrap();
    symlink(&moved, &file).unwrap();
    assert_eq!(found(&program, "hidden"), (both(), false));
    assert!(!file.symlink_metadata().unwrap().is_symlink());
    let elsewhere = cache.with_file_name("elsewhere");
    let _ = std::fs::remove_dir_all(&elsewhere);
    std::fs::rename(&cache, &elsewhere).unwrap();
    symlink(&elsewhere, &cache).unwrap();
    assert_eq!(found(&program, "hidden"), (both(), false));
    std::fs::remove_file(&cache).unwrap();
    // Owned by another user.
    if ulpf_host::sys::is_root() {
        std::fs::rename(&elsewhere, &cache).unwrap();
        std::os::unix::fs::chown(&file, Some(54321), None).unwrap();
        assert_eq!(found(&program, "hidden"), (both(), false));
        std::os::unix::fs::chown(&cache, Some(54321), None).unwrap();
        assert_eq!(found(&program, "hidden"), (both(), false));
    }
}

#[test]
fn where_there_is_no_place() {
    let (program, _) = program();
    // A folder cannot be created below a file, nor in /proc.
    for place in [program.join("cache"), PathBuf::from("/proc/self/cache")] {
        FOLDER.with(|folder| *folder.borrow_mut() = Some(place));
        assert_eq!(found(&program, "hidden"), (both(), false));
        assert_eq!(found(&program, "hidden"), (both(), false));
    }
    FOLDER.with(|folder| *folder.borrow_mut() = None);
    assert_eq!(found(&program, "hidden"), (both(), false));
    assert_eq!(found(&program, "hidden"), (both(), false));
}

#[test]
fn a_program_without_a_build_id() {
    let (program, cache) = program();
    build(program.parent().unwrap(), "-Wl,--build-id=none");
    assert_eq!(found(&program, "hidden"), (both(), false));
    assert!(!cache.exists());
}

#[test]
fn many_writers_and_files() {
    let (program, cache) = program();
    let names = ["hidden", "total", "other", "away"];
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (program, cache) = (&program, &cache);
            scope.spawn(move || {
                FOLDER.with(|place| *place.borrow_mut() = Some(cache.clone()));
                for name in names.iter().cycle().skip(n).take(20) {
                    assert!(!found(program, name).0.is_empty());
                }
            });
        }
    });
    let bytes = std::fs::read(kept(&cache)).unwrap();
    let known: Kept = serde_json::from_slice(&bytes).unwrap();
    assert!((1..=names.len()).contains(&known.names.len()));
    for n in 0..MOST_FILES + 3 {
        std::fs::write(cache.join(format!("{n}{SUFFIX}")), "").unwrap();
    }
    std::fs::write(cache.join("1.session"), "").unwrap();
    Folder::open(&cache).unwrap().clear(SUFFIX, MOST_FILES);
    let left = std::fs::read_dir(&cache).unwrap().count();
    assert_eq!(left, MOST_FILES + 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// No file contents cause a panic or exceed a limit.
    #[test]
    fn any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), at in 0usize..400, own in any::<bool>()) {
        let key = Key::of(&[1, 2], State { device: 1, inode: 2, len: 3, written: (4, 5), changed: (6, 7) });
        if own {
            let hint = Hint { name: "n".into(), path: "p".into(), units: vec![(false, 1)], places: vec![9] };
            let kept = serde_json::to_vec(&Kept { file: key.clone(), names: vec![hint] }).unwrap();
            let at = at.min(kept.len());
            let end = (at + bytes.len() / 100).min(kept.len());
            bytes = [&kept[..at], &bytes[..bytes.len().min(3)], &kept[end..]].concat();
        }
        if let Some(names) = parse(&bytes, &key) {
            prop_assert!(names.len() <= MOST_NAMES);
            prop_assert!(names.iter().all(|hint| hint.units.len() <= MOST_OF_ONE));
        }
    }
}
