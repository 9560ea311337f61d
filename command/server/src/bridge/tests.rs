//! The front end's half of the bridge against the recording fake.

use super::link::{Event, Failure, Link, Place};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use ulpf_bridge::fake::Fake;
use ulpf_bridge::{How, Reason, Reply, Request};

/// A link to a fake that waits for `delay` before each message.
async fn link(fake: Fake, delay: Duration) -> Result<Link, String> {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move {
        let (mut fake, mut theirs) = (fake, theirs);
        let mut buf = [0; 4096];
        while let Ok(n @ 1..) = theirs.read(&mut buf).await {
            let says = fake.feed(&buf[..n]);
            tokio::time::sleep(delay).await;
            if theirs.write_all(&says).await.is_err() || says.ends_with(b"EOF") {
                return;
            }
        }
    });
    let (r, w) = tokio::io::split(ours);
    Link::over(Box::new(r), Box::new(w), Place::Once).await
}

const NO: Duration = Duration::ZERO;

#[tokio::test]
async fn a_conversation() {
    let mut l = link(Fake::default(), NO).await.unwrap();
    assert_eq!(l.backend, "fake");
    let threads = l.request(Request::Threads).await.unwrap();
    assert_eq!(threads, Reply::Threads { threads: vec![1] });
    let resume = Request::Resume {
        how: How::Step,
        thread: None,
        signal: 0,
        alone: false,
    };
    l.request(resume).await.unwrap();
    let Event::Stopped(stop) = l.event().await else {
        panic!()
    };
    assert_eq!(stop.reason, Reason::Step);
    assert!(matches!(
        l.request(Request::Statistics).await,
        Err(Failure::Refused(_))
    ));
}

#[tokio::test]
async fn versions_and_layouts_that_do_not_fit() {
    let hello = |version: u32, layout: &str| {
        format!(
            "{{\"id\":1,\"reply\":\"hello\",\"version\":{version},\"backend\":\"x\",\"name\":\"\",\"session\":\"s\",\"capabilities\":{{\"registers\":\"{layout}\"}}}}\n"
        )
    };
    for (says, why) in [
        (hello(9, "amd64-core"), "speaks version 9"),
        (hello(1, "arm"), "registers that this ulpf does not know"),
        (
            "{\"id\":1,\"reply\":\"done\"}\n".into(),
            "does not answer `hello`",
        ),
        ("SSH-2.0-OpenSSH_9.2\r\n".into(), "no message of the bridge"),
        (
            "{\"id\":1,\"error\":{\"what\":\"No\",\"why\":\"so\",\"todo\":\"Go.\"}}\n".into(),
            "No: so. Go.",
        ),
    ] {
        let Err(said) = link(Fake::default().says("hello", says), NO).await else {
            panic!("{why}: agreed")
        };
        assert!(said.contains(why), "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_is_silent_or_late() {
    let mut l = link(Fake::default().says("threads", ""), NO).await.unwrap();
    let Err(Failure::Late(why)) = l.request(Request::Threads).await else {
        panic!()
    };
    assert!(why.contains("`threads`") && why.contains('5'), "{why}");
    // The late answer is dropped, and the next request gets its own answer.
    let late = "{\"id\":2,\"reply\":\"threads\",\"threads\":[7]}\n";
    let fake = Fake::default().says("threads", "").says("status", late);
    let mut l = link(fake, NO).await.unwrap();
    assert!(matches!(
        l.request(Request::Threads).await,
        Err(Failure::Late(_))
    ));
    assert!(matches!(
        l.request(Request::Status).await,
        Err(Failure::Late(_))
    ));
    let threads = l.request(Request::Threads).await.unwrap();
    assert_eq!(threads, Reply::Threads { threads: vec![1] });
}

#[tokio::test]
async fn one_that_dies_or_says_garbage() {
    for (says, why) in [
        ("EOF", "closed the connection"),
        ("[1,2]\n", "no message of the bridge"),
    ] {
        let mut l = link(Fake::default().says("threads", says), NO)
            .await
            .unwrap();
        let Err(Failure::Lost(said)) = l.request(Request::Threads).await else {
            panic!()
        };
        assert!(said.contains(why), "{said}");
        assert!(matches!(
            l.request(Request::Status).await,
            Err(Failure::Lost(_))
        ));
        assert!(matches!(l.event().await, Event::Lost(_)));
    }
}
