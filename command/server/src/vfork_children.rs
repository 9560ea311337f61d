//! vfork children served by their parent's stub, from the moment when the debugger follows one until it is released.
#![forbid(unsafe_code)]

use super::target::Target;
use super::vfork::{VforkChild, actions};
use ulpf_host::foreign::numbers::Process;
use ulpf_inject::inferior::Exit;

impl Target {
    /// Makes a vfork child count as a process of its own. Returns false if it has gone.
    pub async fn follow_vfork_child(&mut self, number: i32, process: Process) -> bool {
        let Ok(exit) = Exit::of(&process, false) else {
            return false;
        };
        let asked = self
            .request(format!("vUlpfVfork;{number:x}").as_bytes())
            .await;
        if asked.as_deref() != Some(b"OK") {
            return false;
        }
        self.children.push(VforkChild {
            number,
            process,
            exit,
            lost: false,
        });
        true
    }

    /// Stops following a vfork child. It continues with its parent.
    pub async fn release_vfork_child(&mut self, number: i32) -> Option<VforkChild> {
        let place = self.children.iter().position(|c| c.number == number)?;
        let _ = self
            .request(format!("vUlpfVfork;{number:x};0").as_bytes())
            .await;
        Some(self.children.remove(place))
    }

    pub fn vfork_child(&self, number: i32) -> Option<&VforkChild> {
        self.children.iter().find(|c| c.number == number)
    }

    /// Whether the target is process `number` or serves it as a vfork child.
    pub fn knows(&self, number: i32) -> bool {
        self.number == number || self.vfork_child(number).is_some()
    }

    pub fn vfork_children(&self) -> Vec<i32> {
        self.children.iter().map(|c| c.number).collect()
    }

    pub fn has_vfork_children(&self) -> bool {
        !self.children.is_empty()
    }

    /// The actions of `vCont` for this target, in its stub's numbering, or `None` if no action applies.
    pub fn actions_for(&self, packet: &[u8]) -> Option<Vec<u8>> {
        actions(packet, self.number, &self.children, self.non_stop)
    }
}
