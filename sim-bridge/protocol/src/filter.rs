//! Which hits of a watch matter: what travels, how the words of `monitor ulpf` say it, and who passes. The
//! same decision whoever takes it, a back end or, where that cannot, the front end (the stub has its own,
//! which must not allocate: `stub/src/filter.rs`).

use crate::bytes::Bytes;
use crate::hit::Hit;
use serde::{Deserialize, Serialize};
use ulpf_lib::agent::{self, AgentContext, AgentError, op, variable};

/// Elements of one access for which a condition is evaluated; with more it counts as true.
const MOST_ELEMENTS: u32 = 4096;
/// Longest bytecode: its jumps have 16 bits.
const MOST_CODE: usize = 1 << 16;

#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Filter {
    /// Only accesses that leave another value.
    #[serde(skip_serializing_if = "is_no")]
    pub changed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<u64>,
    /// Where the instruction is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pc: Option<Ranges>,
    /// Size of the values that conditions see: the watch is an array of them. 0: what was accessed.
    pub unit: u64,
    /// GDB agent expressions; all have to hold. ARCHITECTURE.md lists the variables of a hit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Bytes>,
    /// Of the hits that all others let pass: so many are rejected, so many pass then.
    pub skip: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

fn is_no(yes: &bool) -> bool {
    !*yes
}

/// Addresses inside or outside of `[from, to)`.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ranges {
    pub inside: bool,
    pub ranges: Vec<(u64, u64)>,
}

impl Ranges {
    fn let_pass(&self, at: u64) -> bool {
        let inside = self.ranges.iter().any(|r| (r.0..r.1).contains(&at));
        inside == self.inside
    }
}

/// The program behind the hit, at rest.
pub trait Program {
    /// By the number that the remote protocol gives it.
    fn register(&mut self, number: u16) -> Option<u64>;
    /// False: a byte is unreadable.
    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool;
    fn process(&mut self) -> u64;
    /// fs_base.
    fn thread_pointer(&mut self) -> Option<u64>;
}

/// What a filter is asked about.
pub struct Asked<'a> {
    pub hit: &'a Hit,
    /// The watch's bytes.
    pub addr: u64,
    pub len: u64,
    /// Hits of this watch, with this one.
    pub number: u64,
}

impl Filter {
    /// `passed`: how many hits all but `skip` and `count` have let pass before. The error of a condition
    /// that could not be evaluated and so counts as true, as a breakpoint's does in gdb.
    pub fn passes(
        &self,
        asked: &Asked,
        passed: &mut u64,
        program: &mut dyn Program,
    ) -> (bool, Option<AgentError>) {
        let hit = asked.hit;
        let silent = hit.old == hit.new && !hit.old.0.is_empty();
        if self.changed && (silent || !hit.write)
            || self.thread.is_some_and(|t| t != hit.thread)
            || self.pc.as_ref().is_some_and(|r| !r.let_pass(hit.pc))
        {
            return (false, None);
        }
        let mut failed = None;
        if !self.conditions.is_empty() && !self.conditions_hold(asked, program, &mut failed) {
            return (false, failed);
        }
        let before = *passed;
        *passed += 1;
        let done = before.checked_sub(self.skip);
        let pass = done.is_some_and(|n| self.count.is_none_or(|count| n < count));
        (pass, failed)
    }

    fn conditions_hold(
        &self,
        asked: &Asked,
        program: &mut dyn Program,
        failed: &mut Option<AgentError>,
    ) -> bool {
        let hit = asked.hit;
        let (end, whole) = (
            hit.addr.saturating_add(hit.len),
            asked.addr.saturating_add(asked.len),
        );
        let unit = match self.unit {
            0 => asked.len.min(9) % 9,
            unit => unit,
        };
        let mut at = hit.addr;
        if unit != 0 {
            at -= hit.addr.saturating_sub(asked.addr) % unit;
        }
        for _ in 0..MOST_ELEMENTS {
            let len = match unit {
                0 => (end - at).min(8),
                unit => unit.min(whole.saturating_sub(at)),
            };
            let mut one = Element {
                asked,
                at,
                len,
                program: &mut *program,
            };
            let mut all = true;
            for code in &self.conditions {
                match agent::eval(&code.0, &mut one) {
                    Ok(0) => {
                        all = false;
                        break;
                    }
                    Ok(_) => {}
                    Err(e) => *failed = failed.or(Some(e)),
                }
            }
            if all {
                return true;
            }
            at = at.saturating_add(unit);
            if unit == 0 || !self.by_element() || at >= end {
                return false;
            }
        }
        true
    }

    /// A condition asks for a value or an address: it is evaluated for each element.
    fn by_element(&self) -> bool {
        let mut asks = false;
        for code in &self.conditions {
            let see = |v| asks |= matches!(v, variable::OLD | variable::NEW | variable::ADDR);
            agent::variables(&code.0, see);
        }
        asks
    }
}

