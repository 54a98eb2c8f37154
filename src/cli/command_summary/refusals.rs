//! Requests that were refused, grouped.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::app::connection_help::Help;

/// Maximum of listed denials, and of failed changes; the rest is counted.
const MAX_REFUSALS: usize = 1_000;

/// Operation, path, new path or request, credential, and rule of a refusal, or its reason where there
/// is no rule.
type RefusalKey = (String, String, Option<String>, Option<String>, Result<String, Option<String>>);

/// Requests that were refused, grouped.
#[derive(Default)]
pub(super) struct Refusals {
    pub(super) listed: Vec<Refusal>,
    /// The index in `listed`.
    known: HashMap<RefusalKey, usize>,
    /// The number of those that are not listed.
    pub(super) more: usize,
}

/// A refused request, with the number of its repetitions.
pub(super) struct Refusal {
    pub(super) record: u64,
    pub(super) operation: String,
    pub(super) path: String,
    /// The new path of a rename.
    pub(super) to: Option<String>,
    /// The method and path of a request to a credential's host.
    pub(super) request: Option<String>,
    /// The id of the credential of a connection.
    pub(super) credential: Option<String>,
    /// Help on a denied connection.
    pub(super) help: Option<Help>,
    pub(super) rule: Option<String>,
    pub(super) reason: Option<String>,
    /// The id of the last approval asked for, without which the request was denied.
    pub(super) question: Option<String>,
    pub(super) times: u64,
}

impl Refusal {
    pub(super) fn object(&self) -> Value {
        json!({
            "record": self.record,
            "operation": self.operation,
            "path": self.path,
            "to": self.to,
            "request": self.request,
            "credential": self.credential,
            "rule": self.rule,
            "reason": self.reason,
            "question": self.question,
            "times": self.times,
        })
    }
}

impl Refusals {
    /// Adds a refusal, or counts it as the repetition of an earlier one.
    pub(super) fn add(&mut self, refusal: Refusal) {
        let Refusal { operation, path, to, request, credential, rule, reason, .. } = &refusal;
        let why = rule.clone().ok_or_else(|| reason.clone());
        // Only a rename has a new path, and only a connection a request.
        let to = to.clone().or_else(|| request.clone());
        let key = (operation.clone(), path.clone(), to, credential.clone(), why);
        let at = self.known.get(&key).copied();
        if let Some(known) = at.and_then(|at| self.listed.get_mut(at)) {
            known.times += 1;
            known.question = refusal.question.or(known.question.take());
        } else if self.listed.len() == MAX_REFUSALS {
            self.more += 1;
        } else {
            self.known.insert(key, self.listed.len());
            self.listed.push(refusal);
        }
    }

    /// Returns the help on denied connections, of each kind once, with the host that it is about.
    pub(super) fn help(&self) -> Vec<(&str, &Help)> {
        let mut all: Vec<(&str, &Help)> = Vec::new();
        for refusal in &self.listed {
            if let Some(help) = &refusal.help
                && !all.iter().any(|known| *known == (&*refusal.path, help))
            {
                all.push((&refusal.path, help));
            }
        }
        all
    }

    pub(super) fn count(&self) -> u64 {
        let times = self.listed.iter().map(|refusal| refusal.times);
        times.fold(self.more as u64, u64::saturating_add)
    }
}
