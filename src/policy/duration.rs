//! Times as people write them: `"500ms"`.

/// Milliseconds in `text`: a whole number from 1 and one of `ms`, `s`, `min`,
/// `h`. `None` for anything else, and for more than a day.
pub(super) fn parse(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.strip_prefix(digits)? {
        "ms" => 1,
        "s" => 1000,
        "min" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        _ => return None,
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let milliseconds = digits.parse::<u64>().ok()?.checked_mul(unit)?;
    (1..=24 * 60 * 60 * 1000).contains(&milliseconds).then_some(milliseconds)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn takes_whole_numbers_with_a_unit() {
        assert_eq!(parse("500ms"), Some(500));
        assert_eq!(parse("2min"), Some(120_000));
        assert_eq!(parse("24h"), Some(86_400_000));
        for bad in ["", "10", "s", "10 s", "1.5s", "-1s", "0s", "25h", "10S"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
