//! Locals of functions (`function::local`). The program stops where such a function starts and where it returns, and
//! the stub receives the frames.
//!
//! ```text
//!     entry   stack pointer + 8 = the frame (CFA)    frame ID begins CFA;  a breakpoint at the return address
//!     return  stack pointer = the frame of a call    frame ID ends CFA
//!     _Unwind_SetIP   rsi = where the unwinder goes on: a breakpoint there, for good
//!     there, longjmp  the stack pointer, now or then: frames below it have ended without a return
//!     pthread_exit    all of the thread's; what destructors store in them meanwhile is not seen
//! ```
//! A frame belongs to a thread. It is also over if its return address is no longer where the call put it, or its thread
//! has ended. That is checked when the function is next entered.

use super::active_calls::{Active, NonLocalExit};
use super::control::Control;
use super::watches::Changes;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use ulpf_host::say::say;
use ulpf_lib::command::{Command, Reply, What};
use ulpf_session::armed::Armed;

/// Longest jump within a stack, in bytes. When a thread uses another stack, the frames on the first one stay.
const ONE_STACK: u64 = 8 << 20;

/// Whether the thread has ended. (`p<process>.<thread>`, in hexadecimal)
fn has_ended(pid: i32, thread: &str) -> bool {
    let tid = thread.rsplit('.').next().unwrap_or("");
    i32::from_str_radix(tid, 16)
        .is_ok_and(|tid| !Path::new(&format!("/proc/{pid}/task/{tid}")).exists())
}

impl Control {
    /// Sets and removes breakpoints after watches on locals were armed or disarmed.
    pub(super) async fn frames_changed(
        &mut self,
        changes: &Changes,
        outcomes: &[(usize, Armed)],
    ) -> Result<()> {
        let mut left = Vec::new();
        self.frames.functions.retain(|at, ids| {
            ids.retain(|id| !changes.disarm.contains(id));
            if ids.is_empty() {
                left.push(*at);
            }
            !ids.is_empty()
        });
        for at in left {
            self.frames.past.insert(at);
            self.breakpoint(b'z', at).await?;
        }
        let numbers = || changes.arm.iter().map(|(number, _)| *number);
        for (number, armed) in outcomes {
            let Armed::Yes(ids) = armed else { continue };
            let first = numbers().position(|n| n == *number).unwrap_or(0);
            for ((_, arm), id) in changes.arm[first..].iter().zip(ids) {
                let What::Along(path, _) = &arm.what else {
                    continue;
                };
                if let Some(function) = path.function() {
                    self.follow_frames(function, *id, &changes.exits).await?;
                }
            }
        }
        Ok(())
    }

    async fn follow_frames(
        &mut self,
        function: u64,
        id: u32,
        exits: &[(u64, NonLocalExit)],
    ) -> Result<()> {
        if !self.frames.is_set(function) {
            self.breakpoint(b'Z', function).await.with_context(|| {
                format!("cannot stop the program where the function at {function:#x} begins")
            })?;
        }
        self.frames
            .functions
            .entry(function)
            .or_default()
            .insert(id);
        for (at, exit) in exits {
            self.watch_exit(*at, *exit).await;
        }
        Ok(())
    }

    async fn watch_exit(&mut self, at: u64, exit: NonLocalExit) {
        // Without this breakpoint such frames are recognised as over somewhat later.
        if self.frames.is_set(at) || self.breakpoint(b'Z', at).await.is_ok() {
            self.frames.exits.entry(at).or_insert(exit);
        }
    }

    /// A thread is at one of the breakpoints. Returns the packet that resumes it, or `None` if we leave.
    pub(super) async fn at_frame(&mut self, pc: u64, thread: &str) -> Result<Option<String>> {
        let stack = self.register(7).await?.context("the stub has no rsp")?;
        let mut commands = Vec::new();
        if self.frames.returns.contains_key(&pc) {
            let ends = |a: &Active| a.thread == thread && a.cfa == stack;
            self.end_frames(ends, &mut commands).await?;
        }
        if let Some(exit) = self.frames.exits.get(&pc).copied() {
            let to = match exit {
                NonLocalExit::Argument => {
                    let pad = self
                        .register(4)
                        .await?
                        .filter(|_| !self.frames.active.is_empty());
                    if let Some(pad) = pad {
                        self.watch_exit(pad, NonLocalExit::Here).await;
                    }
                    None
                }
                NonLocalExit::Here => Some((stack, ONE_STACK)),
                NonLocalExit::Jump => self.jump_target().await?.map(|to| (to, ONE_STACK)),
                NonLocalExit::Leave => Some((u64::MAX, u64::MAX)),
            };
            if let Some((to, most)) = to {
                let within = |cfa: u64| cfa <= to && to - cfa < most;
                let over = |a: &Active| a.thread == thread && within(a.cfa);
                self.end_frames(over, &mut commands).await?;
            }
        }
        if self.frames.functions.contains_key(&pc) {
            self.enter(pc, thread, stack, &mut commands).await?;
        }
        self.tell_frames(&commands).await?;
        match self.frames.is_set(pc) {
            true => self.step_over(pc, thread).await,
            false => Ok(Some("vCont;c".into())),
        }
    }

