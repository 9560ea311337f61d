//! Tests of parsing SPECs.

use super::*;

fn name(s: &str) -> Box<Expr> {
    Box::new(Expr::Name(s.into()))
}
fn ok(s: &str) -> Spec {
    Spec::parse(s).unwrap_or_else(|p| panic!("{s}: {p}"))
}

#[test]
fn suffixes_are_cut_from_the_right() {
    let s = ok("0x1000:16:rw");
    assert_eq!(
        (s.expr, s.len, s.kind),
        (Expr::Address(0x1000), Some(16), WatchKind::Access)
    );
    let s = ok("ns::counter:r");
    assert_eq!(
        (s.expr, s.len, s.kind),
        (*name("ns::counter"), None, WatchKind::Read)
    );
    let s = ok("loop.c:total:8:w");
    assert_eq!(
        (s.scope, s.expr, s.len),
        (Some(Scope::File("loop.c".into())), *name("total"), Some(8))
    );
    let s = ok("libsqlite3`sqlite3Config");
    assert_eq!(
        (s.scope, s.expr),
        (
            Some(Scope::Object("libsqlite3".into())),
            *name("sqlite3Config")
        )
    );
    assert_eq!(ok("buf:4K").len, Some(4096));
}

#[test]
fn steps_nest() {
    assert_eq!(
        ok("tab[2].next->x").expr,
        Expr::Arrow(
            Box::new(Expr::Field(
                Box::new(Expr::Index(name("tab"), 2)),
                "next".into()
            )),
            "x".into()
        )
    );
    assert_eq!(
        ok("a[0..16]").expr,
        Expr::Slice(name("a"), Some(0), Some(16))
    );
    assert_eq!(
        ok("a[2..=3]").expr,
        Expr::Slice(name("a"), Some(2), Some(4))
    );
    assert_eq!(ok("a[..]").expr, Expr::Slice(name("a"), None, None));
    assert_eq!(ok("a[3..]").expr, Expr::Slice(name("a"), Some(3), None));
    assert_eq!(ok("a[..3]").expr, Expr::Slice(name("a"), None, Some(3)));
    assert_eq!(ok("a[..=3]").expr, Expr::Slice(name("a"), None, Some(4)));
    assert_eq!(
        ok("**p").expr,
        Expr::Deref(Box::new(Expr::Deref(name("p"))))
    );
    assert_eq!(
        ok("(*p).x").expr,
        Expr::Field(Box::new(Expr::Deref(name("p"))), "x".into())
    );
    assert_eq!(
        ok("m[1][-2]").expr,
        Expr::Index(Box::new(Expr::Index(name("m"), 1)), -2)
    );
    assert_eq!(ok("g(2,-3)").expr, Expr::Call(name("g"), vec![2, -3]));
    assert_eq!(ok("t%x").expr, ok("t.x").expr);
    assert_eq!(ok("a[*]").expr, Expr::All(name("a")));
    assert_eq!(
        ok("l->*next.x").expr,
        Expr::Field(Box::new(Expr::Chain(name("l"), "next".into())), "x".into())
    );
    assert_eq!(ok("*p@3").expr, Expr::Slice(name("p"), Some(0), Some(3)));
    assert_eq!(ok("a[2]@3").expr, Expr::Slice(name("a"), Some(2), Some(5)));
    assert_eq!(ok("s+8:4").expr, Expr::Offset(name("s"), 8));
}

#[test]
fn names_of_three_languages() {
    assert_eq!(
        ok("Pool<std::vector<int>, 3>::live.n").expr,
        Expr::Field(name("Pool<std::vector<int>, 3>::live"), "n".into())
    );
    assert_eq!(
        ok("app::{impl#0}::f::SEEN.0").expr,
        *name("app::{impl#0}::f::SEEN.0")
    );
    assert_eq!(ok("f()::calls").expr, *name("f::calls"));
    assert_eq!(ok("counter.0").expr, *name("counter.0"));
    assert_eq!(ok("t.__1").expr, Expr::Field(name("t"), "__1".into()));
    assert_eq!(ok("environ@GLIBC_2.2.5").expr, *name("environ@GLIBC_2.2.5"));
}

#[test]
fn refusals_say_why() {
    for (spec, why) in [
        ("", "nothing is named"),
        ("0x1000", "how many bytes"),
        ("x:0", "length is zero"),
        ("a[3", "`]` is missing"),
        ("a[5..5]", "is empty"),
        ("a[5..4]", "ends before it begins"),
        ("a[5..=4]", "is empty"),
        ("a[..=]", "a number is missing"),
        ("a.", "field name"),
        ("a b", "left over"),
        ("a[z]", "`z` is no number"),
        ("?", "cannot start a name"),
        ("x:", "nothing follows"),
        ("a[*", "`]` is missing"),
        ("*p@0", "at least one"),
        ("p@3", "stands behind"),
        (&format!("{}p", "*".repeat(20_000)), "in one another"),
        (&format!("{}p", "(".repeat(20_000)), "in one another"),
        (&format!("p{}", ".a".repeat(20_000)), "in one another"),
        (&format!("p{}", "->a".repeat(20_000)), "in one another"),
        (&format!("p{}", "[1]".repeat(20_000)), "in one another"),
        (&format!("p{}", "[".repeat(20_000)), "number is missing"),
        (&format!("p{}", "+1".repeat(20_000)), "in one another"),
    ] {
        let problem = Spec::parse(spec).unwrap_err();
        assert!(problem.why.contains(why), "{spec}: {problem:?}");
        assert!(problem.to_string().len() < 1000);
    }
}
