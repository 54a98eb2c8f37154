//! Rules of hosts, for help on a denial by one of them.

use super::Gateway;
use crate::{model::Session, policy::Effect};

/// A rule of hosts in a policy in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRule {
    /// The effect.
    pub effect: Effect,
    /// True if the rule applies once content with a label was read.
    pub when_read: bool,
    /// A path with such a label that the session read.
    pub read: Option<String>,
}

impl Gateway {
    /// Returns the rule of hosts with that id in a policy in force; `None` for built-in rules.
    pub fn host_rule(&self, session: &Session, id: &str) -> Option<HostRule> {
        let now = self.decision_context(session);
        let rule = now.rule_with_id(id)?;
        let mut read = now.reads.paths().filter(|(label, _)| rule.when_read.contains(*label));
        Some(HostRule {
            effect: rule.effect,
            when_read: !rule.when_read.is_empty(),
            read: read.next().map(|(_, path)| path.to_owned()),
        })
    }
}
