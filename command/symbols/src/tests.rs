//! Resolves watches in programs that print the addresses of their own variables.

mod hostile;

use super::*;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use ulpf_lib::WatchKind;
use ulpf_lib::mapping::Mapping;

/// A running fixture that was compiled and started, and has printed its oracle.
pub(super) struct Fixture {
    child: Child,
    pub program: Program,
    /// SPEC, address, length.
    pub oracle: Vec<(String, u64, u64)>,
    /// All lines that it has printed.
    said: Vec<String>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(folder());
    }
}

impl Memory for Fixture {
    fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
        std::fs::File::open(format!("/proc/{}/mem", self.child.id()))
            .is_ok_and(|f| f.read_exact_at(buf, addr).is_ok())
    }
    fn thread_pointer(&self) -> Option<u64> {
        // Computed from the variable's address in the oracle, since only the stub has the register.
        let object = &self.program.executable()?.object;
        let named = |name| self.oracle.iter().find(|(spec, ..)| spec == name);
        let (_, addr, _) = named("&per_thread").or_else(|| named("per_thread"))?;
        let symbol = object.symbols().find("per_thread")[0];
        Some(addr.wrapping_add_signed(-object.tls_offset_of_executable(symbol.addr)?))
    }
}

thread_local! {
    /// One folder for each test.
    static FOLDER: tempfile::TempDir = tempfile::tempdir().unwrap();
}

pub(crate) fn folder() -> PathBuf {
    let folder = FOLDER.with(|folder| folder.path().to_owned());
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

pub(crate) fn sh(command: &str) {
    let status = Command::new("sh").args(["-ec", command]).status().unwrap();
    assert!(status.success(), "{command}");
}

pub(crate) fn has(tool: &str) -> bool {
    let found = Command::new(tool)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success());
    if !found {
        eprintln!("skipped: no {tool}");
    }
    found
}

fn has_libcpp() -> bool {
    let try_it =
        "echo '#include <vector>' | clang++ -stdlib=libc++ -x c++ -fsyntax-only - 2>/dev/null";
    let found = Command::new("sh")
        .args(["-c", try_it])
        .status()
        .is_ok_and(|s| s.success());
    if !found {
        eprintln!("skipped: no libc++");
    }
    found
}

pub(crate) fn source(name: &str) -> String {
    format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

impl Fixture {
    /// Builds with `compile` (`$SRC`, `$OUT`), then runs `after` on `$OUT`.
    pub fn build(name: &str, compile: &str, after: &str) -> Fixture {
        let out = folder().join("shapes");
        sh(&format!(
            "SRC={} OUT={}; {compile}; {after}",
            source(name),
            out.display()
        ));
        Fixture::start(&out)
    }

    fn start(path: &Path) -> Fixture {
        let mut child = Command::new(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut oracle, mut said) = (Vec::new(), Vec::new());
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let Some((rest, len)) = line.rsplit_once(' ') else {
                break;
            };
            said.push(line.clone());
            let (spec, addr) = rest.rsplit_once(' ').unwrap();
            let addr = u64::from_str_radix(addr.trim_start_matches("0x"), 16).unwrap();
            oracle.push((spec.to_string(), addr, len.parse().unwrap()));
        }
        let program = Program::of_process(child.id() as i32).unwrap();
        Fixture {
            child,
            program,
            oracle,
            said,
        }
    }

    pub fn places(&self, spec: &str) -> Result<Vec<Watched>, Problem> {
        self.program.resolve(&Spec::parse(spec)?, self)
    }

    pub fn resolve(&self, spec: &str) -> Result<Watched, Problem> {
        let mut places = self.places(spec)?;
        assert_eq!(places.len(), 1, "{spec}");
        Ok(places.remove(0))
    }

    fn agrees(&self) {
        assert!(self.oracle.len() > 8);
        for (spec, addr, len) in &self.oracle {
            let found = self.resolve(spec).unwrap_or_else(|p| panic!("{p}"));
            assert_eq!((found.addr, found.len), (*addr, *len), "{spec}: {found:x?}");
        }
    }

    fn refuses(&self, spec: &str, why: &str) {
        let problem = self.resolve(spec).unwrap_err().to_string();
        assert!(problem.contains(why), "{spec}: {problem}");
    }

    /// The current value, as shown for a hit.
    fn value(&self, spec: &str) -> String {
        let watch = self.resolve(spec).unwrap();
        let mut bytes = vec![0; watch.len as usize];
        assert!(self.read(watch.addr, &mut bytes));
        let (name, part) = watch.part(0, watch.len);
        let mut text = name + "=";
        part.render(&bytes, watch.len, &mut text);
        text
    }
}

