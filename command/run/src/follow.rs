//! Follows children of the program (`ulpf run --follow`), and the program itself through exec.
//!
//! A forked child gets its own stub and its parent's watches. Its hits come through its own ring, and a task like its
//! parent's controls it. Through exec, only the same program is followed, since names mean something else in another
//! one; with `--only`, the user chooses the programs. A vfork child (posix_spawn) is reported only when it calls exec.

use super::active_calls::Frames;
use super::control::{Control, Reached, signals};
use super::events::{Entered, Event, Forked, OnSignal, Ready, Reexecuted};
use super::parent::{self, LONGEST_FORK, Parent, Sleep};
use super::tracers;
use super::watches::Changes;
use anyhow::{Context, Result, anyhow};
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::mpsc::Sender;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use ulpf_host::process;
use ulpf_host::say::say;
use ulpf_inject::StartError;
use ulpf_inject::client::Client;
use ulpf_inject::follow::{Child, Followed};
use ulpf_inject::inferior::Inferior;
use ulpf_inject::inferior::follow::{Done, Follower};
use ulpf_lib::command::HeapCheck;
use ulpf_session::memory::Auxv;

/// Starts a task that runs a child; see `log::RunChild`.
pub fn run_child(
    runtime: &Handle,
    child: Forked,
    life: usize,
    inherited: Option<Changes>,
    events: Sender<Event>,
) {
    let pid = child.inferior.pid;
    let _entered = runtime.enter();
    match Control::of_child(child, life) {
        Ok(control) => drop(runtime.spawn(async move {
            let ran = match inherited {
                Some(changes) => control.run_child(changes, events.clone()).await,
                None => control.run_spawned(events.clone()).await,
            };
            if let Err(error) = ran {
                say!("child {pid}: {error:#}");
                let _ = events.send(Event::Ended(life));
            }
        })),
        Err(error) => {
            say!("child {pid}: {error:#}");
            let _ = events.send(Event::Ended(life));
        }
    }
}

impl Control {
    /// The controller of a child.
    fn of_child(forked: Forked, life: usize) -> Result<Control> {
        let forked_any = forked.follows_any;
        let mut control = Control::new(forked.inferior, signals())?;
        control.on_signal = forked.on_signal;
        control.follows_forks = true;
        control.heap = forked.heap;
        control.blame = forked.blame;
        control.parents_heap = forked.parents_heap;
        if forked_any {
            control.follow_any();
        }
        control.is_child = true;
        control.parent_waits = forked.parent_waits;
        control.life = life;
        Ok(control)
    }

    /// Arms the watches that a child inherits, and lets it run.
    async fn run_child(mut self, changes: Changes, events: Sender<Event>) -> Result<()> {
        self.greet().await?;
        if let Some(how) = self.heap {
            // Its blocks are those of its parent.
            let of = self.parents_heap;
            if let Err(error) = self.check_heap(&HeapCheck { of, ..how }).await {
                say!("child {}: {error:#}", self.pid);
            }
        }
        if self.blame {
            self.record_writers().await?;
        }
        for (number, armed) in self.change(&changes).await? {
            let _ = events.send(Event::Armed(self.life, number, armed));
        }
        self.run_to_the_end(events).await
    }

    /// Tells the stub which events we follow.
    pub(super) async fn offer(&mut self) -> Result<()> {
        let mut more = vec!["traces"];
        if self.follows_forks {
            more.extend(["fork", "spawn"]);
        }
        // A program that we have started is not the child of another tracer.
        if !self.launched {
            more.push("traced");
        }
        let offer = ulpf_inject::inferior::follow::offer(&more);
        self.request(&offer).await?;
        Ok(())
    }

