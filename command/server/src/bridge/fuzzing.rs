//! Entry points of the bridge's front end for the fuzz targets in fuzz/. Nothing else calls them.
#![forbid(unsafe_code)]

use super::backend::Started;
use super::link::{Link, Place};
use crate::fuzzing::{framed, talk};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use ulpf_bridge::fake::Fake;

/// Sends a debugger's packets to a front end. Its back end answers with these lines in order, each with the number of
/// the request. When they are used up, it gives fitting answers.
pub fn debugger_and_back_end(packets: &[&[u8]], answers: &[&[u8]]) {
    let bytes = framed(packets.iter().copied());
    talk(&bytes, async |mut client| {
        let (ours, theirs) = tokio::io::duplex(1 << 22);
        tokio::spawn(back_end(
            theirs,
            answers.iter().map(|a| a.to_vec()).collect(),
        ));
        let (reader, writer) = tokio::io::split(ours);
        let Ok(link) = Link::over(Box::new(reader), Box::new(writer), Place::Once).await else {
            return;
        };
        let started = Started {
            link,
            child: None,
            ours: false,
            _dir: None,
        };
        let mut front = super::front::fuzzing::front(started);
        front.connection(&mut client).await;
        front.end().await;
    });
}

async fn back_end(mut stream: tokio::io::DuplexStream, answers: Vec<Vec<u8>>) {
    let mut fake = Fake::default();
    let mut answers = answers.into_iter();
    let mut buffer = [0; 4096];
    let mut held = Vec::new();
    while let Ok(n @ 1..) = stream.read(&mut buffer).await {
        held.extend_from_slice(&buffer[..n]);
        while let Some(end) = held.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = held.drain(..=end).collect();
            let id = ulpf_bridge::Ask::parse(&String::from_utf8_lossy(&line)).map(|a| a.id);
            // The script's answer replaces the fitting one.
            let fitting = fake.feed(&line);
            let says = match answers.next() {
                Some(answer) if !answer.is_empty() => with_number(&answer, id.unwrap_or(0)),
                _ => fitting,
            };
            if stream.write_all(&says).await.is_err() {
                return;
            }
        }
    }
}

/// `{"reply":…}` becomes `{"id":7,"reply":…}`; events and malformed lines are unchanged.
fn with_number(line: &[u8], id: u64) -> Vec<u8> {
    let mut says = Vec::new();
    match line {
        [b'{', rest @ ..] if !line.starts_with(b"{\"event\"") => {
            says.extend_from_slice(format!("{{\"id\":{id},").as_bytes());
            says.extend_from_slice(rest);
        }
        _ => says.extend_from_slice(line),
    }
    says.push(b'\n');
    says
}
