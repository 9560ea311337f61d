//! Numbers of frames and of goto targets.
#![forbid(unsafe_code)]

/// Numbers of frames for the client, valid until the program runs again.
#[derive(Default)]
pub struct Frames {
    /// (thread, level)
    list: Vec<(i64, i64)>,
    /// The number of the first frame in the list.
    first: i64,
    targets: Vec<u64>,
}

impl Frames {
    pub fn forget(&mut self) {
        self.first += self.list.len() as i64;
        self.list.clear();
        self.targets.clear();
    }

    pub fn number(&mut self, thread: i64, level: i64) -> i64 {
        let at = self.list.iter().position(|f| *f == (thread, level));
        let at = at.unwrap_or_else(|| {
            self.list.push((thread, level));
            self.list.len() - 1
        });
        self.first + at as i64 + 1
    }

    pub fn number_of(&mut self, frame: (i64, i64)) -> i64 {
        self.number(frame.0, frame.1)
    }

    pub fn get(&self, number: i64) -> Option<(i64, i64)> {
        let at = usize::try_from(number.checked_sub(self.first + 1)?).ok()?;
        self.list.get(at).copied()
    }

    pub fn target(&mut self, address: u64) -> i64 {
        self.targets.push(address);
        self.targets.len() as i64
    }

    pub fn target_of(&self, number: i64) -> Option<u64> {
        self.targets
            .get(usize::try_from(number.checked_sub(1)?).ok()?)
            .copied()
    }
}
