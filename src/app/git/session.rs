//! The sessions that had a private repository, and the commits imported from them, as the log has
//! them.

use std::{collections::HashMap, ops::ControlFlow, path::PathBuf};

use portcullis_audit::{Kind, RecordView};
use serde_json::{Value, json};

use crate::{
    app::{
        audit_log::{begun_log, undamaged},
        failure::{Context as _, Failure},
        opened::Opened,
    },
    git::ObjectId,
    policy::Policy,
    review::{Filter, ScanOrder},
};

const DOING: &str = "cannot look for the session in the audit log";
/// The fact of a `start` record that names the other workspaces of the process.
pub(crate) const OTHERS: &str = "otherWorkspaces";

/// The `start` record of a session that had a private repository.
#[derive(Debug, Clone)]
pub(crate) struct GitSession {
    pub(crate) session: String,
    pub(crate) agent: String,
    /// The sequence number of the record.
    pub(crate) record: u64,
    pub(crate) time: String,
    /// The location of its scratch directories.
    pub(crate) place: PathBuf,
    /// The other workspaces of the session, which its agent could change, too.
    others: Vec<PathBuf>,
    /// The operator's commit with which it began.
    pub(crate) commit: ObjectId,
    /// The policy under which it began.
    pub(crate) policy: PolicyIdentity,
}

/// The identity of a policy: its name, and the hash of its texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PolicyIdentity {
    pub(crate) name: Option<String>,
    pub(crate) sha256: Option<String>,
}

impl PolicyIdentity {
    /// Returns the identity of a policy.
    pub(crate) fn of(policy: &Policy) -> Self {
        let (name, sha256) = (policy.name().to_owned(), policy.sha256().to_owned());
        Self { name: Some(name), sha256: Some(sha256) }
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "name": self.name, "sha256": self.sha256 })
    }
}

impl GitSession {
    /// Parses a record; `None` if it is not the start of such a session.
    fn of(record: &RecordView<'_>) -> Option<Self> {
        let facts = record.facts.as_ref()?;
        let scratch = facts.get("scratch")?;
        let has_repository = scratch.get("repositories") == Some(&Value::Bool(true));
        let text = |value: &Value, name: &str| Some(value.get(name)?.as_str()?.to_owned());
        let begun = Self {
            session: record.session()?.to_owned(),
            agent: record.agent()?.to_owned(),
            record: record.seq,
            time: record.t.as_str().to_owned(),
            place: text(scratch, "directory")?.into(),
            others: facts.get(OTHERS).map(paths).unwrap_or_default(),
            commit: ObjectId::parse(&text(facts.get("git")?, "commit")?)?,
            policy: PolicyIdentity {
                name: record.fact("policyName").map(str::to_owned),
                sha256: record.policy_sha256().map(str::to_owned),
            },
        };
        (has_repository && record.kind == Kind::Start).then_some(begun)
    }

    /// Lists the sessions, the oldest first.
    pub(crate) fn all(opened: &Opened) -> Result<Vec<Self>, Failure> {
        let filter = Filter { kinds: vec!["start".to_owned()], ..Filter::default() };
        scan(opened, &filter, Self::of)
    }

    /// Returns the session whose `start` record has the number `record`; `None` if an import can build
    /// on no commit.
    pub(crate) fn at(opened: &Opened, record: u64) -> Result<Option<Self>, Failure> {
        let filter = Filter { records: Some(record..=record), ..Filter::default() };
        scan(opened, &filter, Self::of).map(|mut found| found.pop())
    }

    /// Returns which of the `earlier` sessions was the last to change each path, of those with the same
    /// private repository: their commits may be missing in the operator's.
    pub(crate) fn changed_before(
        &self,
        opened: &Opened,
        mut earlier: Vec<Self>,
    ) -> Result<HashMap<String, String>, Failure> {
        earlier.retain(|one| one.place == self.place);
        let Some(first) = earlier.first() else { return Ok(HashMap::new()) };
        let filter = Filter {
            records: Some(first.record..=self.record),
            kinds: vec!["intent".to_owned()],
            sessions: earlier.iter().map(|one| one.session.clone()).collect(),
            ..Filter::default()
        };
        let changed = scan(opened, &filter, |record| {
            let paths = [record.canonical_path(), record.to()];
            let paths: Vec<_> = paths.into_iter().flatten().map(str::to_owned).collect();
            Some((record.session()?.to_owned(), paths))
        })?;
        let each = |(session, paths): (String, Vec<String>)| {
            paths.into_iter().map(move |path| (path, session.clone()))
        };
        Ok(changed.into_iter().flat_map(each).collect())
    }

    /// Returns the paths that its agent could change beside the workspace.
    pub(crate) fn writable(&self, opened: &Opened) -> Result<Vec<PathBuf>, Failure> {
        let (ops, sessions) = (vec!["sandbox".to_owned()], vec![self.session.clone()]);
        let filter = Filter { ops, sessions, ..Filter::default() };
        let granted =
            scan(opened, &filter, |record| record.facts.as_ref()?.get("agentWrite").map(paths))?;
        Ok(granted.into_iter().flatten().chain(self.others.iter().cloned()).collect())
    }
}

/// Parses a list of paths.
fn paths(list: &Value) -> Vec<PathBuf> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|path| path.as_str().map(PathBuf::from)).collect()
}

/// Returns what `pick` makes of the records that match, the oldest first. There is no log before the
/// first start.
fn scan<T: Send>(
    opened: &Opened,
    filter: &Filter,
    pick: impl Fn(&RecordView<'_>) -> Option<T> + Sync,
) -> Result<Vec<T>, Failure> {
    let mut found = Vec::new();
    let Some(log) = begun_log(&opened.state_path.join("audit"))? else { return Ok(found) };
    let scanned = log
        .scan(
            filter,
            ScanOrder::Oldest,
            |record, _| pick(record),
            |one| {
                found.push(one);
                ControlFlow::Continue(())
            },
        )
        .or_fail(DOING)?;
    // What is missing could say what another session has changed.
    undamaged(&scanned)?;
    Ok(found)
}

/// Returns the names that imports gave to commits, by the names in the private
/// repositories.
pub(crate) fn imported(opened: &Opened) -> Result<HashMap<ObjectId, ObjectId>, Failure> {
    let filter = Filter { ops: vec!["commit".to_owned()], ..Filter::default() };
    let found = scan(opened, &filter, |record| {
        let id = |name: &str| ObjectId::parse(record.facts.as_ref()?.get(name)?.as_str()?);
        Some((id("from")?, id("commit")?))
    });
    Ok(found?.into_iter().collect())
}
