//! The sessions whose commits can be imported.

use std::{collections::HashMap, ops::ControlFlow, path::PathBuf};

use serde_json::{Value, json};

use crate::{
    app::{
        failure::{Context as _, Failure},
        opened::Opened,
    },
    cli::gateway_options::GatewayOptions,
    git::ObjectId,
    model::Escaped,
    policy::Policy,
    review::{Filter, Log, ScanOrder},
};

const DOING: &str = "cannot look for the session in the audit log";

/// The `start` record of a session that had a private repository.
#[derive(Debug, Clone)]
pub(super) struct GitSession {
    pub(super) session: String,
    pub(super) agent: String,
    /// The sequence number of the record.
    pub(super) record: u64,
    pub(super) time: String,
    /// The location of its scratch directories.
    pub(super) place: PathBuf,
    /// The operator's commit with which it began.
    pub(super) commit: ObjectId,
    /// The policy under which it began.
    pub(super) policy: PolicyIdentity,
}

/// The identity of a policy: its name, and the hash of its texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PolicyIdentity {
    pub(super) name: Option<String>,
    pub(super) sha256: Option<String>,
}

impl PolicyIdentity {
    /// Returns the identity of a policy.
    pub(super) fn of(policy: &Policy) -> Self {
        let (name, sha256) = (policy.name().to_owned(), policy.sha256().to_owned());
        Self { name: Some(name), sha256: Some(sha256) }
    }

    pub(super) fn json(&self) -> Value {
        json!({ "name": self.name, "sha256": self.sha256 })
    }
}

/// Lists the sessions, the oldest first.
pub(super) fn all(opened: &Opened) -> Result<Vec<GitSession>, Failure> {
    let log = Log::open(&opened.state_path.join("audit")).or_fail(DOING)?;
    let filter = Filter { kinds: vec!["start".to_owned()], ..Filter::default() };
    let mut found = Vec::new();
    log.scan(
        &filter,
        ScanOrder::Oldest,
        |record, _| {
            let facts = record.facts.as_ref()?;
            let scratch = facts.get("scratch")?;
            let has_repository = scratch.get("repositories") == Some(&Value::Bool(true));
            let text = |value: &Value, name: &str| Some(value.get(name)?.as_str()?.to_owned());
            let begun = GitSession {
                session: record.session()?.to_owned(),
                agent: record.agent()?.to_owned(),
                record: record.seq,
                time: record.t.as_str().to_owned(),
                place: text(scratch, "directory")?.into(),
                commit: ObjectId::parse(&text(facts.get("git")?, "commit")?)?,
                policy: PolicyIdentity {
                    name: record.fact("policyName").map(str::to_owned),
                    sha256: record.policy_sha256().map(str::to_owned),
                },
            };
            has_repository.then_some(begun)
        },
        |begun| {
            found.push(begun);
            ControlFlow::Continue(())
        },
    )
    .or_fail(DOING)?;
    Ok(found)
}

/// Returns the names that imports gave to commits, by the names in the private
/// repositories.
pub(super) fn imported(opened: &Opened) -> Result<HashMap<ObjectId, ObjectId>, Failure> {
    let log = Log::open(&opened.state_path.join("audit")).or_fail(DOING)?;
    let filter = Filter { ops: vec!["commit".to_owned()], ..Filter::default() };
    let mut found = HashMap::new();
    log.scan(
        &filter,
        ScanOrder::Oldest,
        |record, _| {
            let id = |name: &str| ObjectId::parse(record.facts.as_ref()?.get(name)?.as_str()?);
            Some((id("from")?, id("commit")?))
        },
        |(from, commit)| {
            found.insert(from, commit);
            ControlFlow::Continue(())
        },
    )
    .or_fail(DOING)?;
    Ok(found)
}

/// Returns the paths that the session's agent could change beside the workspace.
pub(super) fn writable(opened: &Opened, session: &str) -> Result<Vec<String>, Failure> {
    let log = Log::open(&opened.state_path.join("audit")).or_fail(DOING)?;
    let (ops, sessions) = (vec!["sandbox".to_owned()], vec![session.to_owned()]);
    let filter = Filter { ops, sessions, ..Filter::default() };
    let mut found = Vec::new();
    log.scan(
        &filter,
        ScanOrder::Oldest,
        |record, _| Some(record.facts.as_ref()?.get("agentWrite")?.as_array()?.clone()),
        |paths| {
            found.extend(paths.iter().filter_map(|path| path.as_str().map(str::to_owned)));
            ControlFlow::Continue(())
        },
    )
    .or_fail(DOING)?;
    Ok(found)
}

/// Returns the session whose identifier begins with `wanted`; `last` is the newest.
pub(super) fn find(opened: &Opened, wanted: &str) -> Result<GitSession, Failure> {
    let mut found = all(opened)?;
    let list = || {
        let list = GatewayOptions::of(opened).command("git import --list");
        format!("`{list}` lists them")
    };
    if wanted == "last" {
        let none = "no session had a private git repository and a commit to begin with";
        return found.pop().ok_or_else(|| {
            Failure::new(none).help(
                "an agent has one under `portcullis run` and `exec` where the \
                workspace has a git repository with a commit",
            )
        });
    }
    found.retain(|begun| begun.session.starts_with(wanted));
    match (found.pop(), found.is_empty()) {
        (Some(begun), true) => Ok(begun),
        (None, _) => Err(Failure::new(format_args!(
            "no session with a private git repository begins with `{}`",
            Escaped(wanted)
        ))
        .help(list())),
        (Some(_), false) => Err(Failure::new(format_args!(
            "more than one session begins with `{}`",
            Escaped(wanted)
        ))
        .help(list())),
    }
}
