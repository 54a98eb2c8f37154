//! Searches: their start, and their records.
//!
//! Each entry is decided on while the tree is walked ([`ops`](crate::ops)). This module decides on
//! the start and orders the records: the search, then each file of which lines are disclosed, and
//! only then the reply.

use portcullis_audit::Draft;

use super::{error::Failure, record, reply::Attempt, request::Request, transaction::Transaction};
use crate::{
    model::{
        Access, WorkspacePath,
        request::{Glob, Grep},
    },
    ops::{Disclosure, Matches, SearchResult, Start, prepare},
    policy::{Decision, ObjectKind, Policy, Query},
    workspace::{Follow, Permit, TempName, VisitedName},
};

impl Request for Glob {
    type Output = SearchResult;

    fn run<'a>(
        &'a self,
        transaction: &Transaction<'a>,
        draft: &mut Draft,
    ) -> Attempt<SearchResult> {
        let start = Search(transaction).start(draft)?;
        let found = prepare::glob(&transaction.context, &start, &self.query)?;
        transaction.disclose(draft, found)
    }
}

impl Request for Grep {
    type Output = Matches;

    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft) -> Attempt<Matches> {
        let (search, gateway) = (Search(transaction), transaction.gateway);
        let start = search.start(draft)?;
        let (sealed, disclosures) = prepare::grep(&transaction.context, &start, &self.query)?;
        let unnamed = draft.clone();
        record::facts(draft, sealed.facts());
        transaction.obligations.observe(draft);
        if !gateway.search_files {
            let findings = disclosures.iter().map(|file| file.findings.len()).sum::<usize>();
            if findings > 0 {
                let findings = u64::try_from(findings).unwrap_or(u64::MAX);
                draft.counts.get_or_insert_default().insert("findings".to_owned(), findings);
            }
        }
        transaction.open(draft, sealed, |receipt| {
            let file = |file| search.disclosed(&unnamed, file, receipt.seq);
            match gateway.search_files {
                true => gateway.audit_log.record_all(disclosures.into_iter().map(file)),
                false => Ok(()),
            }
        })
    }
}

/// A search or a subscription whose start is decided on.
pub(super) struct Search<'t, 'a>(pub(super) &'t Transaction<'a>);

impl Search<'_, '_> {
    /// Returns the record of one file of which the search `seq` discloses lines.
    fn disclosed(&self, search: &Draft, file: Disclosure, seq: u64) -> Draft {
        let (access, path) = (Access::Read, &file.path);
        let operation = self.0.operation.kind();
        let query = Query { agent: &self.0.session.agent, operation, access, path };
        let decision = self.0.context.policy.evaluate(&query);
        let mut draft = Draft {
            path: Some(record::shown(path)),
            resolved: None,
            bytes: Some(file.bytes),
            before: Some(file.whole),
            would_deny: decision.would_deny().then_some(true),
            result: Some("ok".to_owned()),
            ..search.clone()
        };
        record::decide(&mut draft, &decision);
        let counts = draft.counts.get_or_insert_default();
        counts.insert("lines".to_owned(), file.lines);
        counts.insert("matches".to_owned(), file.matches);
        draft.facts.get_or_insert_default().insert("search".to_owned(), seq.into());
        record::findings(&mut draft, file.findings);
        draft
    }

    /// Decides where the search may start: by name before anything is looked at, then by the object
    /// there.
    pub(super) fn start(&self, draft: &mut Draft) -> Result<Start, Failure> {
        let path = self.0.operation.path();
        let authorizer = self.0.authorizer();
        let asked = authorizer.decide_name(Access::List, path);
        if let Some(start) = self.elsewhere(draft, path, &asked)? {
            return Ok(start);
        }
        record::decide(draft, &asked);
        let resolved =
            self.0.gateway.workspace.resolve_with(path, Follow::Yes, &mut |visited| {
                authorizer.follows(&[Access::List], beginning(visited))
            })?;
        let mut decision = asked;
        if resolved.path() != path {
            record::resolve(draft, resolved.path());
            decision = authorizer.decide_name(Access::List, resolved.path());
            if let Some(start) = self.elsewhere(draft, resolved.path(), &decision)? {
                return Ok(start);
            }
            record::decide(draft, &decision);
        }
        // A search that starts at a file reads that file.
        let read = self.0.operation.kind().accesses().contains(&Access::Read)
            && resolved.object().kind != ObjectKind::Directory;
        let accesses = if read { &[Access::List, Access::Read][..] } else { &[Access::List] };
        authorizer.decide_object_accesses(resolved.path(), &resolved.object(), accesses)?;
        if read {
            for path in [path, resolved.path()] {
                let decision = authorizer.decide_name(Access::Read, path);
                if decision.is_ask() {
                    return Ok(Start::Asked);
                }
                record::decide(draft, &decision);
                authorizer.require(decision)?;
            }
        }
        Ok(Start::At(Permit::new(resolved, decision)?))
    }

    /// Returns the start of the search if it is not the object at `path`; `decision` is about
    /// `path`.
    fn elsewhere(
        &self,
        draft: &mut Draft,
        path: &WorkspacePath,
        decision: &Decision,
    ) -> Result<Option<Start>, Failure> {
        if decision.is_allow() {
            self.0.obligations.add(decision);
            return Ok(None);
        }
        let (operation, access) = (self.0.operation.kind(), Access::List);
        let query = Query { agent: &self.0.session.agent, operation, access, path };
        let begun = begun(self.0.context.policy, &query, decision.clone());
        if !begun.is_allow() {
            return Err(begun.into());
        }
        record::decide(draft, &begun);
        Ok(Some(match decision.is_ask() {
            true => Start::Asked,
            false => Start::Beneath(path.clone()),
        }))
    }
}

/// Changes how a component on the way to the start of a search is decided: a search that starts
/// elsewhere does so whatever lies there, and nobody is asked.
pub(super) fn beginning(visited: VisitedName<'_>) -> VisitedName<'_> {
    match visited {
        VisitedName::Name(name) => VisitedName::Left(name),
        visited => visited,
    }
}

/// Returns the decision on the start of a search or a subscription; `decision` is that of its name.
pub(super) fn begun(policy: &Policy, query: &Query<'_>, decision: Decision) -> Decision {
    if TempName::is_reserved(query.path) { decision } else { policy.search_root(query, decision) }
}
