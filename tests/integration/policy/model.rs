//! Evaluation against a model that is written for being obviously right: no
//! index, no spellings, globs by another library, every file judged one by one.

mod generators;

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
};

use globset::{GlobBuilder, GlobMatcher};
use portcullis::{
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{
        Effect, Loaded, Loader, Object, ObjectKind, Policy, PolicySource, Query, Visibility,
        compile,
    },
};
use proptest::prelude::*;

use generators::{family, path, questions};

#[derive(Debug, Clone)]
struct File {
    allowed: [Option<Vec<String>>; 4],
    denied_extensions: Vec<String>,
    allowed_extensions: Option<Vec<String>>,
    secrets: Vec<String>,
    except: Vec<String>,
    rules: Vec<Rule>,
    observe: bool,
    parents: Vec<usize>,
}

#[derive(Debug, Clone)]
struct Rule {
    effect: Effect,
    operations: Vec<&'static str>,
    paths: Vec<String>,
    agents: Vec<String>,
    entry: bool,
}

thread_local! {
    /// The compilation of a glob takes the library a hundred times as long as matching.
    static GLOBS: RefCell<HashMap<String, GlobMatcher>> = RefCell::default();
}

fn matches(pattern: &str, path: &str) -> bool {
    GLOBS.with_borrow_mut(|globs| {
        let compile = || {
            let mut builder = GlobBuilder::new(pattern);
            builder
                .literal_separator(true)
                .empty_alternates(true)
                .build()
                .unwrap()
                .compile_matcher()
        };
        globs.entry(pattern.to_owned()).or_insert_with(compile).is_match(path)
    })
}

fn exact(pattern: &str, path: &str) -> bool {
    // To the glob library the root is one empty component.
    if path.is_empty() { pattern == "**" } else { matches(pattern, path) }
}

/// The form of a denial: any case, and a directory with all that is in it.
fn denies(pattern: &str, path: &str) -> bool {
    let (pattern, path) = (pattern.to_lowercase(), path.to_lowercase());
    let itself = pattern.strip_suffix("/**").is_some_and(|directory| exact(directory, &path));
    itself || exact(&pattern, &path)
}

fn has_name(pattern: &str) -> bool {
    pattern.split('/').any(|part| part != "**")
}

/// True if the pattern is about names beneath the path, but not beneath any other.
fn names_beneath(pattern: &str, path: &str) -> bool {
    pattern.match_indices('/').any(|(end, _)| {
        let (above, beneath) = (&pattern[..end], &pattern[end + 1..]);
        has_name(above) && has_name(beneath) && denies(above, path)
    })
}

fn covers(word: &str, operation: OperationKind, access: Access) -> bool {
    match word {
        "read" | "list" | "write" | "remove" => word == access.as_str(),
        word => word == operation.as_str(),
    }
}

impl File {
    fn toml(&self, number: usize) -> String {
        let list = |items: &[String]| format!("{items:?}");
        let mut text = String::from("schema = 1\n");
        if self.observe {
            text += "mode = \"observe\"\n";
        }
        let parents: Vec<_> = self.parents.iter().map(|parent| format!("./{parent}")).collect();
        text += &format!("extends = {}\n[allowedPaths]\n", list(&parents));
        for (access, patterns) in Access::ALL.iter().zip(&self.allowed) {
            if let Some(patterns) = patterns {
                text += &format!("{access} = {}\n", list(patterns));
            }
        }
        text += &format!("[extensions]\ndeny = {}\n", list(&self.denied_extensions));
        if let Some(extensions) = &self.allowed_extensions {
            text += &format!("allow = {{ write = {} }}\n", list(extensions));
        }
        text += &format!(
            "[secrets]\nnames = {}\nexcept = {}\n",
            list(&self.secrets),
            list(&self.except)
        );
        for (index, rule) in self.rules.iter().enumerate() {
            text += &format!(
                "[[rules]]\nid = \"r{number}-{index}\"\neffect = \"{}\"\n{}operations = {:?}\npaths = {}\nagents = {}\n",
                rule.effect,
                match (rule.effect, rule.entry) {
                    (Effect::Allow, _) => "",
                    (_, true) => "scope = \"entry\"\n",
                    (_, false) => "scope = \"tree\"\n",
                },
                rule.operations,
                list(&rule.paths),
                list(&rule.agents),
            );
        }
        text
    }

    fn denies(&self, agent: &str, operation: OperationKind, access: Access, path: &str) -> bool {
        let denied = |part| self.denied_extensions.iter().any(|extension| extension == part);
        let path_lower = path.to_lowercase();
        if path_lower.split('/').any(|name| name.split('.').skip(1).any(denied)) {
            return true;
        }
        let parts: Vec<_> = path.split('/').collect();
        for length in 1..=parts.len() {
            let prefix = parts[..length].join("/");
            let anywhere = |pattern: &String| format!("**/{pattern}");
            if !path.is_empty()
                && self.secrets.iter().any(|secret| denies(&anywhere(secret), &prefix))
                && !self.except.iter().any(|except| exact(&anywhere(except), &prefix))
            {
                return true;
            }
        }
        self.rules.iter().any(|rule| {
            rule.effect == Effect::Deny
                && rule.asks(agent, operation, access)
                && rule.restricts(path)
        })
    }

