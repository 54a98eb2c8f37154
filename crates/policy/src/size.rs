//! Sizes as people write them: `"10MiB"`.

/// Parses a size in bytes: a whole number and one of `B`, `KiB`, `MiB`, `GiB`, `TiB`. `None` for
/// anything else, and for an overflow.
pub fn parse(text: &str) -> Option<u64> {
    let units = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
    number_of(text, &units)
}

/// Parses a whole number and one of `units`, each a word and its factor. `None` for anything else,
/// and for an overflow.
pub(crate) fn number_of(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let word = text.strip_prefix(digits)?;
    let (_, factor) = units.iter().find(|(unit, _)| *unit == word)?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(*factor)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn takes_whole_numbers_with_a_binary_unit() {
        assert_eq!(parse("10MiB"), Some(10 << 20));
        assert_eq!(parse("0B"), Some(0));
        for bad in ["", "10", "MiB", "10 MiB", "10mb", "1.5GiB", "-1B", "+1B", "99999999999TiB"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
