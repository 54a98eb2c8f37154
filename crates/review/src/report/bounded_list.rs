//! Lists of a report that contain only their first items.

use std::collections::{BTreeMap, btree_map::Entry};

use serde::Serialize;

use super::items::Denied;

/// Maximum number of items in a list of a report; totals count all.
pub const MAX_LISTED: usize = 2000;
/// Maximum number of groups of denied requests: an agent chooses the paths.
const MAX_GROUPS: usize = 20_000;

/// The first items of a list, and the total.
#[derive(Debug, Serialize)]
pub struct Listed<T> {
    /// The total number of items.
    pub total: u64,
    /// The first [`MAX_LISTED`] items.
    pub listed: Vec<T>,
}

/// A list that stores only its first items.
#[derive(Debug)]
pub(super) struct BoundedList<T> {
    total: u64,
    pub(super) kept: Vec<T>,
}

impl<T> Default for BoundedList<T> {
    fn default() -> Self {
        Self { total: 0, kept: Vec::new() }
    }
}

impl<T> BoundedList<T> {
    pub(super) fn push(&mut self, item: impl FnOnce() -> T) {
        self.total += 1;
        if self.kept.len() < MAX_LISTED {
            self.kept.push(item());
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.total += other.total;
        let room = MAX_LISTED.saturating_sub(self.kept.len());
        self.kept.extend(other.kept.into_iter().take(room));
    }
}

impl<T> From<BoundedList<T>> for Listed<T> {
    fn from(first: BoundedList<T>) -> Self {
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
    /// The number of records that are in no group, because there are too many groups.
    pub ungrouped: u64,
    /// The groups, at most [`MAX_LISTED`].
    pub listed: Vec<Denied>,
}

/// Agent, rule, operation, path and new path of a denied request.
type Key = [Option<String>; 5];

/// Denied requests, grouped as they are counted.
#[derive(Debug, Default)]
pub(super) struct GroupedDenials {
    total: u64,
    ungrouped: u64,
    groups: BTreeMap<Key, Denied>,
}

impl GroupedDenials {
    /// Returns the number of groups.
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    /// Counts one request more, or a group of a later part of the log.
    pub(super) fn push(&mut self, denied: Denied) {
        self.total += denied.times;
        let Denied { agent, rule, op, path, to, .. } = &denied;
        let key = [agent, rule, op, path, to].map(Clone::clone);
        let has_room = self.groups.len() < MAX_GROUPS;
        match self.groups.entry(key) {
            Entry::Occupied(mut group) => {
                let group = group.get_mut();
                group.times += denied.times;
                group.last = denied.last;
            }
            Entry::Vacant(group) if has_room => {
                group.insert(denied);
            }
            Entry::Vacant(_) => self.ungrouped += denied.times,
        }
    }

    /// Adds the groups of a later part of the log.
    pub(super) fn merge(&mut self, later: Self) {
        self.total += later.ungrouped;
        self.ungrouped += later.ungrouped;
        later.groups.into_values().for_each(|group| self.push(group));
    }
}

impl From<GroupedDenials> for Denials {
    fn from(grouped: GroupedDenials) -> Self {
        let mut listed = Vec::from_iter(grouped.groups.into_values());
        let groups = listed.len() as u64;
        listed.sort_by_key(|group| std::cmp::Reverse(group.times));
        listed.truncate(MAX_LISTED);
        Self { total: grouped.total, groups, ungrouped: grouped.ungrouped, listed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An agent that asked for ever new paths filled the memory of a report.
    #[test]
    fn groups_of_denials_are_bounded() {
        let denied = |seq: u64| Denied {
            seq,
            t: String::new(),
            last: String::new(),
            times: 1,
            agent: None,
            op: None,
            path: Some(seq.to_string()),
            to: None,
            rule: None,
            reason: None,
        };
        let most = MAX_GROUPS as u64;
        let (mut first, mut later) = (GroupedDenials::default(), GroupedDenials::default());
        (0..most + 5).for_each(|seq| first.push(denied(seq)));
        // One of them is new to `first`.
        (1..=most + 1).for_each(|seq| later.push(denied(seq)));
        first.merge(later);
        let denials = Denials::from(first);
        assert_eq!((denials.total, denials.groups), (2 * most + 6, most));
        let ungrouped = denials.ungrouped;
        // `later` left one out itself.
        assert_eq!(ungrouped, 5 + 2);
    }
}