/// One element of a hit, for agent expressions.
struct Element<'a> {
    asked: &'a Asked<'a>,
    at: u64,
    len: u64,
    program: &'a mut dyn Program,
}

impl Element<'_> {
    fn new_bytes(&mut self) -> Option<[u8; 8]> {
        let mut bytes = [0; 8];
        let to = bytes.get_mut(..self.len as usize)?;
        self.program.read(self.at, to).then_some(bytes)
    }

    /// The old bytes of the access between the bytes beside it, which are as they were.
    fn old_bytes(&mut self) -> Option<[u8; 8]> {
        let mut bytes = self.new_bytes()?;
        let hit = self.asked.hit;
        if hit.write {
            let from = self.at.max(hit.addr);
            let end = (self.at + self.len).min(hit.addr + hit.len);
            let part = (from - hit.addr) as usize..end.checked_sub(hit.addr)? as usize;
            let to = (from - self.at) as usize..(end - self.at) as usize;
            bytes.get_mut(to)?.copy_from_slice(hit.old.0.get(part)?);
        }
        Some(bytes)
    }
}

impl AgentContext for Element<'_> {
    fn reg(&mut self, number: u16) -> Option<u64> {
        self.program.register(number)
    }
    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool {
        self.program.read(addr, to)
    }
    fn variable(&mut self, number: u16) -> Option<u64> {
        let hit = self.asked.hit;
        Some(match number {
            variable::OLD => u64::from_le_bytes(self.old_bytes()?),
            variable::NEW => u64::from_le_bytes(self.new_bytes()?),
            variable::ADDR => self.at,
            variable::LEN => hit.len,
            variable::TID => hit.thread,
            variable::PID => self.program.process(),
            variable::KIND => 1 + u64::from(hit.write),
            variable::HITS => self.asked.number,
            variable::PC => hit.pc,
            variable::THREAD_POINTER => self.program.thread_pointer()?,
            _ => return None,
        })
    }
}

// ---- the words of `monitor ulpf watch` and `monitor ulpf filter` ----

/// Decimal, or hexadecimal with 0x.
pub fn number(word: Option<&str>) -> Option<u64> {
    let word = word?;
    match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}

impl Filter {
    /// Takes a word and what belongs to it. `Ok(false)`: it says nothing about filters.
    pub fn take<'a>(
        &mut self,
        word: &str,
        rest: &mut impl Iterator<Item = &'a str>,
    ) -> Result<bool, &'static str> {
        match word {
            "changed" => self.changed = true,
            "thread" => match number(rest.next()) {
                Some(n) if n > 0 => self.thread = Some(n),
                _ => return Err("thread takes the number of a thread"),
            },
            "skip" => self.skip = number(rest.next()).ok_or("skip takes a number")?,
            "count" => self.count = Some(number(rest.next()).ok_or("count takes a number")?),
            "unit" => match number(rest.next()) {
                Some(n) if n <= 8 => self.unit = n,
                _ => return Err("unit takes a number from 0 to 8"),
            },
            "from" | "outside" => self.pc = Some(ranges(word, rest.next())?),
            "called" => {
                return Err(
                    "this back end does not know who called; from and outside ask where the instruction is",
                );
            }
            "old" => self.conditions.push(comparison(variable::OLD, rest)?),
            "new" => self.conditions.push(comparison(variable::NEW, rest)?),
            "if" => {
                let hex = rest.next().filter(|w| *w == "x").and_then(|_| rest.next());
                let code = hex.and_then(Bytes::from_hex);
                let code = code.filter(|c| c.0.len() < MOST_CODE);
                let code = code.ok_or("if takes x and bytecode in hex")?;
                if !agent::variables(&code.0, |_| {}) {
                    return Err("the bytecode has an opcode that is not supported, or is cut off");
                }
                self.conditions.push(code);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// `old == 5`, as bytecode.
fn comparison<'a>(
    variable: u16,
    rest: &mut impl Iterator<Item = &'a str>,
) -> Result<Bytes, &'static str> {
    let tail: &[u8] = match rest.next() {
        Some("==") => &[op::EQUAL],
        Some("!=") => &[op::EQUAL, op::LOG_NOT],
        Some("<") => &[op::LESS_UNSIGNED],
        Some(">=") => &[op::LESS_UNSIGNED, op::LOG_NOT],
        Some(">") => &[op::SWAP, op::LESS_UNSIGNED],
        Some("<=") => &[op::SWAP, op::LESS_UNSIGNED, op::LOG_NOT],
        _ => return Err("old and new are followed by ==, !=, <, <=, > or >="),
    };
    let value = number(rest.next()).ok_or("a value is compared with a number")?;
    let mut code = vec![op::GETV];
    code.extend(variable.to_be_bytes());
    code.push(op::CONST64);
    code.extend(value.to_be_bytes());
    code.extend(tail);
    code.push(op::END);
    Ok(Bytes(code))
}

