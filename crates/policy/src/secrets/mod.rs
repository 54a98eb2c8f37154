//! Secrets and invisible text in content: finding them, hiding them from readers, and restoring
//! them when content that was read is written.
//!
//! Pure: the key and the check of the time are arguments. [`Secrets`] is the interface for
//! operations. Rules come from the policy's own `[[secrets.rules]]` and `[files.invisible]`, and
//! from rule files.

mod allowlist;
mod consequence;
mod content_check;
mod dialect;
mod expression;
mod extent;
mod gitleaks;
mod invisible;
mod key;
mod keywords;
mod native;
mod restore;
mod rule;
mod scanner;
mod search;
mod text;
mod view;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub use consequence::{OnRead, OnWrite};
pub use content_check::{Disclosed, SecretFinding, SecretSpans, Subject, WithFindings};
pub use expression::every_match_has_keyword;
pub use extent::{begins_at_word_boundary, ends_at_word_boundary, leaves_value};
pub use key::SecretKey;

pub(super) use gitleaks::parse as parse_gitleaks;
pub(super) use invisible::Invisible;
pub(super) use native::{RuleText, Unusable, compile as compile_rule};
pub(super) use rule::SecretRule;

use std::{sync::Arc, time::Duration};

use super::{
    SourceLocation,
    layered::{Layered, least},
    model::WorkspacePath,
};
use scanner::Scanner;

/// Maximum number of rules in one file.
pub(super) const MAX_RULES: usize = 2_000;
/// Maximum number of estimated states of all expressions in one file: each may be acceptable by
/// itself, while two thousand of them exceed the memory of a machine.
pub(super) const MAX_WEIGHT: usize = 3_000_000;

/// The settings as files state them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StatedSecrets {
    pub(super) on_read: Option<Layered<OnRead>>,
    pub(super) on_write: Option<Layered<OnWrite>>,
    /// The time in milliseconds.
    pub(super) max_scan_time: Option<Layered<u64>>,
}

/// The defaults where there are rules.
const DEFAULTS: SecretSettings = SecretSettings {
    on_read: OnRead::Deny,
    on_write: OnWrite::Deny,
    max_scan_time: Duration::from_secs(10),
};

impl StatedSecrets {
    /// Returns the settings as stated by the file of layer `layer`.
    pub(super) fn in_layer(self, layer: usize) -> Self {
        fn set<T>(layered: Option<Layered<T>>, layer: usize) -> Option<Layered<T>> {
            layered.map(|layered| Layered {
                location: layered.location.map(|(_, line)| (layer, line)),
                ..layered
            })
        }
        Self {
            on_read: set(self.on_read, layer),
            on_write: set(self.on_write, layer),
            max_scan_time: set(self.max_scan_time, layer),
        }
    }

    /// Returns the stricter of both, setting by setting.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            on_read: least(self.on_read, other.on_read),
            on_write: least(self.on_write, other.on_write),
            max_scan_time: least(self.max_scan_time, other.max_scan_time),
        }
    }

    /// Fills in what is not stated.
    fn complete(self, unstated: SecretSettings) -> SecretSettings {
        let on_read = self.on_read.map_or(unstated.on_read, |layered| layered.value);
        let on_write = match on_read {
            // An agent that may write secrets into a file whose secrets it sees as placeholders
            // could compare guesses with them.
            OnRead::Redact => OnWrite::Deny,
            _ => self.on_write.map_or(unstated.on_write, |layered| layered.value),
        };
        let time = self.max_scan_time.map(|layered| Duration::from_millis(layered.value));
        let max_scan_time = time.unwrap_or(unstated.max_scan_time);
        SecretSettings { on_read, on_write, max_scan_time }
    }

    /// Returns the settings as bounds, also of a policy without rules: one that extends it may have
    /// some. What is not stated bounds nothing where there are no rules.
    pub(super) fn bounds(self, secrets: Option<&Secrets>) -> SecretSettings {
        let finds = |rule: &Arc<SecretRule>| rule.invisible.is_none();
        let finds_secrets =
            secrets.is_some_and(|secrets| secrets.scanner.rules().iter().any(finds));
        let mut unstated = DEFAULTS;
        if !finds_secrets {
            (unstated.on_read, unstated.on_write) = (OnRead::Warn, OnWrite::Warn);
        }
        if secrets.is_none() {
            unstated.max_scan_time = Duration::MAX;
        }
        self.complete(unstated)
    }
}

/// The settings for findings.
#[derive(Debug, Clone, Copy)]
pub struct SecretSettings {
    /// `secrets.onRead`.
    pub on_read: OnRead,
    /// `secrets.onWrite`.
    pub on_write: OnWrite,
    /// `secrets.maxScanTime`.
    pub max_scan_time: Duration,
}

/// The compiled rules about secrets in content; a policy without any has none.
#[derive(Debug)]
pub struct Secrets {
    scanner: Scanner,
    settings: SecretSettings,
    max_scan_place: Option<SourceLocation>,
}

impl Secrets {
    /// Returns the rules, each with everything that affects its findings, and whether it only
    /// warns, for a comparison of two policies.
    pub fn meanings(&self) -> BTreeSet<(String, String, bool)> {
        let rules = self.scanner.rules().iter();
        rules.map(|rule| (rule.decision_id(), rule.meaning(), rule.warn_only)).collect()
    }

    /// Combines rules and settings; `None` if there are no rules. `file` returns the file of a
    /// layer.
    ///
    /// # Errors
    /// If there are too many keywords for a search.
    pub(super) fn new(
        rules: Vec<Arc<SecretRule>>,
        stated: StatedSecrets,
        file: impl Fn(usize) -> Option<String>,
    ) -> Result<Option<Self>, String> {
        if rules.is_empty() {
            return Ok(None);
        }
        let location = stated.max_scan_time.and_then(|layered| layered.location);
        Ok(Some(Self {
            scanner: Scanner::new(rules)?,
            settings: stated.complete(DEFAULTS),
            max_scan_place: location
                .and_then(|(layer, line)| Some(SourceLocation { file: file(layer)?, line })),
        }))
    }

    /// Returns the consequence for reads of the file at `path` if it contains invisible text.
    pub(crate) fn on_invisible(&self, path: &WorkspacePath) -> Option<OnRead> {
        let rules = self.scanner.rules().iter().filter_map(|rule| rule.invisible.as_ref());
        rules.filter(|rule| rule.applies(path.as_str())).map(|rule| rule.on_read).min()
    }

    /// Returns the number of rules.
    pub fn rules(&self) -> usize {
        self.scanner.rules().len()
    }

    /// Returns the maximum duration of a scan of one content; longer ones are denied.
    pub fn max_scan_time(&self) -> Duration {
        self.settings.max_scan_time
    }
}
