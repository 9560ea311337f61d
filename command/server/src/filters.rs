//! `monitor ulpf filter NAME …`: a filter in the user's terms for one of the debugger's own watches. Names need debug
//! information, which the stub does not have; it receives addresses and bytecode. `monitor ulpf filter ID of NAME …`
//! sets the filter of the watch with that number. A watch that follows pointers may have no address at the moment.

use ulpf_lib::command::{Command, FilterOf};
use ulpf_lib::{TargetAddr, WatchRange};
use ulpf_session::memory::ProcessMemory;
use ulpf_symbols::{Program, Spec, Watched};

const COMMAND: &str = "ulpf filter ";

/// The filter's text, if this command names a variable. (The stub serves a number and `at ADDRESS` itself.)
pub fn names_a_variable(command: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(command).ok()?.trim();
    let spec = text.strip_prefix(COMMAND)?.trim_start();
    let first = spec.split_whitespace().next()?;
    let numbered = first.bytes().all(|b| b.is_ascii_digit()) || first == "at";
    let numbered = numbered && by_number(spec).is_none();
    (!numbered && !text.contains(';')).then(|| spec.to_string())
}

/// Splits `NUMBER of REST` into the number and the rest.
fn by_number(spec: &str) -> Option<(u32, &str)> {
    let (number, rest) = spec.split_once(char::is_whitespace)?;
    let rest = rest.trim_start().strip_prefix("of")?;
    let name = rest.trim_start();
    (name.len() < rest.len()).then_some((number.parse().ok()?, name))
}

/// The stub's commands for this filter, one for each place.
///
/// # Errors
///
/// A description of the error in the text, for the user.
pub fn translate(pid: i32, spec: &str) -> Result<Vec<Command>, String> {
    let (number, spec) = match by_number(spec) {
        Some((number, rest)) => (Some(number), rest),
        None => (None, spec),
    };
    let spec = Spec::parse(spec).map_err(|p| p.to_string())?;
    let io = |e: std::io::Error| format!("the program cannot be read: {e}");
    let program = Program::of_process(pid).map_err(io)?;
    let memory = ProcessMemory::of(pid, None).map_err(io)?;
    if let Some(number) = number {
        let found = program.resolve_path(&spec, &memory);
        // (All places of a watch are alike, so one filter fits all.)
        let like = found.map_err(|p| p.to_string())?.swap_remove(0);
        return Ok(vec![Command::Filter {
            of: FilterOf::Watch(number),
            filter: like.filter,
            keep: false,
        }]);
    }
    let watched = program.resolve(&spec, &memory).map_err(|p| p.to_string())?;
    if watched.iter().any(|place| place.heap) {
        return Err(format!(
            "the watch on the heap has a number (monitor ulpf stats): say {COMMAND}NUMBER"
        ));
    }
    let command = |place: Watched| {
        let range = WatchRange::new(TargetAddr(place.addr), place.len);
        Ok(Command::Filter {
            of: FilterOf::Range(range.ok_or("no watch has such a range")?),
            filter: place.filter,
            keep: false,
        })
    };
    watched.into_iter().map(command).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_are_ours() {
        let named = |text: &str| names_a_variable(text.as_bytes());
        assert_eq!(
            named("ulpf filter total if $new > 3").as_deref(),
            Some("total if $new > 3")
        );
        assert_eq!(named("ulpf filter 0 changed"), None);
        assert_eq!(named("ulpf filter 7 offset"), None);
        assert_eq!(
            named("ulpf filter 7 of p->x if $new > 3").as_deref(),
            Some("7 of p->x if $new > 3")
        );
        assert_eq!(
            by_number("7 of p->x if $new > 3"),
            Some((7, "p->x if $new > 3"))
        );
        assert_eq!(named("ulpf filter at 0x10 4 changed"), None);
        assert_eq!(
            named("ulpf filter 0x10:4 changed").as_deref(),
            Some("0x10:4 changed")
        );
        assert_eq!(named("ulpf filter"), None);
        assert_eq!(named("ulpf stats"), None);
    }
}
