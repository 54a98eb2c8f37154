//! What a policy answers.

use std::fmt;

/// The answer to one question, with the rule that gave it. A denial is a
/// value, not an error.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Allow or deny.
    pub effect: Effect,
    /// Stable id of the deciding rule: `allowedPaths.write`,
    /// `secrets.names[1]`, the `id` of a rule, or `default` when nothing
    /// allowed it.
    pub rule: String,
    /// Where that rule is written; `None` for what is built in.
    pub place: Option<Place>,
    /// The author's or the built-in reason, in words that may be shown to the
    /// agent: no host path, no content.
    pub reason: Option<String>,
}

impl Decision {
    /// Whether nothing denied and nothing allowed: the default deny, which an
    /// `allow` rule or a wider `allowedPaths` would lift.
    pub fn is_default_deny(&self) -> bool {
        self.effect == Effect::Deny
            && (self.rule == "default"
                || self.rule.starts_with("allowedPaths.")
                || self.rule.starts_with("extensions.allow."))
    }

    /// Whether the effect is allow.
    pub fn is_allow(&self) -> bool {
        self.effect == Effect::Allow
    }
}

/// What a decision or a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// The operation goes on.
    Allow,
    /// The operation is refused.
    Deny,
}

impl Effect {
    /// The word in policies and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A place in a policy file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file as the operator named it, or an embedded policy's name.
    pub file: String,
    /// The line, counted from 1.
    pub line: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}