    /// The thread that has just stopped says that it has made child `number`. False if we were asked to leave.
    pub(super) async fn forked(
        &mut self,
        (thread, number): (i32, i32),
        events: &Sender<Event>,
    ) -> Result<bool> {
        let taken = match self.child(number) {
            Ok(child) => {
                let mut taken = pin!(ulpf_inject::inferior::take_child(child));
                loop {
                    tokio::select! {
                        taken = &mut taken => break taken,
                        signal = self.signals.next() => if !self.heard(signal)? {
                            return Ok(false);
                        },
                    }
                }
            }
            Err(error) => Err(error),
        };
        match taken {
            Ok(inferior) => {
                // The parent may trace the child next.
                tracers::expect(inferior.pid);
                let mut forked = self.child_with(inferior);
                forked.parents_heap = Some(self.remains.args);
                let stub = self.client.stream().as_fd().try_clone_to_owned()?;
                let (parent, goes_on) = Parent::new(stub.into(), (self.pid, thread));
                forked.parent_waits = Some(parent);
                let _ = events.send(Event::Forked(Box::new(forked)));
                return self.until_it_goes_on(goes_on).await;
            }
            Err(error) => {
                say!("child {number} is not watched: {error}");
                let go = format!("vUlpfFork;{number:x}");
                self.request(go.as_bytes()).await?;
            }
        }
        Ok(true)
    }

    /// Resumes the process. If its parent waits for that in fork, returns when the process's thread has left the sleep
    /// in which it waited.
    pub(super) async fn set_off(&mut self, packet: &str) -> Result<()> {
        let Some(mut parent) = self.parent_waits.take() else {
            return self.resume(packet).await;
        };
        parent.wake().await;
        let child = (self.pid, self.pid);
        let resting = Sleep::of(child);
        self.resume(packet).await?;
        parent::until_left(child, resting, LONGEST_FORK).await;
        Ok(())
    }

    /// The data for taking over a child, if the kernel confirms that it is one.
    fn child(&self, number: i32) -> Result<Child, StartError> {
        let step = |e| StartError::step("take hold of the forked child", e);
        let process = self.process.child(number);
        let stub = self.client.stream().as_fd().try_clone_to_owned();
        Ok(Child {
            process: process.map_err(|stranger| step(io::Error::other(stranger)))?,
            number,
            parent: self.process.clone(),
            stub: stub.map_err(step)?.into(),
            remains: self.remains,
            settings: self.follower.settings,
        })
    }

    /// This process is about to be traced by its parent.
    pub(super) async fn is_traced(&mut self) {
        say!(
            "process {} is traced by its parent (ptrace), and not watched any more.",
            self.pid
        );
        if let Err(error) = self.let_go().await {
            say!("{error}");
        }
    }

    /// A vfork child has called exec, or tried to.
    pub(super) fn spawned(&mut self, done: Done, events: &Sender<Event>) {
        if let Some(word) = done.last_word() {
            // The stub waits for nothing else, so there is room.
            let _ = self.client.stream().try_write(&word);
        }
        match done.how {
            Followed::Into(inferior) => {
                tracers::expect(inferior.pid);
                let child = self.child_with(*inferior);
                let _ = events.send(Event::Spawned(Box::new(child)));
            }
            Followed::Not { program, why } | Followed::Lost { program, why } => {
                say!("a child executes {program} and runs on unwatched: {why}");
            }
            Followed::Failed | Followed::Other | Followed::Ended => {}
        }
    }

    /// Runs a child to its end.
    async fn run_to_the_end(self, events: Sender<Event>) -> Result<()> {
        // The heap check needs the names in libraries that are loaded late.
        let libraries = self.heap.is_some();
        self.run(events, libraries).await.map(drop)
    }

    fn child_with(&self, inferior: Inferior) -> Forked {
        Forked {
            parent: self.life,
            inferior,
            on_signal: match self.on_signal {
                OnSignal::Leave => OnSignal::Leave,
                _ => OnSignal::Nothing,
            },
            follows_any: self.follows_any,
            heap: self.heap,
            blame: self.blame,
            parents_heap: None,
            parent_waits: None,
        }
    }

