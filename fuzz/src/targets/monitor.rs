//! Monitor commands, which the stub and the bridge's front end read from any debugger, and replies, which `ulpf` reads.

use ulpf_lib::command::{self, Command, MOST_IN_PLACE, Reply, reply};
use ulpf_lib::filter::Filter;

pub const INPUTS: u64 = 83_000;

pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for line in command::lines(&text) {
        let Ok(command) = Command::parse(line) else {
            continue;
        };
        if let Command::Watches { places, .. } = &command {
            assert!(places.iter().flatten().all(|p| p.count <= MOST_IN_PLACE));
        }
        assert_eq!(Command::parse(&command.to_string()), Ok(command));
    }
    let (mut filter, mut rest) = (Filter::default(), text.split_ascii_whitespace());
    while let Some(word) = rest.next() {
        let _ = filter.take(word, &mut rest);
    }
    for ranges in [&filter.pc, &filter.caller].into_iter().flatten() {
        assert!(ranges.list().windows(2).all(|w| w[0].1 < w[1].0));
    }
    macro_rules! there_and_back {
        ($($kind:ty)*) => { $(
            if let Ok(reply) = serde_json::from_str::<$kind>(&text) {
                let again = serde_json::from_str::<$kind>(&reply.to_string());
                assert_eq!(again.ok(), Some(reply));
            }
        )* };
    }
    there_and_back! {
        Reply reply::Statistics reply::Last reply::LogHead reply::Record reply::Stop reply::Patching
        reply::PatchSite reply::PlacementState reply::Backend
    }
}
