//! Counters and logged hits of watches, read from the shared area that the program's threads write to. No request to
//! the stub is needed, and the program keeps running. The plugin formats a logged hit, as in `ulpf log show`.

use super::plugin::{self, Listed, Logging};
use super::session::{Answer, Session, State};
use super::state::sources::source;
use serde_json::{Value, json};
use std::sync::atomic::Ordering::Relaxed;
use ulpf_host::foreign::text::Text;
use ulpf_session::hit::{as_the_stub, completed};

/// Limit of lines for one reading.
const LINES: usize = 1000;

impl Session {
    /// Updates the set of watches that log, after watches have changed.
    pub async fn look_for_logs(&mut self) {
        let Ok(said) = self.ask("logging", json!({})).await else {
            return;
        };
        let said = Logging::of(&said);
        self.feed.stands_for = said.pid;
        self.feed.logging = said.ids.into_iter().collect();
        self.feed.silent.clear();
        self.feed.active = said.any;
        if self.feed.active {
            let pid = self.program.pid;
            self.feed.area(pid);
        }
    }

    pub async fn show_hits(&mut self) {
        let (mut hits, mut lost, unknown) = self.feed.new_hits();
        if unknown {
            // After a restart, perhaps, the same watches have other numbers.
            self.look_for_logs().await;
            let logging = &self.feed.logging;
            let strange = hits.iter().map(|h| h.watch);
            let strange: Vec<u32> = strange.filter(|w| !logging.contains(w)).collect();
            self.feed.silent.extend(strange);
            hits.retain(|h| self.feed.logging.contains(&h.watch));
        }
        if hits.is_empty() {
            return;
        }
        if hits.len() > LINES {
            lost += (hits.len() - LINES) as u64;
            hits.truncate(LINES);
        }
        let Some((_, area)) = &self.feed.area else {
            return;
        };
        // (The plugin reads these in the stub's format.)
        let records = hits.iter().map(|hit| as_the_stub(area, hit).to_string());
        let records: Vec<String> = records.collect();
        match self.ask("lines", json!({"records": records})).await {
            Ok(said) => {
                let lines = plugin::lines(&said);
                let asked = lines.iter().map(|line| line.asked.clone());
                let completed = self.feed.complete(asked.collect()).await;
                for (line, completed) in lines.iter().zip(completed) {
                    let text = completed::lines(&Text(&line.text).to_string(), &completed);
                    let mut body = json!({"category": "console", "output": text + "\n"});
                    let hit = &completed["hit"];
                    if let (Some(path), Some(number)) = (hit["file"].as_str(), hit["line"].as_i64())
                    {
                        body["source"] = source(path);
                        body["line"] = number.into();
                    }
                    if !hit.is_null() {
                        body["data"] = json!({"hit": hit});
                    }
                    self.client.event("output", body).await;
                }
            }
            Err(why) => self.client.output("important", &format!("{why}\n")).await,
        }
        if lost > 0 {
            let text = format!(
                "{lost} more hits are not shown (ulpf log save FILE writes the last ones).\n"
            );
            self.client.output("console", &text).await;
        }
    }

    /// Shows all remaining hits, at a stop or the end.
    pub async fn show_all_hits(&mut self) {
        if self.feed.active && self.gdb.as_ref().is_some_and(|g| !g.is_gone()) {
            let pid = self.program.pid;
            self.feed.area(pid);
            self.show_hits().await;
        }
    }

    /// Total hits of all places of a watch.
    pub fn hits_of(&mut self, ids: &[u32]) -> Option<u64> {
        let pid = self.program.pid;
        let area = self.feed.area(pid)?;
        let hits = ids.iter().map(|id| area.hits(*id).0);
        Some(hits.fold(0, u64::wrapping_add))
    }

    // ---- for an IDE's own view of the watches ----

    /// `ulpf/watches`: lists all watches with their counters, also while the program runs.
    pub async fn list_watches(&mut self) -> Answer {
        if self.gdb.is_none() {
            return Ok(json!({"watches": []}));
        }
        let running = self.state == State::Running;
        let said = self.ask("listed", json!({"running": running})).await?;
        let said = Listed::of(&said);
        self.feed.stands_for = said.pid;
        let pid = self.program.pid;
        let mut list = Vec::with_capacity(said.watches.len());
        for of in said.watches {
            let (ids, before, mut watch) = (of.ids, of.before, of.description);
            let mut sums = [
                before.hits,
                before.silent,
                before.filtered,
                before.stops,
                before.false_positives,
            ];
            let (mut gone, mut registers) = (0, 0);
            if let Some(area) = self.feed.area(pid) {
                for id in &ids {
                    let n = area.counters(*id);
                    let (hits, silent) = area.hits(*id);
                    let counted = [
                        hits,
                        silent,
                        n.filtered.load(Relaxed),
                        n.stops.load(Relaxed),
                        n.false_positives.load(Relaxed),
                    ];
                    for (sum, n) in sums.iter_mut().zip(counted) {
                        *sum = sum.wrapping_add(n);
                    }
                    gone += u64::from(n.gone.load(Relaxed) != 0);
                    registers += u64::from(n.placement.load(Relaxed) != 0);
                }
            }
            for (name, sum) in ["hits", "silent", "filtered", "stops", "falsePositives"]
                .iter()
                .zip(sums)
            {
                watch[*name] = sum.into();
            }
            watch["placement"] = match (ids.len() as u64, registers) {
                (0, _) => Value::Null,
                (_, 0) => "page".into(),
                (all, n) if n == all => "register".into(),
                _ => "page/register".into(),
            };
            watch["gone"] = gone.into();
            watch["breakpointId"] = self.id_of_watch(of.number).into();
            list.push(watch);
        }
        Ok(json!({"watches": list}))
    }

    /// `ulpf/watch`: sets a watch from the text of an `ulpf watch` command.
    pub async fn watch_by_text(&mut self, arguments: &Value) -> Answer {
        let text = arguments["text"].as_str().unwrap_or_default();
        self.gdb()?;
        let was_running = self.stop_program().await?;
        let frame = arguments["frameId"].as_i64();
        let result = match self.choose_frame(frame).await {
            Ok(()) => self.ask("watch", json!({"text": text})).await,
            Err(why) => Err(why),
        };
        self.data.others = true;
        self.look_for_logs().await;
        self.go_on(was_running).await?;
        let number = result?.number("number").unwrap_or(0);
        Ok(json!({"number": number, "breakpointId": self.id_of_watch(number)}))
    }

    /// `ulpf/unwatch`: removes a watch by number.
    pub async fn unwatch(&mut self, arguments: &Value) -> Answer {
        let number = arguments["number"].as_i64().unwrap_or(0);
        self.gdb()?;
        let was_running = self.stop_program().await?;
        let result = self.ask("remove", json!({"numbers": [number]})).await;
        let id = self.id_of_watch(number);
        self.forget_watch(number);
        self.look_for_logs().await;
        self.go_on(was_running).await?;
        if plugin::removed(&result?).is_empty() {
            return Err(format!("There is no watch {number}."));
        }
        let body = json!({"reason": "removed", "breakpoint": {"id": id, "verified": false}});
        self.client.event("breakpoint", body).await;
        Ok(Value::Null)
    }
}
