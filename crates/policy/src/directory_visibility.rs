//! Visibility of many names in one directory.
//!
//! Most names in a directory matter to no pattern except for those about the directory. So a name
//! is compared only with the patterns that its own text may match. If there are none, the result is
//! that of the first such name. All uncertain cases use [`Policy::visibility`]; a property test
//! compares the two.

use std::cell::Cell;

use super::{
    Object, ObjectKind, Policy, Query, Visibility,
    action_set::ActionSet,
    compiled::CompiledRule,
    index::{Components, PatternSet},
    normalized::{is_plain, is_plain_name},
    pattern::{ByteSet, Dependence, Name, Pattern},
};
use crate::model::{Access, AgentName, OperationKind, WorkspacePath};

/// The results of one action for the names in one directory.
#[derive(Debug)]
pub struct DirectoryVisibility<'p> {
    policy: &'p Policy,
    agent: &'p AgentName,
    operation: OperationKind,
    access: Access,
    usual: Option<OrdinaryNames<'p>>,
}

/// The properties of names that all have the same result.
#[derive(Debug)]
struct OrdinaryNames<'p> {
    directory: Components<'p>,
    /// The sets in which no pattern that is indexed by one of its keys matches because of the name.
    /// In sets with rules, only those about the action count.
    sets: Vec<(&'p PatternSet, Option<&'p [CompiledRule]>)>,
    /// It has none of these forms.
    names: Vec<(ByteSet, &'p Name)>,
    /// The keys of the last name by its extension and its start, which the next name often has,
    /// too.
    last: [Cell<IndexedKey>; 2],
    /// The result for files with such names, once it is known.
    answer: Cell<Option<Visibility>>,
}

/// A key, and the letters that a name must have to match a pattern indexed by it.
type IndexedKey = (u64, ByteSet);

impl Policy {
    /// Prepares a query about a directory for the names in it.
    pub fn directory_visibility<'p>(&'p self, query: &Query<'p>) -> DirectoryVisibility<'p> {
        let Query { agent, operation, access, path } = *query;
        let usual = self.usual(agent, ActionSet::one(operation, access), access, path);
        DirectoryVisibility { policy: self, agent, operation, access, usual }
    }

    fn usual<'p>(
        &'p self,
        agent: &AgentName,
        action: ActionSet,
        access: Access,
        directory: &'p WorkspacePath,
    ) -> Option<OrdinaryNames<'p>> {
        let by_extension = self.layers.iter().any(|layer| layer.extensions.get(access).is_some());
        if by_extension || access == Access::Write || !is_plain(directory.as_str()) {
            return None;
        }
        let directory = Components::of(directory.as_str());
        let mut names = Vec::new();
        let mut sets = Vec::new();
        // Returns false if a name may affect a pattern in a complex way.
        let mut add = |set, rules: Option<_>| {
            let set: &PatternSet = set;
            let asked = |entry| rules.is_none_or(|rules| asks(rules, entry, action, agent));
            if !set.any(|entry, _| asked(entry)) {
                return true;
            }
            if set.files_any() {
                sets.push((set, rules));
            }
            set.candidates(&directory).filter(|(entry, _)| asked(*entry)).all(|(_, pattern)| {
                match pattern.dependence_on_name(directory.len()) {
                    Dependence::None => true,
                    Dependence::Name(name) => {
                        names.push((name.letters(), name));
                        true
                    }
                    Dependence::Unknown => false,
                }
            })
        };
        let simple = add(&self.secrets, None)
            && add(&self.denials, Some(&self.deny_rules[..]))
            && add(&self.asks, Some(&self.ask_rules[..]))
            && self.layers.iter().all(|layer| {
                let granted = layer.allowed.get(access).as_ref();
                granted.is_none_or(|grant| add(&grant.patterns, None))
                    && add(&layer.exceptions, None)
                    && add(&layer.allows, Some(&layer.allow_rules[..]))
            });
        let (last, answer) = (<[Cell<IndexedKey>; 2]>::default(), Cell::new(None));
        simple.then_some(OrdinaryNames { directory, sets, names, last, answer })
    }
}