    /// The thread that has forked waits until its child is about to run. False if we were asked to leave.
    async fn until_it_goes_on(&mut self, mut goes_on: oneshot::Receiver<()>) -> Result<bool> {
        let mut enough = pin!(tokio::time::sleep(LONGEST_FORK));
        loop {
            tokio::select! {
                _ = &mut goes_on => return Ok(true),
                () = &mut enough => return Ok(true),
                signal = self.signals.next() => if !self.heard(signal)? {
                    return Ok(false);
                },
            }
        }
    }

    /// Follows exec of any program: it may be a wanted one, or start one.
    pub fn follow_any(&mut self) {
        self.follows_any = true;
        self.follower.into_any();
    }

    /// Runs a program that a child has executed to where its watches are set, then lets it run.
    async fn run_spawned(mut self, events: Sender<Event>) -> Result<()> {
        self.greet().await?;
        if let Some(how) = self.heap {
            self.check_heap(&how).await?;
        }
        let entry = Auxv::of(self.pid)?
            .entry()
            .context("the kernel did not say where the program starts")?;
        let reached = self.run_to(&[entry]).await?;
        if self.blame && reached == Reached::There {
            self.record_writers().await?;
        }
        let (reply, answer) = tokio::sync::oneshot::channel();
        let life = self.life;
        let entered = Entered { life, reply };
        events
            .send(Event::Entered(entered))
            .map_err(|_| anyhow!("the log has ended"))?;
        let at = answer.await?;
        if self.set_watches(reached, at, &events).await? != Reached::There {
            let _ = events.send(Event::Ended(life));
            return Ok(());
        }
        self.run_to_the_end(events).await
    }

    /// Follows an exec of the same program: its watches are resolved again.
    pub(super) async fn again(
        &mut self,
        inferior: Inferior,
        events: &Sender<Event>,
    ) -> Result<Reached> {
        let gone = || anyhow!("the log has ended");
        self.client = Client::new(inferior.control);
        self.remains = inferior.remains;
        self.frames = Frames::default();
        self.greet().await?;
        if let Some(how) = self.heap {
            self.check_heap(&how).await?;
        }
        let entry = Auxv::of(self.pid)?
            .entry()
            .context("the kernel did not say where the program starts")?;
        let (reply, answer) = tokio::sync::oneshot::channel();
        let again = Reexecuted {
            before: self.life,
            shared: inferior.shared,
            reply,
        };
        let reached = self.run_to(&[entry]).await?;
        if self.blame && reached == Reached::There {
            self.record_writers().await?;
        }
        events.send(Event::Reexecuted(again)).map_err(|_| gone())?;
        let (life, at) = answer.await?;
        self.life = life;
        self.executable = process::executable(self.pid);
        self.set_watches(reached, at, events).await
    }

    /// Runs from the entry to where watches are set, then resolves and arms them.
    async fn set_watches(
        &mut self,
        mut reached: Reached,
        at: Vec<u64>,
        events: &Sender<Event>,
    ) -> Result<Reached> {
        let gone = || anyhow!("the log has ended");
        let life = self.life;
        if !at.is_empty() && reached == Reached::There {
            reached = self.run_to(&at).await?;
        }
        if reached != Reached::There {
            return Ok(reached);
        }
        let (reply, answer) = tokio::sync::oneshot::channel();
        let ready = Ready {
            life,
            memory: self.memory().await?,
            reply,
        };
        events.send(Event::Ready(ready)).map_err(|_| gone())?;
        let changes = answer.await?;
        for (number, armed) in self.change(&changes).await? {
            let _ = events.send(Event::Armed(life, number, armed));
        }
        self.offer().await?;
        Ok(Reached::There)
    }

    pub(super) fn follower(inferior: &Inferior) -> Follower {
        Follower::of(inferior).into_itself_only()
    }
}
