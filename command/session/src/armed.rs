//! Outcome of a request to the stub to arm a watch.

use anyhow::{Result, anyhow, bail, ensure};
use ulpf_host::foreign::numbers;
use ulpf_lib::command::Reply;
use ulpf_symbols::Problem;

/// State of a watch.
#[derive(Clone, Debug)]
pub enum Armed {
    /// The stub's numbers of its places.
    Yes(Vec<u32>),
    No(Problem),
    /// Its library is not loaded (yet, or any more).
    Pending(Problem),
    /// Switched off on request.
    Off,
}

impl Armed {
    /// The outcome of a watch from the outcomes of its places. All or nothing: half a watch would miss hits silently.
    /// The returned numbers are places that the caller must disarm.
    pub fn together(places: Vec<Armed>) -> (Armed, Vec<u32>) {
        let (mut ids, mut refused, mut refusals) = (Vec::new(), None, 0);
        let several = places.len() > 1;
        for place in places {
            match place {
                Armed::Yes(some) => ids.extend(some),
                other => {
                    refused.get_or_insert(other);
                    refusals += 1;
                }
            }
        }
        match refused {
            None => (Armed::Yes(ids), Vec::new()),
            Some(Armed::No(mut problem)) if several => {
                problem.refusal.why = format!(
                    "{} ({refusals} of its {} places are refused, so none is watched)",
                    problem.refusal.why,
                    ids.len() + refusals
                );
                (Armed::No(problem), ids)
            }
            Some(other) => (other, ids),
        }
    }
}

/// Reads one line of the answer to `ulpf watch` or `ulpf watches`, which asked for `wanted` watches.
pub fn outcomes(line: &str, wanted: usize, armed: &mut Vec<Armed>) -> Result<()> {
    ensure!(armed.len() < wanted, "more answers than watches");
    match serde_json::from_str(line)? {
        Reply::Watch(id) | Reply::Heap { watch: id, .. } | Reply::Switched { watch: id, .. } => {
            armed.push(Armed::Yes(vec![id]));
        }
        Reply::Watches { first, count } => {
            let ids = numbers::ids(first.into(), count.into(), wanted - armed.len());
            let ids = ids.ok_or_else(|| anyhow!("{count} watches instead of {wanted}"))?;
            armed.extend(ids.map(|id| Armed::Yes(vec![id])));
        }
        Reply::Refused(refusal) => armed.push(Armed::No(refusal.into())),
        other => bail!("this says nothing of a watch: {other}"),
    }
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
                Armed::Yes(a),
                Armed::Yes(b),
                Armed::Yes(c),
                Armed::No(problem),
            ] => {
                assert_eq!((&a[..], &b[..], &c[..]), (&[7][..], &[9][..], &[10][..]));
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
    fn all_places_or_none() {
        let yes = |id| Armed::Yes(vec![id]);
        match Armed::together(vec![yes(3), yes(4)]) {
            (Armed::Yes(ids), back) => assert_eq!((ids, back), (vec![3, 4], vec![])),
            other => panic!("{other:?}"),
        }
        let no = Armed::No(Problem::new("a", "b", "c"));
        match Armed::together(vec![yes(3), no, yes(4)]) {
            (Armed::No(problem), back) => {
                assert_eq!(back, [3, 4]);
                assert!(
                    problem.to_string().contains("1 of its 3 places"),
                    "{problem}"
                );
            }
            other => panic!("{other:?}"),
        }
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
