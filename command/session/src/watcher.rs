//! Watches all wanted sessions: finds them, looks at each, and asks their owners. Each request to an owner runs on a
//! thread of its own, since an owner may be slow to answer.

use super::listing::Listing;
use super::observer::{Observer, Wanted};
use super::snapshot::Snapshot;
use crate::control_socket::Ask;
use crate::control_socket::ask::{ask, list};
use serde_json::Value;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use ulpf_area::sessions::{self, Watched, Whose};
use ulpf_host::rights::thread_time;

const FIND: Duration = Duration::from_secs(2);
const LIST: Duration = Duration::from_secs(2);
const SITES: Duration = Duration::from_secs(3);

/// Rest after each look: however many watches there are, looks use at most a hundredth of a processor.
#[derive(Default)]
pub struct Pace(Duration);

impl Pace {
    const PAUSE: u32 = 100;

    /// `used` is the processor time of the look. The rest follows from the smaller of the last two looks: symbols are
    /// read only once, and must not cause a rest of a hundred times that.
    pub fn pause(&mut self, used: Duration) -> Duration {
        std::mem::replace(&mut self.0, used).min(used) * Pace::PAUSE
    }
}

/// Answer of an owner about a process, from the thread that asked.
enum Answer {
    Listing(i32, Result<Listing, String>),
    Done(i32, Result<String, String>),
    Sites(i32, Result<Value, String>),
    Blocks(i32, Result<Value, String>),
}

/// Options of a look.
pub struct Look<'a> {
    /// The hits that the feeds take.
    pub feed: Wanted<'a>,
    /// The feed of this process's session is paused.
    pub paused: Option<i32>,
    /// Also ask how the instructions of this process are served.
    pub sites: Option<i32>,
}

impl Look<'_> {
    /// Counters and all hits.
    pub fn everything() -> Look<'static> {
        Look {
            feed: &|_, _, _| true,
            paused: None,
            sites: None,
        }
    }
}

/// One sentence for the user, and whether it reports a problem.
pub type Message = (String, bool);

/// Looks at all wanted sessions.
pub struct Watcher {
    only: Vec<i32>,
    whose: Whose,
    /// The only session is that of the program that we have started ourselves.
    started: bool,
    first: Option<Observer>,
    observers: Vec<Observer>,
    /// Time of the next search for sessions.
    find: Instant,
    pace: Pace,
    lists: Vec<Listed>,
    answers: (Sender<Answer>, Receiver<Answer>),
    sites_next: Instant,
    sites_under_way: bool,
    /// Number of answers about sites.
    pub sites_heard: u64,
    /// Answer of an owner about the blocks of this process's heap, until the caller takes it.
    pub blocks: Option<(i32, Value)>,
    /// Reason why there is no session.
    pub nothing: String,
}

/// Time of the next request for an owner's list; none is sent while one is under way.
struct Listed {
    pid: i32,
    next: Instant,
    under_way: bool,
    /// It has sent one, or refused.
    heard: bool,
}

impl Watcher {
    /// `only`: watch these programs, or the programs that these processes watch; if empty, all.
    pub fn new(only: Vec<i32>, whose: Whose) -> Watcher {
        Watcher {
            only,
            whose,
            started: false,
            first: None,
            observers: Vec::new(),
            find: Instant::now(),
            pace: Pace::default(),
            lists: Vec::new(),
            answers: channel(),
            sites_next: Instant::now(),
            sites_under_way: false,
            sites_heard: 0,
            blocks: None,
            nothing: String::new(),
        }
    }

    /// Watches only this session from now on. The names are read while its program runs.
    pub fn only(&mut self, session: &Watched) {
        self.started = true;
        self.first = Some(Observer::new(session));
    }

    /// Brings all sessions up to date and returns messages for the user. `snapshots` are those of the look before, in
    /// the same order.
    pub fn look(&mut self, snapshots: &mut Vec<Snapshot>, look: &Look) -> Vec<Message> {
        let mut messages = Vec::new();
        if let Some(mut observer) = self.first.take() {
            snapshots.push(observer.begin());
            self.observers.push(observer);
        }
        if !self.started && Instant::now() >= self.find {
            let begun = thread_time();
            messages.extend(self.find_sessions(snapshots));
            let pause = self.pace.pause(thread_time() - begun);
            self.find = Instant::now() + FIND.max(pause * 2);
        }
        self.hear(snapshots, &mut messages);
        self.ask_for_lists();
        self.ask_for_sites(look.sites);
        for (observer, snapshot) in self.observers.iter_mut().zip(snapshots) {
            // A pause stops only the feed of the shown session.
            let feed = look.paused != Some(observer.pid);
            observer.look(snapshot, feed.then_some(look.feed));
        }
        messages
    }

