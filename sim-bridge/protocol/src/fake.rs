//! A back end without a program, for tests: it records requests and answers from a script. Requests
//! without a script entry get a suitable answer.

use crate::{
    Armed, Ask, Capabilities, Feature, Kind, Lines, Reason, Refusal, Reply, Request, Said, State,
    Stop, agree,
};
use std::collections::VecDeque;

#[derive(Default)]
pub struct Fake {
    pub asked: Vec<Request>,
    /// Scripted answers, used in place of its own: any bytes, also none.
    pub script: VecDeque<(&'static str, Vec<u8>)>,
    pub lines: Lines,
    next: u64,
}

impl Fake {
    /// To the next request of this name it says this, and nothing else.
    pub fn says(mut self, request: &'static str, bytes: impl Into<Vec<u8>>) -> Fake {
        self.script.push_back((request, bytes.into()));
        self
    }

    /// Its answer to these bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.lines.feed(bytes);
        let mut out = vec![];
        loop {
            match self.lines.take() {
                Ok(Some(text)) => out.extend(self.line(&text)),
                Ok(None) => return out,
                Err(bad) => out.extend(Said::Message(bad.to_string()).line()),
            }
        }
    }

    fn line(&mut self, text: &str) -> Vec<u8> {
        let Ask { id, request } = match Ask::parse(text) {
            Ok(ask) => ask,
            Err((id, why)) => {
                let refusal = Refusal::new("This is no request", why, "");
                let answer = Err(refusal);
                return Said::Answer {
                    id: id.unwrap_or(0),
                    answer,
                }
                .line();
            }
        };
        self.asked.push(request.clone());
        if self.script.front().is_some_and(|s| s.0 == request.name()) {
            return self.script.pop_front().unwrap_or_default().1;
        }
        let reason = match &request {
            Request::Resume { .. } => Some(Reason::Step),
            Request::Kill => Some(Reason::Killed {
                number: 9,
                why: String::new(),
            }),
            _ => None,
        };
        let answer = self.answer(request);
        let mut out = Said::Answer { id, answer }.line();
        if let Some(reason) = reason {
            out.extend(
                Said::Stopped(Stop {
                    thread: 1,
                    pc: 0x1000,
                    reason,
                })
                .line(),
            );
        }
        out
    }

    fn answer(&mut self, request: Request) -> Result<Reply, Refusal> {
        Ok(match request {
            Request::Hello { versions, .. } => Reply::Hello {
                version: agree(versions)
                    .ok_or_else(|| Refusal::new("There is no version that both speak", "", ""))?,
                backend: "fake".into(),
                name: "a recording".into(),
                session: "1".into(),
                program: String::new(),
                capabilities: Capabilities {
                    registers: "amd64-core".into(),
                    watches: vec![Kind::Write, Kind::Read, Kind::Access],
                    most_watches: None,
                    features: vec![Feature::Breakpoints, Feature::Step, Feature::Interrupt],
                },
            },
            Request::Status => Reply::Status(State::Stopped {
                stop: Stop {
                    thread: 1,
                    pc: 0x1000,
                    reason: Reason::Attached,
                },
            }),
            Request::Threads => Reply::Threads { threads: vec![1] },
            Request::Registers { .. } => Reply::Data {
                data: crate::Bytes(vec![0; 164]),
            },
            Request::Read { len, .. } => Reply::Data {
                data: crate::Bytes(vec![0; len.min(4096) as usize]),
            },
            Request::Watch { watches } => {
                let mut id = || {
                    self.next += 1;
                    Armed::Id(self.next)
                };
                Reply::Watched {
                    watches: watches.iter().map(|_| id()).collect(),
                }
            }
            Request::Auxv
            | Request::Hits { .. }
            | Request::Statistics
            | Request::List
            | Request::Filter { .. }
            | Request::Monitor { .. } => {
                return Err(Refusal::new("This back end has no such thing", "", ""));
            }
            _ => Reply::Done,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line;

    #[test]
    fn it_records_and_follows_its_script() {
        let mut fake = Fake::default().says("status", "nonsense\n");
        let ask = |id, request| line(&Ask { id, request });
        let out = fake.feed(
            &[
                ask(1, Request::Status),
                ask(2, Request::Threads),
                b"?\n".to_vec(),
            ]
            .concat(),
        );
        let out = String::from_utf8(out).unwrap();
        let all: Vec<_> = out.lines().collect();
        assert_eq!(all[0], "nonsense");
        assert_eq!(all[1], r#"{"id":2,"reply":"threads","threads":[1]}"#);
        assert!(all[2].contains("This is no request"));
        assert_eq!(fake.asked, [Request::Status, Request::Threads]);
    }
}
