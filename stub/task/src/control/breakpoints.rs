//! Owner of the breakpoints: int3 that the debugger wants, or that mark where a collector of generated code begins and
//! ends (`collector.rs`).
//!
//! Some debuggers remove their breakpoints at every stop and set them again. So they are in place at every resume, even
//! where the program has written new code or mapped other memory. The server answers such pairs of packets without us
//! (`command/server/src/watches.rs`), and names the breakpoints that were set again ([`renew`]).

use alloc::vec::Vec;

use linux_raw_sys::errno::EFAULT;
use ulpf_lib::guard::PROT_EXEC;
use ulpf_lib::guard::maps::Snapshot;
use ulpf_lib::sys::Errno;

use super::text::{is_planted, read_raw, write_raw};
use ulpf_stub_handlers::check::entries;
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_tables::breakpoints::{AgentExpr, Breakpoint, Collector, INT3};
use ulpf_stub_tables::edit::{Edit, List};

fn list(stopped: &mut Stopped) -> &mut List<Breakpoint> {
    &mut stopped.tables_mut().edits.breakpoints
}

/// Sets a breakpoint of the debugger. Returns `false` if its memory cannot be written; a hardware breakpoint waits for
/// code then.
pub fn insert(
    stopped: &mut Stopped,
    addr: u64,
    conditions: Vec<AgentExpr>,
    hardware: bool,
) -> bool {
    let b = list(stopped).get_or_insert(addr, || Breakpoint::new(addr));
    let known = b.debuggers || b.collector.is_some();
    b.debuggers = true;
    b.conditions = conditions;
    b.hardware |= hardware;
    let done = plant(b).is_ok() || b.hardware;
    if !done && !known {
        list(stopped).remove(addr);
    }
    done
}

/// Removes a breakpoint of the debugger. Returns `false` if it has none at `addr`.
pub fn remove(stopped: &mut Stopped, addr: u64) -> bool {
    let was = list(stopped).at_mut(addr).is_some_and(|b| {
        b.conditions.clear();
        core::mem::take(&mut b.debuggers)
    });
    remove_unused(stopped, addr);
    was
}

/// Sets a breakpoint of ours. Returns `false` if it is not in place.
pub fn insert_ours(stopped: &mut Stopped, addr: u64, what: Collector) -> bool {
    let b = list(stopped).get_or_insert(addr, || Breakpoint::new(addr));
    b.collector = Some(what);
    let there = plant(b).is_ok() && b.there;
    if !there {
        remove_ours(stopped, addr);
    }
    there
}

pub fn remove_ours(stopped: &mut Stopped, addr: u64) {
    if let Some(b) = list(stopped).at_mut(addr) {
        b.collector = None;
    }
    remove_unused(stopped, addr);
}

fn remove_unused(stopped: &mut Stopped, addr: u64) {
    let unused = |b: &Breakpoint| !b.debuggers && b.collector.is_none();
    if list(stopped).at(addr).is_some_and(unused)
        && let Some(b) = list(stopped).remove(addr)
    {
        restore(&b);
    }
}

/// Before the program runs: makes sure that the breakpoint is in place. (Where nothing is mapped any more it cannot be.)
pub fn renew(stopped: &mut Stopped, addr: u64) {
    if let Some(b) = list(stopped).at_mut(addr) {
        let _ = plant(b);
    }
}

/// A thread is about to execute the instruction at `addr`, alone. If other memory is mapped there now, no byte is
/// restored, nor does [`lower`] put an int3 there.
pub fn lift(stopped: &mut Stopped, addr: u64) {
    if let Some(b) = list(stopped).at_mut(addr) {
        b.there = restore(b);
    }
}

/// It has executed the instruction, which may have unmapped itself.
pub fn lower(stopped: &mut Stopped, addr: u64) {
    if let Some(b) = list(stopped).at_mut(addr).filter(|b| b.there) {
        b.there = plant(b).is_ok();
    }
}

/// Hardware breakpoints that wait for code: there was none, or it has gone.
pub fn plant_waiting(stopped: &mut Stopped) {
    let waits = |b: &&mut Breakpoint| {
        let planted = b.there && is_planted(b.addr);
        b.hardware && !planted && entries::around(b.addr).is_none()
    };
    if !list(stopped).iter_mut().any(|b| waits(&b)) {
        return;
    }
    let Ok(maps) = Snapshot::read() else {
        return; // at the next look, then
    };
    for b in list(stopped).iter_mut().filter(waits) {
        let is_code = maps.at(b.addr).is_some_and(|v| v.prot & PROT_EXEC != 0);
        // A breakpoint that cannot be written keeps waiting.
        if is_code && plant(b).is_err() {
            b.there = false;
        }
    }
}

/// The program is left alone.
pub fn remove_all(stopped: &mut Stopped) {
    for b in list(stopped).take().iter() {
        restore(b);
    }
}

/// Makes sure that the int3 is where the debugger believes it: it has gone if the memory was replaced. A breakpoint
/// within the jump of a function or request has no int3, and is met elsewhere (`check/hooks.rs` of the handlers).
fn plant(b: &mut Breakpoint) -> Result<(), Errno> {
    if entries::around(b.addr).is_some() {
        b.there = false;
    } else if !b.there || !is_planted(b.addr) {
        b.there = false;
        let mut old = [0];
        if read_raw(b.addr, &mut old) != old.len() {
            return Err(Errno(EFAULT as i32));
        }
        write_raw(b.addr, &[INT3])?;
        [b.original] = old;
        b.there = true;
    }
    Ok(())
}

/// Takes the int3 out, if it is still there. `false`: other memory is mapped there.
fn restore(b: &Breakpoint) -> bool {
    b.there && is_planted(b.addr) && write_raw(b.addr, b.original()).is_ok()
}
