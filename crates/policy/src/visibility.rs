//! Visibility of entries for searches. A search asks about every entry, so the result is an enum
//! and not a [`Decision`](super::Decision) with texts.

use super::{
    Effect, Mode, Object, Policy, Query,
    action_set::ActionSet,
    index::Components,
    normalized::NormalizedForms,
    stages::{ENTRY, PreparedQuery},
};

/// The visibility of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// The entry is shown; `relaxed` if only because of observe mode.
    Shown {
        /// True if an enforcing policy would not show it.
        relaxed: bool,
    },
    /// An approval is required to show it.
    Asked,
    /// Nothing allows it. Entries beneath it may be allowed nevertheless.
    Closed,
    /// A rule denies it.
    Denied,
}

impl Policy {
    /// Decides on an entry of a directory by its name and its object, to which no link led.
    pub fn visibility(&self, query: &Query<'_>, object: &Object) -> Visibility {
        let forms = NormalizedForms::of(query.path);
        let subject = PreparedQuery::new(query, &forms);
        let outcome = self.walk(&ENTRY, &subject, Some(object), false, |_, _| {});
        match (outcome.effect, outcome.finding) {
            // The last stage of the names always has a finding.
            (_, None) => Visibility::Denied,
            (Effect::Allow, Some(_)) => Visibility::Shown { relaxed: outcome.would_deny },
            (Effect::Ask, Some(_)) => Visibility::Asked,
            (Effect::Deny, Some(finding)) if finding.is_default_deny() => Visibility::Closed,
            (Effect::Deny, Some(_)) => Visibility::Denied,
        }
    }

    /// True if something beneath the directory `query.path` could be allowed; `false` is certain.
    /// Denials by rules are not considered.
    pub fn may_allow_beneath(&self, query: &Query<'_>) -> bool {
        if self.mode == Mode::Observe {
            return true;
        }
        let components = Components::of(query.path.as_str());
        let action = ActionSet::one(query.operation, query.access);
        let mut bounds =
            self.layers.iter().filter(|layer| layer.bounds.contains(action)).peekable();
        bounds.peek().is_some()
            && bounds.all(|layer| {
                let listed = layer.allowed.get(query.access).as_ref().is_some_and(|grant| {
                    grant.patterns.any(|_, pattern| pattern.reaches_beneath(components.texts()))
                });
                listed
                    || layer.allows.any(|entry, pattern| {
                        pattern.reaches_beneath(components.texts())
                            && layer.allow_rules.get(entry as usize).is_some_and(|rule| {
                                rule.actions.contains(action) && rule.agents.hold(query.agent)
                            })
                    })
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ObjectKind, PolicySource, compile,
        model::{Access, OperationKind, WorkspacePath},
    };

    fn policy(text: &str) -> Policy {
        compile(&PolicySource::from_text("p", &format!("schema = 1\n{text}"))).unwrap()
    }

    fn see(policy: &Policy, path: &str, kind: ObjectKind) -> (Visibility, bool) {
        let (agent, path) = ("agent".parse().unwrap(), WorkspacePath::parse(path).unwrap());
        let (operation, access) = (OperationKind::Glob, Access::List);
        let query = Query { agent: &agent, operation, access, path: &path };
        let object = Object { kind, links: 1, through_symlink: false };
        (policy.visibility(&query, &object), policy.may_allow_beneath(&query))
    }

    #[test]
    fn a_directory_that_nothing_allows_may_hold_what_something_does() {
        let policy = policy(
            "[allowedPaths]\nlist = [\"src/**\", \"a/*/c.txt\"]\n[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"src/no/**\"]\n\
             [[rules]]\nid = \"one\"\neffect = \"allow\"\noperations = [\"list\"]\npaths = [\"docs/x.md\"]\n",
        );
        let (file, directory) = (ObjectKind::File, ObjectKind::Directory);
        assert_eq!(see(&policy, "src", directory), (Visibility::Closed, true));
        assert_eq!(see(&policy, "src/x", directory).0, Visibility::Shown { relaxed: false });
        assert_eq!(see(&policy, "src/no", directory).0, Visibility::Denied);
        assert_eq!(see(&policy, "a/b", directory), (Visibility::Closed, true));
        assert_eq!(see(&policy, "docs", directory), (Visibility::Closed, true));
        assert_eq!(see(&policy, "docs/x.md", file).0, Visibility::Shown { relaxed: false });
        assert_eq!(see(&policy, "node_modules", directory), (Visibility::Closed, false));
        assert_eq!(see(&policy, "a/b/d", directory), (Visibility::Closed, false));
    }

    #[test]
    fn extensions_bound_files_and_not_directories() {
        let policy =
            policy("[allowedPaths]\nlist = [\"**\"]\n[extensions]\nallow = { list = [\"rs\"] }\n");
        assert_eq!(
            see(&policy, "a.d", ObjectKind::Directory).0,
            Visibility::Shown { relaxed: false }
        );
        assert_eq!(see(&policy, "a.d", ObjectKind::File).0, Visibility::Closed);
        assert_eq!(see(&policy, "a.rs", ObjectKind::File).0, Visibility::Shown { relaxed: false });
    }

    #[test]
    fn observing_shows_what_nothing_allows_and_asking_asks() {
        let observing = policy("mode = \"observe\"\n");
        assert_eq!(
            see(&observing, "a", ObjectKind::File),
            (Visibility::Shown { relaxed: true }, true)
        );
        let asking = policy(
            "[allowedPaths]\nlist = [\"**\"]\n[[rules]]\nid = \"q\"\neffect = \"ask\"\npaths = [\"a\"]\n",
        );
        assert_eq!(see(&asking, "a", ObjectKind::File).0, Visibility::Asked);
    }
}
