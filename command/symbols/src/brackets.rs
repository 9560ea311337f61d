//! Template arguments in names.

/// Length of a balanced `<…>` at the start of `text`.
pub fn angle_brackets(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut before = ' ';
    for (i, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => {
                depth -= 1;
                if depth == 0 {
                    return Some(i + 1);
                }
            }
            _ => {}
        }
        before = c;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_balance() {
        assert_eq!(angle_brackets("<int>::total"), Some(5));
        assert_eq!(angle_brackets("<A<B>, C>x"), Some(9));
        assert_eq!(angle_brackets("<fn() -> T>x"), Some(11));
        assert_eq!(angle_brackets("<A<B>"), None);
    }
}
