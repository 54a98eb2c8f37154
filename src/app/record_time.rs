//! Points in time on the command line, in UTC.

use std::str::FromStr;

use jiff::{
    Span, Timestamp, Zoned,
    civil::{Date, Weekday},
    tz::TimeZone,
};

use super::failure::{Exit, Failure};

/// The days of the week, of which the command line means the last one before today.
const WEEKDAYS: [(&str, Weekday); 7] = [
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

/// A point in time in the format of a record's `t`, with which it compares as text.
#[derive(Debug, Clone)]
pub(crate) struct RecordTime(String);

impl RecordTime {
    /// Returns the text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns beginning and end of a period as texts.
///
/// # Errors
/// When the period is empty: a report about nothing reads as if nothing had happened.
pub(crate) fn period(
    since: Option<&RecordTime>,
    until: Option<&RecordTime>,
) -> Result<(Option<String>, Option<String>), Failure> {
    if let (Some(RecordTime(since)), Some(RecordTime(until))) = (since, until)
        && since >= until
    {
        return Err(Failure::new(format_args!("no time is from {since} on and before {until}"))
            .help("--since is the beginning, and --until the first moment that does not count")
            .exit(Exit::Usage));
    }
    let text = |time: &RecordTime| time.0.clone();
    Ok((since.map(text), until.map(text)))
}

impl FromStr for RecordTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A date also parses as the beginning of a time, whose hours would be lost.
        let date = text.parse().ok().filter(|date: &Date| date.to_string() == text);
        // The last representable dates begin after the last representable time.
        if let Some(date) = date.filter(|date| date.year() >= 0) {
            return Ok(Self(format!("{date}T00:00:00.000000Z")));
        }
        let absolute = text.parse::<Timestamp>().ok();
        if absolute.is_none() && has_capital_m(text) {
            return Err("a capital `M` is no unit: a minute is `1m`, a month `30d`".to_owned());
        }
        let time = absolute.or_else(|| describe(text)).ok_or(
            "expected a date (`2026-11-21`), a time with its zone (`2026-11-21T08:00:00Z`), how long \
             ago (`90m`, `2d`, `1 hour ago`, `last week`), a day of the week (`monday`), `now`, `today` \
             or `yesterday`",
        )?;
        Ok(Self(format!("{time:.6}")))
    }
}

/// Returns true if a duration has the unit `M`, which is a month elsewhere and would be read as a
/// minute. In a duration of ISO 8601 (`PT1M`), its position says which one it is.
fn has_capital_m(text: &str) -> bool {
    !text.trim_start().starts_with(['P', 'p'])
        && text.split(|character: char| !character.is_alphabetic()).any(|unit| unit == "M")
}