    /// True if a link at the path would show files at names that are restricted.
    fn denies_link(&self, agent: &str, path: &str) -> bool {
        let rules = self.rules.iter().filter(|rule| rule.effect != Effect::Allow);
        rules.into_iter().any(|rule| rule.is_evaded(agent, path))
            || self.secrets.iter().any(|secret| names_beneath(&format!("**/{secret}"), path))
    }

    /// True if a rule asks for an approval, if nothing denies.
    fn questions(&self, agent: &str, operation: OperationKind, access: Access, path: &str) -> bool {
        self.rules.iter().any(|rule| {
            rule.effect == Effect::Ask
                && rule.asks(agent, operation, access)
                && rule.restricts(path)
        })
    }

    fn allow_rule(
        &self,
        agent: &str,
        operation: OperationKind,
        access: Access,
        path: &str,
    ) -> bool {
        self.rules.iter().any(|rule| {
            rule.effect == Effect::Allow
                && rule.asks(agent, operation, access)
                && rule.paths.iter().any(|pattern| exact(pattern, path))
        })
    }

    /// True if the file by itself defines what is allowed.
    fn speaks(&self, operation: OperationKind, access: Access) -> bool {
        self.allowed[access as usize].is_some() || self.has_rule(operation, access)
    }

    fn has_rule(&self, operation: OperationKind, access: Access) -> bool {
        self.rules.iter().any(|rule| {
            rule.effect == Effect::Allow
                && rule.operations.iter().any(|w| covers(w, operation, access))
        })
    }
}

impl Rule {
    fn asks(&self, agent: &str, operation: OperationKind, access: Access) -> bool {
        self.operations.iter().any(|word| covers(word, operation, access))
            && self.agents.iter().any(|pattern| exact(pattern, agent))
    }

    /// True if a pattern names the path, or a directory above it where those
    /// count.
    fn restricts(&self, path: &str) -> bool {
        self.paths.iter().any(|pattern| self.restricts_by(pattern, path))
    }

    fn restricts_by(&self, pattern: &str, path: &str) -> bool {
        let mut above = path.match_indices('/').map(|(end, _)| &path[..end]).chain([""]);
        denies(pattern, path) || (!self.entry && above.any(|path| denies(pattern, path)))
    }

    /// True if a link at the path would show files at names that the rule is about.
    fn is_evaded(&self, agent: &str, path: &str) -> bool {
        use OperationKind::{List, Read, Symlink, Write};
        let asks = |operation, access| self.asks(agent, operation, access);
        let is_undecided = !asks(Symlink, Access::Write);
        let evades = |pattern: &String| {
            names_beneath(pattern, path)
                || is_undecided && has_name(pattern) && self.restricts_by(pattern, path)
        };
        (asks(Read, Access::Read) || asks(List, Access::List) || asks(Write, Access::Write))
            && self.paths.iter().any(evades)
    }
}

fn lineage(files: &[File], file: usize) -> Vec<usize> {
    let mut all = vec![file];
    for parent in &files[file].parents {
        all.extend(lineage(files, *parent));
    }
    all.sort_unstable();
    all.dedup();
    all
}

fn model(
    files: &[File],
    agent: &str,
    operation: OperationKind,
    access: Access,
    path: &str,
) -> (Effect, bool) {
    let all = lineage(files, 0);
    if all.iter().any(|file| files[*file].denies(agent, operation, access, path)) {
        return (Effect::Deny, false);
    }
    let is_link = (operation, access) == (OperationKind::Symlink, Access::Write);
    if is_link && all.iter().any(|file| files[*file].denies_link(agent, path)) {
        return (Effect::Deny, false);
    }
    let asks = all.iter().any(|file| files[*file].questions(agent, operation, access, path));
    let allowed = allows(files, &all, agent, operation, access, path);
    match (allowed, files[0].observe) {
        (false, false) => (Effect::Deny, false),
        _ => (if asks { Effect::Ask } else { Effect::Allow }, !allowed),
    }
}

/// True if every file that defines what is allowed allows it, and one does.
fn allows(
    files: &[File],
    all: &[usize],
    agent: &str,
    operation: OperationKind,
    access: Access,
    path: &str,
) -> bool {
    let mut bounded = false;
    for number in all {
        let file = &files[*number];
        let by_rule = file.allow_rule(agent, operation, access, path);
        let name = path.rsplit('/').next().unwrap();
        let content = matches!(operation.as_str(), "read" | "write" | "append" | "edit");
        let directory = matches!(operation.as_str(), "mkdir" | "list");
        if let (Access::Write, Some(extensions), false) =
            (access, &file.allowed_extensions, directory)
        {
            let fits = match name.rsplit_once('.') {
                Some((_, extension)) => extensions.iter().any(|known| known == extension),
                None => !content,
            };
            if !fits && !by_rule {
                return false;
            }
        }
        let above = lineage(files, *number)
            .into_iter()
            .any(|parent| parent != *number && files[parent].speaks(operation, access));
        let listed = &file.allowed[access as usize];
        if listed.is_none() && (above || !file.has_rule(operation, access)) {
            continue;
        }
        bounded = true;
        let in_list = listed.as_ref().is_some_and(|list| list.iter().any(|p| exact(p, path)));
        if !in_list && !by_rule {
            return false;
        }
    }
    bounded
}

