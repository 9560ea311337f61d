//! Entry points of the front end for the fuzz targets in fuzz/. Nothing else calls them.
#![forbid(unsafe_code)]

use super::fake::Fake;
use super::remote::{Flavour, Remote, Started, TIMEOUT};
use crate::fuzzing::{framed, talk};

/// Sends a debugger's packets to a front end. Its back end answers with these payloads in order, after it has been
/// greeted. When they are used up, it gives fitting answers.
pub fn debugger_and_back_end(packets: &[&[u8]], answers: &[&[u8]]) {
    let bytes = framed(packets.iter().copied());
    talk(&bytes, async |mut client| {
        let (ours, theirs) = tokio::io::duplex(1 << 22);
        let answers = answers.iter().map(|a| a.to_vec()).collect();
        tokio::spawn(Fake::new(answers).serve(theirs));
        let (reader, writer) = tokio::io::split(ours);
        let (reader, writer) = (Box::new(reader), Box::new(writer));
        let Ok(remote) = Remote::greet(reader, writer, Flavour::Packets, TIMEOUT).await else {
            return;
        };
        let mut front = super::front::fuzzing::front(Started {
            remote,
            child: None,
            ours: false,
            _dir: None,
        })
        .await;
        front.connection(&mut client).await;
        front.end().await;
    });
}
