//! Redaction of text of agents and clients in records. Secrets are replaced as in a file that is
//! read, so that a reader of the log does not see them.

use std::{collections::BTreeMap, time::Instant};

use serde_json::Value;

use super::Gateway;
use crate::{model::WorkspacePath, policy::Subject};

impl Gateway {
    /// Returns `text` with placeholders in place of secrets; `None` if the rules did not search all
    /// of it, and nothing of it may be recorded.
    pub fn redact_text(&self, text: &str) -> Option<String> {
        self.redact_words(&[text])?.pop()
    }

    /// Redacts the words of a command line, of which two may be one secret.
    pub fn redact_words(&self, words: &[&str]) -> Option<Vec<String>> {
        let policy = self.policy();
        let Some(secrets) = policy.secrets() else {
            return Some(words.iter().map(|word| (*word).to_owned()).collect());
        };
        let begun = Instant::now();
        let overdue = || begun.elapsed() > secrets.max_scan_time();
        let path = WorkspacePath::root();
        secrets.redact_words(&Subject { path: &path, key: &self.key, overdue: &overdue }, words)
    }

    /// Redacts all texts in the facts of a record.
    pub(super) fn redact_facts(&self, facts: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
        let redact = |(name, value)| Some((name, self.redact_value(value)?));
        facts.into_iter().filter_map(redact).collect()
    }

    fn redact_value(&self, value: Value) -> Option<Value> {
        Some(match value {
            Value::String(text) => self.redact_text(&text)?.into(),
            Value::Array(values) => {
                if let Some(words) = values.iter().map(Value::as_str).collect::<Option<Vec<_>>>() {
                    return Some(self.redact_words(&words)?.into());
                }
                values.into_iter().filter_map(|value| self.redact_value(value)).collect()
            }
            Value::Object(fields) => {
                let redact = |(name, value)| Some((name, self.redact_value(value)?));
                Value::Object(fields.into_iter().filter_map(redact).collect())
            }
            other => other,
        })
    }
}
