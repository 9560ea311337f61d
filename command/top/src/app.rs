//! The user's choices: view, order, selection, filters, and text being typed. Keys and the mouse change them. An effect
//! outside this module is returned as an [`Action`].

use super::heap::Heap;
use super::rows::{self, Column, Row};
use super::theme::Theme;
use super::view::{Details, Table, VIEWS, View};
use ratatui::crossterm::event::{
    KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use ratatui::layout::{Position, Rect};
use ulpf_session::control_socket::Ask;
use ulpf_session::hit::Line;
use ulpf_session::snapshot::{Snapshot, State, Watch};

/// The question of the prompt line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Search in the rows of the current table.
    Search,
    /// Filter for lines of the feed.
    Filter,
    Add,
    Export,
    /// Number and name of the watch to delete.
    Delete(usize, String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Quit,
    /// A request to the session's owner.
    Ask(Ask),
    Export(String),
    /// Request the list of blocks from the session's owner.
    Blocks,
    /// Read the feed again with another filter.
    Refilter,
}

/// The meaning of a screen area for mouse clicks.
#[derive(Clone, Copy, Debug)]
pub enum Spot {
    Tab(View),
    Header(usize),
    /// Key of a row.
    Row(u64),
    Session,
}

/// The object of the details.
#[derive(Clone, Debug)]
pub enum Subject {
    Hit(Box<Line>),
    Site(u64),
}

pub struct App {
    pub sessions: Vec<Snapshot>,
    pub current: usize,
    pub view: View,
    pub tables: [Table; 6],
    /// The selected hit, kept because it may leave the feed while it is selected.
    kept: Option<Line>,
    /// The heap of the current session, if it is checked.
    pub heap: Option<Heap>,
    pub feed_filter: String,
    pub paused: bool,
    pub prompt: Option<(Prompt, String)>,
    pub help: bool,
    pub details: Option<Details>,
    /// Details are shown over the table (in narrow terminals), or beside it.
    pub details_open: bool,
    pub details_scroll: u16,
    /// A message, and whether it is an error.
    pub message: Option<(String, bool)>,
    /// Why there is nothing to show.
    pub nothing: String,
    /// Output of the program that this command has started.
    pub output: Vec<String>,
    pub theme: Theme,
    pub spots: Vec<(Rect, Spot)>,
    /// Number of rows that fit, as of the last drawing.
    pub height: usize,
}

impl App {
    pub fn new(theme: Theme) -> App {
        let mut tables: [Table; 6] = Default::default();
        // Watches are in the order in which they were set, the other tables by heat.
        tables[View::Sites as usize].sort = 3;
        tables[View::Pages as usize].sort = 3;
        App {
            sessions: Vec::new(),
            current: 0,
            view: View::Watches,
            tables,
            kept: None,
            heap: None,
            feed_filter: String::new(),
            paused: false,
            prompt: None,
            help: false,
            details: None,
            details_open: false,
            details_scroll: 0,
            message: None,
            nothing: String::new(),
            output: Vec::new(),
            theme,
            spots: Vec::new(),
            height: 0,
        }
    }

    pub fn session(&self) -> Option<&Snapshot> {
        self.sessions.get(self.current)
    }

    pub fn table(&self) -> &Table {
        &self.tables[self.view as usize]
    }

    fn select(&mut self, key: Option<u64>) {
        self.table_mut().selected = key;
        if self.view == View::Hits {
            let feed = self.session().map(|s| &s.feed);
            let line = feed.and_then(|feed| feed.iter().find(|l| Some(l.number) == key));
            self.kept = line.cloned();
        }
    }

    fn table_mut(&mut self) -> &mut Table {
        &mut self.tables[self.view as usize]
    }

    pub fn columns(&self) -> &'static [Column] {
        rows::columns(self.view)
    }

    /// The rows of the present view, searched and sorted.
    pub fn rows(&self) -> Vec<Row> {
        let Some(session) = self.session() else {
            return Vec::new();
        };
        let all = rows::rows(session, self.heap.as_ref(), self.view);
        rows::arrange(all, self.view, self.table(), &self.feed_filter)
    }

    /// The available views.
    pub fn views(&self) -> &'static [View] {
        let [rest @ .., View::Heap] = &VIEWS else {
            return &VIEWS;
        };
        match self.heap {
            Some(_) => &VIEWS,
            None => rest,
        }
    }

    pub fn say(&mut self, text: impl Into<String>, bad: bool) {
        self.message = Some((text.into(), bad));
    }

    pub fn show(&mut self, view: View) {
        self.view = view;
        self.details = None;
        self.details_open = false;
    }

    /// Key of the selected row, or of the first row if none is selected.
    pub fn chosen(&self) -> Option<u64> {
        let key = self.table().selected;
        let rows = self.rows();
        let chosen = rows.iter().find(|r| Some(r.key) == key);
        Some(chosen.or(rows.first())?.key)
    }

    /// The selected hit or site, for the details.
    pub fn subject(&self) -> Option<Subject> {
        let session = self.session()?;
        match self.view {
            View::Hits | View::Watches => {
                let line = match self.tables[View::Hits as usize].selected {
                    Some(key) => self.kept.as_ref().filter(|l| l.number == key),
                    None => session.feed.back(),
                };
                Some(Subject::Hit(Box::new(line?.clone())))
            }
            View::Sites => Some(Subject::Site(self.chosen()?)),
            _ => None,
        }
    }

    fn move_by(&mut self, by: isize) {
        if self.details_open {
            self.details_scroll = self.details_scroll.saturating_add_signed(by as i16);
            return;
        }
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let feed = self.view == View::Hits;
        let selected = self.table().selected;
        let at = selected.and_then(|key| rows.iter().position(|r| r.key == key));
        // While the feed runs, its last line is followed without a selection.
        let at = at.unwrap_or(if feed { last } else { 0 });
        let to = at.saturating_add_signed(by).min(last);
        let key = rows.get(to).map(|r| r.key);
        self.select(match feed && to == last && by > 0 {
            true => None,
            false => key,
        });
    }

    fn selected_watch(&self) -> Option<Watch> {
        let session = self.session()?;
        let rows = self.rows();
        let key = self.table().selected;
        let row = rows.iter().find(|r| Some(r.key) == key).or(rows.first())?;
        session.watches.get(row.at).cloned()
    }

    pub fn key(&mut self, key: KeyEvent) -> Option<Action> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Some(Action::Quit);
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('j') {
            // An Enter that was typed before the terminal was in raw mode.
            return self.key(KeyEvent::from(KeyCode::Enter));
        }
        if self.prompt.is_some() {
            return self.typed(key);
        }
        self.message = None;
        if self.help {
            self.help = false;
            return match key.code {
                KeyCode::Char('q') => Some(Action::Quit),
                _ => None,
            };
        }
        let page = self.height.saturating_sub(1).max(1) as isize;
        match key.code {
            KeyCode::Char('q') => return Some(Action::Quit),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Char(c @ '1'..='6') => match self.views().get(c as usize - '1' as usize) {
                Some(view) => self.show(*view),
                None => self.say(
                    "this program's heap is not checked: ulpf check does that",
                    true,
                ),
            },
            KeyCode::Tab | KeyCode::Right => self.show(self.beside(1)),
            KeyCode::BackTab | KeyCode::Left => self.show(self.beside(-1)),
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp => self.move_by(-page),
            KeyCode::PageDown => self.move_by(page),
            KeyCode::Home | KeyCode::Char('g') => self.move_by(-(1 << 40)),
            KeyCode::End | KeyCode::Char('G') => self.move_by(1 << 40),
            KeyCode::Char('s') => {
                let columns = self.columns().len();
                let table = self.table_mut();
                table.sort = (table.sort + 1) % columns;
                let sorted = self.columns()[self.table().sort].title;
                self.say(format!("sorted by {sorted}; r reverses"), false);
            }
            KeyCode::Char('r') => self.table_mut().reverse ^= true,
            KeyCode::Char('/') => {
                let text = self.table().search.clone();
                match self.view {
                    View::Hits => self.prompt = Some((Prompt::Filter, self.feed_filter.clone())),
                    _ => self.prompt = Some((Prompt::Search, text)),
                }
            }
            KeyCode::Char('f') => {
                self.prompt = Some((Prompt::Filter, self.feed_filter.clone()));
            }
            KeyCode::Char('p' | ' ') => self.paused ^= true,
            KeyCode::Char('n') if !self.sessions.is_empty() => {
                self.current = (self.current + 1) % self.sessions.len();
                self.forget();
            }
            KeyCode::Char('a') => self.prompt = Some((Prompt::Add, String::new())),
            KeyCode::Char('e') => {
                let pid = self.session().map_or(0, |s| s.pid);
                self.prompt = Some((Prompt::Export, format!("ulpf-{pid}.jsonl")));
            }
            KeyCode::Char('b') if self.view == View::Heap => return Some(Action::Blocks),
            KeyCode::Char('d') => return self.switch(),
            KeyCode::Char('D') | KeyCode::Delete => self.delete(),
            KeyCode::Enter => self.enter(),
            KeyCode::Esc => self.escape(),
            _ => {}
        }
        None
    }

    fn beside(&self, by: isize) -> View {
        let views = self.views();
        let at = (self.view as usize).wrapping_add_signed(by + views.len() as isize);
        views[at % views.len()]
    }

    fn forget(&mut self) {
        self.tables.iter_mut().for_each(|t| t.selected = None);
        self.kept = None;
        self.details = None;
        self.details_open = false;
    }

    fn enter(&mut self) {
        match self.view {
            View::Watches => {
                // Show the hits of this watch.
                if let Some(watch) = self.selected_watch() {
                    self.feed_filter = watch.name.to_string();
                    self.show(View::Hits);
                    self.tables[View::Hits as usize].selected = None;
                }
            }
            View::Hits | View::Sites | View::Heap => {
                self.details_open = true;
                self.details_scroll = 0;
                if self.view == View::Hits && self.table().selected.is_none() {
                    // The selection remains while new hits arrive.
                    let last = self.rows().last().map(|r| r.key);
                    self.select(last);
                }
            }
            _ => {}
        }
    }

    fn escape(&mut self) {
        let table = self.view as usize;
        match () {
            _ if self.details_open => self.details_open = false,
            _ if !self.tables[table].search.is_empty() => self.tables[table].search.clear(),
            _ if !self.feed_filter.is_empty() => self.feed_filter.clear(),
            _ => self.tables[table].selected = None,
        }
    }

    fn switch(&mut self) -> Option<Action> {
        if self.view != View::Watches {
            self.say(
                "watches are switched off and on in their own view: press 1",
                true,
            );
            return None;
        }
        let watch = self.selected_watch()?;
        match (watch.number, watch.state) {
            (Some(n), State::Armed | State::Gone) => Some(Action::Ask(Ask::Off(n))),
            (Some(n), _) => Some(Action::Ask(Ask::On(n))),
            (None, _) => {
                self.say_closed(watch.debuggers);
                None
            }
        }
    }

    fn delete(&mut self) {
        if self.view != View::Watches {
            return self.say("watches are deleted in their own view: press 1", true);
        }
        match self.selected_watch() {
            Some(watch) => match watch.number {
                Some(n) => {
                    let name = watch.name.to_string();
                    self.prompt = Some((Prompt::Delete(n, name), String::new()));
                }
                None => self.say_closed(watch.debuggers),
            },
            None => self.say("there is no watch to delete", true),
        }
    }

    fn say_closed(&mut self, debuggers: bool) {
        let closed = self.session().and_then(|s| s.closed.clone());
        let why = closed.unwrap_or_else(|| match debuggers {
            true => "this watch is the debugger's own: change it there (GDB: info watchpoints, delete, disable)".into(),
            false => "its owner is being asked about this watch: try again in a moment".into(),
        });
        self.say(why, true);
    }

    fn typed(&mut self, key: KeyEvent) -> Option<Action> {
        let (prompt, mut text) = self.prompt.take()?;
        if let Prompt::Delete(number, _) = prompt {
            return match key.code {
                KeyCode::Char('y' | 'Y') => Some(Action::Ask(Ask::Delete(number))),
                _ => {
                    self.say("nothing was deleted", false);
                    None
                }
            };
        }
        match key.code {
            KeyCode::Esc => return None,
            KeyCode::Enter => return self.entered(prompt, text),
            KeyCode::Backspace => {
                text.pop();
            }
            KeyCode::Char('u') if key.modifiers.contains(KeyModifiers::CONTROL) => text.clear(),
            KeyCode::Char(c) if text.len() < 4096 => text.push(c),
            _ => {}
        }
        self.prompt = Some((prompt, text));
        None
    }

    fn entered(&mut self, prompt: Prompt, text: String) -> Option<Action> {
        let trimmed = text.trim();
        match prompt {
            Prompt::Search => {
                let table = self.table_mut();
                (table.search, table.selected) = (trimmed.to_string(), None);
                None
            }
            Prompt::Filter => {
                self.feed_filter = trimmed.to_string();
                self.tables[View::Hits as usize].selected = None;
                Some(Action::Refilter)
            }
            _ if trimmed.is_empty() => None,
            Prompt::Add => Some(Action::Ask(Ask::Add(trimmed.to_string()))),
            Prompt::Export => Some(Action::Export(trimmed.to_string())),
            Prompt::Delete(..) => None,
        }
    }

    pub fn mouse(&mut self, event: MouseEvent) -> Option<Action> {
        match event.kind {
            MouseEventKind::ScrollUp => self.move_by(-3),
            MouseEventKind::ScrollDown => self.move_by(3),
            MouseEventKind::Down(MouseButton::Left) => {
                let at = Position::new(event.column, event.row);
                let spot = self.spots.iter().rev().find(|(r, _)| r.contains(at));
                match spot.map(|(_, spot)| *spot) {
                    Some(Spot::Tab(view)) => self.show(view),
                    Some(Spot::Session) => {
                        return self.key(KeyEvent::from(KeyCode::Char('n')));
                    }
                    Some(Spot::Header(column)) => {
                        let table = self.table_mut();
                        match table.sort == column {
                            true => table.reverse ^= true,
                            false => (table.sort, table.reverse) = (column, false),
                        }
                    }
                    Some(Spot::Row(key)) => {
                        // A second click opens the row.
                        match self.table().selected == Some(key) {
                            true => self.enter(),
                            false => self.select(Some(key)),
                        }
                    }
                    None => {}
                }
            }
            _ => {}
        }
        None
    }
}
