//! Conditions that real GDB compiles to bytecode, evaluated by our interpreter at the breakpoint,
//! against the values that GDB itself finds.
#![allow(clippy::print_stderr, clippy::print_stdout)]

use std::fmt::Write;
use std::net::TcpListener;
use std::process::Command;

const PROGRAM: &str = r#"
struct S { int a : 3; unsigned b : 5; short c; const char *name; struct S *next; long arr[4]; double d; };
struct S s = { -2, 17, -300, "hello", &s, { 1, 2, 3, -4 }, 1.5 };
int x = 41;
unsigned long ul = 0xfffffffffffffffful;
unsigned char uc = 200;
signed char sc = -5;
volatile int sink;
void f(struct S *p, int n) { int local = n * 0 + 7; sink += local + p->c; }
int main(void) { for (int i = 0; i < 100; i++) f(&s, i); return 0; }
"#;

/// Expressions of the frame of `f` whose value is the same at every call.
const EXPRESSIONS: &[&str] = &[
    "x",
    "x + 1",
    "x * -3",
    "x - 100",
    "x / 4",
    "-x / 4",
    "x % 7",
    "-x % 7",
    "ul / 3",
    "ul % 1000",
    "ul >> 60",
    "x << 3",
    "(-x) >> 2",
    "~x",
    "!x",
    "x & 12",
    "x | 2",
    "x ^ 15",
    "x == 41",
    "x != 41",
    "x < -1",
    "ul > 5",
    "x <= 41",
    "uc",
    "sc",
    "uc + sc",
    "(char) uc",
    "(short) 70000",
    "(unsigned char) x",
    "s.a",
    "s.b",
    "s.c",
    "s.name[1]",
    "p->next->next->c",
    "*p->next->name",
    "s.arr[3]",
    "p->arr[2] + s.arr[1]",
    "&s.arr[1] == p->arr + 1",
    "*(&x)",
    "sizeof(s)",
    "x > 40 && uc == 200",
    "x > 41 || sc == -5",
    "x ? 3 : 4",
    "x - 41 ? 3 : 4",
    "p == &s",
    "$rsp != 0",
    "$rdi == (long) p",
    "(int) $rip == (int) (long) $pc",
    "1000000000000",
    "-1",
    "ul",
    "-ul",
];

#[test]
fn gdb_and_we_agree() {
    if Command::new("gdb").arg("--version").output().is_err() {
        eprintln!("skipped: no gdb on this machine");
        return;
    }
    let dir = std::env::temp_dir().join(format!("ulpf-conditions-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (source, program) = (dir.join("c.c"), dir.join("c"));
    std::fs::write(&source, PROGRAM).unwrap();
    let built = Command::new("cc")
        .args(["-g", "-O0", "-o"])
        .arg(&program)
        .arg(&source)
        .status()
        .unwrap();
    assert!(built.success());

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let argv = [program.display().to_string()];
    let server = std::thread::spawn(move || ulpf_stub_host_tests::server::serve(&listener, &argv));

    let mut script = format!(
        "set pagination off\nset confirm off\ntarget remote :{port}\nbreak f\ncontinue\nset $at = $pc\n"
    );
    script.push_str("delete\nset debug remote 1\n");
    for e in EXPRESSIONS {
        let f = e.replace('%', "%%"); // the first argument of eval is a format
        // Stops at the next call when the value is what GDB finds now; never when it is another.
        let _ = writeln!(
            script,
            "eval \"tbreak *0x%lx if ({f}) == %ld\", $at, (long)({e})"
        );
        let _ = writeln!(
            script,
            "eval \"break *0x%lx if ({f}) != %ld\", $at, (long)({e})"
        );
        let _ = writeln!(script, "echo >>> {e}\\n\ncontinue\nclear *$at");
    }
    script.push_str("kill\n");
    let file = dir.join("script");
    std::fs::write(&file, script).unwrap();
    let output = Command::new("gdb")
        .args(["-q", "-nx", "-batch", "-x"])
        .arg(&file)
        .arg(&program)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    std::fs::remove_dir_all(&dir).unwrap();
    server.join().unwrap().unwrap();

    let compiled = said
        .lines()
        .filter(|l| l.contains("Sending packet: $Z0,") && l.contains(";X"))
        .count();
    // GDB keeps the few that it cannot compile to itself.
    assert!(
        compiled + 3 >= EXPRESSIONS.len(),
        "conditions went to the target {compiled} times:\n{said}"
    );
    for e in EXPRESSIONS {
        let part = said.split(&format!(">>> {e}\n")).nth(1).unwrap_or_default();
        let part = part.split(">>> ").next().unwrap_or_default();
        let stops = part
            .lines()
            .filter(|l| l.starts_with("Temporary breakpoint ") && l.contains(", f ("))
            .count();
        assert_eq!(stops, 1, "{e}: {part}");
    }
}
