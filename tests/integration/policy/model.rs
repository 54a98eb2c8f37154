//! Evaluation against a model that is written for being obviously right: no
//! index, no spellings, globs by another library, every file judged one by one.

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
        let above = path.match_indices('/').map(|(end, _)| &path[..end]).chain([""]);
        let names = |path: &str| self.paths.iter().any(|pattern| denies(pattern, path));
        names(path) || (!self.entry && above.into_iter().any(names))
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

fn pattern() -> impl Strategy<Value = String> {
    let part =
        prop::sample::select(vec!["a", "b", "**", "*", "a*", "*.x", "?", "[ab]", "{a,b.x}", "A.x"]);
    prop::collection::vec(part, 1..4).prop_map(|mut parts| {
        // Neighbouring `**` are one.
        parts.dedup_by(|one, other| *one == "**" && *other == "**");
        parts.join("/")
    })
}

fn patterns() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(pattern(), 0..4)
}

fn rule() -> impl Strategy<Value = Rule> {
    let words = vec![
        "read", "list", "write", "remove", "rename", "append", "edit", "stat", "glob", "grep",
        "watch", "mkdir", "restore",
    ];
    (
        prop::sample::select(vec![Effect::Allow, Effect::Ask, Effect::Deny]),
        prop::collection::vec(prop::sample::select(words), 1..4),
        prop::collection::vec(pattern(), 1..3),
        prop::sample::select(vec!["*", "one", "o*", "two"]),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(effect, operations, paths, agent, entry)| Rule {
            effect,
            operations,
            paths,
            agents: vec![agent.to_owned()],
            entry,
        })
}

fn granted() -> impl Strategy<Value = Option<Vec<String>>> {
    let list = patterns().prop_map(|mut list| {
        // Without a broad grant most paths would be denied for one reason.
        if list.len() == 3 {
            list.push("**".to_owned());
        }
        list
    });
    prop::option::weighted(0.6, list)
}

fn file(parents: Vec<usize>) -> impl Strategy<Value = File> {
    let extension = || prop::sample::select(vec!["x".to_owned(), "y".to_owned()]);
    (
        [granted(), granted(), granted(), granted()],
        prop::collection::vec(extension(), 0..2),
        prop::option::weighted(0.2, prop::collection::vec(extension(), 0..2)),
        prop::collection::vec(pattern(), 0..2),
        prop::collection::vec(pattern(), 0..2),
        prop::collection::vec(rule(), 0..4),
        prop::bool::weighted(0.2),
    )
        .prop_map(
            move |(
                allowed,
                denied_extensions,
                allowed_extensions,
                secrets,
                except,
                rules,
                observe,
            )| File {
                allowed,
                denied_extensions,
                allowed_extensions,
                // `**` would make everything secret.
                secrets: secrets.into_iter().filter(|s| !s.contains("**") && s != "*").collect(),
                except,
                rules,
                observe,
                parents: parents.clone(),
            },
        )
}

/// 0 extends 1 and 2, which both extend 3.
fn family() -> impl Strategy<Value = Vec<File>> {
    prop_oneof![
        (file(vec![])).prop_map(|one| vec![one]),
        (file(vec![1]), file(vec![])).prop_map(|(one, two)| vec![one, two]),
        (file(vec![1, 2]), file(vec![3]), file(vec![3]), file(vec![]))
            .prop_map(|(a, b, c, d)| vec![a, b, c, d]),
    ]
}

fn path() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec!["a", "b", "A", "ab", "a.x", "b.x", "c.x.y", "c", "a.X"]);
    prop::collection::vec(part, 0..5).prop_map(|parts| parts.join("/"))
}

fn questions() -> Vec<(OperationKind, Access)> {
    let mut all: Vec<_> = OperationKind::ALL
        .iter()
        .flat_map(|operation| operation.accesses().iter().map(move |access| (*operation, *access)))
        .collect();
    all.push((OperationKind::Rename, Access::Write));
    all
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
