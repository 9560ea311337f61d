//! Running a command to its end.

use anyhow::{Context, Result, bail};
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The last 2000 bytes of an output.
pub fn tail(text: &str) -> &str {
    let from = text.len().saturating_sub(2000);
    let from = (from..text.len()).find(|n| text.is_char_boundary(*n));
    &text[from.unwrap_or(text.len())..]
}

/// Runs a command to its end, or kills it: its status and all that it said.
pub fn finish(command: &mut Command, limit: Duration) -> Result<(ExitStatus, String)> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    wait(child, &name, limit)
}

/// See [`finish`].
pub fn wait(mut child: Child, name: &str, limit: Duration) -> Result<(ExitStatus, String)> {
    let out = child.stdout.take().map(reader);
    let err = child.stderr.take().map(reader);
    let start = Instant::now();
    let mut late = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > limit && !late {
            late = true;
            let _ = child.kill();
        }
        thread::sleep(Duration::from_millis(3));
    };
    let mut said = String::new();
    for reader in [out, err].into_iter().flatten() {
        said += &reader.join().unwrap_or_default();
    }
    if late {
        bail!(
            "{name} was killed after {} s; it said:\n{}",
            limit.as_secs(),
            tail(&said)
        );
    }
    Ok((status, said))
}

fn reader(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_hangs_is_killed() {
        let mut command = Command::new("sleep");
        let late = finish(command.arg("60"), Duration::from_millis(50));
        assert!(late.unwrap_err().to_string().contains("was killed"));
    }
}
