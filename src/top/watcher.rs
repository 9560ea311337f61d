//! Finds sessions, looks at them, and asks their owners.

use super::app::{Action, App, passes};
use super::details;
use super::export;
use super::look::Looker;
use super::model::{Line, Session};
use crate::door::ask::{ask, list};
use crate::door::{Ask, Listing};
use crate::inject::sessions::{self, Watched, Whose};
use serde_json::Value;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

const FIND: Duration = Duration::from_secs(2);
const LIST: Duration = Duration::from_secs(2);
const SITES: Duration = Duration::from_secs(3);

/// What a thread that has asked an owner brings back, about a process.
enum Answer {
    Listing(i32, Result<Listing, String>),
    Done(i32, Result<String, String>),
    Sites(i32, Result<Value, String>),
}

pub struct Watcher {
    only: Vec<i32>,
    whose: Whose,
    /// There is only the session of the program that we have started ourselves; and until the first look, that.
    started: bool,
    first: Option<Looker>,
    lookers: Vec<Looker>,
    find: Instant,
    lists: Vec<Listed>,
    answers: (Sender<Answer>, Receiver<Answer>),
    sites_next: Instant,
    sites_under_way: bool,
    /// Of what details were last made.
    detailed: Option<(i32, u64, bool)>,
    pub nothing: String,
}

/// When an owner is asked for its list again; not while it has not answered.
struct Listed {
    pid: i32,
    next: Instant,
    under_way: bool,
}

impl Watcher {
    pub fn new(only: Vec<i32>, whose: Whose) -> Watcher {
        Watcher {
            only,
            whose,
            started: false,
            first: None,
            lookers: Vec::new(),
            find: Instant::now(),
            lists: Vec::new(),
            answers: channel(),
            sites_next: Instant::now(),
            sites_under_way: false,
            detailed: None,
            nothing: String::new(),
        }
    }

    /// Only this one, from now on: names are found while its program is there.
    pub fn only(&mut self, session: &Watched) {
        self.started = true;
        self.first = Some(Looker::new(session));
    }

    /// Brings all sessions up to date.
    pub fn look(&mut self, app: &mut App) {
        if let Some(mut looker) = self.first.take() {
            app.sessions.push(looker.begin());
            self.lookers.push(looker);
        }
        if !self.started && Instant::now() >= self.find {
            let begun = Instant::now();
            self.find_sessions(app);
            self.find = Instant::now() + FIND.max(begun.elapsed() * super::REST * 2);
        }
        self.hear(app);
        self.ask_for_lists();
        self.ask_for_sites(app);
        let filter = app.feed_filter.clone();
        let wanted = |name: &str, place: &str, tid: u32| passes(&filter, name, place, tid);
        let all = self.lookers.iter_mut().zip(&mut app.sessions);
        for (n, (looker, session)) in all.enumerate() {
            // A pause stops what is looked at; the others have nothing to hold still.
            let feed = !(app.paused && n == app.current);
            looker.look(session, feed.then_some(&wanted));
        }
        app.nothing.clone_from(&self.nothing);
    }

    /// A hit of the session that alone is looked at, in words.
    pub fn line(&mut self, hit: &ulpf_lib::ring::Hit) -> Option<Line> {
        self.lookers.first_mut()?.line(hit.clone())
    }

