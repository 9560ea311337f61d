// SPDX-License-Identifier: GPL-2.0-or-later
//! Whose turn it is, and what ends a wait.

use super::{Later, TURN, Thread, Wait};
use crate::errno::EINTR;
use crate::host::ready;
use crate::signals::deliver as signals;
use crate::state::{End, State, Uc};
use unicorn_engine::RegisterX86 as R;

const CLONE_SETTLS: u64 = 0x80000;
const CLONE_PARENT_SETTID: u64 = 0x100000;
const CLONE_CHILD_CLEARTID: u64 = 0x200000;
const CLONE_CHILD_SETTID: u64 = 0x1000000;

impl State {
    /// The rest of a system call, behind its instruction.
    pub(crate) fn finish(&mut self, uc: &mut Uc, later: Later) -> Result<(), End> {
        match later {
            Later::Again(wait) => {
                let pc = uc.reg_read(R::RIP).unwrap_or(0);
                let _ = uc.reg_write(R::RIP, pc - 2);
                self.thread().wait = wait;
                self.thread().again = true;
            }
            Later::Wait(wait) => self.thread().wait = wait,
            Later::Yield => self.slice_end = 0,
            Later::Clone(args) => self.clone(uc, args)?,
            Later::ExitThread => {
                let at = self.thread().clear_id;
                if at != 0 && uc.mem_write(at, &[0; 4]).is_ok() {
                    self.wake(at, 1, u32::MAX);
                }
                let n = self.current;
                self.threads.remove(n);
                self.gone = true;
                self.current = n.checked_sub(1).unwrap_or(self.threads.len() - 1);
            }
            Later::SignalReturn => signals::returned(uc, self)?,
        }
        Ok(())
    }

    fn clone(
        &mut self,
        uc: &mut Uc,
        [flags, stack, parent, child, tls]: [u64; 5],
    ) -> Result<(), End> {
        let failed = |e| End::Failed(format!("unicorn: {e:?}"));
        let id = self.last_id + 1;
        self.last_id = id;
        let mut own = uc.context_alloc().map_err(failed)?;
        uc.context_save(&mut own).map_err(failed)?;
        let mut thread = Thread::new(id);
        thread.mask = self.thread().mask;
        if flags & CLONE_PARENT_SETTID != 0 {
            let _ = uc.mem_write(parent, &id.to_le_bytes());
        }
        if flags & CLONE_CHILD_SETTID != 0 {
            let _ = uc.mem_write(child, &id.to_le_bytes());
        }
        if flags & CLONE_CHILD_CLEARTID != 0 {
            thread.clear_id = child;
        }
        let _ = uc.reg_write(R::RAX, 0);
        if stack != 0 {
            let _ = uc.reg_write(R::RSP, stack);
        }
        if flags & CLONE_SETTLS != 0 {
            let _ = uc.reg_write(R::FS_BASE, tls);
        }
        let mut context = uc.context_alloc().map_err(failed)?;
        uc.context_save(&mut context).map_err(failed)?;
        thread.context = Some(context);
        uc.context_restore(&own).map_err(failed)?;
        let _ = uc.reg_write(R::RAX, id.into());
        self.threads.push(thread);
        // Turns have ends only if instructions are counted.
        self.want_hooks = true;
        self.slice_end = self.stats.instructions + TURN;
        self.attention = 0;
        Ok(())
    }

    /// Ends the waits of up to `count` threads at a futex; how many.
    pub(crate) fn wake(&mut self, at: u64, count: u64, wanted: u32) -> u64 {
        let mut woken = 0;
        for t in &mut self.threads {
            if let Wait::Futex { addr, bits, .. } = t.wait
                && woken < count
                && addr == at
                && bits & wanted != 0
            {
                (t.wait, t.result) = (Wait::No, Some(0));
                woken += 1;
            }
        }
        woken
    }

    /// FUTEX_REQUEUE: the rest waits somewhere else.
    pub(crate) fn requeue(&mut self, from: u64, to: u64, count: u64) -> u64 {
        let mut moved = 0;
        for t in &mut self.threads {
            if let Wait::Futex { addr, .. } = &mut t.wait
                && moved < count
                && *addr == from
            {
                *addr = to;
                moved += 1;
            }
        }
        moved
    }

    /// A wait that a signal ends: the call gives EINTR, or is made again after the handler.
    pub(crate) fn interrupt_wait(&mut self, n: usize) {
        let t = &mut self.threads[n];
        match t.wait {
            Wait::No => return,
            // Its instruction comes once more; a call that is not to be made again sees `interrupted`.
            Wait::File { .. } | Wait::Outside => t.result = None,
            Wait::Futex { .. } | Wait::Sleep { .. } => t.result = Some(EINTR),
        }
        t.wait = Wait::No;
    }

