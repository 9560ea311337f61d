//! Lazy removal of watches and breakpoints. GDB removes all of them at every stop and re-inserts them before every
//! resume, one packet each. A removal is only noted here and answered; a matching insertion deletes the note. Removals
//! that remain are sent to the stub before the program runs. So a stop without changes costs the stub nothing, whatever
//! the number of watches. The stub then checks whether the program has overwritten a breakpoint (`vUlpfRenew`,
//! `stub/task/src/control/renew.rs`).

use std::collections::{HashMap, HashSet};

/// Removals that go to the stub in one write. Their replies fit into any socket buffer.
pub const BATCH: usize = 64;

/// The watches and breakpoints of one program. Keys are the packets without their first letter: `2,ADDR,LEN`.
#[derive(Default)]
pub struct LazyWatches {
    /// Number of insertions of each watch in the stub.
    armed: HashMap<Box<[u8]>, usize>,
    /// Number of those that the debugger has removed meanwhile.
    removed: HashMap<Box<[u8]>, usize>,
    breakpoints: Breakpoints,
}

/// Software breakpoints. The stub has one for an address, however often it is inserted.
#[derive(Default)]
struct Breakpoints {
    /// Breakpoints in the stub: `0,ADDR,KIND`, and the rest of the packet (conditions).
    armed: HashMap<Box<[u8]>, Box<[u8]>>,
    removed: HashSet<Box<[u8]>>,
    /// Removed and re-inserted since the last resume. The debugger relies on these, even if the program has written new
    /// code meanwhile. The library of a breakpoint that was not re-inserted may be gone, so it is not in this set.
    again: HashSet<Box<[u8]>>,
}

/// Splits `Z0` and `z0` into the key and the rest of the packet. The flag is true for an insertion.
fn breakpoint(packet: &[u8]) -> Option<(bool, &[u8], &[u8])> {
    match packet {
        [letter @ (b'Z' | b'z'), b'0', b',', ..] => {
            let end = packet.iter().position(|&b| b == b';');
            let (head, rest) = packet.split_at(end.unwrap_or(packet.len()));
            Some((*letter == b'Z', &head[1..], rest))
        }
        _ => None,
    }
}

impl Breakpoints {
    fn settles(&mut self, insert: bool, key: &[u8], rest: &[u8]) -> bool {
        if insert {
            let same = self.armed.get(key).is_some_and(|was| **was == *rest);
            let settled = same && self.removed.remove(key);
            if settled {
                self.again.insert(key.into());
            }
            return settled;
        }
        self.armed.contains_key(key) && self.removed.insert(key.into())
    }

    /// The stub has accepted this packet.
    fn accepted(&mut self, insert: bool, key: &[u8], rest: &[u8]) {
        self.removed.remove(key);
        self.again.remove(key);
        if insert {
            self.armed.insert(key.into(), rest.into());
        } else {
            self.armed.remove(key);
        }
    }

    /// Forgets the breakpoint at the packet's address. The stub does not distinguish `Z1` from `Z0`, so a packet for
    /// one also affects the other.
    fn forget(&mut self, packet: &[u8]) {
        let mut words = packet[1..].split(|&b| b == b',');
        let address = words.nth(1).unwrap_or_default();
        let there = |key: &[u8]| key.split(|&b| b == b',').nth(1) == Some(address);
        self.armed.retain(|key, _| !there(key));
        self.removed.retain(|key| !there(key));
        self.again.retain(|key| !there(key));
    }
}

/// Splits `Z2`, `Z3` and `Z4` (insert) and `z2`, `z3` and `z4` (remove). The flag is true for an insertion.
pub(super) fn watch(packet: &[u8]) -> Option<(bool, &[u8])> {
    match packet {
        [letter @ (b'Z' | b'z'), b'2' | b'3' | b'4', b',', ..] => {
            Some((*letter == b'Z', &packet[1..]))
        }
        _ => None,
    }
}

fn count(of: &HashMap<Box<[u8]>, usize>, key: &[u8]) -> usize {
    of.get(key).copied().unwrap_or(0)
}

fn take_one(of: &mut HashMap<Box<[u8]>, usize>, key: &[u8]) {
    match of.get_mut(key) {
        Some(n) if *n > 1 => *n -= 1,
        _ => {
            of.remove(key);
        }
    }
}