    pub fn all<'a>(&'a self, app: &'a App) -> Vec<(&'a Looker, &'a Session)> {
        self.lookers.iter().zip(&app.sessions).collect()
    }

    fn add(&mut self, new: &Watched, app: &mut App) {
        let mut looker = Looker::new(new);
        app.sessions.push(looker.begin());
        self.lookers.push(looker);
    }

    fn find_sessions(&mut self, app: &mut App) {
        let found = match sessions::find(None, self.whose) {
            Ok(found) => found,
            Err(e) => {
                self.nothing = format!("cannot look at processes: {e}");
                return;
            }
        };
        if found.too_many {
            let n = found.list.len();
            app.say(
                format!("more than {n} programs are watched: the others are not shown"),
                true,
            );
        }
        let only = self.only.clone();
        let named = |w: &Watched| only.contains(&w.pid) || only.contains(&w.by);
        let wanted = |w: &Watched| only.is_empty() || named(w);
        for new in found.list.iter().filter(|w| wanted(w)) {
            let base = new.shared.clock().base_ns;
            let same = |l: &Looker| (l.pid, l.by) == (new.pid, new.by);
            match self.lookers.iter().position(same) {
                // It has executed itself anew.
                Some(at) if self.lookers[at].base_ns() != base => {
                    self.lookers[at] = Looker::new(new);
                    app.sessions[at] = self.lookers[at].begin();
                }
                Some(_) => {}
                None => self.add(new, app),
            }
        }
        // One that has ended stays while it is the only one; else it makes room.
        if self.lookers.iter().any(|l| !l.ended) && self.lookers.iter().any(|l| l.ended) {
            let shown = app.session().map(|s| s.pid);
            self.lookers.retain(|l| !l.ended);
            app.sessions.retain(|s| s.ended.is_none());
            let same = app.sessions.iter().position(|s| Some(s.pid) == shown);
            app.current = same.unwrap_or(0);
        }
        self.nothing = match (found.others.first(), found.foreign.first()) {
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
    }

    /// How sites are served is the stub's knowledge, and it speaks only while the program rests: that is
    /// asked for where somebody looks at it, and not often.
    fn ask_for_sites(&mut self, app: &App) {
        let Some(looker) = self.lookers.get(app.current) else {
            return;
        };
        let due = app.view == super::app::View::Sites && Instant::now() >= self.sites_next;
        if !due || self.sites_under_way || looker.ended {
            return;
        }
        (self.sites_under_way, self.sites_next) = (true, Instant::now() + SITES);
        let (pid, by, to) = (looker.pid, looker.by, self.answers.0.clone());
        std::thread::spawn(move || drop(to.send(Answer::Sites(pid, ask(by, pid, &Ask::Sites)))));
    }

    fn ask_for_lists(&mut self) {
        for looker in self.lookers.iter().filter(|l| !l.ended) {
            let (pid, by) = (looker.pid, looker.by);
            let at = match self.lists.iter().position(|l| l.pid == pid) {
                Some(at) => at,
                None => {
                    self.lists.push(Listed {
                        pid,
                        next: Instant::now(),
                        under_way: false,
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
                + LIST.max(Duration::from_millis(looker.listing.entries.len() as u64));
            let to = self.answers.0.clone();
            std::thread::spawn(move || drop(to.send(Answer::Listing(pid, list(by, pid)))));
        }
    }

    /// What has come back.
    fn hear(&mut self, app: &mut App) {
        while let Ok(answer) = self.answers.1.try_recv() {
            let (Answer::Listing(pid, _) | Answer::Done(pid, _) | Answer::Sites(pid, _)) = &answer;
            let pid = *pid;
            let listed = self.lists.iter_mut().find(|l| l.pid == pid);
            let looker = self.lookers.iter_mut().find(|l| l.pid == pid);
            let session = app.sessions.iter_mut().find(|s| s.pid == pid);
            match answer {
                Answer::Listing(_, result) => {
                    if let Some(listed) = listed {
                        listed.under_way = false;
                    }
                    let (Some(looker), Some(session)) = (looker, session) else {
                        continue;
                    };
                    match result {
                        Ok(listing) => {
                            looker.listing = listing;
                            session.closed = None;
                        }
                        Err(why) => session.closed = Some(why),
                    }
                }
                Answer::Sites(_, result) => {
                    self.sites_under_way = false;
                    // Made again, with what is known now.
                    self.detailed = None;
                    if let (Ok(value), Some(looker)) = (result, looker) {
                        looker.know_sites(&value);
                    }
                }
                Answer::Done(_, result) => {
                    if let Some(listed) = listed {
                        listed.next = Instant::now();
                    }
                    match result {
                        Ok(text) => app.say(text, false),
                        Err(why) => app.say(why, true),
                    }
                }
            }
        }
    }

    pub fn act(&mut self, app: &mut App, action: Action) {
        let Some(session) = app.session() else {
            return app.say("no program is watched", true);
        };
        let (pid, by) = (session.pid, session.by);
        match action {
            Action::Quit | Action::Refilter => {}
            Action::Ask(_) if session.ended.is_some() => app.say("the program has ended", true),
            Action::Ask(what) => {
                let text = match &what {
                    Ask::Add(spec) => format!("watching {spec}"),
                    Ask::Off(n) => format!("watch {n} is off; d switches it on again"),
                    Ask::On(n) => format!("watch {n} is on"),
                    Ask::Delete(n) => format!("watch {n} is deleted"),
                    Ask::List | Ask::Sites => String::new(),
                };
                let to = self.answers.0.clone();
                std::thread::spawn(move || {
                    let result = ask(by, pid, &what).map(|_| text);
                    let _ = to.send(Answer::Done(pid, result));
                });
            }
            Action::Export(name) => match export::snapshot(name.as_ref(), session) {
                Ok(hits) => app.say(format!("{hits} hits and the counters are in {name}"), false),
                Err(error) => app.say(format!("{error:#}"), true),
            },
        }
    }

    /// Details of what is selected, where they are shown.
    pub fn details(&mut self, app: &mut App) {
        use super::app::{Subject, View};
        if !app.details_open && !matches!(app.view, View::Hits | View::Sites) {
            self.detailed = None;
            return;
        }
        let Some(subject) = app.subject() else {
            app.details = None;
            return;
        };
        let Some(looker) = self.lookers.get_mut(app.current) else {
            return;
        };
        let of = match &subject {
            Subject::Hit(line) => (looker.pid, line.number, true),
            Subject::Site(pc) => (looker.pid, *pc, false),
        };
        if self.detailed != Some(of) || app.details.is_none() {
            app.details = Some(details::of(
                &mut looker.names,
                &app.sessions[app.current],
                &subject,
            ));
            self.detailed = Some(of);
        }
    }
}
