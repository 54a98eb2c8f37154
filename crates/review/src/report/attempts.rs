//! Requests that were denied, or that only observe mode allowed, as a table: those in one directory
//! are one row.

use std::{cmp::Reverse, collections::BTreeMap};

use super::{
    Denials,
    items::Denied,
    markup::{MAX_ROWS, Page, maybe, moment, path},
};
use crate::counted;

/// Attempts of one agent in one directory that one rule denied.
struct Row<'a> {
    first: &'a Denied,
    directory: &'a str,
    paths: u64,
    times: u64,
    last: &'a str,
}

/// Agent, operation, rule and directory.
type RowKey<'a> = (&'a Option<String>, &'a Option<String>, &'a Option<String>, &'a str);

/// Adds the table; `rest` is the command that lists what it leaves out.
pub(super) fn attempts(page: &mut Page, attempts: &Denials, rest: &str) {
    if attempts.listed.is_empty() {
        page.raw("<p>None.</p>\n");
        return;
    }
    let mut rows = rows(&attempts.listed);
    rows.truncate(MAX_ROWS);
    let shown: u64 = rows.iter().map(|row| row.times).sum();
    page.table(
        ["Times", "Agent", "Operation", "Path", "Rule", "Reason", "First record", "Last (UTC)"],
        rows.iter().map(|row| {
            [
                row.times.to_string(),
                maybe(row.first.agent.as_ref()),
                maybe(row.first.op.as_ref()),
                row.paths(),
                maybe(row.first.rule.as_ref()),
                maybe(row.first.reason.as_ref()),
                row.first.seq.to_string(),
                moment(row.last),
            ]
        }),
    );
    page.rest(attempts.total.saturating_sub(shown), rest);
}

/// Returns the rows, those with most records first.
fn rows(listed: &[Denied]) -> Vec<Row<'_>> {
    let mut rows: BTreeMap<RowKey<'_>, Row<'_>> = BTreeMap::new();
    for denied in listed {
        let directory = directory(denied);
        let key = (&denied.agent, &denied.op, &denied.rule, directory);
        let row = rows.entry(key).or_insert(Row {
            first: denied,
            directory,
            paths: 0,
            times: 0,
            last: &denied.last,
        });
        row.paths += 1;
        row.times += denied.times;
        row.last = row.last.max(&denied.last);
        if denied.seq < row.first.seq {
            row.first = denied;
        }
    }
    let mut rows = Vec::from_iter(rows.into_values());
    rows.sort_by_key(|row| (Reverse(row.times), row.first.seq));
    rows
}

/// Returns the directory of a path with its last `/`, empty for the workspace root; of a connection
/// host and port.
fn directory(denied: &Denied) -> &str {
    let path = denied.path.as_deref().unwrap_or_default();
    match (denied.op.as_deref(), path.rfind('/')) {
        (Some("connect"), _) => path,
        (_, Some(at)) => path.get(..=at).unwrap_or(path),
        (_, None) => "",
    }
}

impl Row<'_> {
    /// Returns the one path, or the directory and the number of paths in it.
    fn paths(&self) -> String {
        let Denied { path: from, to, .. } = self.first;
        match (self.paths, to) {
            (1, None) => path(from.as_ref()),
            (1, Some(to)) => format!("{} → {}", path(from.as_ref()), path(Some(to))),
            (count, _) => {
                let directory = match self.directory {
                    "" => "./".to_owned(),
                    directory => directory.to_owned(),
                };
                let count = counted(count, "path");
                format!("{} <span class=\"none\">({count})</span>", path(Some(&directory)))
            }
        }
    }
}