    /// Tells the stub which frames have started and ended.
    async fn tell_frames(&mut self, commands: &[Command]) -> Result<()> {
        let answers = self.monitor(commands).await?;
        for (command, answer) in commands.iter().zip(answers) {
            // (The end of a frame that a watch has never had is refused: the watch is younger.)
            if let Command::Frame { begins: true, .. } = command
                && let Ok(Reply::Refused(refused)) = serde_json::from_str(&answer)
            {
                say!(
                    "this call's locals are not watched: {}: {}",
                    refused.what,
                    refused.why
                );
            }
        }
        Ok(())
    }

    async fn enter(
        &mut self,
        function: u64,
        thread: &str,
        stack: u64,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        let cfa = stack.wrapping_add(8);
        self.forget_stale(thread, cfa, commands).await?;
        // A jump to the start of the function keeps the frame.
        let same = |a: &&Active| a.thread == thread && a.cfa == cfa && a.function == function;
        if self.frames.active.iter().find(same).is_some() {
            return Ok(());
        }
        let back = self.word(stack).await?;
        let back = back.context("the return address cannot be read")?;
        if !self.frames.is_set(back) {
            self.breakpoint(b'Z', back).await.with_context(|| {
                format!("cannot stop the program where a call returns ({back:#x})")
            })?;
        }
        *self.frames.returns.entry(back).or_default() += 1;
        commands.extend(self.frames.commands(function, cfa, true));
        self.frames.active.push(Active {
            thread: thread.into(),
            function,
            cfa,
            back,
        });
        Ok(())
    }

    /// Ends the frames that are over without having been reported.
    async fn forget_stale(
        &mut self,
        thread: &str,
        cfa: u64,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        let (mut stale, mut looked) = (BTreeSet::new(), BTreeMap::new());
        let all: Vec<(String, u64, u64)> = self
            .frames
            .active
            .iter()
            .map(|a| (a.thread.clone(), a.cfa, a.back))
            .collect();
        for (of, at, back) in all {
            let over = match of == thread {
                true => at < cfa && self.word(at.wrapping_sub(8)).await? != Some(back),
                false => *looked
                    .entry(of.clone())
                    .or_insert_with_key(|of| has_ended(self.pid, of)),
            };
            if over {
                stale.insert((of, at));
            }
        }
        if stale.is_empty() {
            return Ok(());
        }
        let over = |a: &Active| stale.contains(&(a.thread.clone(), a.cfa));
        self.end_frames(over, commands).await
    }

    async fn end_frames(
        &mut self,
        over: impl Fn(&Active) -> bool,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        let ended: Vec<Active> = self.frames.active.extract_if(.., |a| over(a)).collect();
        for frame in ended {
            commands.extend(self.frames.commands(frame.function, frame.cfa, false));
            let Some(calls) = self.frames.returns.get_mut(&frame.back) else {
                continue;
            };
            *calls -= 1;
            if *calls == 0 {
                self.frames.returns.remove(&frame.back);
                self.frames.past.insert(frame.back);
                if !self.frames.is_set(frame.back) {
                    self.breakpoint(b'z', frame.back).await?;
                }
            }
        }
        Ok(())
    }

    /// The stack pointer after a longjmp. glibc keeps it as the seventh word, rotated and xored with a value at fs:0x30
    /// of each thread. `None` for another library, or an implausible value.
    async fn jump_target(&mut self) -> Result<Option<u64>> {
        let (buffer, stack) = (self.register(5).await?, self.register(7).await?);
        let thread = self.register(58).await?;
        let (Some(buffer), Some(stack), Some(thread)) = (buffer, stack, thread) else {
            return Ok(None);
        };
        let mixed = self.word(buffer.wrapping_add(48)).await?;
        let guard = self.word(thread.wrapping_add(0x30)).await?;
        let to = mixed
            .zip(guard)
            .map(|(mixed, guard)| mixed.rotate_right(17) ^ guard);
        Ok(to.filter(|to| *to > stack && to - stack < ONE_STACK && to % 8 == 0))
    }

    /// A word of the program's memory, as the program sees it.
    async fn word(&mut self, at: u64) -> Result<Option<u64>> {
        let reply = self.request(format!("m{at:x},8").as_bytes()).await?;
        let bytes = ulpf_rsp::from_hex(&reply).and_then(|b| <[u8; 8]>::try_from(b).ok());
        Ok(bytes.map(u64::from_le_bytes))
    }
}