/// True if the rule of an entry is about the action.
fn asks(rules: &[CompiledRule], entry: u32, action: ActionSet, agent: &AgentName) -> bool {
    let rule = rules.get(entry as usize);
    rule.is_some_and(|rule| rule.actions.contains(action) && rule.agents.hold(agent))
}

impl DirectoryVisibility<'_> {
    /// Returns the result of [`Policy::visibility`] for the entry `name`, whose path is made by
    /// `path` only if it is needed; `None` if there is no such path.
    pub fn of<'n>(
        &self,
        name: &str,
        path: impl FnOnce() -> Option<&'n WorkspacePath>,
        object: &Object,
    ) -> Option<Visibility> {
        let plain_file =
            *object == Object { kind: ObjectKind::File, links: 1, through_symlink: false };
        let usual = self.usual.as_ref().filter(|usual| plain_file && self.holds(usual, name));
        if let Some(answer) = usual.and_then(|usual| usual.answer.get()) {
            return Some(answer);
        }
        let path = path()?;
        let Self { policy, agent, operation, access, .. } = *self;
        let answer = policy.visibility(&Query { agent, operation, access, path }, object);
        if let Some(usual) = usual {
            usual.answer.set(Some(answer));
        }
        Some(answer)
    }

    /// True if a name has the common result.
    fn holds(&self, usual: &OrdinaryNames<'_>, name: &str) -> bool {
        let letters = ByteSet::of(name);
        let looks_like =
            |(needed, pattern): &(ByteSet, &Name)| letters.hold(*needed) && pattern.matches(name);
        if !is_plain_name(name)
            || usual.names.iter().any(looks_like)
            || self.policy.denied_part(name).is_some()
        {
            return false;
        }
        if usual.sets.is_empty() {
            return true;
        }
        let [whole, extension, start] = Components::keys_of(name);
        let [last_extension, last_start] = &usual.last;
        let matters = |key: &u64, last| letters.hold(usual.letters_under(*key, last));
        let extension = Some(extension).filter(|key| matters(key, last_extension));
        let start = Some(start).filter(|key| matters(key, last_start));
        let keys = [Some(whole), extension, start].into_iter().flatten();
        let action = ActionSet::one(self.operation, self.access);
        !keys.into_iter().any(|key| {
            usual.filed(key).any(|(rules, entry, pattern)| {
                letters.hold(pattern.letters())
                    && rules.is_none_or(|rules| asks(rules, entry, action, self.agent))
                    && match pattern.dependence_on_name(usual.directory.len()) {
                        // A pattern that matches every name has been found by the directory.
                        Dependence::None => false,
                        Dependence::Name(pattern) => pattern.matches(name),
                        Dependence::Unknown => true,
                    }
            })
        })
    }
}

impl<'p> OrdinaryNames<'p> {
    /// Returns the patterns that are indexed by a key, with the rules of their sets.
    fn filed(
        &self,
        key: u64,
    ) -> impl Iterator<Item = (Option<&'p [CompiledRule]>, u32, &'p Pattern)> {
        self.sets.iter().flat_map(move |(set, rules)| {
            set.filed(key).map(|(entry, pattern)| (*rules, entry, pattern))
        })
    }

