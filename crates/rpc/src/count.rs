//! Integers in any notation of JSON.

use std::num::IntErrorKind;

use serde_json::Number;

/// Returns a non-negative integer, if the number is one. JSON does not distinguish 3.0 from 3; a
/// number past the maximum of `u64` is returned as the maximum.
pub fn count(number: &Number) -> Option<u64> {
    let float = || match format!("{}", number.as_f64()?).parse::<u64>() {
        Ok(count) => Some(count),
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => Some(u64::MAX),
        Err(_) => None,
    };
    number.as_u64().or_else(float)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_count_however_they_are_written_and_the_largest_stand_for_more() {
        let of = |text: &str| count(&serde_json::from_str(text).unwrap());
        for (text, expected) in [
            ("0", Some(0)),
            ("2", Some(2)),
            ("2.0", Some(2)),
            ("1e2", Some(100)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", Some(u64::MAX)),
            ("1e300", Some(u64::MAX)),
            ("1.5", None),
            ("1e-7", None),
            ("-1", None),
            ("-1e300", None),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
    }
}
