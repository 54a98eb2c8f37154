//! Searches: where they may begin, and what the log says of them.
//!
//! Each entry is decided on while the tree is walked ([`ops`](crate::ops)); here
//! is the decision about the start and the order of the records: the search,
//! then each file of which lines are disclosed, and only then the answer.

use portcullis_audit::Draft;

use super::{Output, Reply, error::Failure, record, turn::Turn};
use crate::{
    model::{Access, GlobQuery, GrepQuery, WorkspacePath},
    ops::{Disclosure, Start, prepare},
    policy::{Decision, Effect, ObjectKind, Query},
    workspace::{Follow, Permit, TempName},
};

/// The rule of a search whose start nothing allows.
const BENEATH: &str = "search.beneath";

impl Turn<'_> {
    /// Discloses the entries whose paths match.
    pub(super) fn glob(&self, draft: &mut Draft, query: &GlobQuery) -> Result<Reply, Failure> {
        let start = self.start(draft)?;
        let found = prepare::glob(&self.context(), &start, query)?;
        self.disclose(draft, found, Output::Found)
    }

    /// Discloses the lines that match.
    pub(super) fn grep(&self, draft: &mut Draft, query: &GrepQuery) -> Result<Reply, Failure> {
        let start = self.start(draft)?;
        let (sealed, disclosures) = prepare::grep(&self.context(), &start, query)?;
        let unnamed = draft.clone();
        record::facts(draft, sealed.facts());
        self.reservations.observe(draft);
        if !self.gate.search_files {
            let findings = disclosures.iter().map(|file| file.findings.len()).sum::<usize>();
            if findings > 0 {
                let findings = u64::try_from(findings).unwrap_or(u64::MAX);
                draft.counts.get_or_insert_default().insert("findings".to_owned(), findings);
            }
        }
        draft.result = Some("ok".to_owned());
        // Should the ledger refuse, there is nothing left to record.
        let grant = self.gate.ledger.record(std::mem::take(draft))?;
        if self.gate.search_files {
            let search = grant.receipt().seq;
            let drafts = disclosures.into_iter().map(|file| self.disclosed(&unnamed, file, search));
            self.gate.ledger.record_all(drafts)?;
        }
        let (matches, receipt) = sealed.disclose(grant);
        Ok(Reply { receipt, output: Output::Matches(matches) })
    }

    /// The record of one file of which the search `seq` discloses lines.
    fn disclosed(&self, search: &Draft, file: Disclosure, seq: u64) -> Draft {
        let (access, path) = (Access::Read, &file.path);
        let operation = self.operation.kind();
        let query = Query { agent: &self.session.agent, operation, access, path };
        let decision = self.policy.evaluate(&query);
        let mut draft = Draft {
            path: Some(record::shown(path)),
            resolved: None,
            bytes: Some(file.bytes),
            before: Some(file.whole),
            would_deny: decision.would_deny.then_some(true),
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

    /// Decides where the search may begin: by name before anything is looked
    /// at, then on what is there.
    pub(super) fn start(&self, draft: &mut Draft) -> Result<Start, Failure> {
        let path = self.operation.path();
        let decider = self.decider();
        let asked = decider.name(Access::List, path);
        if let Some(start) = self.elsewhere(draft, path, &asked)? {
            return Ok(start);
        }
        record::decide(draft, &asked);
        let resolved = self.gate.workspace.resolve(path, Follow::Yes)?;
        let mut decision = asked;
        if resolved.path() != path {
            record::resolve(draft, resolved.path());
            decision = decider.name(Access::List, resolved.path());
            if let Some(start) = self.elsewhere(draft, resolved.path(), &decision)? {
                return Ok(start);
            }
            record::decide(draft, &decision);
        }
        // A file that is searched by its name is a file that is read.
        let read = self.operation.kind().accesses().contains(&Access::Read)
            && resolved.object().kind != ObjectKind::Directory;
        let accesses = if read { &[Access::List, Access::Read][..] } else { &[Access::List] };
        for access in accesses {
            decider.facts(resolved.path(), &resolved.object(), *access)?;
        }
        if read {
            for path in [path, resolved.path()] {
                let decision = decider.name(Access::Read, path);
                if decision.is_ask() {
                    return Ok(Start::Asked);
                }
                record::decide(draft, &decision);
                decider.one(decision)?;
            }
        }
        let permit =
            Permit::new(resolved, decision).map_err(|denied| Failure::Denied(Box::new(denied)))?;
        Ok(Start::At(permit))
    }

    /// Where the search begins if not at what `path` names, which `decision` is
    /// about.
    fn elsewhere(
        &self,
        draft: &mut Draft,
        path: &WorkspacePath,
        decision: &Decision,
    ) -> Result<Option<Start>, Failure> {
        match decision.effect {
            Effect::Allow => {
                self.reservations.hear(decision);
                Ok(None)
            }
            Effect::Ask => {
                record::decide(draft, decision);
                // What has to be asked about is left out; the answer says so.
                draft.decision = Some(Effect::Allow.as_str().to_owned());
                Ok(Some(Start::Asked))
            }
            Effect::Deny => {
                let (operation, access) = (self.operation.kind(), Access::List);
                let query = Query { agent: &self.session.agent, operation, access, path };
                let beneath = decision.is_default_deny()
                    && !TempName::is_reserved(path)
                    && self.policy.may_allow_beneath(&query);
                if !beneath {
                    return Err(Failure::Denied(Box::new(decision.clone())));
                }
                let reason = "nothing allows this directory, but something beneath it";
                let decision = Decision {
                    effect: Effect::Allow,
                    rule: BENEATH.to_owned(),
                    place: None,
                    reason: Some(reason.to_owned()),
                    would_deny: false,
                };
                record::decide(draft, &decision);
                Ok(Some(Start::Beneath(path.clone())))
            }
        }
    }
}
