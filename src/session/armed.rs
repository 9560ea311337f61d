//! What has become of a watch that the stub was told to arm.

use crate::foreign::numbers;
use crate::symbols::Problem;
use anyhow::{Result, anyhow, ensure};

/// What happened to a watch.
#[derive(Clone, Debug)]
pub enum Armed {
    /// The stub's number for it.
    Yes(u32),
    No(Problem),
    /// Its library is not loaded (yet, or any more).
    Pending(Problem),
    /// Taken away at somebody's request.
    Off,
}

/// Reads one line of the answer to `ulpf watch` or `ulpf watches`, by which `wanted` watches were to be armed.
pub fn outcomes(line: &str, wanted: usize, armed: &mut Vec<Armed>) -> Result<()> {
    ensure!(armed.len() < wanted, "more answers than watches");
    let json: serde_json::Value = serde_json::from_str(line)?;
    if let Some(id) = json["watch"].as_u64() {
        armed.push(Armed::Yes(u32::try_from(id)?));
        return Ok(());
    }
    if let Some((first, count)) = json["watches"][0].as_u64().zip(json["watches"][1].as_u64()) {
        let ids = numbers::ids(first, count, wanted - armed.len());
        let ids = ids.ok_or_else(|| anyhow!("{count} watches instead of {wanted}"))?;
        armed.extend(ids.map(Armed::Yes));
        return Ok(());
    }
    let refused = &json["refused"];
    let text = |key: &str| {
        refused[key]
            .as_str()
            .map(str::to_string)
            .ok_or_else(|| anyhow!("no `{key}`"))
    };
    armed.push(Armed::No(Problem::new(
        text("what")?,
        text("why")?,
        text("what_to_do")?,
    )));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_watches() {
        let mut armed = Vec::new();
        outcomes("{\"watch\":7}", 4, &mut armed).unwrap();
        outcomes("{\"watches\":[9,2]}", 4, &mut armed).unwrap();
        outcomes(
            r#"{"refused":{"what":"a","why":"b","what_to_do":"c"}}"#,
            4,
            &mut armed,
        )
        .unwrap();
        match armed.as_slice() {
            [
                Armed::Yes(7),
                Armed::Yes(9),
                Armed::Yes(10),
                Armed::No(problem),
            ] => {
                assert_eq!(problem.to_string(), "a: b; c")
            }
            other => panic!("{other:?}"),
        }
        for bad in ["{}", "OK", "{\"watches\":[1]}"] {
            assert!(outcomes(bad, 5, &mut armed).is_err(), "{bad}");
        }
        assert!(outcomes("{\"watch\":7}", 4, &mut armed).is_err());
    }

    #[test]
    fn no_more_watches_than_were_asked_for() {
        for many in [
            "[0,4294967295]",
            "[0,3]",
            "[4294967295,2]",
            "[18446744073709551615,2]",
            "[18446744073709551615,18446744073709551615]",
        ] {
            let mut armed = Vec::new();
            let line = format!("{{\"watches\":{many}}}");
            assert!(outcomes(&line, 2, &mut armed).is_err(), "{many}");
            assert!(armed.capacity() < 16);
        }
    }
}
