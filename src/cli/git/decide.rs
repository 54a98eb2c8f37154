//! The gateway's decisions on the files of a commit.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use crate::{
    cli::local_gateway::LocalGateway,
    gateway::{Error, ErrorKind, Import, Request},
    git::{FileChange, PathAuthorizer},
    model::{
        Escaped, WorkspacePath, changes_direction, is_hidden_character,
        request::{Remove, Symlink, Write},
    },
};

/// Decides under the policy in force, and records the decisions.
pub(super) struct ImportAuthorizer<'a> {
    pub(super) local: &'a LocalGateway,
    /// The session that made the commits.
    pub(super) session: &'a str,
    /// The earlier session that was the last to change each path.
    pub(super) changed_before: &'a HashMap<String, String>,
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
        let link = change.link.map(str::to_owned);
        let request = Import { request: request(path), before, original, link };
        let import = json!({ "session": self.session, "commit": change.commit.to_string() });
        let facts: BTreeMap<String, Value> = BTreeMap::from([("import".to_owned(), import)]);
        let (gateway, approver) = (self.local.gateway(), self.local.approver());
        let reply = gateway.import(self.local.session(), &request, &facts, approver);
        reply.map(|reply| reply.output).map_err(|error| match error.kind() {
            // The operator's repository does not have the version that the commit replaces.
            ErrorKind::InvalidInput => words(&error) + &self.advice(change.path),
            _ => words(&error),
        })
    }

    /// Returns which session to import first, if an earlier one changed the path.
    fn advice(&self, path: &str) -> String {
        let session = self.changed_before.get(path).map(|session| Escaped(session));
        session.map_or_else(String::new, |session| {
            let import = format_args!("git import --session {session}");
            let import = self.local.options().command(import);
            format!(
                "; session {session} changed it before: import that first, with `{import}`, if it \
                 was not"
            )
        })
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

    fn is_invisible(&self, c: char) -> bool {
        // Those that end a line are displayed so.
        is_hidden_character(c) && !matches!(c, '\n' | '\u{2028}' | '\u{2029}')
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