struct Texts(BTreeMap<String, String>);

impl Loader for Texts {
    fn load(&mut self, _from: &str, reference: &str) -> Result<Loaded, String> {
        let text = self.0.get(reference).ok_or("missing")?;
        Ok(Loaded {
            id: reference.to_owned(),
            name: reference.to_owned(),
            bytes: text.clone().into_bytes(),
        })
    }
}

fn build(files: &[File], entry: usize) -> Policy {
    let texts =
        files.iter().enumerate().map(|(n, file)| (format!("./{n}"), file.toml(n))).collect();
    let mut texts = Texts(texts);
    let loaded = texts.load("", &format!("./{entry}")).unwrap();
    compile(&PolicySource::load(loaded, &mut texts)).unwrap_or_else(|error| panic!("{error}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn evaluation_is_what_the_model_says(
        files in family(), paths in prop::collection::vec(path(), 1..12), agent in "one|two"
    ) {
        let policy = build(&files, 0);
        let name: AgentName = agent.parse().unwrap();
        for text in &paths {
            let path = WorkspacePath::parse(text).unwrap();
            for (operation, access) in questions() {
                let query = Query { agent: &name, operation, access, path: &path };
                let decision = policy.evaluate(&query);
                prop_assert_eq!(
                    (decision.effect(), decision.would_deny()),
                    model(&files, &agent, operation, access, text),
                    "{} {} {:?}\n{:?}\n{}", operation, access, text, decision, files[0].toml(0)
                );
                let explanation = policy.explain(&query, None);
                prop_assert_eq!(&explanation.decision, &decision);
            }
        }
    }

    /// A search sees what the evaluator lets be seen, and gets there.
    #[test]
    fn a_search_sees_what_evaluation_allows(
        files in family(), paths in prop::collection::vec(path(), 1..12), agent in "one|two"
    ) {
        let policy = build(&files, 0);
        let name: AgentName = agent.parse().unwrap();
        let object = Object { kind: ObjectKind::File, links: 1, through_symlink: false };
        for text in paths.iter().filter(|text| !text.is_empty()) {
            let path = WorkspacePath::parse(text).unwrap();
            for (operation, access) in [
                (OperationKind::Glob, Access::List),
                (OperationKind::Grep, Access::List),
                (OperationKind::Grep, Access::Read),
                (OperationKind::Watch, Access::List),
            ] {
                let query = Query { agent: &name, operation, access, path: &path };
                let decision =
                    policy.evaluate(&query).and(policy.evaluate_object(&query, &object));
                let expected = match decision.effect() {
                    Effect::Allow => Visibility::Shown { relaxed: decision.would_deny() },
                    Effect::Ask => Visibility::Asked,
                    Effect::Deny if decision.is_default_deny() => Visibility::Closed,
                    Effect::Deny => Visibility::Denied,
                };
                let visibility = policy.visibility(&query, &object);
                prop_assert_eq!(visibility, expected, "{:?} {:?}", text, decision);
                if matches!(visibility, Visibility::Shown { .. } | Visibility::Asked) {
                    for above in path.ancestors() {
                        let query = Query { path: &above, ..query };
                        prop_assert!(policy.may_allow_beneath(&query), "{} {:?}", above, text);
                    }
                }
            }
        }
    }

    /// A policy with any parents opens nothing that one of them keeps closed:
    /// by a denial, or by a bound of what is allowed.
    #[test]
    fn extending_only_narrows(
        files in family(), paths in prop::collection::vec(path(), 1..12), agent in "one|two"
    ) {
        let name: AgentName = agent.parse().unwrap();
        let child = build(&files, 0);
        for parent in lineage(&files, 0) {
            let above = build(&files, parent);
            for text in &paths {
                let path = WorkspacePath::parse(text).unwrap();
                for (operation, access) in questions() {
                    let query = Query { agent: &name, operation, access, path: &path };
                    let below = child.evaluate(&query);
                    let decision = above.evaluate(&query);
                    // An explicit denial or question of the parent holds in any
                    // mode; what it merely does not allow, observing relaxes.
                    if below.effect() >= decision.effect()
                        || (below.would_deny() && decision.is_default_deny())
                    {
                        continue;
                    }
                    let unbounded = lineage(&files, parent)
                        .iter()
                        .all(|file| !files[*file].speaks(operation, access));
                    prop_assert!(
                        unbounded && decision.rule() == "default",
                        "{} {} {:?}: {:?}", operation, access, text, decision
                    );
                }
            }
        }
    }
}
