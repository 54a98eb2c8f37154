//! The stages that need only the name.

use std::collections::BTreeSet;

use super::{
    finding::{Finding, RuleName, Verdict},
    objects::{Object, ObjectKind},
    subject::PreparedQuery,
};
use crate::{
    Decision, Effect, Policy, Query,
    compiled::{CompiledRule, Layer},
    index::{Components, PatternSet},
    model::{Access, OperationKind},
    pattern::Pattern,
};

impl Policy {
    /// Refuses to create names that a person would misread. A restore is the operator's, of a name
    /// that was there before.
    pub(super) fn hidden_names(&self, subject: &PreparedQuery<'_>) -> Verdict<'_> {
        let Query { access, operation, path, .. } = *subject.query;
        let creates = access == Access::Write && operation != OperationKind::Restore;
        if creates && path.has_hidden_characters() {
            return Verdict::Deny(Finding::fixed(
                "names.hidden",
                None,
                "the name contains control, bidirectional or zero-width characters",
            ));
        }
        Verdict::Pass
    }

    pub(super) fn denied_extension(&self, subject: &PreparedQuery<'_>) -> Verdict<'_> {
        if self.denied_extensions.is_empty() {
            return Verdict::Pass;
        }
        // A directory of such a name is denied with everything in it.
        let mut names = subject.forms().flat_map(Components::texts);
        match names.find_map(|name| self.denied_part(name)) {
            Some(location) => Verdict::Deny(Finding::fixed(
                "extensions.deny",
                Some(location),
                "files with this extension are out of reach",
            )),
            None => Verdict::Pass,
        }
    }

    /// Returns the place at which an extension of `name` is denied, if any.
    pub(crate) fn denied_part(&self, name: &str) -> Option<(usize, u64)> {
        if self.denied_extensions.is_empty() {
            return None;
        }
        // A part may end in spaces that the cleaned name has inside.
        let parts = name.split('.').skip(1).flat_map(|part| [part, part.trim()]);
        parts.filter_map(|part| self.denied_extensions.get(part)).next().copied()
    }

    /// Denies a path if its name or that of a directory above it is secret.
    pub(super) fn secret_names(&self, subject: &PreparedQuery<'_>) -> Verdict<'_> {
        let found = subject
            .forms()
            .filter_map(|components| {
                self.secrets.first(components, |entry, pattern| {
                    components
                        .prefixes_matching(pattern)
                        .any(|length| !self.excepted(entry, subject, components, length))
                })
            })
            .min();
        match found.and_then(|entry| self.secret_locations.get(entry as usize)) {
            Some(location) => Verdict::Deny(Finding {
                rule: RuleName::Secret(location.index),
                location: Some((location.layer, location.line)),
                reason: Some("files with this name usually hold secrets".into()),
            }),
            None => Verdict::Pass,
        }
    }

    /// True if the file that names the secret `entry` excepts the first `length` components, in
    /// their actual form.
    fn excepted(
        &self,
        entry: u32,
        subject: &PreparedQuery<'_>,
        components: &Components<'_>,
        length: usize,
    ) -> bool {
        let layer = self
            .secret_locations
            .get(entry as usize)
            .and_then(|location| self.layers.get(location.layer));
        layer.is_some_and(|layer| {
            // A form with other boundaries between components cannot be compared with the actual
            // one.
            components.len() == subject.raw.len()
                && layer
                    .exceptions
                    .first(&subject.raw, |_, pattern| {
                        pattern.matches(subject.raw.texts().take(length))
                    })
                    .is_some()
        })
    }

    /// Applies the rules that restrict: those that deny before those that ask.
    pub(super) fn ruled(&self, subject: &PreparedQuery<'_>) -> Verdict<'_> {
        if let Some(rule) = restricting(&self.denials, &self.deny_rules, subject) {
            return Verdict::Deny(finding(rule));
        }
        match restricting(&self.asks, &self.ask_rules, subject) {
            Some(rule) => Verdict::Ask(finding(rule)),
            None => Verdict::Pass,
        }
    }

    /// Returns the decisions of all rules that ask about the path, in any of its forms.
    pub(crate) fn asking(&self, subject: &PreparedQuery<'_>) -> impl Iterator<Item = Decision> {
        let mut found = BTreeSet::new();
        for components in subject.forms() {
            // Each pattern is tried, because none is accepted.
            self.asks.first(components, |entry, pattern| {
                let rule = self.ask_rules.get(entry as usize);
                if rule.is_some_and(|rule| asks(rule, subject)) && components.are(pattern) {
                    found.insert(entry);
                }
                false
            });
        }
        let rules = found.into_iter().filter_map(|entry| self.ask_rules.get(entry as usize));
        rules.map(|rule| finding(rule).decision(Effect::Ask, self))
    }

    /// Checks the extension. Directories need no allowed extension; the operation or the object
    /// shows if a name is a directory's.
    pub(super) fn allowed_extension(
        &self,
        subject: &PreparedQuery<'_>,
        object: Option<&Object>,
    ) -> Verdict<'_> {
        let query = subject.query;
        if self.layers.iter().all(|layer| layer.extensions.get(query.access).is_none()) {
            return Verdict::Pass;
        }
        let directory = match object {
            Some(object) => {
                object.kind == ObjectKind::Directory || query.operation == OperationKind::Mkdir
            }
            // A listed path is a directory; its entries are decided on as objects.
            None => matches!(query.operation, OperationKind::Mkdir | OperationKind::List),
        };
        if directory {
            return Verdict::Pass;
        }
        let file = object.is_some() || query.operation.is_of_files();
        let extension = subject.raw.last().and_then(|name| name.rsplit_once('.'));
        if extension.is_none() && !file {
            return Verdict::Pass;
        }
        for (number, layer) in self.layers.iter().enumerate() {
            let Some(list) = layer.extensions.get(query.access) else { continue };
            let listed = extension.is_some_and(|(_, extension)| {
                list.extensions.iter().any(|known| known == extension)
            });
            if !listed && allow_rule(layer, subject).is_none() {
                return Verdict::Deny(Finding {
                    rule: RuleName::Access("extensions.allow", query.access),
                    location: Some((number, list.line)),
                    reason: Some("the extension is not among those allowed here".into()),
                });
            }
        }
        Verdict::Pass
    }

    /// Checks the allowances: every layer that sets a bound must allow, and there must be one.
    pub(super) fn allowed_path(&self, subject: &PreparedQuery<'_>) -> Verdict<'_> {
        let access = subject.query.access;
        let mut allowed = None;
        for (number, layer) in self.layers.iter().enumerate() {
            if !layer.bounds.contains(subject.action) {
                continue;
            }
            let grant = layer.allowed.get(access);
            let line = grant.as_ref().and_then(|grant| {
                let matches = |_: u32, pattern: &Pattern| subject.raw.are(pattern);
                let entry = grant.patterns.first(&subject.raw, matches)?;
                grant.lines.get(entry as usize).copied()
            });
            let found = match line {
                Some(line) => Some(Finding {
                    rule: RuleName::Access("allowedPaths", access),
                    location: Some((number, line)),
                    reason: None,
                }),
                None => allow_rule(layer, subject).map(finding),
            };
            match (found, grant) {
                (Some(found), _) => allowed = allowed.or(Some(found)),
                (None, Some(grant)) => {
                    return Verdict::Deny(Finding {
                        rule: RuleName::Access("allowedPaths", access),
                        location: Some((number, grant.line)),
                        reason: Some(not_allowed(access).into()),
                    });
                }
                (None, None) => return default_deny(access),
            }
        }
        allowed.map_or_else(|| default_deny(access), Verdict::Allow)
    }
}

fn default_deny<'p>(access: Access) -> Verdict<'p> {
    Verdict::Deny(Finding::fixed("default", None, not_allowed(access)))
}

fn not_allowed(access: Access) -> &'static str {
    match access {
        Access::Read => "nothing in the policy allows reading this path",
        Access::List => "nothing in the policy allows listing this path",
        Access::Write => "nothing in the policy allows writing this path",
        Access::Remove => "nothing in the policy allows removing this path",
    }
}

/// Returns the layer's first `allow` rule for the path.
fn allow_rule<'p>(layer: &'p Layer, subject: &PreparedQuery<'_>) -> Option<&'p CompiledRule> {
    if layer.allows.is_empty() {
        return None;
    }
    let entry = layer.allows.first(&subject.raw, |entry, pattern| {
        layer.allow_rules.get(entry as usize).is_some_and(|rule| asks(rule, subject))
            && subject.raw.are(pattern)
    })?;
    layer.allow_rules.get(entry as usize)
}

/// Returns the first of the rules that deny or ask which is about the path, in any of its forms.
fn restricting<'p>(
    patterns: &PatternSet,
    rules: &'p [CompiledRule],
    subject: &PreparedQuery<'_>,
) -> Option<&'p CompiledRule> {
    if patterns.is_empty() {
        return None;
    }
    let found = subject
        .forms()
        .filter_map(|components| {
            patterns.first(components, |entry, pattern| {
                rules.get(entry as usize).is_some_and(|rule| asks(rule, subject))
                    && components.are(pattern)
            })
        })
        .min();
    rules.get(found? as usize)
}

/// True if `rule` is about the agent and the action.
fn asks(rule: &CompiledRule, subject: &PreparedQuery<'_>) -> bool {
    rule.actions.contains(subject.action) && rule.agents.hold(subject.query.agent)
}

fn finding(rule: &CompiledRule) -> Finding<'_> {
    Finding {
        rule: RuleName::Id(&rule.id),
        location: Some((rule.layer, rule.line)),
        reason: rule.reason.as_deref().map(Into::into),
    }
}