    /// The observer of the snapshot `at`.
    pub fn observer(&mut self, at: usize) -> Option<&mut Observer> {
        self.observers.get_mut(at)
    }

    fn add(&mut self, new: &Watched, snapshots: &mut Vec<Snapshot>) {
        let mut observer = Observer::new(new);
        snapshots.push(observer.begin());
        self.observers.push(observer);
    }

    fn find_sessions(&mut self, snapshots: &mut Vec<Snapshot>) -> Option<Message> {
        let found = match sessions::find(None, self.whose) {
            Ok(found) => found,
            Err(e) => {
                self.nothing = format!("cannot look at processes: {e}");
                return None;
            }
        };
        let message = found.too_many.then(|| {
            let n = found.list.len();
            let text = format!("more than {n} programs are watched: the others are not shown");
            (text, true)
        });
        let only = self.only.clone();
        let named = |w: &Watched| only.contains(&w.pid) || only.contains(&w.by);
        let wanted = |w: &Watched| only.is_empty() || named(w);
        for new in found.list.iter().filter(|w| wanted(w)) {
            let base = new.shared.clock().base_ns;
            let same = |l: &Observer| (l.pid, l.by) == (new.pid, new.by);
            match self.observers.iter().position(same) {
                // The program has called exec.
                Some(at) if self.observers[at].base_ns() != base => {
                    self.observers[at] = Observer::new(new);
                    snapshots[at] = self.observers[at].begin();
                }
                Some(_) => {}
                None => self.add(new, snapshots),
            }
        }
        // An ended session stays while it is the only one; otherwise it is removed.
        if self.observers.iter().any(|l| !l.ended) && self.observers.iter().any(|l| l.ended) {
            self.observers.retain(|l| !l.ended);
            snapshots.retain(|s| s.ended.is_none());
        }
        let claim = self.only.iter().find_map(|pid| found.false_claim_of(*pid));
        let claim = claim.map(|claim| format!("{claim}."));
        self.nothing = match (found.others.first(), found.foreign.first()) {
            _ if claim.is_some() => claim.unwrap_or_default(),
            (Some(_), _) if !self.only.is_empty() && found.hides_some() => format!(
                "No ulpf of yours watches process {}; --all-users looks into other users' sessions, too.",
                self.only[0]
            ),
            _ if !self.only.is_empty() => format!(
                "No ulpf watches process {}, as far as you may see.\n\nStart it with `ulpf run`, or watch it with `ulpf attach --watch SPEC {}`.",
                self.only[0], self.only[0]
            ),
            (Some(other), _) if found.hides_some() => format!(
                "ulpf ({other}) of another user is at work: --all-users shows other users' sessions, too.\n\nOf yours no program is watched."
            ),
            (Some(other), _) => format!(
                "ulpf ({other}) of another user is at work; only that user and root may look into it.\n\nOf yours no program is watched."
            ),
            (_, Some(foreign)) => format!(
                "ulpf ({foreign}) is of another version: use that version's `ulpf top`."
            ),
            _ => "No program is watched at present.\n\nStart one in another terminal, it appears here:\n\n  ulpf run -w counter ./program\n\nor quit and let ulpf top start it:\n\n  ulpf top -w counter -- ./program".to_string(),
        };
        message
    }

    /// Only the stub knows how sites are served, and answers only while the program is stopped. So they are requested
    /// rarely, and only while they are shown.
    fn ask_for_sites(&mut self, of: Option<i32>) {
        let Some(observer) = self.observers.iter().find(|o| Some(o.pid) == of) else {
            return;
        };
        if Instant::now() < self.sites_next || self.sites_under_way || observer.ended {
            return;
        }
        (self.sites_under_way, self.sites_next) = (true, Instant::now() + SITES);
        let (pid, by, to) = (observer.pid, observer.by, self.answers.0.clone());
        std::thread::spawn(move || drop(to.send(Answer::Sites(pid, ask(by, pid, &Ask::Sites)))));
    }

