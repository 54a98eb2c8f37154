//! Records of a mount besides those of its requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use portcullis_core::Error;
use portcullis_policy::model::WorkspacePath;
use serde_json::Value;

use crate::mount::Mount;

/// Interval of checks for something to record; approvals given meanwhile are recorded within it.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);

/// The record of repeated opens.
const REPEATS: &str = "repeats";
/// The record of what was not stored when the mount ended.
const UNSTORED: &str = "unstored";
/// Maximum of paths in that record.
const MAX_UNSTORED_PATHS: usize = 10;
/// The record of a limit that was reached, written once for each limit.
const LIMIT: &str = "limit";

impl Mount<'_> {
    /// Writes approvals, limits reached and repeats to the log until the mount ends.
    ///
    /// # Errors
    /// When the log cannot be written.
    pub(crate) fn keep_log(&self) -> Result<(), Error> {
        let (session, interval) = (&self.session, self.options.repeats);
        let (mut written, mut told) = (Instant::now(), BTreeSet::new());
        loop {
            let has_ended = self.repeats.wait(interval.min(RECORD_INTERVAL));
            self.gateway.settle_questions(session);
            for (bound, max) in self.reached() {
                if told.insert(bound) {
                    let facts = [("bound", bound.into()), ("max", max.into())];
                    let facts = facts.map(|(name, value)| (name.to_owned(), value));
                    self.gateway.note(session, LIMIT, BTreeMap::from(facts))?;
                }
            }
            if has_ended || written.elapsed() >= interval {
                written = Instant::now();
                self.record_repeats()?;
            }
            if has_ended {
                self.gateway.withdraw_questions(session);
                // Otherwise the owner of the mount records it at the end.
                return match self.is_over.load(Ordering::Acquire) {
                    true => Ok(()),
                    false => self.record_scratch(),
                };
            }
        }
    }

    /// Records the repeats since the last call.
    ///
    /// # Errors
    /// When the log cannot be written.
    pub(crate) fn record_repeats(&self) -> Result<(), Error> {
        for facts in self.repeats.take() {
            self.gateway.note(&self.session, REPEATS, facts)?;
        }
        Ok(())
    }

    /// Records what was not stored when the mount ended, in one record.
    ///
    /// # Errors
    /// When the log cannot be written.
    pub fn record_unstored(&self) -> Result<(), Error> {
        let paths: Vec<_> = {
            let nodes = &self.lock().nodes;
            let staged = nodes.staged().into_iter();
            let left = staged.filter(|(_, staged)| staged.shows().dirty && staged.live().is_ok());
            left.filter_map(|(node, _)| nodes.unstored_path(node)).collect()
        };
        if paths.is_empty() {
            return Ok(());
        }
        let named: Vec<_> =
            paths.iter().take(MAX_UNSTORED_PATHS).map(WorkspacePath::as_str).collect();
        let facts = [("writes", paths.len().into()), ("paths", named.into())];
        let facts = facts.map(|(name, value): (_, Value)| (name.to_owned(), value));
        self.gateway.note(&self.session, UNSTORED, facts.into()).map(drop)
    }

    /// Returns the limits that have caused an error.
    fn reached(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let (options, state) = (&self.options, self.lock());
        let count = |most: usize| u64::try_from(most).unwrap_or(u64::MAX);
        let all = [
            ("handles", count(options.handles), state.handles.was_full()),
            ("listBytes", options.lists, self.lists.was_full()),
            ("nodes", count(options.nodes), state.nodes.was_full()),
            ("openBytes", options.open, state.open_was_full()),
            ("stagedBytes", options.staged, self.budget.was_full()),
        ];
        all.into_iter().filter(|(.., reached)| *reached).map(|(bound, most, _)| (bound, most))
    }
}
