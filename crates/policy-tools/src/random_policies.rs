//! Random policies of several files, their decisions, and the paths that they distinguish.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::{
    model::{Access, AgentName, Connect, Host, OperationKind, WorkspacePath},
    outline::{OutlineFile, PathPattern},
    policy::{Effect, LabelIds, Loaded, Loader, Policy, PolicySource, Query, compile},
};

/// Labels of content that was read before a connection, of the first two files.
const READ: [&[&str]; 4] = [&[], &["data"], &["more"], &["data", "d0", "m0"]];
/// Maximum number of paths that are decided.
const MAX_PATHS: usize = 300;

/// Files by name: `0.toml` is the policy, and extends the others.
struct Files<'t>(&'t [String]);

impl Loader for Files<'_> {
    fn load(&mut self, _from: &str, reference: &str) -> Result<Loaded, String> {
        let number: usize = reference.trim_end_matches(".toml").parse().unwrap();
        let bytes = self.0[number].clone().into_bytes();
        Ok(Loaded { id: reference.to_owned(), name: reference.to_owned(), bytes })
    }
}

/// Reads the policy of these files.
pub(crate) fn read(files: &[String]) -> PolicySource {
    read_from(files, "0.toml")
}

fn read_from(files: &[String], name: &str) -> PolicySource {
    let mut loader = Files(files);
    let entry = loader.load("", name).unwrap();
    PolicySource::load(entry, &mut loader)
}

/// Returns a policy that extends the first file and opens all that it can.
pub(crate) fn extending(files: &[String]) -> Policy {
    let all = "read = ['**']\nlist = ['**']\nwrite = ['**']\nremove = ['**']\n";
    let hosts = "effect = 'allow'\nports = [80, 443]\nhosts = ['*', '192.0.2.0/24']\n";
    let child = format!(
        "schema = 1\nextends = ['0.toml']\n[allowedPaths]\n{all}\
         [[network.rules]]\nid = 'child'\n{hosts}"
    );
    let files = [files, &[child]].concat();
    compile(&read_from(&files, &format!("{}.toml", files.len() - 1))).unwrap()
}

/// Returns paths that the patterns distinguish, each in several forms.
pub(crate) fn paths(outline: &[OutlineFile]) -> BTreeSet<WorkspacePath> {
    let letters = ['s', 'ß', 'é', 'ﬁ', '\u{301}'];
    let statements = outline.iter().flat_map(|file| &file.statements);
    let mut texts = BTreeSet::from([String::new()]);
    for pattern in statements.flat_map(|statement| &statement.patterns) {
        let examples = pattern.examples("x").chain(pattern.variants("x", &letters));
        texts.extend(examples.map(|path| path.as_str().to_owned()));
        texts.insert(pattern.text.replace(['*', '?', '[', ']', '!'], "e\u{301}"));
    }
    let mut all = texts.clone();
    for text in &texts {
        for (from, to) in [
            ("ss", "ß"),
            ("ß", "ss"),
            ("s", "ſ"),
            ("fi", "ﬁ"),
            ("é", "e\u{301}"),
            ("e\u{301}", "é"),
            ("x", "X"),
            ("a", "a\u{200b}"),
        ] {
            all.insert(text.replace(from, to));
        }
        all.insert(text.to_uppercase());
        for end in [".", " ", "s", "\u{301}", "\u{327}\u{301}", "/x"] {
            all.insert(format!("{text}{end}"));
        }
    }
    // Policies with many patterns take no more time than others.
    let step = all.len().div_ceil(MAX_PATHS);
    all.iter().step_by(step).filter_map(|text| WorkspacePath::parse(text).ok()).collect()
}

/// Returns the decisions on paths and on some hosts, each with what was asked.
pub(crate) fn decisions(policy: &Policy, paths: &BTreeSet<WorkspacePath>) -> Vec<(String, Effect)> {
    let agents: [AgentName; 2] = ["agent", "Xs"].map(|name| name.parse().unwrap());
    let mut made = Vec::new();
    for agent in &agents {
        for (operation, access) in [
            (OperationKind::Read, Access::Read),
            (OperationKind::List, Access::List),
            (OperationKind::Write, Access::Write),
            (OperationKind::Append, Access::Write),
            (OperationKind::Remove, Access::Remove),
        ] {
            for path in paths {
                let decision = policy.evaluate(&Query { agent, operation, access, path });
                made.push((format!("{agent} {operation} {:?}", path.as_str()), decision.effect()));
            }
        }
        for host in ["a.example", "b.a.example", "b.example", "192.0.2.1", "9.9.9.9"] {
            for (port, read) in [80, 443].into_iter().flat_map(|port| READ.map(|read| (port, read)))
            {
                let connect = Connect { host: Host::parse(host).unwrap(), port };
                let labels: LabelIds = read.iter().map(|&label| label.to_owned()).collect();
                let decision = policy.evaluate_connect(agent, &connect, &labels);
                made.push((format!("{agent} {host}:{port} {read:?}"), decision.effect()));
            }
        }
    }
    made
}

/// Returns by what the number of random cases is multiplied.
pub(crate) fn budget() -> u32 {
    std::env::var("PORTCULLIS_TEST_BUDGET").map_or(1, |budget| budget.parse().unwrap())
}

fn list(patterns: &[String]) -> String {
    let items: Vec<_> = patterns.iter().map(|pattern| format!("'{pattern}', ")).collect();
    format!("[ {}]", items.concat())
}

