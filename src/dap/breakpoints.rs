//! Breakpoints in code: at lines, functions, instructions. Each is one of GDB's, and has its number.
//!
//! GDB knows conditions and ignore counts; other hit conditions are made of these at every stop, and a log
//! message is put together here.

use super::mi::parse::{Fields, quote};
use super::protocol::{
    FunctionBreakpoint, InstructionBreakpoint, SetBreakpoints, SetOf, SourceBreakpoint,
};
use super::session::{Answer, Session};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// An ignore count that nobody reaches.
const NEVER: i64 = i32::MAX as i64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Source,
    Function,
    Instruction,
    Exception(&'static str),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Stop,
    GoOn,
}

#[derive(Default)]
pub struct Breakpoints {
    /// By GDB's numbers.
    pub(super) set: BTreeMap<i64, One>,
    /// The temporary one at main.
    pub entry: Option<i64>,
    pub(super) signals: Option<bool>,
}

pub(super) struct One {
    pub kind: Kind,
    pub wish: Wish,
    pub stops: i64,
    /// As the client has been told.
    pub told: Value,
}

/// What the client wants; the same wish is the same breakpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wish {
    /// The file, for those at lines.
    pub group: String,
    pub place: String,
    pub condition: Option<String>,
    pub hit: Option<(&'static str, i64)>,
    pub log: Option<String>,
}

impl Breakpoints {
    pub fn kind(&self, number: i64) -> Option<Kind> {
        self.set.get(&number).map(|b| b.kind)
    }
}

/// `5` (the fifth hit), `>= 5`, `> 5`, `< 5`, `<= 5`, `% 5` (every fifth), in few operators.
pub fn hit_condition(text: Option<&str>) -> Result<Option<(&'static str, i64)>, String> {
    let Some(text) = text.map(str::trim).filter(|t| !t.is_empty()) else {
        return Ok(None);
    };
    let digits = text.trim_start_matches(['=', '<', '>', '%']);
    let operator = &text[..text.len() - digits.len()];
    let wrong = || {
        format!(
            "The hit condition \"{text}\" is not understood: write 5, >= 5, > 5, < 5, <= 5, or % 5."
        )
    };
    let number: i64 = digits.trim().parse().map_err(|_| wrong())?;
    let (operator, number) = match operator {
        "" | "=" | "==" | "===" => ("==", number),
        ">=" => (">=", number),
        ">" => (">=", number + 1),
        "<=" => ("<=", number),
        "<" => ("<=", number - 1),
        "%" => ("%", number),
        _ => return Err(wrong()),
    };
    if !(1..=NEVER / 2).contains(&number) {
        return Err(wrong());
    }
    Ok(Some((operator, number)))
}

