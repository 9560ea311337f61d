//! `monitor ulpf filter NAME …`: a filter in the user's terms for one of the debugger's own watches. Names
//! need debug information, which the stub has not; it gets addresses and bytecode.

use ulpf_lib::command::{Command, FilterOf};
use ulpf_lib::{TargetAddr, WatchRange};
use ulpf_session::memory::ProcessMemory;
use ulpf_symbols::{Program, Spec, Watched};

const COMMAND: &str = "ulpf filter ";

/// Does this command name a variable? (A number and `at ADDRESS` are the stub's business.)
pub fn names_a_variable(command: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(command).ok()?.trim();
    let spec = text.strip_prefix(COMMAND)?.trim_start();
    let first = spec.split_whitespace().next()?;
    let numbered = first.bytes().all(|b| b.is_ascii_digit()) || first == "at";
    (!numbered && !text.contains(';')).then(|| spec.to_string())
}

/// The same as the stub takes it, for each place, or what is wrong with it.
pub fn translate(pid: i32, spec: &str) -> Result<Vec<Command>, String> {
    let spec = Spec::parse(spec).map_err(|p| p.to_string())?;
    let io = |e: std::io::Error| format!("the program cannot be read: {e}");
    let program = Program::of_process(pid).map_err(io)?;
    let memory = ProcessMemory::of(pid, None).map_err(io)?;
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
        assert_eq!(named("ulpf filter at 0x10 4 changed"), None);
        assert_eq!(
            named("ulpf filter 0x10:4 changed").as_deref(),
            Some("0x10:4 changed")
        );
        assert_eq!(named("ulpf filter"), None);
        assert_eq!(named("ulpf stats"), None);
    }
}
