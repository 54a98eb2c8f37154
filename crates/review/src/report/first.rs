//! Lists of a report that contain only their first items.

use std::collections::BTreeMap;

use serde::Serialize;

use super::items::Denied;

/// Maximum number of items in a list of a report; totals count all.
pub const MOST_LISTED: usize = 2000;

/// The first items of a list, and the total.
#[derive(Debug, Serialize)]
pub struct Listed<T> {
    /// The total number of items.
    pub total: u64,
    /// The first [`MOST_LISTED`] items.
    pub listed: Vec<T>,
}

/// A list that stores only its first items.
#[derive(Debug)]
pub(super) struct First<T> {
    total: u64,
    pub(super) kept: Vec<T>,
}

impl<T> Default for First<T> {
    fn default() -> Self {
        Self { total: 0, kept: Vec::new() }
    }
}

impl<T> First<T> {
    pub(super) fn push(&mut self, item: impl FnOnce() -> T) {
        self.total += 1;
        if self.kept.len() < MOST_LISTED {
            self.kept.push(item());
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.total += other.total;
        let room = MOST_LISTED.saturating_sub(self.kept.len());
        self.kept.extend(other.kept.into_iter().take(room));
    }
}

impl<T> From<First<T>> for Listed<T> {
    fn from(first: First<T>) -> Self {
        Self { total: first.total, listed: first.kept }
    }
}

/// Denied requests in groups, those with most records first.
#[derive(Debug, Serialize)]
pub struct Denials {
    /// The number of records.
    pub total: u64,
    /// The number of groups.
    pub groups: u64,
    /// At most [`MOST_LISTED`] groups.
    pub listed: Vec<Denied>,
}

/// Agent, rule, operation, path and new path of a denied request.
type Key = [Option<String>; 5];

/// Denied requests, grouped as they are counted.
#[derive(Debug, Default)]
pub(super) struct Grouped {
    total: u64,
    groups: BTreeMap<Key, Denied>,
}

impl Grouped {
    /// Returns the number of groups.
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    /// Counts one request more, or a group of a later part of the log.
    pub(super) fn push(&mut self, denied: Denied) {
        self.total += denied.times;
        let Denied { agent, rule, op, path, to, .. } = &denied;
        let key = [agent, rule, op, path, to].map(Clone::clone);
        match self.groups.get_mut(&key) {
            Some(group) => {
                group.times += denied.times;
                group.last = denied.last;
            }
            None => {
                self.groups.insert(key, denied);
            }
        }
    }

    /// Adds the groups of a later part of the log.
    pub(super) fn merge(&mut self, later: Self) {
        later.groups.into_values().for_each(|group| self.push(group));
    }
}

impl From<Grouped> for Denials {
    fn from(grouped: Grouped) -> Self {
        let mut listed = Vec::from_iter(grouped.groups.into_values());
        let groups = listed.len() as u64;
        listed.sort_by_key(|group| std::cmp::Reverse(group.times));
        listed.truncate(MOST_LISTED);
        Self { total: grouped.total, groups, listed }
    }
}
