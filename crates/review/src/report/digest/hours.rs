//! Decisions by the hour, and the activity that they make.

use std::collections::BTreeMap;

use jiff::{ToSpan as _, civil::DateTime};

use crate::report::items::Activity;

/// The longest periods whose activity is shown by the hour, and by the day.
const MAX_HOURS: i64 = 72;
const MAX_DAYS: i64 = 400;
/// Maximum number of items that are added where nothing was decided.
const MAX_ITEMS: usize = 1200;

/// The numbers of allowed and denied requests of each hour, such as `2026-11-21T08`.
#[derive(Debug, Default)]
pub(in crate::report) struct Hours(BTreeMap<String, (u64, u64)>);

impl Hours {
    /// Counts a decision at the time `t` of its record.
    pub(super) fn count(&mut self, t: &str, is_denied: bool) {
        let counts = self.0.entry(t.get(..13).unwrap_or_default().to_owned()).or_default();
        if is_denied {
            counts.1 += 1;
        } else {
            counts.0 += 1;
        }
    }

    /// Adds the hours of a later part of the log.
    pub(super) fn merge(&mut self, later: Self) {
        for (hour, (allowed, denied)) in later.0 {
            let counts = self.0.entry(hour).or_default();
            *counts = (counts.0 + allowed, counts.1 + denied);
        }
    }

    /// Returns the number of hours.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the decisions by the hour, day or month, as long as the period is; one item for each,
    /// also where nothing was decided.
    pub(in crate::report) fn activity(&self) -> (Vec<Activity>, &'static str) {
        let hours = self.0.keys().filter_map(|hour| format!("{hour}:00").parse().ok());
        let hours: Vec<DateTime> = hours.collect();
        let (Some(first), Some(last)) = (hours.iter().min(), hours.iter().max()) else {
            return (Vec::new(), "hour");
        };
        let span = last.duration_since(*first).as_hours();
        let (length, unit, step) = match span {
            ..MAX_HOURS => (13, "hour", 1.hour()),
            _ if span / 24 < MAX_DAYS => (10, "day", 1.day()),
            _ => (7, "month", 1.month()),
        };
        let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        // The last one has decisions. Times from another party may be thousands of years apart.
        for at in first.series(step).take_while(|at| at <= last).take(MAX_ITEMS) {
            sums.entry(at.to_string().get(..length).unwrap_or_default().to_owned()).or_default();
        }
        for (hour, (allowed, denied)) in &self.0 {
            let sum = sums.entry(hour.get(..length).unwrap_or(hour).to_owned()).or_default();
            *sum = (sum.0 + allowed, sum.1 + denied);
        }
        let of = |(from, (allowed, denied))| Activity { from, allowed, denied };
        (sums.into_iter().map(of).collect(), unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three active hours a day looked like work without a pause.
    #[test]
    fn idle_times_have_their_place_in_the_chart() {
        let activity = |hours: &[&str]| {
            let hours = Hours(hours.iter().map(|hour| ((*hour).to_owned(), (1, 2))).collect());
            let (items, unit) = hours.activity();
            let active: Vec<_> = items.iter().filter(|item| item.allowed > 0).collect();
            let (first, last) = (active[0].from.clone(), active[active.len() - 1].from.clone());
            (items.len(), active.len(), unit, first, last)
        };
        let found = |items, active, unit, first: &str, last: &str| {
            (items, active, unit, first.to_owned(), last.to_owned())
        };
        assert_eq!(
            activity(&["2026-11-21T23", "2026-11-23T01"]),
            found(27, 2, "hour", "2026-11-21T23", "2026-11-23T01")
        );
        assert_eq!(
            activity(&["2026-10-30T23", "2026-11-02T23", "2026-11-03T00"]),
            found(5, 3, "day", "2026-10-30", "2026-11-03")
        );
        assert_eq!(
            activity(&["2024-12-31T23", "2026-11-02T23"]),
            found(24, 2, "month", "2024-12", "2026-11")
        );
        // A log from another party.
        let (items, active, ..) = activity(&["0001-01-01T00", "9999-12-31T23"]);
        assert!(items <= MAX_ITEMS + 1 && active == 2, "{items}");
        assert_eq!(Hours::default().activity().0, []);
    }
}
