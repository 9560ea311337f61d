//! The views of a session, and the choices in each: selected row, order, search, and the details of the row.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum View {
    Watches,
    Sites,
    Pages,
    Threads,
    Hits,
    Heap,
}

/// All views. The last one exists only if the heap is checked.
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
    /// Key of the selected row. Without a selection, the feed follows its newest line.
    pub selected: Option<u64>,
    pub offset: usize,
    /// The column by which rows are sorted.
    pub sort: usize,
    pub reverse: bool,
    pub search: String,
}

/// Details of a hit, a site or an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    pub title: String,
    pub facts: Vec<(&'static str, String)>,
    pub stack: Vec<String>,
    /// Instructions; the current one is marked.
    pub code: Vec<(bool, String)>,
    pub source_title: String,
    pub source: Vec<(bool, String)>,
}

/// Whether a hit passes the feed's filter. Each word must occur in its watch or place, or be its thread.
pub fn passes(filter: &str, name: &str, place: &str, tid: u32) -> bool {
    let mut words = filter.split_whitespace();
    words.all(|word| contains(name, word) || contains(place, word) || word.parse() == Ok(tid))
}

/// Whether `text` contains `word`. Case is ignored unless `word` has an upper-case letter.
pub fn contains(text: &str, word: &str) -> bool {
    if word.chars().any(char::is_uppercase) {
        return text.contains(word);
    }
    text.contains(word) || text.to_lowercase().contains(word)
}
