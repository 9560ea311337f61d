//! Watches: the debugger's own, and those of ulpf's commands.
#![forbid(unsafe_code)]

use super::Front;
use crate::bridge::monitor::LONG;
use crate::bridge::packets::Spec;
use crate::bridge::remote::{Failure, Flavour, Remote};
use crate::bridge::watch_table::{PLACE, Watch};
use std::collections::HashSet;
use ulpf_lib::Refusal;
use ulpf_lib::command::{Arm, Command, Reply};
use ulpf_rsp::reports::Role;

/// Limit of watches in one request to the back end, and of bytes of the commands for them.
const BATCH: usize = 1024;
const BYTES: usize = 1 << 18;
/// Removals that are sent between two looks at what is left.
const OVERDUE: usize = 1024;

fn cannot(why: impl Into<String>) -> Refusal {
    Refusal::new("The watch cannot be set", why, "see `monitor ulpf backend`")
}

/// Sets watches in a back end that numbers them.
async fn numbered(
    remote: &mut Remote,
    arms: Vec<Arm>,
) -> Result<Vec<Result<u64, Refusal>>, Failure> {
    let commands: Vec<Command> = arms.into_iter().map(Command::Watch).collect();
    let mut done = vec![];
    let mut rest = &commands[..];
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |c: &&Command| {
            bytes += c.to_string().len() + 1;
            bytes <= BYTES
        };
        let n = rest.iter().take(BATCH).take_while(fits).count().max(1);
        let (now, later) = rest.split_at(n);
        for reply in remote.commands(now, LONG).await? {
            done.push(match reply {
                Reply::Watch(id) => Ok(id.into()),
                Reply::Refused(why) => Err(why),
                _ => Err(cannot("the back end's answer is none to `watch`")),
            });
        }
        rest = later;
    }
    Ok(done)
}

/// Sets a watch by the protocol's packet.
async fn by_packet(remote: &mut Remote, spec: Spec) -> Result<Result<u64, Refusal>, Failure> {
    let reply = remote.ask(&spec.packet('Z')).await?;
    Ok(match &reply[..] {
        b"OK" => Ok(0),
        [] => Err(cannot("the remote stub has no watches of this kind")),
        [b'E', b'.', why @ ..] => Err(cannot(String::from_utf8_lossy(why))),
        other => Err(cannot(format!(
            "the remote stub refuses it ({}); it may have no debug register left",
            String::from_utf8_lossy(other)
        ))),
    })
}

/// Our script for gem5 answers `ok`, or says why not.
async fn by_script(
    remote: &mut Remote,
    word: &str,
    spec: Spec,
) -> Result<Result<u64, Refusal>, Failure> {
    let Spec { addr, len, kind } = spec;
    let command = format!("ulpf {word} {addr:#x} {len} {}", kind.word());
    let said = remote.monitor(&command, LONG).await?;
    Ok(match said.starts_with("ok") {
        true => Ok(0),
        false => Err(cannot(said.trim())),
    })
}

impl Front {
    /// `Z2` to `Z4`, and their removal. The key is the packet without its first letter.
    pub(super) async fn insert_or_remove(
        &mut self,
        insert: bool,
        key: &[u8],
    ) -> Result<Vec<u8>, Failure> {
        let Some(spec) = Spec::parse(key) else {
            return Ok(b"E01".into());
        };
        let letter: &[u8] = if insert { b"Z" } else { b"z" };
        let packet = [letter, key].concat();
        if self.role() == Role::Commands {
            let reply = self.remote()?.ask(&packet).await?;
            if reply == b"OK" {
                self.lazy.accepted(&packet);
            }
            return Ok(reply);
        }
        match insert {
            true if spec.addr == PLACE => self.table.understood = true,
            true => {
                let armed = self.arm(vec![Watch::debuggers(spec)]).await?;
                if let Some(Err(why)) = armed.into_iter().next() {
                    return Err(Failure::Refused(why));
                }
            }
            false => self.unwatch(vec![spec]).await?,
        }
        self.lazy.accepted(&packet);
        Ok(b"OK".into())
    }