impl LazyWatches {
    /// Returns true if the packet needs no action of the stub, and the answer is OK.
    pub fn settles(&mut self, packet: &[u8]) -> bool {
        if let Some((insert, key, rest)) = breakpoint(packet) {
            return self.breakpoints.settles(insert, key, rest);
        }
        let Some((insert, key)) = watch(packet) else {
            return false;
        };
        if insert {
            let known = count(&self.removed, key) > 0;
            if known {
                take_one(&mut self.removed, key);
            }
            return known;
        }
        let there = count(&self.armed, key) > count(&self.removed, key);
        if there {
            *self.removed.entry(key.into()).or_default() += 1;
        }
        there
    }

    /// All watches, as the packets without their first letter have them.
    pub fn keys(&self) -> impl Iterator<Item = &Box<[u8]>> {
        self.armed.keys()
    }

    /// The stub has accepted this packet.
    pub fn accepted(&mut self, packet: &[u8]) {
        match watch(packet) {
            Some((true, key)) => *self.armed.entry(key.into()).or_default() += 1,
            Some((false, key)) => take_one(&mut self.armed, key),
            None => match (breakpoint(packet), packet) {
                (Some((insert, key, rest)), _) => self.breakpoints.accepted(insert, key, rest),
                (None, [b'Z' | b'z', b'1', b',', ..]) => self.breakpoints.forget(packet),
                _ => {}
            },
        }
    }

    /// The packet with the breakpoints that the stub must check before the program runs, if any.
    pub fn renewal(&mut self) -> Option<Vec<u8>> {
        let address = |key: Box<[u8]>| key.split(|&b| b == b',').nth(1).map(<[u8]>::to_vec);
        let removed = &self.breakpoints.removed;
        let again = self.breakpoints.again.drain();
        let all: Vec<_> = again
            .filter(|key| !removed.contains(key))
            .filter_map(address)
            .collect();
        (!all.is_empty()).then(|| [b"vUlpfRenew;", &all.join(&b';')[..]].concat())
    }

    /// The removals that must be sent to the stub now, at most `most` of them.
    pub fn overdue(&mut self, most: usize) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        while packets.len() < most
            && let Some(key) = self.removed.keys().next().cloned()
        {
            take_one(&mut self.removed, &key);
            take_one(&mut self.armed, &key);
            packets.push([b"z", &key[..]].concat());
        }
        while packets.len() < most
            && let Some(key) = self.breakpoints.removed.iter().next().cloned()
        {
            self.breakpoints.accepted(false, &key, b"");
            packets.push([b"z", &key[..]].concat());
        }
        packets
    }
}

pub fn removes(packet: &[u8]) -> bool {
    watch(packet).is_some_and(|(insert, _)| !insert)
}

/// Whether a packet needs the stub's watches to be up to date. (A resume updates them itself, and a kill or detach does
/// not use them. Some plugin commands, about conditions and at stops, do not depend on them.)
pub fn needs_them(packet: &[u8]) -> bool {
    let Some(hex) = packet.strip_prefix(b"qRcmd,") else {
        return packet.starts_with(b"qRcmd");
    };
    !WITHOUT_THEM.iter().any(|words| {
        let digits = words.bytes().flat_map(|b| [b >> 4, b & 15]);
        let mut digits = digits.map(|d| b"0123456789abcdef"[usize::from(d)]);
        hex.len() >= 2 * words.len()
            && hex
                .iter()
                .zip(&mut digits)
                .all(|(have, want)| *have == want)
    })
}

