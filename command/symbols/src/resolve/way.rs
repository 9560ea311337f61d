//! The pointers that an expression goes through, for a watch that follows them.

use ulpf_lib::command::Path;

/// From the variable to the object that has been come to.
#[derive(Clone)]
pub(super) struct Way {
    /// Where the first pointer is, and how far each other one is behind what the one before it points to.
    steps: Vec<u64>,
    /// What the last one points to now.
    last: u64,
    /// None of them is NULL.
    pub whole: bool,
}

impl Default for Way {
    fn default() -> Way {
        Way {
            steps: Vec::new(),
            last: 0,
            whole: true,
        }
    }
}

impl Way {
    /// One more pointer, at `addr`; `to`: what it points to, if that can be.
    pub fn through(mut self, addr: u64, to: Option<u64>) -> Way {
        self.steps.push(addr.wrapping_sub(self.last));
        self.last = to.unwrap_or(0);
        self.whole &= to.is_some();
        self
    }

    /// To `addr`. `None`: there are no pointers on it.
    pub fn path(&self, addr: u64) -> Option<Result<Path, String>> {
        let (base, offsets) = self.steps.split_first()?;
        let mut offsets = offsets.to_vec();
        offsets.push(addr.wrapping_sub(self.last));
        Some(Path::new(*base, offsets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn through_pointers() {
        let path = |way: &Way, addr| way.path(addr).map(|path| path.unwrap().to_string());
        let way = Way::default();
        assert_eq!(path(&way, 0x4040), None);
        let way = way.through(0x4040, Some(0x8000));
        assert_eq!(path(&way, 0x8010).as_deref(), Some("0x4040>16"));
        let way = way.through(0x8008, None);
        assert_eq!(path(&way, 4).as_deref(), Some("0x4040>8>4"));
        assert!(!way.whole);
        // What is behind a pointer that leads nowhere has no address, and a way all the same.
        let way = way.through(u64::MAX - 7, None);
        assert_eq!(path(&way, 0).as_deref(), Some("0x4040>8>-8>0"));
    }
}
