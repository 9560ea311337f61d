// SPDX-License-Identifier: GPL-2.0-or-later
//! execve: this process becomes a new simulator, with the new program. So it keeps its number, parent
//! and groups. The new simulator reads the other state that survives (descriptors, signals that are
//! ignored, blocked or pending) from an unnamed file ([`Resume`]). A space of the device does not
//! survive, and neither do its descriptors.

use super::File;
use crate::elf;
use crate::errno::{E2BIG, EACCES, EFAULT, ENOENT, ENOEXEC, ENOMEM};
use crate::host::{host, memory_file};
use crate::processes::{Family, calls as processes};
use crate::signals::deliver as signals;
use crate::state::{State, Uc};
use crate::user_memory::{read_bytes, string, word};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::ffi::CString;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd};

/// Arguments and environment together.
const MOST: usize = 2 << 20;

/// State that a program inherits from the one before.
pub struct Resume {
    pub path: String,
    pub args: Vec<String>,
    pub environment: Vec<String>,
    state: Value,
}

fn strings(uc: &Uc, s: &mut State, mut at: u64, total: &mut usize) -> Result<Vec<String>, i64> {
    let mut all = vec![];
    while at != 0 {
        let pointer = word(&read_bytes(uc, s, at, 8)?, 0);
        if pointer == 0 {
            break;
        }
        let text = string(uc, pointer)?.to_string_lossy().into_owned();
        *total += text.len() + 9;
        if *total > MOST {
            return Err(E2BIG);
        }
        all.push(text);
        at = at.checked_add(8).ok_or(EFAULT)?;
    }
    Ok(all)
}

/// Gives an error, or does not return.
pub fn call(uc: &mut Uc, s: &mut State, a: &[u64; 6]) -> Result<i64, i64> {
    let Some(options) = s.options.clone() else {
        s.fail("execve where the program has a debugger".into());
        return Err(EACCES);
    };
    let mut path = string(uc, a[0])?.to_string_lossy().into_owned();
    if path == "/proc/self/exe" {
        path.clone_from(&s.os.program);
    }
    let mut total = 0;
    let args = strings(uc, s, a[1], &mut total)?;
    let environment = strings(uc, s, a[2], &mut total)?;
    let c_path = CString::new(path.clone()).map_err(|_| ENOENT)?;
    // SAFETY: a C string of ours.
    let may = host(unsafe { libc::access(c_path.as_ptr(), libc::X_OK) }.into());
    if may < 0 {
        return Err(may);
    }
    let file = std::fs::read(&path).map_err(|_| EACCES)?;
    if !file.starts_with(b"\x7fELF") && !file.starts_with(b"#!") {
        return Err(ENOEXEC);
    }
    if let Err(e) = elf::read(&file) {
        s.fail(format!("execve of {path}: {e:#}"));
        return Err(ENOEXEC);
    }
    let limit = s.limit.saturating_sub(s.stats.instructions);
    let mut words = vec!["ulpf-sim".to_owned()];
    words.extend(options);
    if s.limit != u64::MAX {
        words.push(format!("--limit={limit}"));
    }
    signals::collect(s);
    let thread = &s.threads[s.current];
    let files: Vec<(u64, i32)> =
        s.os.files
            .iter()
            .filter(|f| !s.os.closing.contains(f.0))
            .filter_map(|(&n, f)| match f {
                File::Host(fd) => Some((n, *fd)),
                File::Ulpf(_) | File::Kept => None,
            })
            .collect();
    let state = json!({
        "path": path, "args": args, "environment": environment, "files": files,
        "root": s.family.root(), "child": s.child, "forked": s.forked,
        "mask": thread.mask, "pending": s.signals.pending | thread.pending,
        "ignored": signals::ignored(s),
    });
    // SAFETY: new descriptors of ours; those of the program stay open from here on.
    let handed = unsafe {
        let fd = memory_file(c"ulpf-sim", 0);
        if fd < 0 {
            return Err(host(-1));
        }
        let mut handed = std::fs::File::from_raw_fd(fd);
        if handed.write_all(state.to_string().as_bytes()).is_err() {
            return Err(ENOMEM);
        }
        for (_, fd) in &files {
            libc::fcntl(*fd, libc::F_SETFD, 0);
        }
        handed
    };
    s.device.close();
    processes::settle(uc, s);
    words.push(format!("--resume={}", handed.as_raw_fd()));
    let words: Vec<CString> = words
        .into_iter()
        .filter_map(|w| CString::new(w).ok())
        .collect();
    let mut pointers: Vec<_> = words.iter().map(|w| w.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: an array of C strings that ends with a null.
    unsafe { libc::execv(c"/proc/self/exe".as_ptr(), pointers.as_ptr()) };
    s.fail(format!("execve: {}", std::io::Error::last_os_error()));
    Err(EACCES)
}

impl Resume {
    /// Reads the state that the simulator before left in this file.
    pub fn read(fd: i32) -> Result<Resume> {
        // SAFETY: the descriptor was made for us.
        let mut file = unsafe { std::fs::File::from_raw_fd(fd) };
        let mut text = String::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_string(&mut text)?;
        let state: Value = serde_json::from_str(&text)?;
        let list = |name: &str| -> Result<Vec<String>> {
            let all = state[name].as_array().context("no list")?;
            Ok(all
                .iter()
                .filter_map(|v| v.as_str().map(String::from))
                .collect())
        };
        Ok(Resume {
            path: state["path"].as_str().context("no path")?.to_owned(),
            args: list("args")?,
            environment: list("environment")?,
            state,
        })
    }

    pub fn apply(&self, s: &mut State) {
        let number = |name: &str| self.state[name].as_u64().unwrap_or(0);
        s.os.files.clear();
        for file in self.state["files"].as_array().into_iter().flatten() {
            let (Some(n), Some(fd)) = (file[0].as_u64(), file[1].as_i64()) else {
                continue;
            };
            // SAFETY: a descriptor that has come with us.
            unsafe { libc::fcntl(fd as i32, libc::F_SETFD, libc::FD_CLOEXEC) };
            s.os.files.insert(n, File::Host(fd as i32));
        }
        s.child = self.state["child"] == true;
        s.forked = self.state["forked"] == true;
        s.family = Family::resumed(self.state["root"].as_i64().unwrap_or(0) as i32);
        if s.child {
            let own = std::process::id();
            s.threads[0].id = own;
            s.last_id = own;
        }
        s.threads[0].mask = number("mask");
        s.signals.pending = number("pending");
        signals::ignore(s, number("ignored"));
    }
}
