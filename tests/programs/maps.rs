//! Changes Rust's maps, rings and enums at random. Prints each store to an element with `store` as a line `name value`, with
//! the name that a watch on it should report. maps MUTATIONS
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{LazyLock, Mutex};

pub struct Item {
    value: u64,
    other: u64,
}
pub struct Node {
    value: u64,
    next: Option<Box<Node>>,
}
pub enum State {
    Idle,
    Busy { value: u64, since: u64 },
    Gone(u32),
}

static mut TABLE: Option<HashMap<u32, Item>> = None;
static mut TREE: BTreeMap<u32, Item> = BTreeMap::new();
static mut RING: VecDeque<u64> = VecDeque::new();
static mut HEAD: Option<Box<Node>> = None;
static mut STATE: State = State::Idle;
static LOCKED: LazyLock<Mutex<HashMap<u16, u64>>> = LazyLock::new(|| Mutex::new(HashMap::new()));

struct Dice(u64);
impl Dice {
    fn any(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

#[inline(never)]
fn store(said: &mut Vec<String>, name: String, to: &mut u64, value: u64) {
    said.push(format!("{name} {value}"));
    unsafe { std::ptr::write_volatile(to, value) };
}

#[allow(static_mut_refs)]
fn main() {
    let mutations: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let mut dice = Dice(88172645463325252);
    let mut said = Vec::new();
    let (table, tree, ring, head, state) = unsafe {
        TABLE = Some(HashMap::new());
        (TABLE.as_mut().unwrap(), &mut TREE, &mut RING, &mut HEAD, &mut STATE)
    };
    for n in 0..mutations {
        let item = Item { value: 1, other: 2 };
        let key = dice.any(400) as u32;
        match dice.any(16) {
            0 | 1 => drop(table.insert(key, item)),
            2 => drop(table.remove(&key)),
            3 => drop(tree.insert(key, item)),
            4 => drop(tree.remove(&key)),
            5 => match dice.any(5) {
                0 | 1 => ring.push_back(n),
                2 | 3 => ring.push_front(n),
                _ => drop(if n % 2 == 0 { ring.pop_back() } else { ring.pop_front() }),
            },
            6 => match dice.any(12) {
                0 => ring.shrink_to_fit(),
                1 => table.shrink_to_fit(),
                2 => table.clear(),
                3 => drop(tree.split_off(&300)),
                4 => table.retain(|key, _| key % 3 != 0),
                _ => {}
            },
            7 => *head = match dice.any(3) {
                0 => None,
                1 => Some(Box::new(Node { value: 1, next: None })),
                _ => head.take().map(|old| Box::new(Node { value: 2, next: Some(old) })),
            },
            8 => *state = match dice.any(3) {
                0 => State::Idle,
                1 => State::Gone(key),
                _ => State::Busy { value: n, since: n },
            },
            9 | 10 => {
                let at = dice.any(table.len().max(1) as u64) as usize;
                if let Some(item) = table.values_mut().nth(at) {
                    store(&mut said, format!("TABLE[#{at}].value"), &mut item.value, n);
                    item.other += n;
                }
            }
            11 | 12 => {
                let at = dice.any(tree.len().max(1) as u64) as usize;
                if let Some(item) = tree.values_mut().nth(at) {
                    store(&mut said, format!("TREE[#{at}].value"), &mut item.value, n);
                    item.other += n;
                }
            }
            13 => {
                let at = dice.any(ring.len().max(1) as u64) as usize;
                if let Some(value) = ring.get_mut(at) {
                    store(&mut said, format!("RING[{at}]"), value, n);
                }
            }
            14 => {
                if let State::Busy { value, since } = state {
                    store(&mut said, "STATE.value".into(), value, n);
                    *since += n;
                }
                if let Some(node) = head {
                    store(&mut said, "HEAD.value".into(), &mut node.value, n);
                    if let Some(next) = &mut node.next {
                        store(&mut said, "HEAD.next.value".into(), &mut next.value, n);
                    }
                }
            }
            _ => {
                let mut locked = LOCKED.lock().unwrap();
                locked.insert(key as u16 % 40, n);
                let at = dice.any(locked.len() as u64) as usize;
                let value = locked.values_mut().nth(at).unwrap();
                store(&mut said, format!("LOCKED[#{at}]"), value, n);
            }
        }
    }
    said.iter().for_each(|line| println!("{line}"));
    // Destructors would store to watched memory, so none runs.
    std::process::exit(0);
}
