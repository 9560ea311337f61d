//! The connection to a remote stub, against the fake.

use super::fake::Fake;
use super::remote::{Failure, Flavour, Remote, Said, TIMEOUT};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use ulpf_rsp::reports::Role;

/// A connection to a fake that answers these packets first.
async fn greeted(fake: Fake) -> Result<Remote, Failure> {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    tokio::spawn(fake.serve(theirs));
    let (r, w) = tokio::io::split(ours);
    Remote::greet(Box::new(r), Box::new(w), Flavour::Packets, TIMEOUT).await
}

async fn remote(script: &[&str]) -> Remote {
    let script = script.iter().map(|s| s.as_bytes().to_vec()).collect();
    greeted(Fake::new(script)).await.unwrap()
}

#[tokio::test]
async fn a_conversation() {
    let mut r = remote(&[]).await;
    assert_eq!((r.about.role, &r.about.kind[..]), (Role::Watches, "fake"));
    assert_eq!(r.stop.as_deref(), Some(&b"T05thread:1;"[..]));
    assert_eq!(r.ask(b"qfThreadInfo").await.unwrap(), b"m1");
    assert_eq!(
        r.monitor("ulpf x", TIMEOUT).await.unwrap(),
        "{\"watch\":1}\n"
    );
    r.resume(b"vCont;c").await.unwrap();
    assert_eq!(r.event().await, Said::Stop(b"T05thread:1;".into()));
    assert!(matches!(
        r.fine(b"vLevitate").await,
        Err(Failure::Refused(_))
    ));
}

#[tokio::test]
async fn a_stub_without_our_packets() {
    let r = greeted(Fake::new(vec![]).role(Role::Plain)).await.unwrap();
    assert_eq!(r.about.role, Role::Plain);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_silent() {
    let silent = Fake::new(vec![]).delay(Duration::from_secs(60));
    let Err(Failure::Late(why)) = greeted(silent).await else {
        panic!()
    };
    assert!(
        why.contains("`vMustReplyEmpty`") && why.contains('5'),
        "{why}"
    );
}

/// The late reply is dropped, and the next request gets its own.
#[tokio::test(start_paused = true)]
async fn one_that_is_late() {
    let late = "raw:$m7#a4$#00";
    let mut r = remote(&["", late]).await;
    let Err(Failure::Late(why)) = r.ask(b"qfThreadInfo").await else {
        panic!()
    };
    assert!(why.contains("`qfThreadInfo`"), "{why}");
    assert_eq!(r.ask(b"qfThreadInfo").await.unwrap(), b"m1");
}

/// A stop that comes before a report waits; the late reply to an earlier report is not taken.
#[tokio::test]
async fn reports_of_a_running_program() {
    let script = ["T05thread:1;", "h1,7,0,0", "h9,9,0,0"];
    let mut r = remote(&script).await;
    r.send(b"qUlpf.Hits:0,0").await.unwrap();
    r.send(b"qUlpf.Hits:1,0").await.unwrap();
    let hits = r.hits(9, 1, TIMEOUT).await.unwrap();
    assert_eq!((hits.since, hits.last), (9, 9));
    assert_eq!(r.event().await, Said::Stop(b"T05thread:1;".into()));
}

#[tokio::test]
async fn one_that_dies_or_says_garbage() {
    for (says, why) in [
        ("EOF", "closed the connection"),
        ("raw:$OK#00", "no packet (a packet has a wrong checksum)"),
        ("raw:$*!#4b", "no packet (a packet has an impossible run)"),
    ] {
        let mut r = remote(&[says]).await;
        let Err(Failure::Lost(said)) = r.ask(b"m0,1").await else {
            panic!("{says}")
        };
        assert!(said.contains(why), "{said}");
        assert!(matches!(r.ask(b"m0,1").await, Err(Failure::Lost(_))));
        assert!(matches!(r.event().await, Said::Lost(_)));
    }
    let mut r = remote(&["hello", "h0,zz"]).await;
    assert_eq!(r.ask(b"m0,1").await.unwrap(), b"hello");
    assert!(matches!(
        r.hits(0, 1, TIMEOUT).await,
        Err(Failure::Late(_)) | Err(Failure::Lost(_))
    ));
}

/// The number of unrequested bytes is bounded.
#[tokio::test]
async fn one_that_never_stops_talking() {
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    tokio::spawn(async move { while theirs.write_all(&[b'x'; 4096]).await.is_ok() {} });
    let (r, w) = tokio::io::split(ours);
    let greeted = Remote::greet(Box::new(r), Box::new(w), Flavour::Packets, TIMEOUT).await;
    let Err(Failure::Lost(why)) = greeted else {
        panic!()
    };
    assert!(why.contains("MiB at a time"), "{why}");
}
