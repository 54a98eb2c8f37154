//! The time in records.

/// A time in RFC 3339 in UTC with microseconds, `2026-11-21T08:00:00.000000Z`, of a valid date.
/// Times compare as their texts do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time([u8; 27]);

impl Time {
    /// Parses a time.
    pub(crate) fn new(text: &[u8]) -> Option<Self> {
        text.try_into().ok().filter(|text: &[u8; 27]| is_time(text)).map(Self)
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        // The text contains only digits and punctuation.
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// True if a text is a time. The system's clock has no leap seconds.
fn is_time(text: &[u8]) -> bool {
    const FORM: &[u8; 27] = b"0000-00-00T00:00:00.000000Z";
    let has_form = text.len() == FORM.len()
        && (text.iter().zip(FORM))
            .all(|(byte, form)| if *form == b'0' { byte.is_ascii_digit() } else { byte == form });
    let number = |range| {
        let digits: &[u8] = text.get(range).unwrap_or_default();
        digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit & 0x0f))
    };
    has_form
        && (1..=days(number(0..4), number(5..7))).contains(&number(8..10))
        && number(11..13) < 24
        && number(14..16) < 60
        && number(17..19) < 60
}

/// Returns the number of days of the month; zero if there is no such month.
fn days(year: u32, month: u32) -> u32 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_one_that_there_is() {
        for right in [
            "2026-11-30T23:59:59.999999Z",
            "2024-02-29T00:00:00.000000Z",
            "2000-02-29T00:00:00.000000Z",
            "0000-02-29T00:00:00.000000Z",
            "9999-12-31T23:59:59.999999Z",
        ] {
            assert!(is_time(right.as_bytes()), "{right}");
        }
        for wrong in [
            "2026-11-31T08:00:00.000000Z",
            "2026-02-29T08:00:00.000000Z",
            "2100-02-29T08:00:00.000000Z",
            "2026-00-01T08:00:00.000000Z",
            "2026-13-01T08:00:00.000000Z",
            "2026-01-00T08:00:00.000000Z",
            "2026-01-32T08:00:00.000000Z",
            "2026-01-01T24:00:00.000000Z",
            "2026-01-01T08:60:00.000000Z",
            "2026-06-30T23:59:60.000000Z",
            "2026-01-01T08:00:00.00000aZ",
            "2026-01-01T08:00:00.000000z",
            "2026-01-01T08:00:00Z",
        ] {
            assert!(!is_time(wrong.as_bytes()), "{wrong}");
        }
    }
}