/// Positions and offsets of pointers come from the debug information; their targets depend on the program.
#[test]
fn pointers_are_followed() {
    let fixture = Fixture::build("shapes.c", "gcc -g $SRC -o $OUT", "");
    let addr = |spec: &str| fixture.resolve(spec).unwrap().addr;
    let follow = |spec: &str| {
        let spec = Spec::parse(spec).unwrap();
        let mut places = fixture.program.resolve_path(&spec, &fixture)?;
        assert_eq!(places.len(), 1, "{spec}");
        Ok::<_, Problem>(places.remove(0))
    };
    let path = |spec: &str| follow(spec).unwrap().path.map(|path| path.to_string());
    let from = |name: &str, offsets: &str| Some(format!("{:#x}{offsets}", addr(name)));
    for plain in ["total", "grid[1][2]", "tab[2].inner[1].x", "*counts"] {
        assert_eq!(path(plain), None, "{plain}");
    }
    assert_eq!(path("*head"), from("head", ">0"));
    assert_eq!(path("head->next->x"), from("head", ">0>8"));
    assert_eq!(
        path("tab[2].inner[1].next->x"),
        from("tab[2].inner[1].next", ">8")
    );
    assert_eq!(path("**indirect"), from("indirect", ">0>0"));
    assert_eq!(path("numbers[3]"), from("numbers", ">12"));
    assert_eq!(path("numbers[2..5]"), from("numbers", ">8"));
    assert_eq!(path("*head:4"), from("head", ">0"));
    // A snapshot is fixed to the present targets.
    let now = follow("head->next->x").unwrap();
    assert_eq!((now.addr, now.len), (addr("second.x"), 4));
    assert_eq!(path("head->next->x snapshot"), None);
    // NULL now, valid later.
    let nowhere = follow("head->next->next->x").unwrap();
    assert_eq!((nowhere.addr, nowhere.len), (0, 4));
    assert_eq!(path("head->next->next->x"), from("head", ">0>0>8"));
    fixture.refuses("head->next->next->x", "is null now");
    let long = format!("head{}", "->next".repeat(18));
    assert!(
        follow(&long)
            .unwrap_err()
            .to_string()
            .contains("18 pointers are on the way")
    );
    assert!(follow("head->next->nosuch").is_err());
    // Lists, and a member of each element of an array that a pointer leads to or that contains it.
    assert_eq!(path("head->*next.x"), from("head", "@list,0,8"));
    assert_eq!(path("head->next->*next.x"), from("head", ">0@list,0,8"));
    assert_eq!(path("second->*next.x"), from("second", "@nodes,0,8"));
    assert_eq!(path("second->*next.x snapshot"), None);
    assert_eq!(
        path("head->*next.x most 1000000"),
        from("head", "@list,0,8@most,1000000")
    );
    let table = fixture.resolve("tab").unwrap();
    let stride = addr("tab[1]") - addr("tab[0]");
    let link = addr("tab[0].inner[1].next") - table.addr;
    let times = format!("@times,{},{stride},{link}>8", table.len / stride);
    assert_eq!(path("tab[..].inner[1].next->x"), from("tab", &times));
    // Plain elements never move; each is a watch of its own.
    let spec = Spec::parse("tab[..].name").unwrap();
    let found = fixture.program.resolve_path(&spec, &fixture).unwrap();
    assert!(found.len() > 1 && found.iter().all(|w| w.path.is_none() && w.each.is_none()));
    // A watch with many places in two ways is fixed to the present targets of its pointers.
    let spec = Spec::parse("head->*next->*next.x").unwrap();
    let found = fixture.program.resolve_path(&spec, &fixture).unwrap();
    assert!(found.iter().all(|w| w.path.is_none() && w.addr != 0));
}

