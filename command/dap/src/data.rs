//! Data breakpoints: watches of ulpf, set by its plugin (gdb-plugin/ulpf/ide.py). They are not in GDB's own breakpoint
//! table, so ten thousand of them cost nothing at a stop.

use super::mi::parse::quote;
use super::plugin::{self, Info, Stop};
use super::protocol::{DataBreakpoint, DataBreakpointInfo, SetOf};
use super::session::{Answer, Session};
use super::state::breakpoints::{hit_condition, some};
use super::state::data::{Placed, WAITING, id_of};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Number of watches armed at once; the client may cancel between two such steps.
const CHUNK: usize = 1000;

impl Session {
    pub async fn data_breakpoint_info(&mut self, asked: DataBreakpointInfo) -> Answer {
        self.need_rest()?;
        let mut wanted = json!({});
        if let Some(bytes) = asked.bytes {
            wanted["bytes"] = bytes.into();
        }
        if asked.asAddress {
            let address = super::memory::address(&asked.name);
            let address = address.ok_or_else(|| format!("{} is no address.", asked.name))?;
            wanted["address"] = address.into();
        } else {
            let expression = match asked.variablesReference.filter(|r| *r > 0) {
                Some(reference) => self.path_of(reference, &asked.name).await?,
                None => {
                    self.choose_frame(asked.frameId).await?;
                    Ok(asked.name.trim().to_string())
                }
            };
            match expression {
                Ok(expression) => wanted["expression"] = expression.into(),
                Err(why) => return Ok(json!({"dataId": null, "description": why})),
            }
        }
        Ok(match self.ask("info", wanted).await {
            Ok(said) => {
                let info = Info::of(&said);
                json!({"dataId": info.id, "description": info.name, "canPersist": info.persists,
                               "accessTypes": ["read", "write", "readWrite"]})
            }
            // The reason is shown to the user.
            Err(why) => json!({"dataId": null, "description": why}),
        })
    }

    pub async fn set_data_breakpoints(&mut self, asked: SetOf<DataBreakpoint>) -> Answer {
        self.gdb()?;
        let was_running = self.stop_program().await?;
        let result = self.make_data(&asked.breakpoints).await;
        self.look_for_logs().await;
        self.go_on(was_running).await?;
        result?;
        let answers: Vec<Value> = asked
            .breakpoints
            .iter()
            .map(|b| match self.data.set.get(b) {
                Some(state) => state.description(),
                None => json!({"verified": false, "message": "cancelled"}),
            })
            .collect();
        Ok(json!({"breakpoints": answers}))
    }

    /// Removes unwanted watches, and arms new ones and those that could not be armed before.
    async fn make_data(&mut self, wanted: &[DataBreakpoint]) -> Result<(), String> {
        let wanted: BTreeSet<&DataBreakpoint> = wanted.iter().collect();
        let gone: Vec<DataBreakpoint> = self
            .data
            .set
            .keys()
            .filter(|b| !wanted.contains(b))
            .cloned()
            .collect();
        let mut numbers = Vec::new();
        for breakpoint in gone {
            if let Some(number) = self.data.set.remove(&breakpoint).and_then(|s| s.number) {
                self.data.by_number.remove(&number);
                numbers.push(number);
            }
        }
        if !numbers.is_empty() {
            self.ask("remove", json!({"numbers": numbers})).await?;
        }
        let armed =
            |b: &&&DataBreakpoint| self.data.set.get(**b).is_some_and(|s| s.number.is_some());
        let new: Vec<DataBreakpoint> = wanted
            .iter()
            .filter(|b| !armed(b))
            .map(|b| (*b).clone())
            .collect();
        let progress = (new.len() > CHUNK && self.asked.supportsProgressReporting).then(|| {
            self.data.progress += 1;
            format!("data-breakpoints-{}", self.data.progress)
        });
        if let Some(id) = &progress {
            let title = format!("Arming {} data breakpoints", new.len());
            self.client
                .event(
                    "progressStart",
                    json!({"progressId": id, "title": title, "cancellable": true, "percentage": 0}),
                )
                .await;
        }
        let mut result = Ok(());
        for (n, some) in new.chunks(CHUNK).enumerate() {
            if let Some(id) = &progress {
                if self.client.shared.is_cancelled(id) {
                    break;
                }
                let percentage = n * CHUNK * 100 / new.len();
                let body = json!({"progressId": id, "percentage": percentage});
                self.client.event("progressUpdate", body).await;
            }
            result = self.arm(some).await;
            if result.is_err() {
                break;
            }
        }
        if let Some(id) = &progress {
            self.client
                .event("progressEnd", json!({"progressId": id}))
                .await;
        }
        result
    }

    async fn arm(&mut self, some: &[DataBreakpoint]) -> Result<(), String> {
        let (mut asked, mut whose) = (Vec::new(), Vec::new());
        for breakpoint in some {
            match for_plugin(breakpoint) {
                Ok(one) => {
                    asked.push(one);
                    whose.push(breakpoint);
                }
                Err(why) => self.put(breakpoint, None, Some(why)),
            }
        }
        if asked.is_empty() {
            return Ok(());
        }
        let answer = self.ask("add", json!({"breakpoints": asked})).await?;
        for (breakpoint, armed) in whose.into_iter().zip(plugin::added(&answer)) {
            match armed {
                Ok(number) => self.put(breakpoint, Some(number), None),
                Err(why) => self.put(breakpoint, None, Some(why)),
            }
        }
        Ok(())
    }