/// Parses a time that is relative to now. Days begin at midnight UTC, as in all output.
fn describe(text: &str) -> Option<Timestamp> {
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    let midnight = |day: Zoned| day.start_of_day().ok();
    let text = text.trim().to_lowercase();
    let day = text.strip_prefix("last ").unwrap_or(&text);
    if let Some(day) = WEEKDAYS.iter().find(|(name, _)| *name == day).map(|(_, day)| *day) {
        return midnight(now.nth_weekday(-1, day).ok()?).map(|time| time.timestamp());
    }
    let time = match &*text {
        "now" => Some(now),
        "today" => midnight(now),
        "yesterday" => midnight(now.yesterday().ok()?),
        text => {
            let one = text.strip_prefix("last ").map(|unit| format!("1 {unit}"));
            let ago = text.strip_suffix("ago").map(str::trim_end);
            let span: Span = one.as_deref().or(ago).unwrap_or(text).parse().ok()?;
            // A sign would lead into the future, and a time of the day is no duration.
            (!span.is_negative() && !text.contains(':')).then(|| now.checked_sub(span).ok())?
        }
    };
    time.map(|time| time.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        let since = |text: &str| text.parse::<RecordTime>().map(|since| since.0);
        assert_eq!(since("2026-11-21").unwrap(), "2026-11-21T00:00:00.000000Z");
        assert_eq!(since("9999-12-31").unwrap(), "9999-12-31T00:00:00.000000Z");
        assert_eq!(since("2026-11-21T08:00:00+02:00").unwrap(), "2026-11-21T06:00:00.000000Z");
        for (past, seconds) in [
            ("90m", 90 * 60),
            ("2h 30m", 150 * 60),
            ("2d", 2 * 86_400),
            ("1w", 7 * 86_400),
            ("0s", 0),
            ("now", 0),
            ("1 hour ago", 3600),
            ("2d ago", 2 * 86_400),
            ("last week", 7 * 86_400),
        ] {
            let time: Timestamp = since(past).unwrap().parse().unwrap();
            let passed = Timestamp::now().duration_since(time).as_secs();
            assert!((seconds..seconds + 5).contains(&passed), "{past}: {passed}");
        }
        for wrong in ["", "tomorrow", "last", "ago", "2026-13-01", "-", "99999999999999999999d"] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
    }

    /// The time used to be ignored, and the date taken at midnight.
    #[test]
    fn a_time_without_a_zone_is_not_cut_to_its_date() {
        let since = |text: &str| text.parse::<RecordTime>().map(|since| since.0);
        for wrong in [
            "2026-11-23T06:00",
            "2026-11-23T06:00:00",
            "2026-11-23 06:00:00",
            "2026-11-23T06:00:00[Europe/Berlin]",
            "2026-11-23[Europe/Berlin]",
            "2026-11-23T06",
            "20261123T060000",
            "2026-11-23-05",
        ] {
            assert!(since(wrong).is_err(), "{wrong}: {:?}", since(wrong));
        }
        for right in ["2026-11-23T06:00Z", "2026-11-23 07:00:00+01:00[Europe/Berlin]"] {
            assert_eq!(since(right).as_deref(), Ok("2026-11-23T06:00:00.000000Z"), "{right}");
        }
    }

    #[test]
    fn yesterday_begins_a_day_before_today() {
        let time = |text: &str| text.parse::<RecordTime>().unwrap().0.parse::<Timestamp>().unwrap();
        let (today, yesterday) = (time("today"), time("yesterday"));
        assert_eq!(today.duration_since(yesterday).as_hours(), 24);
        assert!(today.to_string().ends_with("T00:00:00Z"), "{today}");
    }

    #[test]
    fn a_day_of_the_week_is_the_last_one_before_today() {
        let time = |text: &str| text.parse::<RecordTime>().unwrap().0.parse::<Timestamp>().unwrap();
        let today = time("today");
        for (name, day) in WEEKDAYS {
            let found = time(name);
            assert_eq!(found.to_zoned(TimeZone::UTC).weekday(), day, "{name}");
            let days = today.duration_since(found).as_hours() / 24;
            assert!((1..=7).contains(&days), "{name}: {days}");
            assert_eq!(found, time(&format!("last {name}")));
        }
        assert_eq!(time("Yesterday"), time("yesterday"));
    }

    #[test]
    fn a_capital_m_is_a_unit_in_iso_8601_alone() {
        for wrong in ["1M", "1 M", "1M ago", "2d 1M", " 1M", "last M"] {
            let error = wrong.parse::<RecordTime>().unwrap_err();
            assert!(error.contains("`1m`") && error.contains("`30d`"), "{wrong}: {error}");
        }
        for right in ["1m", "1D", "1H", "1 Minute ago", "Last Month", "Monday", "PT1M", "P1M"] {
            assert!(right.parse::<RecordTime>().is_ok(), "{right}");
        }
    }

    /// A sign led into the future, and a time of day was taken for hours.
    #[test]
    fn how_long_ago_is_neither_in_the_future_nor_a_time_of_day() {
        for wrong in ["-2h", "-2h ago", "-2d", "06:00:00", "-PT2H"] {
            assert!(wrong.parse::<RecordTime>().is_err(), "{wrong}");
        }
    }
}
