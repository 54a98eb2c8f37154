//! Times as people write them: `"2m"`.

use std::time::Duration;

/// The time in `text`: a whole number and one of `s`, `m`, `h`. `None` for
/// anything else, and for what does not fit.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.strip_prefix(digits)? {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(unit).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_whole_numbers_with_a_unit() {
        assert_eq!(parse("2m"), Some(Duration::from_secs(120)));
        assert_eq!(parse("24h"), Some(Duration::from_secs(86_400)));
        for bad in ["", "2", "m", "2 m", "2min", "1.5h", "-1s", "99999999999999999999s"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
