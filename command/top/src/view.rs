//! The views of a session, and what is chosen in each: the selected row, the order, what is searched for, and that row closely.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum View {
    Watches,
    Sites,
    Pages,
    Threads,
    Hits,
    Heap,
}

/// The last one is only there where a heap is checked.
pub const VIEWS: [View; 6] = [
    View::Watches,
    View::Sites,
    View::Pages,
    View::Threads,
    View::Hits,
    View::Heap,
];

impl View {
    pub fn title(self) -> &'static str {
        match self {
            View::Watches => "Watches",
            View::Sites => "Sites",
            View::Pages => "Pages",
            View::Threads => "Threads",
            View::Hits => "Hits",
            View::Heap => "Heap",
        }
    }
}

/// Selection and order of a view.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Key of the selected row; in the feed none means the youngest.
    pub selected: Option<u64>,
    pub offset: usize,
    /// Column by which it is sorted.
    pub sort: usize,
    pub reverse: bool,
    pub search: String,
}

/// A hit, a site or an error, looked at closely.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    pub title: String,
    pub facts: Vec<(&'static str, String)>,
    pub stack: Vec<String>,
    /// Instructions; the one in question is marked.
    pub code: Vec<(bool, String)>,
    pub source_title: String,
    pub source: Vec<(bool, String)>,
}

/// Does a hit pass the feed's filter? All words have to be in its watch, its place, or be its thread.
pub fn passes(filter: &str, name: &str, place: &str, tid: u32) -> bool {
    let mut words = filter.split_whitespace();
    words.all(|word| contains(name, word) || contains(place, word) || word.parse() == Ok(tid))
}

/// Without regard to case.
pub fn contains(text: &str, word: &str) -> bool {
    if word.chars().any(char::is_uppercase) {
        return text.contains(word);
    }
    text.contains(word) || text.to_lowercase().contains(word)
}