    fn ask_for_lists(&mut self) {
        for observer in self.observers.iter().filter(|l| !l.ended) {
            let (pid, by) = (observer.pid, observer.by);
            let at = match self.lists.iter().position(|l| l.pid == pid) {
                Some(at) => at,
                None => {
                    self.lists.push(Listed {
                        pid,
                        next: Instant::now(),
                        under_way: false,
                        heard: false,
                    });
                    self.lists.len() - 1
                }
            };
            let listed = &mut self.lists[at];
            if listed.under_way || Instant::now() < listed.next {
                continue;
            }
            listed.under_way = true;
            // A long list is work for both sides.
            listed.next = Instant::now()
                + LIST.max(Duration::from_millis(observer.listing.entries.len() as u64));
            let to = self.answers.0.clone();
            std::thread::spawn(move || drop(to.send(Answer::Listing(pid, list(by, pid)))));
        }
    }

    /// Returns whether an owner has neither sent its list of watches nor refused to. It does within the limit of a request.
    pub fn waits_for_lists(&self) -> bool {
        self.lists.iter().any(|l| !l.heard)
    }

    /// Handles the answers that have arrived.
    fn hear(&mut self, snapshots: &mut [Snapshot], messages: &mut Vec<Message>) {
        while let Ok(answer) = self.answers.1.try_recv() {
            let (Answer::Listing(pid, _)
            | Answer::Done(pid, _)
            | Answer::Sites(pid, _)
            | Answer::Blocks(pid, _)) = &answer;
            let pid = *pid;
            let listed = self.lists.iter_mut().find(|l| l.pid == pid);
            let observer = self.observers.iter_mut().find(|o| o.pid == pid);
            let snapshot = snapshots.iter_mut().find(|s| s.pid == pid);
            match answer {
                Answer::Listing(_, result) => {
                    if let Some(listed) = listed {
                        (listed.under_way, listed.heard) = (false, true);
                    }
                    let (Some(observer), Some(snapshot)) = (observer, snapshot) else {
                        continue;
                    };
                    match result {
                        Ok(listing) => {
                            observer.listing = listing;
                            snapshot.closed = None;
                        }
                        Err(why) => snapshot.closed = Some(why),
                    }
                }
                Answer::Sites(_, result) => {
                    self.sites_under_way = false;
                    self.sites_heard += 1;
                    if let (Ok(value), Some(observer)) = (result, observer) {
                        observer.know_sites(&value);
                    }
                }
                Answer::Blocks(_, Ok(value)) => self.blocks = Some((pid, value)),
                Answer::Blocks(_, Err(why)) => messages.push((why, true)),
                Answer::Done(_, result) => {
                    if let Some(listed) = listed {
                        listed.next = Instant::now();
                    }
                    messages.push(match result {
                        Ok(text) => (text, false),
                        Err(why) => (why, true),
                    });
                }
            }
        }
    }

    /// Asks the owner of a session for the blocks of its heap; the program is stopped meanwhile. See
    /// [`Watcher::blocks`].
    pub fn ask_for_blocks(&self, snapshot: &Snapshot) {
        let (pid, by, to) = (snapshot.pid, snapshot.by, self.answers.0.clone());
        std::thread::spawn(move || drop(to.send(Answer::Blocks(pid, ask(by, pid, &Ask::Blocks)))));
    }

    /// Asks the owner of a session for a change. A later look returns `done`, or the reason of the refusal.
    pub fn ask(&self, snapshot: &Snapshot, what: Ask, done: String) {
        let (pid, by, to) = (snapshot.pid, snapshot.by, self.answers.0.clone());
        std::thread::spawn(move || {
            let result = ask(by, pid, &what).map(|_| done);
            let _ = to.send(Answer::Done(pid, result));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_once_is_not_rested_from() {
        let ms = Duration::from_millis;
        let mut pace = Pace::default();
        let rests: Vec<_> = [200, 2, 3, 300, 400, 1]
            .map(|used| pace.pause(ms(used)))
            .to_vec();
        assert_eq!(rests, [0, 200, 200, 300, 30_000, 100].map(ms));
    }
}