    fn over(&mut self, n: usize) -> bool {
        let now = self.now();
        let passed = |d: Option<u64>| d.is_some_and(|d| d <= now);
        let t = &mut self.threads[n];
        let result = match t.wait {
            Wait::No => return true,
            Wait::Futex { deadline, .. } if passed(deadline) => Some(-110),
            Wait::Sleep { deadline } if deadline <= now => Some(0),
            Wait::File {
                fd,
                events,
                deadline,
            } if passed(deadline) || ready(fd, events, 0) => None,
            _ => return false,
        };
        (t.wait, t.result) = (Wait::No, result.or(t.result));
        true
    }

    /// Switches to the next thread that can run; waits until one can.
    pub(crate) fn schedule(&mut self, uc: &mut Uc) -> Result<(), End> {
        let turn_over = self.threads.len() > 1 && self.stats.instructions >= self.slice_end;
        if !self.gone && self.thread().wait == Wait::No && !turn_over {
            return Ok(());
        }
        let count = self.threads.len();
        let next = loop {
            signals::collect(self);
            let current = self.current;
            let n = (1..=count)
                .map(|n| (current + n) % count)
                .find(|&n| self.over(n) || signals::wakes(self, n));
            match n {
                Some(n) => break n,
                None => self.idle()?,
            }
        };
        self.switch(uc, next)
    }

    fn switch(&mut self, uc: &mut Uc, next: usize) -> Result<(), End> {
        let failed = |e| End::Failed(format!("unicorn: {e:?}"));
        self.slice_end = self.stats.instructions + TURN;
        self.attention = 0;
        if self.gone || next != self.current {
            if !std::mem::take(&mut self.gone) {
                let mut context = match self.thread().context.take() {
                    Some(c) => c,
                    None => uc.context_alloc().map_err(failed)?,
                };
                uc.context_save(&mut context).map_err(failed)?;
                let armed = std::mem::take(&mut self.mmu.once.armed);
                let (frames, entered) = (std::mem::take(&mut self.frames), self.entered);
                let in_handler = self.in_handler;
                let t = self.thread();
                t.context = Some(context);
                (t.armed, t.frames, t.entered) = (armed, frames, entered);
                t.in_handler = in_handler;
            }
            self.current = next;
            let t = &mut self.threads[next];
            if let Some(c) = &t.context {
                uc.context_restore(c).map_err(failed)?;
            }
            self.mmu.once.armed = std::mem::take(&mut t.armed);
            self.frames = std::mem::take(&mut t.frames);
            (self.entered, self.in_handler) = (t.entered, t.in_handler);
        }
        if let Some(result) = self.thread().result.take() {
            let _ = uc.reg_write(R::RAX, result as u64);
        }
        Ok(())
    }

    /// No thread can run: advances to the first deadline, or waits for an event from outside.
    fn idle(&mut self) -> Result<(), End> {
        let now = self.now();
        let mut first = None;
        let (mut files, mut outside) = (vec![], false);
        for t in &self.threads {
            let deadline = match t.wait {
                Wait::Futex { deadline, .. } => deadline,
                Wait::Sleep { deadline } => Some(deadline),
                Wait::File {
                    fd,
                    events,
                    deadline,
                } => {
                    files.push(libc::pollfd {
                        fd,
                        events,
                        revents: 0,
                    });
                    deadline
                }
                Wait::Outside => {
                    outside = true;
                    None
                }
                Wait::No => None,
            };
            first = deadline.into_iter().chain(first).min();
        }
        if !(self.forked || self.timers || outside) && files.is_empty() && first.is_none() {
            return Err(End::Failed(
                "all of its threads wait for each other (futex), and would for ever".into(),
            ));
        }
        // Other processes and descriptors take real time.
        let real = outside || !files.is_empty() || self.forked || first.is_none();
        let span = first.map(|f| f.saturating_sub(now));
        if real {
            let ms = span.map_or(-1, |ns| ns.div_ceil(1_000_000).min(1 << 30) as i32);
            // A child may end between the look and the wait; the wait has an end.
            let ms = match ms {
                -1 => 20,
                ms => ms.min(20),
            };
            let start = std::time::Instant::now();
            if self
                .debug
                .interrupt
                .load(std::sync::atomic::Ordering::Relaxed)
            {
                // Calls are made again, and before that the debugger has its stop.
                for t in &mut self.threads {
                    if matches!(t.wait, Wait::File { .. } | Wait::Outside) {
                        t.wait = Wait::No;
                    }
                }
                return Ok(());
            }
            // SAFETY: the array is as long as we say.
            unsafe { libc::poll(files.as_mut_ptr(), files.len() as u64, ms) };
            let took = start.elapsed().as_nanos() as u64;
            self.skipped += took.min(span.unwrap_or(u64::MAX));
            for t in &mut self.threads {
                if t.wait == Wait::Outside {
                    t.wait = Wait::No;
                }
            }
        } else {
            self.skipped += span.unwrap_or(0);
        }
        Ok(())
    }
}