/// How many hits GDB leaves out before the first stop.
fn ignored(hit: Option<(&'static str, i64)>) -> i64 {
    match hit {
        Some(("==" | ">=" | "%", n)) => n - 1,
        _ => 0,
    }
}

/// An `Option` that an empty text is, too.
pub(super) fn some(text: &Option<String>) -> Option<String> {
    text.as_ref()
        .filter(|t| !t.trim().is_empty())
        .map(|t| t.trim().to_string())
}

impl Session {
    pub async fn set_breakpoints(&mut self, asked: SetBreakpoints) -> Answer {
        let Some(path) = asked.source.path.or(asked.source.name) else {
            return Err(
                "A source without a path has no breakpoints here; set them at instructions.".into(),
            );
        };
        let mut list = asked.breakpoints;
        if list.is_empty() {
            list = asked
                .lines
                .iter()
                .map(|line| SourceBreakpoint {
                    line: *line,
                    ..Default::default()
                })
                .collect();
        }
        let first = i64::from(self.asked.linesStartAt1 == Some(false));
        let wishes = list.iter().map(|b| {
            let place = format!(
                "--source {} --line {}",
                quote(&path),
                b.line.saturating_add(first)
            );
            wish(&path, place, &b.condition, &b.hitCondition, &b.logMessage)
        });
        self.set_wishes(Kind::Source, &path, wishes.collect()).await
    }

    pub async fn set_function_breakpoints(&mut self, asked: SetOf<FunctionBreakpoint>) -> Answer {
        let wishes = asked.breakpoints.iter().map(|b| {
            let place = format!("--function {}", quote(b.name.trim()));
            wish("functions", place, &b.condition, &b.hitCondition, &None)
        });
        self.set_wishes(Kind::Function, "functions", wishes.collect())
            .await
    }

    pub async fn set_instruction_breakpoints(
        &mut self,
        asked: SetOf<InstructionBreakpoint>,
    ) -> Answer {
        let wishes = asked.breakpoints.iter().map(|b| {
            let address = super::memory::address(&b.instructionReference)
                .map(|a| a.wrapping_add_signed(b.offset))
                .ok_or_else(|| format!("{} is no address.", b.instructionReference))?;
            let place = format!("*{address:#x}");
            wish("instructions", place, &b.condition, &b.hitCondition, &None)
        });
        self.set_wishes(Kind::Instruction, "instructions", wishes.collect())
            .await
    }

    /// Makes a group's breakpoints what the client wants; the program rests meanwhile.
    async fn set_wishes(
        &mut self,
        kind: Kind,
        group: &str,
        wishes: Vec<Result<Wish, String>>,
    ) -> Answer {
        self.gdb()?;
        let was_running = self.rest().await?;
        let wanted: Vec<&Wish> = wishes.iter().flatten().collect();
        let here = |b: &One| b.kind == kind && b.wish.group == group;
        let gone: Vec<i64> = self
            .breakpoints
            .set
            .iter()
            .filter(|(_, b)| here(b) && !wanted.contains(&&b.wish))
            .map(|(n, _)| *n)
            .collect();
        for number in gone {
            let _ = self.mi(&format!("-break-delete {number}")).await;
            self.breakpoints.set.remove(&number);
        }
        let mut known: BTreeMap<Wish, i64> = self
            .breakpoints
            .set
            .iter()
            .filter(|(_, b)| here(b))
            .map(|(n, b)| (b.wish.clone(), *n))
            .collect();
        let mut told = Vec::new();
        for wish in wishes {
            let one = match wish {
                Err(why) => Err(why),
                Ok(wish) => match known.get(&wish) {
                    Some(number) => Ok(*number),
                    None => {
                        let made = self.insert(kind, &wish).await;
                        if let Ok(number) = &made {
                            known.insert(wish, *number);
                        }
                        made
                    }
                },
            };
            told.push(match one {
                Ok(number) => self.breakpoints.set[&number].told.clone(),
                Err(why) => json!({"verified": false, "message": why, "reason": "failed"}),
            });
        }
        self.go_on(was_running).await?;
        Ok(json!({"breakpoints": told}))
    }

    async fn insert(&mut self, kind: Kind, wish: &Wish) -> Result<i64, String> {
        let mut command = String::from("-break-insert -f");
        if let Some(condition) = &wish.condition {
            command += &format!(" -c {}", quote(condition));
        }
        if ignored(wish.hit) > 0 {
            command += &format!(" -i {}", ignored(wish.hit));
        }
        command += &format!(" {}", wish.place);
        let answer = self.mi(&command).await?;
        let fields = answer
            .fields("bkpt")
            .ok_or("gdb has not said which breakpoint this is.")?;
        let number = fields
            .number("number")
            .ok_or("gdb's breakpoint has no number.")?;
        let told = describe(fields);
        let one = One {
            kind,
            wish: wish.clone(),
            stops: 0,
            told,
        };
        self.breakpoints.set.insert(number, one);
        Ok(number)
    }

    /// A breakpoint was hit: does anybody want to hear of it?
    pub async fn judge(&mut self, number: i64) -> Verdict {
        let Some(one) = self.breakpoints.set.get_mut(&number) else {
            return Verdict::Stop;
        };
        one.stops += 1;
        let (stops, hit, log) = (one.stops, one.wish.hit, one.wish.log.clone());
        let next = match hit {
            Some(("==", _)) => Some(NEVER),
            Some(("<=", n)) if stops >= n => Some(NEVER),
            Some(("%", n)) => Some(n - 1),
            _ => None,
        };
        if let Some(count) = next {
            let _ = self.mi(&format!("-break-after {number} {count}")).await;
        }
        let Some(message) = log else {
            return Verdict::Stop;
        };
        let text = self.interpolate(&message).await;
        self.client.output("console", &format!("{text}\n")).await;
        Verdict::GoOn
    }

    /// Hit counts begin anew with another run.
    pub async fn count_anew(&mut self) {
        let counted: Vec<(i64, i64)> = self
            .breakpoints
            .set
            .iter()
            .filter(|(_, b)| b.wish.hit.is_some())
            .map(|(n, b)| (*n, ignored(b.wish.hit)))
            .collect();
        for (number, count) in counted {
            let _ = self.mi(&format!("-break-after {number} {count}")).await;
            if let Some(one) = self.breakpoints.set.get_mut(&number) {
                one.stops = 0;
            }
        }
    }

    /// A log message with the values of what stands in braces.
    async fn interpolate(&mut self, message: &str) -> String {
        let (mut text, mut rest) = (String::new(), message);
        while let Some(at) = rest.find('{') {
            let Some(end) = rest[at..].find('}') else {
                break;
            };
            text += &rest[..at];
            let expression = &rest[at + 1..at + end];
            let command = format!("-data-evaluate-expression {}", quote(expression));
            match self.mi(&command).await {
                Ok(value) => text += value.text("value"),
                Err(why) => text += &format!("<{why}>"),
            }
            rest = &rest[at + end + 1..];
        }
        text + rest
    }

    /// Something has happened to one of GDB's: a library has brought its place, say.
    pub async fn breakpoint_changed(&mut self, class: &str, fields: &Fields) {
        if class == "breakpoint-deleted" {
            let number = fields.number("id").unwrap_or(0);
            if self.breakpoints.set.remove(&number).is_some() {
                let body =
                    json!({"reason": "removed", "breakpoint": {"id": number, "verified": false}});
                self.client.event("breakpoint", body).await;
            }
            return;
        }
        let Some(bkpt) = fields.fields("bkpt") else {
            return;
        };
        let number = bkpt.number("number").unwrap_or(0);
        if let Some(one) = self.breakpoints.set.get_mut(&number) {
            let now = describe(bkpt);
            if one.told != now {
                one.told = now.clone();
                let body = json!({"reason": "changed", "breakpoint": now});
                self.client.event("breakpoint", body).await;
            }
        }
    }

    /// Lines of a file with code.
    pub async fn breakpoint_locations(&mut self, asked: super::protocol::GotoTargets) -> Answer {
        let path = asked.source.path.unwrap_or_default();
        let answer = self
            .mi(&format!("-symbol-list-lines {}", quote(&path)))
            .await
            .unwrap_or_default();
        let (first, last) = (asked.line, asked.endLine.unwrap_or(asked.line));
        let mut lines: Vec<i64> = answer
            .tuples("lines")
            .filter_map(|l| l.number("line"))
            .filter(|l| (first..=last).contains(l))
            .collect();
        lines.sort_unstable();
        lines.dedup();
        let lines: Vec<Value> = lines.iter().map(|l| json!({"line": l})).collect();
        Ok(json!({"breakpoints": lines}))
    }
}

fn wish(
    group: &str,
    place: String,
    condition: &Option<String>,
    hit: &Option<String>,
    log: &Option<String>,
) -> Result<Wish, String> {
    Ok(Wish {
        group: group.into(),
        place,
        condition: some(condition),
        hit: hit_condition(hit.as_deref())?,
        log: some(log),
    })
}

/// GDB's breakpoint as the protocol's.
fn describe(bkpt: &Fields) -> Value {
    let mut told = json!({"id": bkpt.number("number"), "verified": !bkpt.has("pending")});
    // One of several, for those that have several places.
    let place = match bkpt.tuples("locations").next() {
        Some(first) if !bkpt.has("line") => first,
        _ => bkpt,
    };
    if let Some(line) = place.number("line") {
        told["line"] = line.into();
    }
    let path = place.text("fullname");
    if !path.is_empty() {
        told["source"] = super::info::source(path);
    }
    if let Some(address) = place.address("addr") {
        told["instructionReference"] = format!("{address:#x}").into();
    }
    if bkpt.has("pending") {
        told["reason"] = "pending".into();
        told["message"] = "No code is there yet; it is set when a library brings it. (Is the program compiled with -g?)".into();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hit_conditions() {
        for (text, wanted) in [
            ("5", ("==", 5)),
            ("== 5", ("==", 5)),
            (">5", (">=", 6)),
            (">= 5 ", (">=", 5)),
            ("<5", ("<=", 4)),
            ("% 5", ("%", 5)),
        ] {
            assert_eq!(hit_condition(Some(text)), Ok(Some(wanted)), "{text}");
        }
        assert_eq!(hit_condition(Some(" ")), Ok(None));
        for bad in ["x", "-1", "0", "< 1", "5 5", "!= 5", "99999999999999999999"] {
            assert!(hit_condition(Some(bad)).is_err(), "{bad}");
        }
    }
}
