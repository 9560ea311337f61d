//! Tests against the C compiler: a fixture prints values of its own expressions, and our bytecode must compute the same
//! from its memory.

use crate::tests::Fixture;
use crate::{Memory, Spec};
use ulpf_engine::agent::{AgentContext, AgentError, eval, variable};

struct Hit<'a> {
    fixture: &'a Fixture,
    old: u64,
    new: u64,
    kind: u64,
}

impl AgentContext for Hit<'_> {
    fn reg(&mut self, number: u16) -> Option<u64> {
        (number < 18).then_some(1000 + u64::from(number))
    }
    fn read(&mut self, addr: u64, buf: &mut [u8]) -> bool {
        self.fixture.read(addr, buf)
    }
    fn variable(&mut self, number: u16) -> Option<u64> {
        Some(match number {
            variable::OLD => self.old,
            variable::NEW => self.new,
            variable::ADDR => 0x1000,
            variable::LEN => 4,
            variable::TID => 12,
            variable::PID => 10,
            variable::KIND => self.kind,
            variable::HITS => 5,
            variable::PC => 0x40_0000,
            variable::THREAD_POINTER => self.fixture.thread_pointer()?,
            _ => return None,
        })
    }
}

impl Hit<'_> {
    fn code(&self, spec: &str) -> Vec<u8> {
        let watch = self.fixture.resolve(spec);
        let filter = watch.unwrap_or_else(|p| panic!("{p}")).filter;
        filter.conditions[0].code().to_vec()
    }
    fn holds(&mut self, spec: &str) -> Result<u64, AgentError> {
        eval(&self.code(spec), self)
    }
}

fn fixture(compile: &str) -> Fixture {
    Fixture::build("conditions.c", compile, "")
}

#[test]
fn values_are_those_of_the_compiler() {
    for compile in [
        "gcc -g -w $SRC -o $OUT",
        "gcc -g -w -O2 -gdwarf-4 -no-pie $SRC -o $OUT",
    ] {
        let fixture = fixture(compile);
        let mut hit = Hit {
            fixture: &fixture,
            old: 0,
            new: 0,
            kind: 2,
        };
        assert!(fixture.oracle.len() > 190);
        for (text, value, _) in &fixture.oracle {
            let equal = hit.holds(&format!("x if ({text}) == {value:#x}"));
            let more = hit.holds(&format!("x if ({text}) == {:#x}", value.wrapping_add(1)));
            assert_eq!((equal, more), (Ok(1), Ok(0)), "{text} is {value:#x}");
        }
    }
}

#[test]
fn the_hit_itself() {
    let fixture = fixture("gcc -g -w $SRC -o $OUT");
    let mut hit = Hit {
        fixture: &fixture,
        old: 0xffff_fff9,
        new: 0x2a,
        kind: 2,
    };
    for (spec, holds) in [
        ("y if $old == -7 && $new == 42", 1),
        ("y if $new > $old", 1),
        ("u if $new > $old", 0),
        ("u if $old == 0xfffffff9", 1),
        ("y if $new - $old == 49", 1),
        ("y if $addr == 0x1000 && $len == 4", 1),
        ("y if $tid == $pid", 0),
        ("y if $hits % 5 == 0", 1),
        ("y if $writes && !$reads", 1),
        ("y if $kind == 2", 1),
        ("y if $pc == 0x400000", 1),
        (
            "y if $rax == 1000 && $r15 == 1015 && $rip == 1016 && $eflags == 1017",
            1,
        ),
        ("y if $sp == 1007 && $fp == $rbp", 1),
        ("y:1 if $new == 42", 1),
        ("y:2 if (short)$old == -7", 1),
        ("matrix if $old < 0", 1),
        ("matrix[1][0..2] if $old < 0", 1),
        ("first if $new == 42", 1),
        // bits 3 to 7: 00101
        ("first.b if $new == 5", 1),
        ("first.a if $new == 2 && $old == 1", 1),
        ("colour if $new != GREEN && $old < BLUE", 1),
        ("sc if $new == 42", 1),
        ("heap if $new == 42", 1),
        ("[heap] if $old > 5 if $new < 5", 1),
    ] {
        assert_eq!(hit.holds(spec), Ok(holds), "{spec}");
    }
    hit.new = fixture.resolve("second").unwrap().addr;
    assert_eq!(hit.holds("head if $new->b == 17 && $new == &second"), Ok(1));
    hit.new = (-0.5f64).to_bits();
    assert_eq!(hit.holds("d if $new < 0"), Ok(1));
    hit.new = f64::NAN.to_bits();
    assert_eq!(hit.holds("d if $new != $new"), Ok(1));
    hit.kind = 3;
    assert_eq!(hit.holds("x if $writes + $reads == 2"), Ok(1));
    assert_eq!(hit.holds("x if null->c == 3"), Err(AgentError::Memory(10)));
    assert_eq!(hit.holds("x if 1 / zero"), Err(AgentError::DivisionByZero));
}

