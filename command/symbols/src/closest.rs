//! Suggestions for mistyped names in messages.

/// Joins names for a message, at most `most` of them.
pub fn list(names: impl IntoIterator<Item = impl AsRef<str>>, most: usize) -> String {
    let all: Vec<_> = names.into_iter().collect();
    let mut text = all
        .iter()
        .take(most)
        .map(|n| n.as_ref())
        .collect::<Vec<_>>()
        .join(", ");
    if all.len() > most {
        text += &format!(" and {} more", all.len() - most);
    }
    text
}

/// The name with the smallest distance, if it is close enough for a typing error.
pub fn closest<'n>(name: &str, among: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let most = (name.len() / 3).clamp(1, 3);
    let near = |n: &&str| n.len().abs_diff(name.len()) <= most;
    let best = among.filter(near).map(|n| (distance(name, n), n)).min()?;
    (best.0 <= most).then_some(best.1)
}

/// Number of typing errors: letters that are wrong, missing, too many, or in the other's place (optimal string alignment). A
/// change of case costs nothing.
fn distance(a: &str, b: &str) -> usize {
    strsim::osa_distance(&a.to_ascii_lowercase(), &b.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised() {
        let names = ["counts", "total"];
        let find = |name| closest(name, names.into_iter());
        assert_eq!(find("count"), Some("counts"));
        assert_eq!(find("Cuonts"), Some("counts"));
        assert_eq!(find("totl"), Some("total"));
        assert_eq!(find("toatl"), Some("total"));
        assert_eq!(find("x"), None);
        assert_eq!(distance("ABC", "abd"), 1);
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(list(["a", "b"], 2), "a, b");
        assert_eq!(list(["a", "b", "c"], 2), "a, b and 1 more");
    }
}
