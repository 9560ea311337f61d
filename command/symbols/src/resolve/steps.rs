//! The steps of an expression, for a watch that follows it: pointers, lists, elements of growing containers.

use ulpf_lib::command::{Path, Step};

/// The steps from the variable to the present object.
#[derive(Clone)]
pub(super) struct AccessPath {
    /// The address of the first step.
    base: u64,
    /// Steps, each with the offset to the next one. The offset of the last one is not known yet.
    steps: Vec<(Step, u64)>,
    /// The present result of the last step.
    last: u64,
    /// All steps have a result now.
    pub complete: bool,
}

impl Default for AccessPath {
    fn default() -> AccessPath {
        AccessPath {
            base: 0,
            steps: Vec::new(),
            last: 0,
            complete: true,
        }
    }
}

impl AccessPath {
    /// Appends a pointer at `addr`. `to`: its target, if it is valid.
    pub fn through(self, addr: u64, to: Option<u64>) -> AccessPath {
        self.by(Step::Pointer, addr, to)
    }

    /// Appends a step at `addr`. `to`: its first result, if it has one.
    pub fn by(mut self, step: Step, addr: u64, to: Option<u64>) -> AccessPath {
        match self.steps.last_mut() {
            Some((_, offset)) => *offset = addr.wrapping_sub(self.last),
            None => self.base = addr,
        }
        self.steps.push((step, 0));
        self.last = to.unwrap_or(0);
        self.complete &= to.is_some();
        self
    }

    /// Whether it may lead to many places.
    pub fn is_many(&self) -> bool {
        self.steps.iter().any(|(step, _)| step.is_many())
    }

    /// The path to `addr`, or `None` if the address never changes.
    pub fn path(&self, addr: u64) -> Option<Result<Path, String>> {
        let mut steps = self.steps.clone();
        let may_change = |(step, _): &(Step, u64)| !matches!(step, Step::Times { .. });
        if !steps.iter().any(may_change) {
            return None;
        }
        if let Some((_, offset)) = steps.last_mut() {
            *offset = addr.wrapping_sub(self.last);
        }
        Some(Path::new(self.base, steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn through_pointers() {
        let path = |access_path: &AccessPath, addr| {
            access_path.path(addr).map(|path| path.unwrap().to_string())
        };
        let access_path = AccessPath::default();
        assert_eq!(path(&access_path, 0x4040), None);
        let access_path = access_path.through(0x4040, Some(0x8000));
        assert_eq!(path(&access_path, 0x8010).as_deref(), Some("0x4040>16"));
        let access_path = access_path.through(0x8008, None);
        assert_eq!(path(&access_path, 4).as_deref(), Some("0x4040>8>4"));
        assert!(!access_path.complete);
        // The steps behind an invalid pointer are kept, although their object has no address.
        let access_path = access_path.through(u64::MAX - 7, None);
        assert_eq!(path(&access_path, 0).as_deref(), Some("0x4040>8>-8>0"));
    }

    #[test]
    fn by_other_steps() {
        let list = Step::List {
            link: 8,
            pointer: true,
            end: None,
            count: None,
        };
        let access_path = AccessPath::default().through(0x4040, Some(0x8000));
        let access_path = access_path.by(list, 0x8010, Some(0x9000));
        assert!(access_path.is_many() && access_path.complete);
        let path = access_path.path(0x9004).unwrap().unwrap();
        assert_eq!(path.to_string(), "0x4040>16@list,8,4");
        // Elements of an array never move.
        let times = Step::Times {
            count: 4,
            stride: 8,
        };
        let access_path = AccessPath::default().by(times, 0x4040, Some(0x4040));
        assert!(access_path.is_many() && access_path.path(0x4044).is_none());
        let path = access_path.through(0x4040, None).path(16).unwrap().unwrap();
        assert_eq!(path.to_string(), "0x4040@times,4,8,0>16");
    }
}