#[test]
fn elements() {
    let fixture = fixture("gcc -g -w $SRC -o $OUT");
    for (spec, unit) in [
        ("x if $new", " unit 4"),
        ("matrix if $new", " unit 4"),
        ("text if $new", " unit 1"),
        ("text:8 if $new", " unit 1"),
        ("text:7 if $new", " unit 7"),
        ("text:64 if $new", ""),
        ("d if $new > 0", " unit 8"),
        ("nodes if $new", ""),
        ("first.b if $new", " unit 1"),
        ("indirect if $new", " unit 8"),
        ("heap if $new", ""),
    ] {
        let words = fixture.resolve(spec).unwrap().filter.to_string();
        let found = words.find(" unit").map_or("", |at| &words[at..]);
        assert_eq!(found, unit, "{spec}");
    }
}

#[test]
fn what_is_wrong_and_where() {
    let fixture = fixture("gcc -g -w $SRC -o $OUT");
    for (spec, why) in [
        (
            "x if $nw > 3",
            "there is no `$nw`: it is one of $new, $old,",
        ),
        ("x if $nw > 3", "(column 6, at `$nw > 3`)"),
        ("x if limmit > 3", "there is no variable `limmit`"),
        (
            "x if zerro > 3",
            "did you mean `zero`? (column 6, at `zerro > 3`)",
        ),
        ("x if $new > ", "nothing follows `>` (column 11"),
        ("x if ($new > 3", "a `)` is missing (at the end, column 15)"),
        ("x if first > 3", "a struct node has no value: name a field"),
        (
            "x if first.z",
            "struct node has no field `z`: it has next, a, b, c, d, i, bytes",
        ),
        (
            "x if first->c",
            "use `.` instead of `->` (column 11, at `->c`)",
        ),
        (
            "x if x->c",
            "`->` takes a pointer, this is a integer of 4 bytes",
        ),
        ("x if *x", "`*` takes a pointer"),
        ("x if *nothing", "void pointer"),
        ("x if x[1]", "neither array nor pointer"),
        ("x if &3", "`&` takes what has an address"),
        ("x if &first.b", "`&` takes what has an address"),
        ("x if d", "compare the floating-point value"),
        ("x if d + 1 > 2", "can only be compared"),
        (
            "x if d > x",
            "an integer is not compared with a floating-point value",
        ),
        ("x if f > d", "a float is not compared with a double"),
        ("x if f > 0.1", "a float cannot be exactly 0.1"),
        ("x if (struct nobody *)x", "there is no structure `nobody`"),
        ("x if main", "`main` is a function"),
        ("x if head + head", "pointers cannot be added"),
        (
            "x from nowhere",
            "neither a function nor a library `nowhere`",
        ),
        ("x from man", "did you mean `main`?"),
        (
            "x outside libc`prnitf",
            "there is no function `prnitf` in libc",
        ),
    ] {
        match fixture.resolve(spec) {
            Ok(found) => panic!("{spec}: {}", found.filter),
            Err(p) => assert!(p.to_string().contains(why), "{spec}: {p}"),
        }
    }
    assert!(Spec::parse(&format!("x if {}x", "!".repeat(99))).is_err());
    let long = "x == 1 && ".repeat(400) + "x";
    assert!(fixture.resolve(&format!("x if {long}")).is_err());
}

#[test]
fn places() {
    let fixture = fixture("gcc -g -w $SRC -o $OUT");
    let words = |spec: &str| {
        fixture
            .resolve(spec)
            .unwrap_or_else(|p| panic!("{p}"))
            .filter
            .to_string()
    };
    let main = fixture.program.function("main").unwrap();
    let range = words("x from main");
    assert!(range.starts_with(&format!(" from {main:#x}-0x")), "{range}");
    assert_eq!(words("x from main, main"), range);
    assert_eq!(words("x from main outside main"), " from none");
    assert_eq!(words("x outside libplugin"), " outside none");
    assert_eq!(words("x called from libnone`f"), " called from none");
    assert_eq!(words("x from 0x10-0x20,0x18-0x30"), " from 0x10-0x30");
    assert!(words("x outside libc from libc.so.6, main").starts_with(&range));
    assert_eq!(
        words("x changed skip 2 count 3 thread main"),
        " changed thread main skip 2 count 3"
    );
}