fn ranges(word: &str, text: Option<&str>) -> Result<Ranges, &'static str> {
    const WHAT: &str =
        "from and outside take ranges of addresses (0x1000-0x2000,0x3000-0x4000) or none";
    let mut list = Vec::new();
    for part in text.ok_or(WHAT)?.split(',').filter(|p| *p != "none") {
        let (from, to) = part.split_once('-').ok_or(WHAT)?;
        match (number(Some(from)), number(Some(to))) {
            (Some(from), Some(to)) if from < to => list.push((from, to)),
            _ => return Err(WHAT),
        }
    }
    Ok(Ranges {
        inside: word == "from",
        ranges: list,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory at 0x1000, in which each byte is its own offset; rax is 7.
    struct Small;

    impl Program for Small {
        fn register(&mut self, number: u16) -> Option<u64> {
            (number == 0).then_some(7)
        }
        fn read(&mut self, addr: u64, to: &mut [u8]) -> bool {
            for (n, byte) in to.iter_mut().enumerate() {
                *byte = (addr + n as u64) as u8;
            }
            (0x1000..0x1100).contains(&addr)
        }
        fn process(&mut self) -> u64 {
            42
        }
        fn thread_pointer(&mut self) -> Option<u64> {
            None
        }
    }

    fn parse(words: &str) -> Result<Filter, &'static str> {
        let (mut filter, mut rest) = (Filter::default(), words.split_ascii_whitespace());
        while let Some(word) = rest.next() {
            if !filter.take(word, &mut rest)? {
                return Err("no word of a filter");
            }
        }
        Ok(filter)
    }

    fn hit() -> Hit {
        Hit {
            sequence: 1,
            watch: 1,
            pc: 0x400010,
            thread: 3,
            write: true,
            addr: 0x1001,
            len: 1,
            old: Bytes(vec![9]),
            new: Bytes(vec![1]),
            system_call: false,
        }
    }

    fn ask(words: &str, hit: &Hit) -> (bool, Option<AgentError>) {
        let asked = Asked {
            hit,
            addr: 0x1000,
            len: 4,
            number: 5,
        };
        parse(words).unwrap().passes(&asked, &mut 0, &mut Small)
    }

    #[test]
    fn words_and_who_passes() {
        for (words, passes) in [
            ("", true),
            ("changed", true),
            ("thread 3", true),
            ("thread 4", false),
            ("from 0x400000-0x400020", true),
            ("from none", false),
            ("outside 0x400000-0x400020", false),
            // The whole watch: 00 01 02 03 now, 00 09 02 03 before.
            ("new == 0x03020100", true),
            ("old == 0x03020900", true),
            ("old > 0x03020900", false),
            // Elements of one byte.
            ("unit 1 new == 1", true),
            ("unit 1 old == 9 new != 1", false),
            ("skip 1", false),
            ("count 0", false),
            ("count 1", true),
            // rax == 7; $hits == 5; $kind == 2
            ("if x 26000022071327", true),
            ("if x 2cff0722051327", true),
            ("if x 2cff0622011327", false),
        ] {
            assert_eq!(ask(words, &hit()), (passes, None), "{words}");
        }
        let silent = Hit {
            old: Bytes(vec![1]),
            ..hit()
        };
        assert!(!ask("changed", &silent).0);
    }

    #[test]
    fn what_cannot_be_evaluated_counts() {
        let (passes, why) = ask("if x 26001127", &hit());
        assert_eq!((passes, why), (true, Some(AgentError::Register(17))));
        // Whoever does not know the old value says so.
        let unknown = Hit {
            old: Bytes::default(),
            ..hit()
        };
        assert_eq!(
            ask("old == 1", &unknown),
            (true, Some(AgentError::Variable(variable::OLD)))
        );
    }

    #[test]
    fn mistakes() {
        for words in [
            "thread main",
            "skip",
            "count x",
            "unit 9",
            "from 1",
            "from 5-3",
            "old = 3",
            "if x zz",
            "if x 00",
            "if y",
            "called from 1-2",
            "levitate",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
    }

    #[test]
    fn as_it_travels() {
        let filter =
            parse("changed thread 2 from 1-2 unit 4 if x 22011327 skip 3 count 4").unwrap();
        let text = serde_json::to_string(&filter).unwrap();
        assert_eq!(
            text,
            r#"{"changed":true,"thread":2,"pc":{"inside":true,"ranges":[[1,2]]},"unit":4,"conditions":["22011327"],"skip":3,"count":4}"#
        );
        assert_eq!(serde_json::from_str::<Filter>(&text).unwrap(), filter);
    }
}
