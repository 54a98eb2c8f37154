//! A scan of one content by all rules.
//!
//! First, all keywords are searched at once, including overlapping ones, because one keyword may
//! contain another. Then each rule of a keyword that was found searches by itself: around the
//! keywords if a match must contain one and has a maximum length, else everywhere. One automaton
//! for all expressions would be much slower.

use std::{ops::Range, sync::Arc};

use super::{
    keywords::Keywords,
    rule::SecretRule,
    search::{MAX_FINDINGS, TimeExceeded},
};

/// A scan that did not reach the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Incomplete {
    /// It took too long.
    Overdue,
    /// There are more than [`MAX_FINDINGS`].
    TooMany,
}

impl From<TimeExceeded> for Incomplete {
    fn from(TimeExceeded: TimeExceeded) -> Self {
        Self::Overdue
    }
}

/// The rules of a policy.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    rules: Vec<Arc<SecretRule>>,
    keywords: Option<Keywords>,
    /// The rules that have each keyword.
    owners: Vec<Vec<usize>>,
    /// The rules without keywords.
    always: Vec<usize>,
}

/// A secret found: the index of the rule and the byte range.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Hit {
    pub(super) rule: usize,
    pub(super) range: Range<usize>,
}

impl Scanner {
    /// Prepares a scan by `rules`.
    ///
    /// # Errors
    /// If there are too many keywords for the automaton.
    pub(super) fn new(rules: Vec<Arc<SecretRule>>) -> Result<Self, String> {
        let mut words: Vec<&str> = Vec::new();
        let mut numbers = std::collections::HashMap::new();
        let (mut owners, mut always) = (Vec::<Vec<usize>>::new(), Vec::new());
        for (number, rule) in rules.iter().enumerate() {
            if rule.keywords.is_empty() && rule.invisible.is_none() {
                always.push(number);
            }
            for keyword in &rule.keywords {
                let word = *numbers.entry(keyword.as_str()).or_insert_with(|| {
                    words.push(keyword);
                    owners.push(Vec::new());
                    owners.len() - 1
                });
                if let Some(owners) = owners.get_mut(word)
                    && owners.last() != Some(&number)
                {
                    owners.push(number);
                }
            }
        }
        let keywords = (!words.is_empty()).then(|| Keywords::new(&words)).transpose()?;
        Ok(Self { rules, keywords, owners, always })
    }

    /// Returns the rules, by index.
    pub(super) fn rules(&self) -> &[Arc<SecretRule>] {
        &self.rules
    }

    /// Returns all secrets that the rules find in `text`, in order.
    ///
    /// # Errors
    /// When `overdue` says so; it is asked between rules, between matches, and
    /// in the middle of a search that takes long. When there are too many findings.
    pub(super) fn scan(
        &self,
        path: &str,
        text: &[u8],
        overdue: &dyn Fn() -> bool,
    ) -> Result<Vec<Hit>, Incomplete> {
        let mut hits = Vec::new();
        for (number, windows) in self.candidates(text) {
            let Some(rule) = self.rules.get(number).filter(|rule| rule.applies(path)) else {
                continue;
            };
            for window in windows {
                for range in rule.secrets(path, text, window, overdue) {
                    hits.push(Hit { rule: number, range: range? });
                    if hits.len() > MAX_FINDINGS {
                        return Err(Incomplete::TooMany);
                    }
                }
                if overdue() {
                    return Err(Incomplete::Overdue);
                }
            }
        }
        for (number, rule) in self.rules.iter().enumerate() {
            let runs = rule.unseen(path, text, overdue)?;
            hits.extend(runs.into_iter().map(|range| Hit { rule: number, range }));
            if hits.len() > MAX_FINDINGS {
                return Err(Incomplete::TooMany);
            }
        }
        if overdue() {
            return Err(Incomplete::Overdue);
        }
        hits.sort_by_key(|hit| (hit.range.start, hit.range.end, hit.rule));
        Ok(hits)
    }

    /// Returns the rules that may match, each with ranges in order that do not overlap.
    fn candidates(&self, text: &[u8]) -> Vec<(usize, Vec<Range<usize>>)> {
        // Nearly all content has none, and then nothing is allocated.
        let mut windows: Vec<Vec<Range<usize>>> = Vec::new();
        if !self.always.is_empty() {
            windows.resize(self.rules.len(), Vec::new());
        }
        let everything = 0..text.len();
        for number in &self.always {
            if let Some(windows) = windows.get_mut(*number) {
                windows.push(everything.clone());
            }
        }
        let mut note = |keyword: usize, found: Range<usize>| {
            windows.resize(self.rules.len(), Vec::new());
            for number in self.owners.get(keyword).into_iter().flatten() {
                let (Some(rule), Some(windows)) =
                    (self.rules.get(*number), windows.get_mut(*number))
                else {
                    continue;
                };
                let reach = rule.expression.as_ref().and_then(|expression| expression.reach);
                let window = match reach {
                    Some(reach) => {
                        let end = found.start.saturating_add(reach).min(text.len());
                        found.end.saturating_sub(reach)..end
                    }
                    None => everything.clone(),
                };
                match windows.last_mut() {
                    Some(last) if window.start <= last.end && last.start <= window.end => {
                        *last = last.start.min(window.start)..last.end.max(window.end);
                    }
                    _ => windows.push(window),
                }
            }
        };
        if let Some(keywords) = &self.keywords {
            keywords.find(text, &mut note);
        }
        windows.iter_mut().for_each(in_order);
        windows.into_iter().enumerate().filter(|(_, windows)| !windows.is_empty()).collect()
    }
}

/// Sorts windows and joins those that meet.
fn in_order(windows: &mut Vec<Range<usize>>) {
    windows.sort_unstable_by_key(|window| window.start);
    windows.dedup_by(|next, last| {
        let meet = next.start <= last.end;
        if meet {
            last.end = last.end.max(next.end);
        }
        meet
    });
}