fn pattern() -> impl Strategy<Value = String> {
    let name = "(a|s|ss|ß|fi|ﬁ|x|É|e|e\u{301}|\\.|\\?|\\*|\\[ßs\\]|\\[!s\\]){1,3}";
    prop_oneof![
        6 => name.prop_map(|name: String| name),
        2 => (name, name).prop_map(|(one, other)| format!("{one}/{other}")),
        2 => name.prop_map(|name| format!("{name}/**")),
        3 => name.prop_map(|name| format!("**/{name}")),
        1 => Just("**".to_owned()),
        1 => Just(".".to_owned()),
        1 => Just("*".to_owned()),
    ]
    .prop_filter("a pattern", |text| PathPattern::allowing(text).is_ok())
}

fn patterns(least: usize) -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(pattern(), least..4)
}

fn agents() -> impl Strategy<Value = String> {
    let lines = ["", "", "agents = ['Xs']\n", "agents = ['xs', 'agent']\n", "agents = ['*']\n"];
    prop::sample::select(lines.to_vec()).prop_map(str::to_owned)
}

fn rule() -> impl Strategy<Value = String> {
    let operations = ["", "operations = ['read']\n", "operations = ['list', 'read']\n"];
    let operations = [&operations[..], &["operations = ['write']\n", "operations = ['append']\n"]];
    let effect = prop::sample::select(vec!["allow", "ask", "deny", "deny"]);
    let scope = prop::sample::select(vec!["", "", "scope = 'entry'\n"]);
    (effect, prop::sample::select(operations.concat()), patterns(1), agents(), scope).prop_map(
        |(effect, operations, patterns, agents, scope)| {
            let scope = if effect == "allow" { "" } else { scope };
            let paths = list(&patterns);
            format!("effect = '{effect}'\n{operations}{agents}{scope}paths = {paths}\n\n")
        },
    )
}

fn network_rule() -> impl Strategy<Value = String> {
    let hosts =
        ["a.example", "*.a.example", "*.example", "*", "192.0.2.0/24", "9.0.0.0/8", "9.9.9.9"];
    let hosts = prop::sample::subsequence(hosts.to_vec(), 1..3);
    let ports = prop::sample::select(vec!["", "ports = [443]\n"]);
    let effect = prop::sample::select(vec!["allow", "ask", "deny"]);
    let labels = ["", "", "whenRead = ['data']\n", "whenRead = ['data', 'more']\n"];
    let except = prop::sample::select(vec!["", "except = ['a.example']\n"]);
    let labels = (prop::sample::select(labels.to_vec()), except);
    (effect, hosts, ports, agents(), labels).prop_map(|(effect, hosts, ports, agents, labels)| {
        let (labels, except) = match labels {
            (labels, except) if effect != "allow" && !labels.is_empty() => (labels, except),
            _ => ("", ""),
        };
        // Without ports, only a denial is valid.
        let ports =
            if effect != "deny" && ports.is_empty() { "ports = [80, 443]\n" } else { ports };
        let hosts = list(&hosts.into_iter().map(str::to_owned).collect::<Vec<_>>());
        format!("effect = '{effect}'\n{ports}{agents}{labels}{except}hosts = {hosts}\n\n")
    })
}

/// A policy file; its rules have ids that begin with `id`.
fn file(id: &'static str) -> impl Strategy<Value = String> {
    let lists = prop::array::uniform3(prop::option::of(patterns(0)));
    let extensions = ["[extensions.allow]\nread = ['s']\n", "[extensions]\ndeny = ['x', 's']\n"];
    let extensions = prop::option::weighted(0.3, prop::sample::select(extensions.to_vec()));
    let rules = prop::collection::vec(rule(), 0..4);
    let network = prop::collection::vec(network_rule(), 0..4);
    (lists, extensions, (patterns(0), patterns(0)), rules, network).prop_map(
        move |(lists, extensions, (names, except), rules, network)| {
            let mut text = "[allowedPaths]\n".to_owned();
            for (key, patterns) in ["read", "list", "write"].into_iter().zip(lists) {
                text.extend(patterns.map(|patterns| format!("{key} = {}\n", list(&patterns))));
            }
            text.push_str(extensions.unwrap_or_default());
            text.push_str(&format!("[secrets]\nnames = {}\n", list(&names)));
            text.push_str(&format!("except = {}\n\n", list(&except)));
            for (number, rule) in rules.iter().enumerate() {
                text.push_str(&format!("[[rules]]\nid = '{id}{number}'\n{rule}"));
            }
            for (number, rule) in network.iter().enumerate() {
                text.push_str(&format!("[[network.rules]]\nid = '{id}n{number}'\n{rule}"));
            }
            for id in ["data", "more"] {
                text.push_str(&format!("[[labels]]\nid = '{id}'\npaths = ['{id}/**']\n\n"));
            }
            text
        },
    )
}

/// The files of a policy: the first one extends the others.
pub(crate) fn policy_files() -> impl Strategy<Value = Vec<String>> {
    (file("a"), prop::collection::vec(file("b"), 0..3)).prop_map(|(own, bases)| {
        let extends: Vec<_> =
            (0..bases.len()).map(|number| format!("{}.toml", number + 1)).collect();
        let mut files = vec![format!("schema = 1\nextends = {}\n{own}", list(&extends))];
        for (number, base) in bases.iter().enumerate() {
            let base = base
                .replace("'b", &format!("'b{number}"))
                .replace("'data'", &format!("'d{number}'"))
                .replace("'more'", &format!("'m{number}'"));
            files.push(format!("schema = 1\n{base}"));
        }
        files
    })
}