/// A debugger says where the expression begins.
#[test]
fn watches_begin_where_a_debugger_says() {
    let fixture = Fixture::build("shapes.c", "gcc -g $SRC -o $OUT", "");
    let addr = |spec: &str| fixture.resolve(spec).unwrap().addr;
    let node = r#"{"name":"struct node","size":16,"is":{"struct":null}}"#;
    let pointer = format!(r#"{{"name":"struct node *","size":8,"is":{{"pointer":{node}}}}}"#);
    let located = |watch: &str, head: String| {
        let head: crate::Head = serde_json::from_str(&head).unwrap();
        let spec = Spec::parse(watch).unwrap();
        fixture.program.locate_watch(&spec, Some(&head), &fixture)
    };
    let as_json = |watch: &str, head: String| {
        let places = located(watch, head)
            .places
            .unwrap_or_else(|p| panic!("{p}"));
        serde_json::to_value(places).unwrap()
    };
    // A variable, whose own type counts; and a pointer in a register, which is no part of a path.
    let at = addr("head");
    let variable = format!(r#"{{"text":"head","name":"head","at":{at},"type":{pointer}}}"#);
    let found = as_json("it->*next.x", variable.clone());
    assert_eq!(found[0]["path"], format!("{at:#x}@list,0,8"));
    assert_eq!(
        (&found[0]["name"], &found[0]["many"]),
        (&"head->*next[*].x".into(), &0.into())
    );
    assert_eq!(
        found[0]["type"],
        serde_json::json!({"type": {"name": "int", "size": 4}})
    );
    let first = addr("*head");
    let register = format!(r#"{{"text":"$rdi","value":{first},"type":{pointer}}}"#);
    let found = as_json("it->*next", register);
    assert_eq!(
        (&found[0]["at"], &found[1]["name"]),
        (&first.into(), &"$rdi->*next[1]".into())
    );
    assert_eq!(found[1]["type"]["type"]["name"], "node");
    // Only this side knows that there is no such element, but not what the language makes of a field.
    assert!(
        located(
            "it[3].x",
            format!(r#"{{"text":"first","at":{first},"type":{node}}}"#)
        )
        .places
        .is_err()
    );
    let array = format!(
        r#"{{"name":"struct node [2]","size":32,"is":{{"array":{{"of":{node},"first":0}}}}}}"#
    );
    let of_array = |watch: &str| {
        located(
            watch,
            format!(r#"{{"text":"it","at":4096,"type":{array}}}"#),
        )
    };
    assert!(of_array("it[2].x").decided && of_array("it[2].x").places.is_err());
    assert!(!of_array("it[1].y").decided && of_array("it[1].y").places.is_err());
    // A local of the frame; a type that nothing here describes.
    let local = fixture.program.function("bump").unwrap();
    let (_, die) = fixture.program.local_at(local, "calls").unwrap();
    assert!(
        fixture
            .program
            .executable()
            .unwrap()
            .types
            .of_variable(die)
            .is_some()
    );
    let strange =
        r#"{"text":"x","at":4096,"type":{"name":"struct strange","size":8,"is":{"struct":null}}}"#;
    let problem = located("it.y", strange.into()).places.unwrap_err();
    assert!(
        problem.why.contains("struct strange is made of"),
        "{problem}"
    );
}

#[test]
fn places_of_a_list_have_names() {
    let fixture = Fixture::build("shapes.c", "gcc -g $SRC -o $OUT", "");
    let follow = |spec: &str| {
        let spec = Spec::parse(spec).unwrap();
        let mut places = fixture.program.resolve_path(&spec, &fixture).unwrap();
        assert_eq!(places.len(), 1);
        places.remove(0)
    };
    let list = follow("head->*next.x");
    assert_eq!((list.name.as_str(), list.len), ("head->*next[*].x", 4));
    assert_eq!(list.part(0, 4).0, "head->*next[0].x");
    assert_eq!(list.part(12, 4).0, "head->*next[3].x");
    assert_eq!(list.part(13, 1).0, "head->*next[3].x+1");
    let whole = follow("head->*next");
    assert_eq!(whole.part(whole.len * 2 + 8, 4).0, "head->*next[2].x");
}

/// The table of watches, for all front ends: tests/plugin/test_language.py runs the same table in gdb.
#[test]
fn the_table_of_watches() {
    #[derive(serde::Deserialize)]
    struct Case {
        watch: String,
        bytes: Option<Vec<(String, u64, u64)>>,
        refused: Option<String>,
    }
    #[derive(serde::Deserialize)]
    struct Table {
        cases: Vec<Case>,
    }
    let table = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/watches.json");
    let table: Table = serde_json::from_slice(&std::fs::read(table).unwrap()).unwrap();
    let fixture = Fixture::build("shapes.c", "gcc -g $SRC -o $OUT", "");
    assert!(table.cases.len() > 40);
    for case in table.cases {
        let watch = &case.watch;
        match (case.bytes, case.refused) {
            (Some(bytes), None) => {
                let found = fixture.places(watch).unwrap_or_else(|p| panic!("{p}"));
                let found: Vec<_> = found.iter().map(|w| (w.addr, w.len)).collect();
                let wanted = bytes.iter().map(|(object, offset, len)| {
                    let start = fixture.resolve(object).unwrap().addr;
                    (start + offset, *len)
                });
                assert_eq!(found, wanted.collect::<Vec<_>>(), "{watch}");
            }
            (None, Some(why)) => fixture.refuses(watch, &why),
            _ => panic!("{watch}: bytes or refused"),
        }
    }
}

#[test]
fn c_of_every_debug_format() {
    for compile in [
        "gcc -g -gdwarf-5 $SRC -o $OUT",
        "gcc -g -gdwarf-4 -no-pie $SRC -o $OUT",
        "gcc -g -gdwarf-4 -fdebug-types-section -static-pie $SRC -o $OUT",
        "gcc -g -gdwarf-5 -fdebug-types-section -gz $SRC -o $OUT",
        "gcc -g -O2 -gdwarf-3 $SRC -o $OUT",
        "clang -g -gdwarf-5 $SRC -o $OUT",
    ] {
        if compile.starts_with("gcc") || has("clang") {
            let fixture = Fixture::build("shapes.c", compile, "");
            fixture.agrees();
            assert_eq!(fixture.value("colour"), "colour=GREEN", "{compile}");
        }
    }
}

#[test]
fn c_with_debug_information_in_a_separate_file() {
    let split = "objcopy --only-keep-debug $OUT $OUT.debug; objcopy --strip-all --add-gnu-debuglink=$OUT.debug $OUT";
    Fixture::build("shapes.c", "gcc -g $SRC -o $OUT", split).agrees();
    let hidden = "cd $(dirname $OUT); mkdir -p .debug; objcopy --only-keep-debug --compress-debug-sections $OUT .debug/x.debug; \
                  objcopy --strip-all --add-gnu-debuglink=.debug/x.debug $OUT";
    Fixture::build("shapes.c", "gcc -g $SRC -o $OUT", hidden).agrees();
    // A debug file of another build is not accepted.
    let wrong = format!("{split}; printf x >> $OUT.debug");
    Fixture::build("shapes.c", "gcc -g $SRC -o $OUT", &wrong)
        .refuses("total", "no debug information and no symbol table");
}

#[test]
fn c_with_split_debug_information() {
    let split = [
        "gcc -g -gdwarf-5 -gsplit-dwarf $SRC -o $OUT",
        "gcc -g -gdwarf-4 -gsplit-dwarf $SRC -o $OUT",
        "gcc -g -gsplit-dwarf -fdebug-types-section -gz $SRC -o $OUT",
        "gcc -g -O2 -gsplit-dwarf -no-pie $SRC -o $OUT",
        "clang -g -gdwarf-5 -gsplit-dwarf $SRC -o $OUT",
    ];
    for compile in split {
        if compile.starts_with("clang") && !has("clang") {
            continue;
        }
        // The compiler writes the .dwo file to its working directory.
        let compile = format!("cd $(dirname $OUT); {compile}");
        let fixture = Fixture::build("shapes.c", &compile, "");
        assert!(
            std::fs::read_dir(folder())
                .unwrap()
                .flatten()
                .any(|f| { f.path().extension().is_some_and(|e| e == "dwo") })
        );
        fixture.agrees();
        assert_eq!(fixture.value("colour"), "colour=GREEN", "{compile}");
        assert_eq!(fixture.resolve("flags.b").unwrap().len, 2);
    }
}

#[test]
fn a_package_of_split_debug_information() {
    // (The dwp of binutils does not support DWARF 5.)
    for (tool, version) in [("dwp", 4), ("llvm-dwp", 4), ("llvm-dwp", 5)] {
        if has(tool) {
            let gone = format!("cd $(dirname $OUT); {tool} -e shapes -o shapes.dwp; rm *.dwo");
            let compile =
                format!("cd $(dirname $OUT); gcc -g -gdwarf-{version} -gsplit-dwarf $SRC -o $OUT");
            Fixture::build("shapes.c", &compile, &gone).agrees();
        }
    }
}

#[test]
fn split_debug_information_that_is_gone_or_of_another_build() {
    let compile = "cd $(dirname $OUT); gcc -g -gsplit-dwarf $SRC -o $OUT";
    let gone = Fixture::build("shapes.c", compile, "rm $(dirname $OUT)/*.dwo");
    gone.refuses(
        "shapes::total",
        "1 of its units keep their variables in .dwo files that were not found: there is no",
    );
    let other = "cd $(dirname $OUT); dwo=$(ls *.dwo); mv $dwo x; gcc -g -gsplit-dwarf -DOTHER=1 -O1 $SRC -o other; mv *.dwo $dwo";
    Fixture::build("shapes.c", compile, other).refuses("shapes::total", "is of another build");
}

#[test]
fn c_without_debug_information() {
    let fixture = Fixture::build("shapes.c", "gcc $SRC -o $OUT", "");
    for (spec, addr, len) in &fixture.oracle {
        if spec.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && spec != "calls" {
            let found = fixture.resolve(spec).unwrap_or_else(|p| panic!("{p}"));
            assert_eq!((found.addr, found.len), (*addr, *len), "{spec}");
        }
    }
    let (_, addr, _) = fixture
        .oracle
        .iter()
        .find(|(spec, ..)| spec == "counts[3]")
        .unwrap();
    assert_eq!(fixture.resolve("counts+12:4").unwrap().addr, *addr);
    fixture.refuses("counts[3]", "not known without debug information");
    fixture.refuses("head->x", "not known without debug information");
}

#[test]
fn cpp() {
    for compile in [
        "g++ -g $SRC -o $OUT",
        "g++ -std=c++17 -g -gdwarf-4 $SRC -o $OUT",
        "clang++ -std=c++17 -fstandalone-debug -g $SRC -o $OUT",
    ] {
        let libcpp = compile.contains("libc++");
        if compile.starts_with("g++") || has("clang++") && (!libcpp || has_libcpp()) {
            let fixture = Fixture::build("shapes.cc", compile, "");
            fixture.agrees();
            assert_eq!(fixture.value("ns::mode"), "ns::mode=On");
            fixture.refuses("ns::Counter::hit::this", "somewhere else in each call");
            fixture.refuses("ns::Counter::this", "there is no variable");
            assert_eq!(fixture.value("atomic"), "atomic=1");
            assert_eq!(fixture.value("flag"), "flag=true");
            assert_eq!(fixture.resolve("object").unwrap().part(8, 4).0, "object.id");
            fixture.refuses("var", "names 2 variables");
            assert_eq!(fixture.resolve("numbers[2]").unwrap().len, 4);
        }
    }
    if has("clang++") {
        let fixture = Fixture::build("shapes.cc", "clang++ -std=c++17 -g $SRC -o $OUT", "");
        fixture.refuses("object.id", "class Base is only declared");
    }
}

#[test]
fn cpp_names_without_debug_information() {
    let fixture = Fixture::build("shapes.cc", "g++ $SRC -o $OUT", "");
    for spec in ["ns::var", "ns::Class::total", "ns::Pool<double>::live"] {
        let (_, addr, len) = fixture.oracle.iter().find(|(s, ..)| s == spec).unwrap();
        let found = fixture.resolve(spec).unwrap_or_else(|p| panic!("{p}"));
        assert_eq!((found.addr, found.len), (*addr, *len), "{spec}");
    }
}

/// Checks the elements that a program of containers prints: each line is a watch and its places.
fn elements(fixture: &Fixture) {
    assert!(fixture.said.len() > 15);
    for line in &fixture.said {
        let mut words = line.split(' ');
        let spec = words.next().unwrap();
        let numbers: Vec<u64> = words
            .map(|w| match w.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
                None => w.parse().unwrap(),
            })
            .collect();
        let wanted: Vec<_> = numbers.chunks(2).map(|two| (two[0], two[1])).collect();
        let found = fixture.places(spec).unwrap_or_else(|p| panic!("{p}"));
        let found: Vec<_> = found.iter().map(|w| (w.addr, w.len)).collect();
        assert_eq!(found, wanted, "{spec}");
    }
}

#[test]
fn cpp_containers() {
    for compile in [
        "g++ -std=c++17 -g $SRC -o $OUT",
        "g++ -std=c++20 -g -O1 -gdwarf-4 $SRC -o $OUT",
        "clang++ -std=c++17 -fstandalone-debug -g $SRC -o $OUT",
        "clang++ -std=c++17 -fstandalone-debug -g -stdlib=libc++ $SRC -o $OUT",
    ] {
        let libcpp = compile.contains("libc++");
        if compile.starts_with("g++") || has("clang++") && (!libcpp || has_libcpp()) {
            let fixture = Fixture::build("containers.cc", compile, "");
            elements(&fixture);
            let names = |spec: &str| -> Vec<String> {
                let places = fixture.places(spec).unwrap_or_else(|p| panic!("{p}"));
                places.into_iter().map(|w| w.name).collect()
            };
            let keyed = ["named[\"a\"].second", "named[\"b\"].second"];
            assert_eq!(names("named[*].second"), keyed);
            assert_eq!(names("numbers[*].second")[1], "numbers[2].second");
            assert_eq!(names("items[1..3].x"), ["items[1].x", "items[2].x"]);
            assert_eq!(names("rows[*][*]"), ["rows[0]", "rows[1]"]);
            assert_eq!(fixture.resolve("v[*]").unwrap().part(4, 4).0, "v[1]");
            fixture.refuses("empty[*]", "no elements now");
            fixture.refuses("*never", "holds nothing now");
            fixture.refuses("v[1..9]", "3 elements now, and 8 is not among them");
            fixture.refuses("named[0..1]", "has keys");
            fixture.refuses("chain[3]", "3 elements now");
            fixture.refuses("either[0]", "has its alternative 1 now");
            fixture.refuses("either[3]", "no alternative 3");
            fixture.refuses("either[*]", "of several types");
            fixture.refuses("triple[3]", "no element 3");
        }
    }
}

#[test]
fn rust_containers() {
    for compile in [
        "rustc --edition 2024 -g $SRC -o $OUT",
        "rustc --edition 2024 -g -C split-debuginfo=packed $SRC -o $OUT",
    ] {
        let fixture = Fixture::build("containers.rs", compile, "");
        elements(&fixture);
        fixture.refuses("V[3]", "3 elements now");
        fixture.refuses("MORE.none[*]", "no elements now");
        fixture.refuses("MORE.nothing[*]", "no elements now");
        fixture.refuses("MORE.by_number[1]", "has keys");
        fixture.refuses("*MORE.not", "holds nothing now");
        fixture.refuses("MORE.other.Circle.0", "is Rect now, and not Circle");
        fixture.refuses("MORE.not.Some.0.y", "is None now, and not Some");
        fixture.refuses("MORE.empty.0", "several variants");
        fixture.refuses("WIDE.Some.0", "is None now, and not Some");
        fixture.refuses("MORE.shape.z", "has no field");
        let names = |spec: &str| -> Vec<String> {
            let places = fixture.places(spec).unwrap_or_else(|p| panic!("{p}"));
            places.into_iter().map(|w| w.name).collect()
        };
        assert_eq!(names("MORE.sorted[*].y")[78], "MORE.sorted[79].y");
        assert_eq!(
            names("MORE.texts[*]"),
            ["MORE.texts[\"x\"]", "MORE.texts[\"y\"]"]
        );
        let mut named = names("MORE.by_name[*].x");
        named.sort();
        assert_eq!(named[1], "MORE.by_name[\"a\"].x");
        // Bytes that several variants use have no variant's name.
        let part = |offset, len| fixture.resolve("MORE.other").unwrap().part(offset, len).0;
        assert_eq!(part(4, 4), "MORE.other.Rect.w");
        assert_eq!(part(8, 8), "MORE.other+8");
        assert_eq!(part(0, 4), "MORE.other");
        let part = |offset, len| fixture.resolve("MORE.nested").unwrap().part(offset, len).0;
        assert_eq!(part(0, 4), "MORE.nested.Some.0");
    }
}

#[test]
fn maps_of_go() {
    let Some(version) = go_version() else {
        eprintln!("skipped: no go");
        return;
    };
    let compile = "cd $(dirname $OUT); cp $SRC .; go build -gcflags='-N -l' -o $OUT maps.go";
    let fixture = Fixture::build("maps.go", compile, "");
    // Go before 1.24 had another map layout, which is not supported.
    if version < 24 {
        fixture.refuses(
            "main.names[*]",
            "the number of elements of `main.names` is not known",
        );
        return;
    }
    // The places found, by name.
    let found = |spec: &str| -> Vec<(String, u64)> {
        let places = fixture.places(spec).unwrap_or_else(|p| panic!("{p}"));
        let mut all: Vec<_> = places
            .into_iter()
            .map(|w| {
                let mut bytes = [0; 8];
                assert!(w.len == 8 && fixture.read(w.addr, &mut bytes));
                (w.name, u64::from_le_bytes(bytes))
            })
            .collect();
        all.sort_by_key(|(_, value)| *value);
        all
    };
    let names: Vec<_> = (0..3)
        .map(|n| (format!("main.names[\"k{n}\"]"), 1000 + n))
        .collect();
    assert_eq!(found("main.names[*]"), names);
    let items: Vec<_> = (0..3)
        .map(|n| (format!("main.items[{n}].Y"), 2000 + n))
        .collect();
    assert_eq!(found("main.items[*].Y"), items);
    let many: Vec<_> = (0..3000)
        .filter(|n| *n != 77)
        .map(|n| (format!("main.many[{n}]"), 5000 + n))
        .collect();
    assert_eq!(found("main.many[*]"), many);
    fixture.refuses("main.empty[*]", "no elements now");
    fixture.refuses("main.none[*]", "no elements now");
    fixture.refuses("main.large[*]", "elsewhere");
}

/// The second number of Go's version, if Go is installed.
fn go_version() -> Option<u32> {
    let said = Command::new("go").arg("version").output().ok()?;
    let said = String::from_utf8(said.stdout).ok()?;
    let version = said.split_once("go1.")?.1;
    version
        .split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

#[test]
fn fortran() {
    if has("gfortran") {
        let compile = "gfortran -g -J $(dirname $OUT) $SRC -o $OUT";
        let fixture = Fixture::build("shapes.f90", compile, "");
        fixture.agrees();
        fixture.refuses("table(11)", "use 1 to 10");
        fixture.refuses("odd(3)", "use -1 to 2");
        let name = |spec: &str, offset, len| fixture.resolve(spec).unwrap().part(offset, len).0;
        assert_eq!(name("table", 8, 4), "table(3)");
        assert_eq!(name("grid", 40, 8), "grid(2,3)");
        assert_eq!(name("items", 24, 4), "items(2).v(1)");
        let places = fixture.places("items[1..3].x").unwrap();
        assert_eq!(places[1].name, "items(2).x");
    }
}

/// dwz moves the common parts of two programs to a third file.
#[test]
fn c_with_a_supplementary_file() {
    if has("dwz") {
        let dwz = "cd $(dirname $OUT); cp $OUT other; dwz -m common.debug -r $OUT other";
        let fixture = Fixture::build("shapes.c", "gcc -g -gdwarf-4 $SRC -o $OUT", dwz);
        assert!(folder().join("common.debug").exists());
        fixture.agrees();
    }
}

#[test]
fn rust() {
    let fixture = Fixture::build("shapes.rs", "rustc --edition 2024 -g $SRC -o $OUT", "");
    fixture.agrees();
    assert_eq!(fixture.value("COUNT"), "COUNT=1");
    assert_eq!(fixture.value("inner::DEEP"), "inner::DEEP=-4");
    assert_eq!(fixture.resolve("PAIR").unwrap().part(8, 4).0, "PAIR.b.0");
}

#[test]
fn values_names_and_refusals() {
    let fixture = Fixture::build("shapes.c", "gcc -g $SRC -o $OUT", "");
    for (spec, value) in [
        ("total", "total=7"),
        ("text", "text=\"hello\""),
        ("ratio", "ratio=0.5"),
        ("wide", "wide=1.0"),
        ("constant", "constant=3"),
        ("*text", "*text=104 'h'"),
        ("head->next->x", "head->next->x=2"),
        ("per_thread", "per_thread=3"),
        ("counts[0..3]", "counts[0..3]={0, 0, 0}"),
        ("nothing", "nothing=0x0"),
    ] {
        assert_eq!(fixture.value(spec), value);
    }
    for (spec, offset, len, name) in [
        ("counts", 12, 4, "counts[3]"),
        ("counts[8..16]", 4, 4, "counts[9]"),
        ("counts[8..16]", 4, 16, "counts[9..13]"),
        ("tab", 16, 4, "tab[0].inner[0].x"),
        ("*head", 8, 4, "head->x"),
        ("*head", 12, 2, "head->s"),
        ("grid[1]", 2, 2, "grid[1][1]"),
        ("counts+8:16", 4, 4, "(counts+8)+4"),
        ("heap[2..9]", 0, 1, "heap[2]"),
    ] {
        assert_eq!(
            fixture.resolve(spec).unwrap().part(offset, len).0,
            name,
            "{spec}"
        );
    }
    let bits = fixture.resolve("flags.b:rw").unwrap();
    assert_eq!((bits.len, bits.kind), (2, WatchKind::Access));
    assert!(bits.note.unwrap().contains("bit-field of 7 bits"));
    assert!(
        fixture
            .resolve("per_thread")
            .unwrap()
            .note
            .unwrap()
            .contains("main thread's copy")
    );
    for (spec, why) in [
        ("totl", "did you mean `total`?"),
        ("on_stack", "local variable of main()"),
        (
            "main::on_stack",
            "`on_stack` is a local variable of main(), which is somewhere else in each call",
        ),
        ("bump::total", "there is no variable `bump::total`"),
        ("main", "is a function"),
        ("head->y", "no field `y`"),
        ("first.nxt", "did you mean `next`?"),
        ("total.x", "which has no fields"),
        ("total[1]", "no array"),
        ("*total", "no pointer"),
        ("counts[32]", "use 0 to 31"),
        ("counts[30..40]", "39 is not among them"),
        ("*nothing:8", "is null now"),
        ("*hidden", "struct opaque is is not known"),
        ("hidden->x", "declared, but defined in no debug information"),
        ("nosuch`x", "is not loaded"),
        ("other.c:total", "there is no variable `total` in other.c"),
        ("0xffffffff81000000:8", "not in the program's half"),
        ("0x7ffffffffff0:4096", "not in the program's half"),
    ] {
        fixture.refuses(spec, why);
    }
}

#[test]
fn libraries() {
    // A library with a global, and two with statics of the same name.
    let dir = folder();
    std::fs::write(
        dir.join("one.c"),
        "int shared_value = 1; static int local_value = 2; int *one(void) { return &local_value; }",
    )
    .unwrap();
    std::fs::write(
        dir.join("two.c"),
        "static int local_value = 3; static int only_two = 4; int *two(void) { return &local_value + (only_two & 1); }",
    )
    .unwrap();
    let main = "#include <stdio.h>\nextern int shared_value; int *one(void), *two(void);\n\
        int main(void) { printf(\"shared_value %p 4\\nlibone.so`local_value %p 4\\nlibtwo`local_value %p 4\\ntwo.c:local_value %p 4\\nend\\n\", \
        (void *)&shared_value, (void *)one(), (void *)two(), (void *)two()); fflush(stdout); return getchar(); }";
    std::fs::write(dir.join("main.c"), main).unwrap();
    sh(&format!(
        "cd {}; for l in one two; do gcc -g -shared -fPIC $l.c -o lib$l.so; done; gcc -g -fPIE -pie main.c -o main -L. -lone -ltwo -Wl,-rpath,$PWD",
        dir.display()
    ));
    let fixture = Fixture::start(&dir.join("main"));
    for (spec, addr, len) in &fixture.oracle {
        let found = fixture.resolve(spec).unwrap_or_else(|p| panic!("{p}"));
        assert_eq!((found.addr, found.len), (*addr, *len), "{spec}");
    }
    assert_eq!(fixture.oracle.len(), 4);
    fixture.refuses("local_value", "names 2 variables");
    assert_eq!(fixture.value("only_two"), "only_two=4");
}

#[test]
fn debugless_library_by_its_symbol_table() {
    let Ok(path) = std::fs::canonicalize("/usr/lib/x86_64-linux-gnu/libsqlite3.so.0") else {
        eprintln!("skipped: no libsqlite3");
        return;
    };
    let mut program = Program::default();
    let object = object::ObjectFile::open(&path).unwrap();
    let code = object.segments.iter().find(|s| s.executable).unwrap();
    let maps = format!(
        "7f0000001000-7f0000100000 r-xp {:08x} 08:01 1    {}\n",
        code.offset & !0xfff,
        path.display()
    );
    let bias = 0x7f0000001000 - (code.vaddr & !0xfff);
    let open = |m: &Mapping| object::ObjectFile::open(maps::path(m));
    assert!(program.refresh(maps.as_bytes(), Path::new("/bin/none"), open));
    struct None_;
    impl Memory for None_ {
        fn read(&self, _: u64, _: &mut [u8]) -> bool {
            false
        }
        fn thread_pointer(&self) -> Option<u64> {
            None
        }
    }
    let found = program.resolve(&Spec::parse("libsqlite3`sqlite3_version").unwrap(), &None_);
    // In read-only data on Debian 12: found, with the size from the symbol table.
    let found = &found.unwrap()[0];
    assert_eq!(found.len, 7);
    assert!(found.addr > bias);
    let step = program.function("sqlite3_step").unwrap();
    assert_eq!(
        program.locate(step + 4).to_string(),
        format!(
            "sqlite3_step+0x4 in {}",
            path.file_name().unwrap().to_string_lossy()
        )
    );
    assert!(
        !program.refresh(maps.as_bytes(), Path::new("/bin/none"), |_| Err(
            "read twice".into()
        ))
    );
}

#[test]
fn instructions_have_lines() {
    let fixture = Fixture::build("shapes.c", "gcc -g $SRC -o $OUT", "");
    let main = fixture.program.function("main").unwrap();
    let place = fixture.program.locate(main + 8);
    assert_eq!(
        (place.function.as_deref(), place.offset, place.short_file()),
        (Some("main"), 8, Some("shapes.c"))
    );
    let line = std::fs::read_to_string(source("shapes.c"))
        .unwrap()
        .lines()
        .position(|l| l.starts_with("int main("))
        .unwrap() as u32
        + 1;
    assert!((line..line + 3).contains(&place.line.unwrap()), "{place}");
    // Each address is looked up once.
    for i in 0..1000 {
        let first = fixture.program.locate(main + i);
        assert!(std::rc::Rc::ptr_eq(
            &first,
            &fixture.program.locate(main + i)
        ));
    }
    assert_eq!(demangle("f"), "f");
    assert_eq!(demangle("_Z1fi"), "f(int)");
    let puts = fixture.program.function("puts").unwrap();
    assert_ne!(
        fixture.program.locate(puts).object.as_deref(),
        Some("shapes")
    );
    let plt = fixture.program.function("puts@plt").unwrap();
    assert_eq!(
        fixture.program.locate(plt + 6).to_string(),
        "puts@plt+0x6 in shapes"
    );
    assert_eq!(fixture.program.locate(0x10).to_string(), "0x10");
}

/// No contents of a file may end the command.
#[test]
fn broken_files_are_no_reason_to_panic() {
    let out = folder().join("broken");
    sh(&format!(
        "gcc -g {} -o {}",
        source("shapes.c"),
        out.display()
    ));
    let good = std::fs::read(&out).unwrap();
    let _ = std::fs::remove_dir_all(folder());
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    let specs = [
        "counts[3]",
        "head->next->x",
        "tab[2].inner[1].next->x",
        "flags.b",
        "per_thread",
        "nosuch",
    ];
    let specs: Vec<Spec> = specs.iter().map(|s| Spec::parse(s).unwrap()).collect();
    struct Zeros;
    impl Memory for Zeros {
        fn read(&self, _: u64, buf: &mut [u8]) -> bool {
            buf.fill(0x41);
            true
        }
        fn thread_pointer(&self) -> Option<u64> {
            Some(0x7000)
        }
    }
    for round in 0..300 {
        let mut data = good.clone();
        // Headers, then everything; debug sections are the second half of the file.
        let (from, len) = [(0, 64), (64, 1024), (good.len() / 2, good.len() / 2)][round % 3];
        for _ in 0..1 + random(24) {
            data[from + random(len)] = random(256) as u8;
        }
        data.truncate(if round % 7 == 0 {
            random(data.len())
        } else {
            data.len()
        });
        let Ok(object) = object::ObjectFile::parse(Path::new("/broken"), data) else {
            continue;
        };
        let Some(code) = object.segments.iter().find(|s| s.executable) else {
            continue;
        };
        let maps = format!(
            "7f0000001000-7f0000100000 r-xp {:08x} 08:01 1    /broken\n",
            code.offset & !0xfff
        );
        let object = std::cell::Cell::new(Some(object));
        let mut program = Program::default();
        program.refresh(maps.as_bytes(), Path::new("/broken"), |_| {
            object.take().ok_or(String::new())
        });
        for spec in &specs {
            for watched in program.resolve(spec, &Zeros).unwrap_or_default() {
                let len = watched.len.min(32);
                let (_, part) = watched.part(watched.len - len, len);
                part.render(&vec![0xff; len as usize], len, &mut String::new());
            }
        }
        for pc in (0x7f0000001000u64..0x7f0000002000).step_by(64) {
            let _ = program.locate(pc).to_string();
        }
    }
}
