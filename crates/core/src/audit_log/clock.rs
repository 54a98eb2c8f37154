//! Time in records: RFC 3339 in UTC with microseconds.

/// Caches the text of the current second: formatting all of it is a considerable part of the work
/// under the log's lock.
#[derive(Debug, Default)]
pub(super) struct Clock {
    second: i64,
    /// The text up to the second, as `2026-11-21T08:00:00`.
    text: String,
}

impl Clock {
    /// Returns the current time for a record.
    pub(super) fn now(&mut self) -> String {
        self.text_of(jiff::Timestamp::now())
    }

    fn text_of(&mut self, now: jiff::Timestamp) -> String {
        let (second, micros) = (now.as_second(), now.subsec_microsecond());
        // Before 1970 the parts would need a carry; no clock is set so.
        if second < 0 || micros < 0 {
            return format!("{now:.6}");
        }
        if second != self.second || self.text.is_empty() {
            let whole = format!("{now:.0}");
            self.text = whole.trim_end_matches('Z').to_owned();
            self.second = second;
        }
        format!("{}.{micros:06}Z", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_library_whatever_the_order() {
        let mut clock = Clock::default();
        for nanos in [
            1_763_712_000_999_999_999_i128,
            1_763_712_000_000_000_000,
            1_763_712_001_000_001_000,
            1_763_712_000_999_999_000,
            0,
            999,
            -1_500_000_000,
            951_827_696_123_456_789,
        ] {
            let time = jiff::Timestamp::from_nanosecond(nanos).unwrap();
            assert_eq!(clock.text_of(time), format!("{time:.6}"), "{nanos}");
        }
    }
}
