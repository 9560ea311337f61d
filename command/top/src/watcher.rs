//! Transfers the state of all sessions to the [`App`], and its requests to their owners.

use super::app::{Action, App, Subject};
use super::details;
use super::heap::Heap;
use super::view::{View, passes};
use ulpf_area::sessions::{Watched, Whose};
use ulpf_session::control_socket::Ask;
use ulpf_session::watcher::{self, Look};

pub struct Watcher {
    sessions: watcher::Watcher,
    /// The object of the last details, and the known facts of sites at that time.
    detailed: Option<(i32, u64, bool, u64)>,
    /// The session of the heap in the app.
    heap_of: Option<(i32, i32)>,
}

impl Watcher {
    pub fn new(only: Vec<i32>, whose: Whose) -> Watcher {
        Watcher {
            sessions: watcher::Watcher::new(only, whose),
            detailed: None,
            heap_of: None,
        }
    }

    /// Shows only this session from now on. Names are resolved while its program exists.
    pub fn only(&mut self, session: &Watched) {
        self.sessions.only(session);
    }

    /// Updates all sessions.
    pub fn look(&mut self, app: &mut App) {
        let shown = app.session().map(|s| (s.pid, s.by));
        let filter = app.feed_filter.clone();
        let pid = app.session().map(|s| s.pid);
        let look = Look {
            feed: &|name, place, tid| passes(&filter, name, place, tid),
            paused: pid.filter(|_| app.paused),
            sites: pid.filter(|_| app.view == View::Sites),
        };
        for (text, bad) in self.sessions.look(&mut app.sessions, &look) {
            app.say(text, bad);
        }
        // The shown session may have moved or gone.
        let same = |at: usize| app.sessions.get(at).map(|s| (s.pid, s.by)) == shown;
        if !same(app.current) {
            let all = 0..app.sessions.len();
            app.current = all.into_iter().find(|at| same(*at)).unwrap_or(0);
        }
        app.nothing.clone_from(&self.sessions.nothing);
    }

    /// Updates the heap. Resolving the places of an error takes longer than an update, but happens once for each error.
    pub fn look_at_heap(&mut self, app: &mut App) {
        let of = app.session().map(|s| (s.pid, s.by));
        if self.heap_of != of {
            (self.heap_of, app.heap) = (of, None);
        }
        let blocks = self.sessions.blocks.take();
        if let Some(observer) = self.sessions.observer(app.current)
            && app.session().is_some_and(|s| s.ended.is_none())
            && let Some((findings, program)) = observer.findings()
        {
            let heap = app.heap.get_or_insert_with(Heap::default);
            heap.look(findings, program);
        }
        if let (Some((pid, value)), Some(heap)) = (blocks, &mut app.heap)
            && Some(pid) == of.map(|of| of.0)
        {
            heap.hear(&value);
        }
        if app.heap.is_none() && app.view == View::Heap {
            app.show(View::Watches);
        }
    }

    pub fn act(&mut self, app: &mut App, action: Action) {
        let Some(session) = app.session() else {
            return app.say("no program is watched", true);
        };
        match action {
            Action::Quit | Action::Refilter => {}
            Action::Ask(_) | Action::Blocks if session.ended.is_some() => {
                app.say("the program has ended", true)
            }
            Action::Ask(what) => {
                let done = match &what {
                    Ask::Add(spec) => format!("watching {spec}"),
                    Ask::Off(n) => format!("watch {n} is off; d switches it on again"),
                    Ask::On(n) => format!("watch {n} is on"),
                    Ask::Delete(n) => format!("watch {n} is deleted"),
                    Ask::List | Ask::Sites | Ask::Blocks => String::new(),
                };
                self.sessions.ask(session, what, done);
            }
            Action::Blocks => {
                self.sessions.ask_for_blocks(session);
                app.say("the program rests while its blocks are looked for", false);
            }
            Action::Export(name) => match crate::export::snapshot(name.as_ref(), session) {
                Ok(hits) => app.say(format!("{hits} hits and the counters are in {name}"), false),
                Err(error) => app.say(format!("{error:#}"), true),
            },
        }
    }

    /// Makes the details of the selection, if they are visible.
    pub fn details(&mut self, app: &mut App) {
        if !app.details_open && !matches!(app.view, View::Hits | View::Sites | View::Heap) {
            self.detailed = None;
            return;
        }
        if app.view == View::Heap {
            self.detailed = None;
            let key = app.chosen();
            let details = |heap: &Heap| heap.details(key?);
            app.details = app.heap.as_ref().and_then(details);
            return;
        }
        let Some(subject) = app.subject() else {
            app.details = None;
            return;
        };
        let heard = self.sessions.sites_heard;
        let Some(observer) = self.sessions.observer(app.current) else {
            return;
        };
        let of = match &subject {
            Subject::Hit(line) => (observer.pid, line.number, true, heard),
            Subject::Site(pc) => (observer.pid, *pc, false, heard),
        };
        if self.detailed != Some(of) || app.details.is_none() {
            app.details = Some(details::of(
                &mut observer.names,
                &app.sessions[app.current],
                &subject,
            ));
            self.detailed = Some(of);
        }
    }
}
