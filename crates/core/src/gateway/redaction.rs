//! Redaction of text of agents and clients in records. Secrets are replaced as in a file that is
//! read, so that a reader of the log does not see them.

use std::{borrow::Cow, collections::BTreeMap, time::Instant};

use serde_json::Value;

use super::Gateway;
use crate::{model::WorkspacePath, policy::Subject};

/// The beginning of tokens that the gateway issues, by which they are found in texts.
pub const TOKEN_PREFIX: &str = "portcullis-token-";
/// The placeholder of such a token.
const PLACEHOLDER: &str = "[portcullis token]";

impl Gateway {
    /// Returns `text` with placeholders in place of secrets; `None` if the rules did not search all
    /// of it, and nothing of it may be recorded.
    pub fn redact_text(&self, text: &str) -> Option<String> {
        self.redact_words(&[text])?.pop()
    }

    /// Redacts the words of a command line, of which two may be one secret.
    pub fn redact_words(&self, words: &[&str]) -> Option<Vec<String>> {
        let policy = self.policy();
        let words: Vec<_> = words.iter().map(|word| without_tokens(word)).collect();
        let Some(secrets) = policy.secrets() else {
            return Some(words.into_iter().map(Cow::into_owned).collect());
        };
        let words: Vec<_> = words.iter().map(|word| &**word).collect();
        let begun = Instant::now();
        let overdue = || begun.elapsed() > secrets.max_scan_time();
        let path = WorkspacePath::root();
        secrets.redact_words(&Subject { path: &path, key: &self.key, overdue: &overdue }, &words)
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

/// Returns a text with placeholders in place of the gateway's tokens.
fn without_tokens(text: &str) -> Cow<'_, str> {
    let Some((before, after)) = text.split_once(TOKEN_PREFIX) else { return text.into() };
    let mut redacted = before.to_owned();
    for part in after.split(TOKEN_PREFIX) {
        redacted.push_str(PLACEHOLDER);
        redacted.push_str(part.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
    }
    redacted.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_wherever_they_are() {
        let token = format!("{TOKEN_PREFIX}{}", "0123456789abcdef".repeat(2));
        assert_eq!(without_tokens("A=b"), "A=b");
        assert_eq!(without_tokens(&format!("TOKEN={token}")), "TOKEN=[portcullis token]");
        let json = format!(r#"{{"a":"{token}","b":"{token}"}}"#);
        let expected = r#"{"a":"[portcullis token]","b":"[portcullis token]"}"#;
        assert_eq!(without_tokens(&json), expected);
    }
}
