//! The gateway's decisions on the files of a commit.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    cli::local_gateway::LocalGateway,
    gateway::{Error, Import, Request},
    git::{FileChange, PathAuthorizer},
    model::{
        WorkspacePath, changes_direction,
        request::{Remove, Symlink, Write},
    },
};

/// Decides under the policy in force, and records the decisions.
pub(super) struct ImportAuthorizer<'a> {
    pub(super) local: &'a LocalGateway,
    /// The session that made the commits.
    pub(super) session: &'a str,
}

impl ImportAuthorizer<'_> {
    fn decide<R>(
        &self,
        change: &FileChange<'_>,
        request: impl FnOnce(WorkspacePath) -> R,
    ) -> Result<Option<Vec<u8>>, String>
    where
        Import<R>: Request<Output = Option<Vec<u8>>>,
    {
        let path = WorkspacePath::parse(change.path).map_err(|error| error.to_string())?;
        let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
        let (before, original) = (owned(change.before), owned(change.original));
        let request = Import { request: request(path), before, original };
        let import = json!({ "session": self.session, "commit": change.commit.to_string() });
        let facts: BTreeMap<String, Value> = BTreeMap::from([("import".to_owned(), import)]);
        let (gateway, approver) = (self.local.gateway(), self.local.approver());
        let reply = gateway.import(self.local.session(), &request, &facts, approver);
        reply.map(|reply| reply.output).map_err(|error| words(&error))
    }
}

/// Describes an error, with the rule.
fn words(error: &Error) -> String {
    match (error.rule(), error.reason()) {
        (Some(rule), Some(reason)) => format!("denied by rule `{rule}`: {reason}"),
        (Some(rule), None) => format!("denied by rule `{rule}`"),
        _ => error.to_string(),
    }
}

impl PathAuthorizer for ImportAuthorizer<'_> {
    fn text(&mut self, text: &str) -> Result<(), String> {
        let is_unseen =
            |c: char| (c.is_control() && !matches!(c, '\n' | '\t')) || changes_direction(c);
        if text.contains(is_unseen) {
            return Err("its message or author has control characters or ones that change the \
                        direction of text"
                .to_owned());
        }
        Ok(())
    }

    fn write(&mut self, change: &FileChange<'_>, content: &[u8]) -> Result<Vec<u8>, String> {
        let content = content.to_vec();
        let stored = self.decide(change, |path| Write { path, content, mode: change.mode })?;
        stored.ok_or_else(|| "the gateway gave no content".to_owned())
    }

    fn link(&mut self, change: &FileChange<'_>, target: &str) -> Result<(), String> {
        let target = target.to_owned();
        self.decide(change, |path| Symlink { path, target }).map(drop)
    }

    fn remove(&mut self, change: &FileChange<'_>) -> Result<(), String> {
        self.decide(change, |path| Remove { path, recursive: false }).map(drop)
    }
}