    fn put(&mut self, breakpoint: &DataBreakpoint, number: Option<i64>, message: Option<String>) {
        let id = match (number, self.data.set.get(breakpoint)) {
            // It keeps the number that the client knows.
            (_, Some(before)) => before.id,
            (Some(number), None) => id_of(number),
            (None, None) => {
                self.data.waited += 1;
                WAITING + self.data.waited
            }
        };
        if let Some(number) = number {
            self.data.by_number.insert(number, breakpoint.clone());
        }
        let state = Placed {
            id,
            number,
            message,
        };
        self.data.set.insert(breakpoint.clone(), state);
    }

    /// The program has reached `main`, so its libraries are loaded.
    pub async fn arm_waiting(&mut self) {
        let waiting: Vec<DataBreakpoint> = self
            .data
            .set
            .iter()
            .filter(|(_, s)| s.number.is_none())
            .map(|(b, _)| b.clone())
            .collect();
        if waiting.is_empty() || self.arm(&waiting).await.is_err() {
            return;
        }
        for breakpoint in waiting {
            let state = self.data.set.get(&breakpoint);
            if let Some(breakpoint) = state
                .filter(|s| s.number.is_some())
                .map(Placed::description)
            {
                let body = json!({"reason": "changed", "breakpoint": breakpoint});
                self.client.event("breakpoint", body).await;
            }
        }
        self.look_for_logs().await;
    }

    /// At a stop: reports watches that have ended, and describes the stop if a watch was hit.
    pub async fn look_at_data(&mut self) -> Option<Value> {
        if !self.data.any() {
            return None;
        }
        let said = self.ask("stop", json!({})).await.ok()?;
        let said = Stop::of(&said);
        for (number, why) in said.ended {
            let message = format!("It has ended: {why}.");
            let id = self.id_of_watch(number);
            if let Some(b) = self.data.by_number.get(&number)
                && let Some(state) = self.data.set.get_mut(b)
            {
                state.message = Some(message.clone());
                let body = json!({"reason": "changed", "breakpoint": {"id": id, "verified": false, "message": message}});
                self.client.event("breakpoint", body).await;
            }
        }
        let hit = said.hit?;
        let (name, old, new) = (&hit.name, &hit.old, &hit.new);
        let what = match (hit.access.as_str(), hit.silent) {
            ("read", _) => format!("{name} was read: {new}"),
            (_, true) => format!("{name}: {new} (written again)"),
            _ => format!("{name}: {old} → {new}"),
        };
        let mut more = String::new();
        if let Some(call) = &hit.call {
            more += &format!(", by {call}");
        }
        if let Some(hits) = self.hits_of(&hit.ids) {
            more += &format!(" (hit {hits})");
        }
        // (It may be the first request about this program.)
        let pid = self.program.pid;
        self.feed.area(pid);
        let completed = self.feed.complete(vec![hit.asked.clone()]).await.pop();
        let record = completed.map(|completed| completed["hit"].clone());
        let id = hit.watch.map(|n| self.id_of_watch(n));
        let mut stop = json!({"description": what, "text": format!("{what}{more}"),
                              "ulpf": record});
        if let Some(id) = id {
            stop["hitBreakpointIds"] = json!([id]);
        }
        Some(stop)
    }

    pub fn id_of_watch(&self, number: i64) -> i64 {
        let known = self.data.by_number.get(&number);
        known
            .and_then(|b| self.data.set.get(b))
            .map_or(id_of(number), |s| s.id)
    }

    /// Drops a watch that is no longer a data breakpoint.
    pub fn forget_watch(&mut self, number: i64) {
        if let Some(breakpoint) = self.data.by_number.remove(&number) {
            self.data.set.remove(&breakpoint);
        }
    }

    /// The expression of a variable's child, or why it has none.
    async fn path_of(
        &mut self,
        reference: i64,
        name: &str,
    ) -> Result<Result<String, String>, String> {
        let (variable, frame) = self.child(reference, name).await?;
        self.choose_frame(frame).await?;
        let answer = self
            .mi(&format!("-var-info-path-expression {}", quote(&variable)))
            .await;
        Ok(match answer {
            Ok(answer) if !answer.text("path_expr").is_empty() => {
                Ok(answer.text("path_expr").to_string())
            }
            _ => Err(format!(
                "{name} has no expression of its own: it is shown by a pretty-printer. Watch an expression or an address instead."
            )),
        })
    }
}

fn for_plugin(breakpoint: &DataBreakpoint) -> Result<Value, String> {
    let hit = hit_condition(breakpoint.hitCondition.as_deref())?;
    let access = breakpoint.accessType.as_deref().unwrap_or("write");
    if !matches!(access, "read" | "write" | "readWrite") {
        return Err(format!(
            "{access} is no kind of access: read, write or readWrite."
        ));
    }
    Ok(json!({
        "id": breakpoint.dataId,
        "access": access,
        "condition": some(&breakpoint.condition),
        "hit": hit.map(|(operator, n)| json!([operator, n])),
        "log": breakpoint.log || breakpoint.logMessage.is_some(),
        "silent": breakpoint.silent,
        "bt": breakpoint.backtrace.min(16),
    }))
}
