//! The memory of a program on another machine, for requests of the plugin. Reading is asynchronous there, and finding
//! places is not: a request is answered again and again, until all pages that it reads have been fetched.
#![forbid(unsafe_code)]

use super::Front;
use crate::answers;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use ulpf_symbols::Memory;

const PAGE: u64 = 4096;
/// Limit of the pages of one request.
const MOST: usize = 4096;

/// The pages that have been fetched, and those that are missing.
#[derive(Default)]
struct Pages {
    /// `None`: there is no memory.
    known: BTreeMap<u64, Option<Vec<u8>>>,
    missing: RefCell<BTreeSet<u64>>,
}

impl Pages {
    fn byte(&self, addr: u64) -> Option<u8> {
        let page = addr & !(PAGE - 1);
        match self.known.get(&page) {
            Some(bytes) => bytes.as_ref()?.get((addr - page) as usize).copied(),
            None => {
                self.missing.borrow_mut().insert(page);
                None
            }
        }
    }
}

impl Memory for Pages {
    fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
        let mut bytes = buf.iter_mut().zip(0..);
        bytes.all(|(to, n)| {
            let byte = self.byte(addr.wrapping_add(n));
            *to = byte.unwrap_or(0);
            byte.is_some()
        })
    }

    fn thread_pointer(&self) -> Option<u64> {
        None
    }
}

impl Front {
    pub(super) async fn answer_plugin(&mut self, request: &answers::Request) -> String {
        let mut pages = Pages::default();
        loop {
            let memory: Option<&dyn Memory> = match self.has_program() {
                true => Some(&pages),
                false => None,
            };
            let answer = request.answer(&self.names, memory);
            let missing = std::mem::take(&mut *pages.missing.borrow_mut());
            if missing.is_empty() || pages.known.len() + missing.len() > MOST {
                return answer;
            }
            for page in missing {
                let read = match self.remote() {
                    Ok(remote) => remote.read(page, PAGE).await,
                    Err(failure) => Err(failure),
                };
                pages.known.insert(page, read.ok());
            }
        }
    }
}
