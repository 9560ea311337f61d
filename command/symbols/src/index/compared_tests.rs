//! Compares walking units for a name with walking all units: both must find the same.

use super::*;
use crate::object::ObjectFile;
use crate::tests::{folder, has, sh, source};
use std::collections::BTreeSet;

/// Two units with the kinds of variables of C and C++, and with names that end other names.
const ONE: &str = r#"
struct declared;
struct known { int x; };
struct declared *pointer;
struct known known;
int total, subtotal;
static int hidden = 1;
int one(int total) { static int calls; return calls += total + hidden; }
"#;
const TWO: &str = r#"
struct declared { long long a, b; };
struct declared object;
extern int total;
int al;
static int hidden = 2;
int two(void) { static int calls; calls += hidden + al; return total; }
int main(void) { return two(); }
"#;
const CLASSES: &str = r#"
namespace space { template <class T> struct box { static T kept; T x; }; template <class T> T box<T>::kept; int here; }
struct outer { struct inner { static int far; }; static int near; };
int outer::near = 1, outer::inner::far = 2;
namespace { int nobody; }
inline int shared() { static int calls; return ++calls; }
int three() { return space::box<int>::kept + space::box<long>::kept + space::here + nobody++ + shared(); }
"#;
const MORE: &str = r#"
namespace space { extern int here; }
struct outer { static int near; };
inline int shared() { static int calls; return ++calls; }
int main() { return space::here + outer::near + shared(); }
"#;

/// The known facts of a variable as text.
fn facts(index: &Index, v: &Variable) -> String {
    let files = index.source_files(v);
    format!(
        "{} {:?} {} {:?} {files:?}",
        index.path(v),
        v.place,
        v.external,
        v.die
    )
}

fn all(found: &[&Variable], index: &Index) -> BTreeSet<String> {
    found.iter().map(|v| facts(index, v)).collect()
}

/// Builds `sources` and compares. Returns the number of variables.
fn compare(sources: [&str; 2], compile: &str) -> usize {
    let folder = folder();
    for (name, text) in ["one.c", "two.c"].iter().zip(sources) {
        std::fs::write(folder.join(name), text).unwrap();
    }
    sh(&format!("cd {}; {compile}", folder.display()));
    let path = folder.join("out");
    let whole = ObjectFile::open(&path).unwrap();
    let whole = whole.index().unwrap();
    let names: BTreeSet<&str> = whole.variables().map(|v| v.name).collect();
    let locals = whole.tables().locals.keys();
    let types = whole.tables().complete.keys();
    let some: Vec<&&str> = names.iter().chain(locals).chain(types).collect();
    for name in some
        .iter()
        .step_by(some.len() / 64 + 1)
        .chain(&[&"nothing"])
    {
        // A new object, so that each name is the first one requested.
        let object = ObjectFile::open(&path).unwrap();
        let index = object.index().unwrap();
        assert_eq!(
            all(&index.find(name), index),
            all(&whole.find(name), whole),
            "{name}: {compile}"
        );
        let (one, other) = (index.local(name), whole.local(name));
        assert_eq!(
            one.map(|l| l.function),
            other.map(|l| l.function),
            "{name}: {compile}"
        );
        assert_eq!(
            index.complete_type(name),
            whole.complete_type(name),
            "{name}: {compile}"
        );
        assert!(
            index.tables.get().is_none() || index.crosses,
            "{name}: {compile}"
        );
    }
    let paths: BTreeSet<String> = whole.variables().map(|v| whole.path(v)).collect();
    for path_of_one in paths.iter().step_by(paths.len() / 64 + 1) {
        let object = ObjectFile::open(&path).unwrap();
        let index = object.index().unwrap();
        let found = all(&index.find(path_of_one), index);
        let expected = all(&whole.find(path_of_one), whole);
        assert_eq!(found, expected, "{path_of_one}: {compile}");
    }
    // Search paths one after the other, until all units have been walked.
    let object = ObjectFile::open(&path).unwrap();
    let index = object.index().unwrap();
    for variable in whole.variables() {
        let path = whole.path(variable);
        assert_eq!(
            all(&index.find(&path), index),
            all(&whole.find(&path), whole),
            "{path}: {compile}"
        );
    }
    names.len()
}

#[test]
fn units_that_mention_a_name_have_all_of_it() {
    for way in [
        "gcc -g -gdwarf-4 -fdebug-types-section",
        "gcc -g -gdwarf-5 -fdebug-types-section -gz -O2",
        "gcc -g -gdwarf-4 -gsplit-dwarf -O2",
        "gcc -g -flto -O1",
        "clang -g -gdwarf-5",
        "clang -g -gdwarf-5 -gsplit-dwarf",
    ] {
        if way.starts_with("clang") && !has("clang") {
            continue;
        }
        let link = "one.o two.o -o out";
        let compile = format!("rm -f out *.o; {way} -c one.c; {way} -c two.c; {way} {link}");
        assert!(compare([ONE, TWO], &compile) >= 8, "{way}");
        let way = way.replace("gcc", "g++").replace("clang", "clang++");
        let compile =
            format!("rm -f out *.o; {way} -x c++ -c one.c; {way} -x c++ -c two.c; {way} {link}");
        assert!(compare([CLASSES, MORE], &compile) >= 5, "{way}");
    }
}

#[test]
fn a_package_of_split_units() {
    if has("dwp") {
        let compile = "gcc -g -gdwarf-4 -gsplit-dwarf -c one.c two.c; gcc one.o two.o -o out; dwp -e out; rm *.dwo";
        assert!(compare([ONE, TWO], compile) >= 8);
    }
}

#[test]
fn real_programs_of_other_languages() {
    let name = "shapes.rs";
    if has("rustc") {
        let text = std::fs::read_to_string(source(name)).unwrap();
        let names = compare([&text, ""], "rustc --edition 2024 -g one.c -o out");
        assert!(names > 4, "{names}");
    }
}
