//! The decision on one question. Only this crate makes one that allows: elsewhere it can
//! be read, made stricter, or made as a denial.

use std::fmt;

/// The answer to one question, with the rule that gave it. A denial is a
/// value, not an error.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub(crate) effect: Effect,
    pub(crate) rule: String,
    pub(crate) place: Option<Place>,
    pub(crate) reason: Option<String>,
    pub(crate) would_deny: bool,
}

impl Decision {
    /// The denial by a rule that no policy file holds.
    pub fn built_in_denial(rule: &str, reason: &str) -> Self {
        Self {
            effect: Effect::Deny,
            rule: rule.to_owned(),
            place: None,
            reason: Some(reason.to_owned()),
            would_deny: false,
        }
    }

    /// Allow, ask or deny.
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// Stable id of the deciding rule: `allowedPaths.write`, `secrets.names[1]`, the
    /// `id` of a rule, or `default` when nothing allowed it.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// The place of that rule in a policy file; `None` for a built-in rule.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// The author's or the built-in reason, in words that may be shown to the agent: no
    /// host path, no content.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Whether only observe mode lets it pass: enforced, the policy would deny it, by
    /// the rule that is named unless the effect is ask.
    pub fn would_deny(&self) -> bool {
        self.would_deny
    }

    /// The same with a denial's effect.
    pub fn denying(self) -> Self {
        Self { effect: Effect::Deny, would_deny: false, ..self }
    }

    /// The same for another reason.
    pub fn with_reason(self, reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..self }
    }

    /// The same without the place of its rule.
    pub fn without_place(self) -> Self {
        Self { place: None, ..self }
    }

    /// The effect if observe mode relaxed nothing.
    pub fn enforced(&self) -> Effect {
        if self.would_deny { Effect::Deny } else { self.effect }
    }

    /// The stricter of two answers, both of which must be heeded: a denial,
    /// then an ask, then what only observe mode lets pass, then an allowance.
    /// Of equals the first.
    pub fn and(self, other: Self) -> Self {
        let would_deny = self.would_deny || other.would_deny;
        let strictness = |decision: &Self| (decision.effect, decision.would_deny);
        let stricter = if strictness(&other) > strictness(&self) { other } else { self };
        Self { would_deny: would_deny && stricter.effect != Effect::Deny, ..stricter }
    }

    /// Whether nothing denied and nothing allowed: the default deny, which an
    /// `allow` rule or a wider `allowedPaths` would lift.
    pub fn is_default_deny(&self) -> bool {
        self.effect == Effect::Deny
            && (self.rule == "default"
                || self.rule.starts_with("allowedPaths.")
                || self.rule.starts_with("extensions.allow."))
    }

    /// Whether what stands in a content decides, rather than its size or kind.
    pub fn is_about_text(&self) -> bool {
        self.rule.starts_with("secrets.") || self.rule == "files.invisible"
    }

    /// Whether a person must be asked.
    pub fn is_ask(&self) -> bool {
        self.effect == Effect::Ask
    }

    /// Whether the effect is deny.
    pub fn is_deny(&self) -> bool {
        self.effect == Effect::Deny
    }

    /// Whether the effect is allow.
    pub fn is_allow(&self) -> bool {
        self.effect == Effect::Allow
    }
}

/// What a decision or a rule does; the later, the stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// The operation goes on.
    Allow,
    /// The operation waits for a person.
    Ask,
    /// The operation is refused.
    Deny,
}

impl Effect {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Allow, Self::Ask, Self::Deny];

    /// The word in policies and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

impl Effect {
    /// What became of an operation, as in "denied by".
    pub fn verb(self) -> &'static str {
        match self {
            Self::Allow => "allowed",
            Self::Ask => "to be asked about",
            Self::Deny => "denied",
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
