//! Durations as people write them: `"500ms"`, `"2m"`.

use std::time::Duration;

use crate::size::number_of;

/// Parses a duration: a whole number and one of `ms`, `s`, `m`, `h`. `None` for anything else, and
/// for an overflow.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let units = [("ms", 1), ("s", 1000), ("m", 60 * 1000), ("h", 60 * 60 * 1000)];
    number_of(text, &units).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_whole_numbers_with_a_unit() {
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Some(Duration::from_secs(120)));
        assert_eq!(parse_duration("24h"), Some(Duration::from_secs(86_400)));
        for bad in ["", "2", "m", "2 m", "2min", "1.5h", "-1s", "2S", "99999999999999999999s"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