    /// Sets watches in the back end. Returns for each the back end's number, or the refusal.
    async fn set(&mut self, watches: &[Watch]) -> Result<Vec<Result<u64, Refusal>>, Failure> {
        let last = self.last_there;
        let mut set: HashSet<Spec> = match self.role() {
            Role::Plain => watches.iter().map(|w| w.spec).collect(),
            _ => HashSet::new(),
        };
        set.retain(|spec| self.table.has(spec));
        let remote = self.remote()?;
        if remote.about.role == Role::Watches {
            let arms: Vec<Option<Arm>> = watches.iter().map(Watch::arm).collect();
            let good = arms.iter().flatten().cloned().collect();
            let mut numbers = numbered(remote, good).await?.into_iter();
            let bad = || Err(cannot("a watch has at least one byte, and an end"));
            return Ok(arms
                .iter()
                .map(|arm| match arm {
                    Some(_) => numbers.next().unwrap_or_else(bad),
                    None => bad(),
                })
                .collect());
        }
        let mut results = vec![];
        for w in watches {
            let done = match remote.flavour {
                Flavour::Packets if set.contains(&w.spec) => Ok(0),
                Flavour::Packets => by_packet(remote, w.spec).await?,
                Flavour::Gem5 => by_script(remote, "watch", w.spec).await?,
            };
            if done.is_ok() {
                set.insert(w.spec);
            }
            results.push(done);
        }
        // These back ends do not number watches.
        for (n, one) in results.iter_mut().flatten().enumerate() {
            *one = last + 1 + n as u64;
        }
        self.last_there = last + results.len() as u64;
        Ok(results)
    }

    /// Sets watches in as few requests as possible. Returns for each its number or the refusal.
    pub(super) async fn arm(
        &mut self,
        watches: Vec<Watch>,
    ) -> Result<Vec<Result<u32, Refusal>>, Failure> {
        let there = self.set(&watches).await?;
        let mut results = vec![];
        for (watch, there) in watches.into_iter().zip(there) {
            results.push(match there {
                Ok(id) => {
                    let there = Some(id);
                    let number = self.table.add(Watch { there, ..watch });
                    self.show(number, false);
                    Ok(number)
                }
                Err(why) => {
                    self.table.why = Some(why.to_string());
                    Err(why)
                }
            });
        }
        Ok(results)
    }

    async fn unwatch(&mut self, specs: Vec<Spec>) -> Result<(), Failure> {
        let mut numbers = vec![];
        for spec in &specs {
            match spec.addr == PLACE {
                true => self.table.understood = false,
                false => numbers.extend(self.table.taken(spec)),
            }
        }
        self.disarm(&numbers).await
    }

    /// Removes watches from the table, whether the back end answers or not.
    pub(super) async fn disarm(&mut self, numbers: &[u32]) -> Result<(), Failure> {
        // Show their final counters.
        for &number in numbers {
            self.show(number, true);
        }
        let removed = numbers.iter().filter_map(|&n| self.table.remove(n));
        let gone = removed.filter_map(|w| Some((w.spec, w.there?))).collect();
        self.take(gone).await
    }

    /// Removes watches from the back end.
    async fn take(&mut self, gone: Vec<(Spec, u64)>) -> Result<(), Failure> {
        if gone.is_empty() {
            return Ok(());
        }
        if self.role() == Role::Watches {
            let remote = self.remote()?;
            let ids = gone.iter().map(|(_, id)| Command::Unwatch(*id as u32));
            for some in ids.collect::<Vec<_>>().chunks(BATCH) {
                remote.commands(some, LONG).await?;
            }
            return Ok(());
        }
        for (spec, _) in gone {
            let stays = self.table.has(&spec);
            let remote = self.remote()?;
            match remote.flavour {
                Flavour::Packets if stays => {}
                Flavour::Packets => drop(remote.fine(&spec.packet('z')).await?),
                Flavour::Gem5 => drop(by_script(remote, "unwatch", spec).await?),
            }
        }
        Ok(())
    }

    /// Sends the back end the removals of watches that the debugger has not re-inserted.
    pub(super) async fn settle(&mut self) -> Result<(), Failure> {
        loop {
            let overdue = self.lazy.overdue(OVERDUE);
            if overdue.is_empty() {
                return Ok(());
            }
            if self.role() == Role::Commands {
                for packet in overdue {
                    self.remote()?.ask(&packet).await?;
                }
                continue;
            }
            let specs = overdue.iter().filter_map(|p| Spec::parse(&p[1..]));
            self.unwatch(specs.collect()).await?;
        }
    }

    /// Switches a watch off, keeping its number and counters, or on again.
    pub(super) async fn switch(&mut self, number: u32, on: bool) -> Result<(), Failure> {
        let Some(watch) = self.table.watches.get(&number).cloned() else {
            return Ok(());
        };
        match (watch.there, on) {
            (None, true) => match self.set(&[watch]).await?.into_iter().next() {
                Some(Ok(id)) => self.table.is_now(number, Some(id)),
                Some(Err(why)) => return Err(Failure::Refused(why)),
                None => {}
            },
            (Some(id), false) => {
                self.look().await?;
                self.table.is_now(number, None);
                self.take(vec![(watch.spec, id)]).await?;
            }
            _ => {}
        }
        self.show(number, false);
        Ok(())
    }
}
