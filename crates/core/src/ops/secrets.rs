//! Checks of content that the operations share: what a reader gets of it, and what is stored of a
//! writer's.
//!
//! This module reads the clock for the policy, which reads none.

use std::{
    borrow::Cow,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use super::{Context, Error};
use crate::{
    model::{Access, WorkspacePath},
    policy::{Disclosed, SecretFinding, Secrets, Subject, WithFindings},
};

/// The secrets that were found while an operation was prepared, for its record. They are separate
/// from its result because a denial has them too.
#[derive(Debug, Default)]
pub(crate) struct Findings(Mutex<Vec<SecretFinding>>);

impl Findings {
    /// Takes the findings so far.
    pub(crate) fn take(&self) -> Vec<SecretFinding> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the findings of a part of the operation over.
    pub(super) fn take_over(&self, part: &Self) {
        self.add(part.take());
    }

    fn add(&self, findings: Vec<SecretFinding>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(findings);
    }
}

impl Context<'_> {
    /// Returns what a reader gets of `whole`, the complete content of the file at `path`.
    ///
    /// # Errors
    /// [`Error::Refused`] when the policy denies the content.
    pub(super) fn disclose(
        &self,
        path: &WorkspacePath,
        whole: Vec<u8>,
    ) -> Result<Disclosed, Error> {
        self.check(Access::Read, path, &whole)?;
        self.view(path, whole, true)
    }

    /// Discloses as [`disclose`](Self::disclose) a content that the caller has checked to be text
    /// and within the size limit, which are the policy's only other conditions; for a sequence of
    /// contents.
    ///
    /// # Errors
    /// As [`disclose`](Self::disclose).
    pub(super) fn disclose_text(
        &self,
        path: &WorkspacePath,
        whole: Vec<u8>,
    ) -> Result<Disclosed, Error> {
        self.view(path, whole, true)
    }

    /// Discloses as [`disclose`](Self::disclose) for an operation that continues with
    /// [`store`](Self::store), which adds the findings.
    ///
    /// # Errors
    /// As [`disclose`](Self::disclose).
    pub(super) fn seen(&self, path: &WorkspacePath, whole: Vec<u8>) -> Result<Disclosed, Error> {
        self.check(Access::Read, path, &whole)?;
        self.view(path, whole, false)
    }

    fn view(
        &self,
        path: &WorkspacePath,
        whole: Vec<u8>,
        always_record: bool,
    ) -> Result<Disclosed, Error> {
        let Some(secrets) = self.policy.secrets() else {
            return Ok(Disclosed { bytes: whole, redacted: false, whole: None });
        };
        let WithFindings { findings, verdict } =
            self.timed(secrets, path, |subject| secrets.disclose(subject, whole))?;
        if always_record || verdict.is_err() {
            self.findings.add(findings);
        }
        verdict.map_err(Error::Refused)
    }

    /// Returns what a person is shown of a content: what a reader gets, if anything.
    pub(crate) fn shown(&self, path: &WorkspacePath, whole: Vec<u8>) -> Option<Vec<u8>> {
        let Some(secrets) = self.policy.secrets() else { return Some(whole) };
        let judged = self.timed(secrets, path, |subject| secrets.disclose(subject, whole)).ok()?;
        judged.verdict.ok().map(|disclosed| disclosed.bytes)
    }

    /// Returns what is stored when `text` replaces `original`: `text` with secrets in place of its
    /// placeholders.
    ///
    /// # Errors
    /// [`Error::Refused`] when the policy denies the result.
    pub(super) fn store<'t>(
        &self,
        path: &WorkspacePath,
        original: Option<&[u8]>,
        text: Cow<'t, [u8]>,
    ) -> Result<Cow<'t, [u8]>, Error> {
        self.check(Access::Write, path, &text)?;
        let Some(secrets) = self.policy.secrets() else { return Ok(text) };
        let WithFindings { findings, verdict } =
            self.timed(secrets, path, |subject| secrets.store(subject, original, text))?;
        self.findings.add(findings);
        let result = verdict.map_err(Error::Refused)?;
        self.check(Access::Write, path, &result)?;
        Ok(result)
    }

    /// Decides on a text as if nothing else were stored.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    pub(super) fn store_alone(&self, path: &WorkspacePath, text: &[u8]) -> Result<(), Error> {
        self.check(Access::Write, path, text)?;
        let Some(secrets) = self.policy.secrets() else { return Ok(()) };
        let WithFindings { findings, verdict } =
            self.timed(secrets, path, |subject| secrets.store(subject, None, text.into()))?;
        verdict.map(drop).map_err(|decision| {
            // Otherwise they are found again in the complete content.
            self.findings.add(findings);
            Error::Refused(decision)
        })
    }

    /// Returns a denial that depends on `old`, as an agent that may read the path gets it: where
    /// the content is denied to readers, it reveals no more than that denial.
    pub(super) fn for_reader(
        &self,
        path: &WorkspacePath,
        old: Option<&[u8]>,
        error: Error,
    ) -> Error {
        let (Error::Refused(decision), Some(old)) = (&error, old) else { return error };
        if !decision.is_about_text() {
            // The reason is size or kind, which a list or read reveals too.
            return error;
        }
        if let Err(refused) = self.check(Access::Read, path, old) {
            return refused;
        }
        let Some(secrets) = self.policy.secrets() else { return error };
        let read = self.timed(secrets, path, |subject| secrets.disclose(subject, old.to_vec()));
        match read {
            Ok(read) => read.verdict.err().map_or(error, Error::Refused),
            Err(given_up) => given_up,
        }
    }

    /// True if storing `text` needs the content that it replaces.
    pub(super) fn needs_original(&self, text: &[u8]) -> bool {
        self.policy.secrets().is_some_and(|secrets| secrets.needs_original(text))
    }

    /// Decides whether a file of this content may have its new name.
    ///
    /// # Errors
    /// [`Error::Refused`] when it may not.
    pub(super) fn check_renamed(
        &self,
        from: &WorkspacePath,
        to: &WorkspacePath,
        content: &[u8],
    ) -> Result<(), Error> {
        let Some(secrets) = self.policy.secrets() else { return Ok(()) };
        self.timed(secrets, from, |subject| secrets.renamed(subject, to, content))?
            .map_err(Error::Refused)
    }

    /// Runs `judge` within the policy's time limit, and until the follower withdraws the request.
    fn timed<T>(
        &self,
        secrets: &Secrets,
        path: &WorkspacePath,
        judge: impl FnOnce(&Subject<'_>) -> T,
    ) -> Result<T, Error> {
        let (begun, follower) = (Instant::now(), self.follower);
        let overdue = || begun.elapsed() > secrets.max_scan_time() || follower.is_given_up();
        let judged = judge(&Subject { path, key: self.key, overdue: &overdue });
        // The result is incomplete then.
        if follower.is_given_up() { Err(Error::Cancelled) } else { Ok(judged) }
    }
}
