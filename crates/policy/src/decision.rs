//! The decision on one query. Only this crate makes one that allows: other crates can read one,
//! make it stricter, or make a denial.

use std::fmt;

/// The decision on one query, with the rule that made it. A denial is a value, not an error.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub(crate) effect: Effect,
    pub(crate) rule: String,
    pub(crate) location: Option<SourceLocation>,
    pub(crate) reason: Option<String>,
    pub(crate) would_deny: bool,
    /// The decisions of the other rules that ask, if this one does.
    pub(crate) others: Vec<Decision>,
}

impl Decision {
    /// Makes a decision by one rule, which is in no policy file, without a reason.
    pub(crate) fn new(effect: Effect, rule: impl Into<String>) -> Self {
        let rule = rule.into();
        Self { effect, rule, location: None, reason: None, would_deny: false, others: Vec::new() }
    }

    /// Makes a denial by a rule that is in no policy file.
    pub fn built_in_denial(rule: &str, reason: &str) -> Self {
        Self::new(Effect::Deny, rule).with_reason(reason)
    }

    /// Returns the effect.
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// Returns the stable ID of the rule that decided: `allowedPaths.write`, `secrets.names[1]`,
    /// the `id` of a rule, or `default` if nothing allowed it.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Returns the place of that rule in a policy file; `None` for a built-in rule.
    pub fn location(&self) -> Option<&SourceLocation> {
        self.location.as_ref()
    }

    /// Returns the ID of that rule with its place: rules of two policies may have the same ID.
    pub fn located_rule(&self) -> String {
        match &self.location {
            Some(location) => format!("{} at {location}", self.rule),
            None => self.rule.clone(),
        }
    }

    /// Returns the author's or the built-in reason, in words that may be shown to the agent:
    /// without host paths or content.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// True if only observe mode allows it. Enforced, the policy denies it, by the named rule
    /// unless the effect is ask.
    pub fn would_deny(&self) -> bool {
        self.would_deny
    }

    /// Returns the decision as a denial.
    pub fn denying(self) -> Self {
        Self { effect: Effect::Deny, would_deny: false, ..self }
    }

    /// Replaces the reason.
    pub fn with_reason(self, reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..self }
    }

    /// Removes the place of the rule.
    pub fn without_place(self) -> Self {
        Self { location: None, ..self }
    }

    /// Returns the effect without observe mode.
    pub fn enforced(&self) -> Effect {
        if self.would_deny { Effect::Deny } else { self.effect }
    }

    /// Returns the stricter of two decisions that both apply: a denial, then an ask, then one that
    /// only observe mode allows, then an allowance. Of two equal ones it is the first.
    pub fn and(self, other: Self) -> Self {
        let would_deny = self.would_deny || other.would_deny;
        let strictness = |decision: &Self| (decision.effect, decision.would_deny);
        let stricter = if strictness(&other) > strictness(&self) { other } else { self };
        Self { would_deny: would_deny && stricter.effect != Effect::Deny, ..stricter }
    }

    /// True if it is the default denial: no rule denied and nothing allowed, so that an `allow`
    /// rule or a wider `allowedPaths` would allow.
    pub fn is_default_deny(&self) -> bool {
        self.effect == Effect::Deny
            && (self.rule == "default"
                || self.rule.starts_with("allowedPaths.")
                || self.rule.starts_with("extensions.allow."))
    }

    /// True if text in a content decided, rather than its size or kind.
    pub fn is_about_text(&self) -> bool {
        self.rule.starts_with("secrets.") || self.rule == "files.invisible"
    }

    /// True if the operator must be asked.
    pub fn is_ask(&self) -> bool {
        self.effect == Effect::Ask
    }

    /// Returns the decisions of all rules that ask, each alone, if the operator must be asked.
    pub fn questions(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.others).filter(|decision| decision.is_ask())
    }

    /// True if the effect is deny.
    pub fn is_deny(&self) -> bool {
        self.effect == Effect::Deny
    }

    /// True if the effect is allow.
    pub fn is_allow(&self) -> bool {
        self.effect == Effect::Allow
    }
}

/// The effect of a decision or a rule; later ones are stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// The operation continues.
    Allow,
    /// The operation waits for an approval.
    Ask,
    /// The operation is denied.
    Deny,
}

impl Effect {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Allow, Self::Ask, Self::Deny];

    /// Returns the name in policies and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

impl Effect {
    /// Returns a participle for messages, as in "denied by".
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
pub struct SourceLocation {
    /// The file as the operator named it, or an embedded policy's name.
    pub file: String,
    /// The line, counted from 1.
    pub line: u64,
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}
