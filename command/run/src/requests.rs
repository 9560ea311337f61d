//! Requests over the control socket while the program runs. `ulpf top` adds watches, switches them off and on, deletes
//! them, and asks how sites are served and which blocks a checked heap has.
//!
//! ```text
//!   socket ──Asked──▶ Control: interrupt, at rest ──Event::Change──▶ Log: resolve ──Changes──▶ Control: arm
//! ```
//! The program is stopped meanwhile. A list needs no stop: the log has it.

use super::control::Control;
use super::events::Event;
use anyhow::{Result, anyhow};
use serde_json::json;
use std::sync::mpsc::Sender;
use tokio::sync::oneshot;
use ulpf_lib::command::{Command, HeapAsk, Reply};
use ulpf_session::armed::Armed;
use ulpf_session::control_socket::serve::Asked;
use ulpf_session::control_socket::{Ask, refusal};
use ulpf_session::listing::{MOST_SITES, sites};

impl Control {
    /// A client sends a request.
    pub(super) async fn asked(&mut self, asked: Asked, events: &Sender<Event>) -> Result<()> {
        if asked.ask == Ask::List {
            let _ = events.send(Event::List(self.life, asked.reply));
            return Ok(());
        }
        self.waiting.push(asked);
        self.client.interrupt()?;
        Ok(())
    }

    /// The program is stopped, so the waiting requests can be served.
    pub(super) async fn serve(&mut self, events: &Sender<Event>) -> Result<()> {
        for asked in std::mem::take(&mut self.waiting) {
            if asked.ask == Ask::Sites {
                let lines = self.command(&Command::PatchSites(MOST_SITES)).await?;
                let _ = asked.reply.send(sites(&lines));
                continue;
            }
            if asked.ask == Ask::Blocks {
                let said = self.command(&Command::HeapAsk(HeapAsk::Leaks)).await?;
                match serde_json::from_str(said.trim()) {
                    Ok(Reply::HeapAsked(count)) => {
                        let _ = events.send(Event::Blocks(self.life, count, asked.reply));
                    }
                    _ => drop(asked.reply.send(refusal(said.trim()))),
                }
                continue;
            }
            let (reply, answer) = oneshot::channel();
            let change = Event::Change(self.life, asked.ask, reply);
            events
                .send(change)
                .map_err(|_| anyhow!("the log has ended"))?;
            let (number, changes) = match answer.await? {
                Ok(planned) => planned,
                Err(why) => {
                    let _ = asked.reply.send(refusal(why));
                    continue;
                }
            };
            let mut answer = json!({"watch": number + 1}).to_string();
            for (number, armed) in self.change(&changes).await? {
                if let Armed::No(problem) = &armed {
                    answer = refusal(problem);
                }
                let _ = events.send(Event::Armed(self.life, number, armed));
            }
            let _ = asked.reply.send(answer);
        }
        Ok(())
    }
}