    /// Returns the letters that a name must have to match a pattern indexed by a key.
    fn letters_under(&self, key: u64, last: &Cell<IndexedKey>) -> ByteSet {
        let (known, letters) = last.get();
        if known == key {
            return letters;
        }
        let each = self.filed(key).map(|(_, _, pattern)| pattern.letters());
        let letters = each.fold(ByteSet::ALL, ByteSet::common);
        last.set((key, letters));
        letters
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{PolicySource, compile};

    const PATTERN: &str = "(a|b|\\*\\*|\\*|a\\*|\\*\\.b|\\*a\\*|ab\\.a|\\.\\*b)(/(a|b|\\*\\*|\\*|ab\\*|\\*\\.b|\\.\\*b)){0,2}";

    fn list(patterns: &[String]) -> String {
        let quoted: Vec<_> = patterns.iter().map(|pattern| format!("'{pattern}'")).collect();
        format!("[{}]", quoted.join(", "))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn names_are_seen_as_their_paths_are(
            allowed in prop::collection::vec(PATTERN, 0..3),
            secrets in prop::collection::vec(PATTERN, 0..3),
            excepted in prop::collection::vec(PATTERN, 0..2),
            denied in prop::collection::vec(PATTERN, 0..2),
            asked in prop::collection::vec(PATTERN, 0..2),
            opened in prop::collection::vec(PATTERN, 0..2),
            words in prop::sample::select(vec!["list", "write", "glob"]),
            more in prop::sample::select(vec![
                "", "", "", "[extensions]\ndeny = [\"b\"]\n", "[extensions]\nallow = { list = [\"a\"] }\n",
            ]),
            mode in prop::sample::select(vec!["", "mode = \"observe\"\n"]),
            directory in "([abAż.]{1,2}/){0,3}",
            names in prop::collection::vec("[abcAż. ]{1,4}", 1..12),
            kinds in prop::collection::vec(prop::sample::select(vec![
                ObjectKind::File, ObjectKind::File, ObjectKind::Directory, ObjectKind::Symlink,
            ]), 12),
        ) {
            let mut text = format!("schema = 1\n{mode}{more}[allowedPaths]\nlist = {}\n", list(&allowed));
            text += &format!("[secrets]\nnames = {}\nexcept = {}\n", list(&secrets), list(&excepted));
            for (effect, paths) in [("deny", &denied), ("ask", &asked), ("allow", &opened)] {
                if !paths.is_empty() {
                    text += &format!(
                        "[[rules]]\nid = \"{effect}\"\neffect = \"{effect}\"\noperations = [\"{words}\"]\npaths = {}\n",
                        list(paths)
                    );
                }
            }
            let policy = compile(&PolicySource::from_text("p", &text));
            let Ok(policy) = policy else { return Ok(()) };
            let Ok(directory) = WorkspacePath::parse(&directory) else { return Ok(()) };
            let agent = "agent".parse().unwrap();
            let (operation, access) = (OperationKind::List, Access::List);
            let query = Query { agent: &agent, operation, access, path: &directory };
            let directory_visibility = policy.directory_visibility(&query);
            for (name, kind) in names.iter().zip(kinds) {
                let Ok(path) = directory.join(name) else { continue };
                let object = Object { kind, links: 1, through_symlink: false };
                let expected = policy.visibility(&Query { path: &path, ..query }, &object);
                prop_assert_eq!(directory_visibility.of(name, || Some(&path), &object), Some(expected), "{}\n{:?}", &text, path);
            }
        }
    }

    /// Its result was returned for all names after it.
    #[test]
    fn an_exception_among_secrets_is_not_like_any_other_name() {
        let text = "schema = 1\n[allowedPaths]\nlist = ['**']\n[secrets]\nnames = ['**']\nexcept = ['*.b']\n";
        let policy = compile(&PolicySource::from_text("p", text)).unwrap();
        let (agent, root) = ("agent".parse().unwrap(), WorkspacePath::parse("").unwrap());
        let (operation, access) = (OperationKind::List, Access::List);
        let directory_visibility =
            policy.directory_visibility(&Query { agent: &agent, operation, access, path: &root });
        let object = Object { kind: ObjectKind::File, links: 1, through_symlink: false };
        let of = |name: &str| {
            let path = root.join(name).unwrap();
            directory_visibility.of(name, || Some(&path), &object).unwrap()
        };
        assert_eq!(of("x.b"), Visibility::Shown { relaxed: false });
        assert_eq!(of("a"), Visibility::Denied);
    }

    #[test]
    fn most_names_are_usual_under_the_embedded_policies() {
        for name in ["default", "read-only", "coding-agent"] {
            let policy = compile(&PolicySource::embedded(name).unwrap()).unwrap();
            let agent = "agent".parse().unwrap();
            for directory in ["", "src", "src/deep/er"] {
                let path = WorkspacePath::parse(directory).unwrap();
                let (operation, access) = (OperationKind::List, Access::List);
                let query = Query { agent: &agent, operation, access, path: &path };
                let directory_visibility = policy.directory_visibility(&query);
                let usual = directory_visibility.usual.as_ref();
                let is_usual =
                    |name| usual.is_some_and(|usual| directory_visibility.holds(usual, name));
                assert!(is_usual("main.rs") && is_usual("ab-c.12.txt"), "{name} {directory}");
                assert!(!is_usual(".env") && !is_usual("x.pem"), "{name} {directory}");
            }
        }
    }
}