const WITHOUT_THEM: [&str; 4] = [
    "ulpf condition ",
    "ulpf locals ",
    "ulpf settle",
    "ulpf stop",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn armed(packets: &[&[u8]]) -> LazyWatches {
        let mut w = LazyWatches::default();
        for p in packets {
            assert!(!w.settles(p), "the stub decides about new watches");
            w.accepted(p);
        }
        w
    }

    #[test]
    fn a_stop_that_changes_nothing_is_settled_here() {
        let mut w = armed(&[b"Z2,10,4", b"Z4,20,8"]);
        for p in [b"z2,10,4", b"z4,20,8", b"Z2,10,4", b"Z4,20,8"] {
            assert!(w.settles(p));
        }
        assert!(w.overdue(BATCH).is_empty());
    }

    #[test]
    fn what_stays_away_is_told_once() {
        let mut w = armed(&[b"Z2,10,4", b"Z2,20,4"]);
        assert!(w.settles(b"z2,10,4"));
        assert!(w.settles(b"z2,20,4"));
        assert!(w.settles(b"Z2,20,4"));
        assert_eq!(w.overdue(BATCH), [b"z2,10,4".to_vec()]);
        assert!(w.overdue(BATCH).is_empty());
        assert!(!w.settles(b"z2,10,4"), "gone: the stub answers");
        assert!(!w.settles(b"Z2,10,4"), "new again: the stub decides");
    }

    #[test]
    fn equal_watches_are_counted() {
        let mut w = armed(&[b"Z2,10,4", b"Z2,10,4"]);
        assert!(w.settles(b"z2,10,4"));
        assert!(w.settles(b"z2,10,4"));
        assert!(!w.settles(b"z2,10,4"));
        assert!(w.settles(b"Z2,10,4"));
        assert_eq!(w.overdue(BATCH).len(), 1);
    }

    #[test]
    fn what_is_not_told_yet_stays() {
        let mut w = armed(&[b"Z2,10,4", b"Z2,20,4", b"Z2,20,4"]);
        for p in [b"z2,10,4", b"z2,20,4", b"z2,20,4"] {
            assert!(w.settles(p));
        }
        assert_eq!(w.overdue(2).len(), 2);
        assert_eq!(w.overdue(2).len(), 1);
        assert!(w.overdue(2).is_empty());
    }

    #[test]
    fn which_commands_need_them() {
        let asked = |text: &str| {
            let hex: String = text.bytes().map(|b| format!("{b:02x}")).collect();
            needs_them(format!("qRcmd,{hex}").as_bytes())
        };
        assert!(asked("ulpf stats"));
        assert!(asked("ulpf sto"));
        assert!(!asked("ulpf stop rest"));
        assert!(!asked("ulpf condition 0x40 4 w"));
        assert!(needs_them(b"qRcmd"));
        assert!(!needs_them(b"vCont;c"));
    }

    #[test]
    fn breakpoints_are_settled_as_well() {
        let mut w = armed(&[b"Z0,10,1", b"Z0,20,1;X3,220127"]);
        for p in [
            &b"z0,10,1"[..],
            b"z0,20,1",
            b"Z0,10,1",
            b"Z0,20,1;X3,220127",
        ] {
            assert!(w.settles(p));
        }
        assert!(w.overdue(BATCH).is_empty());
        let renewal = w.renewal().unwrap();
        let mut all: Vec<_> = renewal.split(|&b| b == b';').collect();
        all.sort_unstable();
        assert_eq!(all, [&b"10"[..], b"20", b"vUlpfRenew"]);
        assert_eq!(w.renewal(), None);
        assert!(w.settles(b"z0,10,1"));
        assert!(!w.settles(b"z0,10,1"), "twice: the stub answers");
        assert_eq!(w.overdue(BATCH), [b"z0,10,1".to_vec()]);
        assert!(!w.settles(b"Z0,10,1"), "new again: the stub decides");
    }

    #[test]
    fn other_conditions_are_for_the_stub() {
        let mut w = armed(&[b"Z0,10,1;X1,27"]);
        assert!(w.settles(b"z0,10,1"));
        assert!(!w.settles(b"Z0,10,1"));
        w.accepted(b"Z0,10,1");
        assert!(w.overdue(BATCH).is_empty(), "it stays");
        assert!(w.settles(b"z0,10,1"));
        assert!(!w.settles(b"Z0,10,1;X1,27"));
    }

    /// Otherwise a removal that was only noted would remove a breakpoint that was inserted as the other kind since.
    #[test]
    fn a_hardware_breakpoint_takes_the_place_of_one_in_software() {
        let mut w = armed(&[b"Z0,10,1", b"Z0,20,1"]);
        assert!(w.settles(b"z0,10,1"));
        assert!(!w.settles(b"Z1,10,1"));
        w.accepted(b"Z1,10,1");
        assert!(w.overdue(BATCH).is_empty());
        assert!(!w.settles(b"z1,10,1"));
        assert!(!w.settles(b"Z0,10,1"));
        assert!(w.settles(b"z0,20,1"), "another one is left alone");
    }
}
