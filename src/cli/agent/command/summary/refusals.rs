//! Requests that were refused, grouped.

use std::collections::HashMap;

use serde_json::{Value, json};

/// Maximum of listed denials, and of failed writes; the rest is counted.
const MAX_REFUSALS: usize = 1_000;

/// Operation, path, new path and rule of a refusal, or its reason where there is no rule.
type RefusalKey = (String, String, Option<String>, Result<String, Option<String>>);

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
        let Refusal { operation, path, to, rule, reason, .. } = &refusal;
        let why = rule.clone().ok_or_else(|| reason.clone());
        let key = (operation.clone(), path.clone(), to.clone(), why);
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

    pub(super) fn count(&self) -> u64 {
        let times = self.listed.iter().map(|refusal| refusal.times);
        times.fold(self.more as u64, u64::saturating_add)
    }
}
