//! Lints of patterns that mean something else than they look like, or leave something open.

mod agents;

use std::collections::BTreeSet;

use super::{found, policy_file};
use crate::common::World;

/// A policy with patterns that look like something else.
pub(super) const MISREAD: &str = r#"schema = 1
[allowedPaths]
read = ["**"]
list = ["src"]
write = ["**"]
remove = ["**"]
[[rules]]
id = "payments"
effect = "deny"
operations = ["write"]
paths = ["payments"]
reason = "leaves removal open"
[[rules]]
id = "route"
effect = "deny"
paths = ["app/[id]/page.tsx"]
[[rules]]
id = "expression"
effect = "deny"
paths = ["private/.*"]
[[rules]]
id = "letters"
effect = "deny"
paths = ["c\u0430rds"]
[[tests]]
operation = "read"
path = "payments/**"
expect = { effect = "allow" }
[[rules]]
id = "anywhere"
effect = "deny"
paths = [".env"]
[[rules]]
id = "all-names"
effect = "deny"
paths = ["x/*.*"]
agents = ["All", "mcp"]
"#;

#[test]
fn directories_among_what_may_be_read_are_found_where_their_content_stays_closed() {
    let world = World::new();
    for directory in ["src", "docs", "lib"] {
        std::fs::create_dir(world.path(directory)).unwrap();
    }
    let policy = "schema = 1\n[allowedPaths]\nlist = [\"src\", \"lib\"]\n\
        read = [\"src\", \"docs\", \"docs/**\", \"lib/**\"]\nwrite = [\"lib\", \"lib/*.rs\"]\n";
    policy_file(&world, "p.toml", policy);
    let list = found(&world, &["p.toml"]);
    let lines: Vec<_> = list
        .iter()
        .filter(|finding| finding["id"] == "entry-without-content")
        .map(|finding| (finding["line"].as_u64(), finding["column"].as_u64()))
        .collect();
    assert_eq!(lines, [(Some(4), Some(9))]);
}

#[test]
fn keywords_that_a_match_need_not_have_are_found() {
    let world = World::new();
    let rule = |id: &str, regex: &str, keyword: &str| {
        format!("[[secrets.rules]]\nid = \"{id}\"\nregex = '{regex}'\nkeywords = [\"{keyword}\"]\n")
    };
    let rules = [
        rule("good", "tok_[a-z]{9}", "TOK_"),
        rule("elsewhere", "tok_[a-z]{9}", "token"),
        rule("one-branch", "(tok|key)_[a-z]{9}", "tok_"),
        rule("optional", "(tok_)?[a-z]{9}", "tok_"),
    ];
    policy_file(&world, "p.toml", &format!("schema = 1\n{}", rules.concat()));
    let list = found(&world, &["p.toml"]);
    let lines: Vec<_> = list
        .iter()
        .filter(|finding| finding["id"] == "keyword-outside-match")
        .map(|finding| finding["line"].as_u64().unwrap())
        .collect();
    assert_eq!(lines, [8, 12, 16]);
}

/// The value was disclosed, its name was redacted, and nothing said so.
#[test]
fn a_redaction_of_the_name_of_a_value_was_no_finding() {
    let world = World::new();
    world.file("conf.yml", "token=S3cr3tValueABCDEFGH\n");
    let policy = |regex: &str, more: &str| {
        format!(
            "schema = 1\n[allowedPaths]\nread = [\"**\"]\n[secrets]\nonRead = \"redact\"\n\
             [[secrets.rules]]\nid = \"cfg\"\nregex = '{regex}'\nkeywords = [\"=\"]\n{more}"
        )
    };
    let id = "value-not-redacted";
    for (regex, more, shows) in [
        (r"(token|key)=\S+", "", true),
        (r"(?:token|key)=(\S+)", "", false),
        (r"(token|key)=\S+", "group = 0\n", false),
        ("=(S3|S[a-z]{2}|X)[a-zA-Z]{5}[a-zA-Z]{8,}", "", true),
    ] {
        let list = of_lint(&world, &policy(regex, more), id);
        assert_eq!(list.len(), usize::from(shows), "{regex}: {list:?}");
        let file = world.base().join("p.toml");
        let read = world.run(&["fs", "read", "conf.yml", "--policy", file.to_str().unwrap()]).ok();
        assert_eq!(read.text().contains("S3cr3tValueABCDEFGH"), shows, "{regex}: {read:?}");
    }
    let heading = policy("-----BEGIN PRIVATE KEY-----", "");
    assert_eq!(of_lint(&world, &heading, id).len(), 1);
    let denied = policy(r"(token|key)=\S+", "").replace("redact", "deny");
    assert_eq!(of_lint(&world, &denied, id).len(), 0);
}

/// Such denials protected nothing, and nothing said so.
#[test]
fn what_other_languages_write_around_a_pattern_was_taken_for_a_name() {
    let world = World::new();
    let code = |pattern: &str| {
        let rule = format!(
            "schema = 1\n[[rules]]\nid = \"r\"\neffect = \"deny\"\npaths = ['''{pattern}''']\n"
        );
        policy_file(&world, "p.toml", &rule);
        world.run(&["policy", "check", "p.toml"]).code
    };
    for pattern in [
        "File::\"src/private/**\"",
        "Path(\"src/x\")",
        "r'src/x'",
        "src/\u{201c}x\u{201d}",
        "src/docs @team",
        "src/x export-ignore",
        "- src/private",
        "src/x:ro",
        "src/id_rsa(.pub)?",
        "src/.{1,3}",
    ] {
        assert_eq!(code(pattern), 4, "{pattern}");
    }
    for name in ["src/don't", "src/rock'n'roll/**", "src/a - b/**", "man/*.{1,3}"] {
        assert_eq!(code(name), 0, "{name}");
    }
    // A lint told of the root alone, and the rule is about any depth.
    let any_depth = "schema = 1\n[[rules]]\nid = \"r\"\neffect = \"deny\"\npaths = [\"{**/,}x\"]\n";
    assert_eq!(of_lint(&world, any_depth, "root-only-name").len(), 0);
}

fn misread(world: &World, policy: &str) -> BTreeSet<(String, u64)> {
    policy_file(world, "p.toml", policy);
    let list = found(world, &["p.toml", "--no-tree"]);
    let beside = ["no-tests", "untested-rule", "delayed-execution", "shadowed-rule"];
    list.iter()
        .map(|finding| (finding["id"].as_str().unwrap(), finding["line"].as_u64().unwrap()))
        .filter(|(id, _)| !beside.contains(id))
        .map(|(id, line)| (id.to_owned(), line))
        .collect()
}

#[test]
fn patterns_that_are_read_otherwise_than_meant_are_found_without_a_tree() {
    let world = World::new();
    let expected = [
        ("agent-name", 37),
        ("class-as-name", 16),
        ("dot-required", 36),
        ("mixed-scripts", 24),
        ("regex-as-pattern", 20),
        ("root-only-name", 11),
        ("root-only-name", 32),
        ("unguarded-operation", 8),
        ("wildcard-in-test", 27),
        ("word-as-wildcard", 37),
    ];
    let expected = expected.map(|(id, line)| (id.to_owned(), line));
    assert_eq!(misread(&world, MISREAD), expected.into());
}

#[test]
fn what_other_operations_leave_open_is_found_and_what_they_do_not_is_not() {
    let world = World::new();
    let policy = |effect: &str, operations: &str, remove: &str| {
        format!(
            "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\n\
             remove = {remove}\n[[rules]]\nid = \"a\"\neffect = \"{effect}\"\n\
             operations = {operations}\npaths = [\"pay/**\"]\n"
        )
    };
    let hole: BTreeSet<_> = [("unguarded-operation".to_owned(), 8)].into();
    for effect in ["deny", "ask"] {
        for open in [
            "write", "edit", "append", "rename", "setattr", "symlink", "mkdir", "remove", "grep",
            "list", "stat",
        ] {
            let operations = format!("[\"{open}\"]");
            let found = misread(&world, &policy(effect, &operations, "[\"**\"]"));
            assert_eq!(found, hole, "{effect} {open}");
        }
        for closed in [
            "write\", \"remove",
            "read",
            "list\", \"read\", \"write\", \"remove",
            "remove\", \"rename",
            "read\", \"grep",
            "mkdir\", \"symlink\", \"rename\", \"remove",
            "setattr\", \"write\", \"remove",
        ] {
            let operations = format!("[\"{closed}\"]");
            let found = misread(&world, &policy(effect, &operations, "[\"**\"]"));
            assert_eq!(found, BTreeSet::new(), "{effect} {closed}");
        }
        let found = misread(&world, &policy(effect, "[\"write\"]", "[]"));
        assert_eq!(found, BTreeSet::new(), "{effect}: nothing may be removed");
    }
}

/// Exceptions hold at any depth, as the names do that they cut.
#[test]
fn an_exception_deep_in_a_tree_is_not_redundant() {
    let world = World::new();
    policy_file(
        &world,
        "p.toml",
        "schema = 1\n[secrets]\nnames = [\".env\", \"keys/*.pem\"]\n\
         except = [\"shop/.env\", \"shop/keys/ca.pem\", \"shop/ca.pem\"]\n",
    );
    let found = world.run(&["policy", "lint", "p.toml", "--no-tree", "--json"]).ok().json();
    let redundant: Vec<_> = found["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["id"] == "redundant-except")
        .map(|finding| finding["message"].as_str().unwrap())
        .collect();
    assert_eq!(redundant.len(), 1, "{redundant:?}");
    assert!(redundant[0].contains("`shop/ca.pem`"), "{redundant:?}");
}

/// Ids and texts of the findings in a policy, without those that it has for the lack of tests.
fn found_at(policy: &str) -> BTreeSet<(String, String)> {
    let world = World::new();
    policy_file(&world, "p.toml", policy);
    let list = found(&world, &["p.toml", "--no-tree"]);
    let lines: Vec<_> = policy.lines().collect();
    let at = |finding: &serde_json::Value, key: &str| finding[key].as_u64().unwrap() as usize - 1;
    list.iter()
        .filter(|finding| finding["id"] != "no-tests")
        .map(|finding| {
            let line = lines[at(finding, "line")].chars().skip(at(finding, "column") + 1);
            let text = line.take_while(|c| *c != '"').collect();
            (finding["id"].as_str().unwrap().to_owned(), text)
        })
        .collect()
}

fn set(expected: &[(&str, &str)]) -> BTreeSet<(String, String)> {
    expected.iter().map(|(id, text)| ((*id).to_owned(), (*text).to_owned())).collect()
}

/// The removal of what was redundant closed `ßx`: a secret name of any character matches that one,
/// although it is folded to two.
#[test]
fn an_exception_that_a_secret_name_matches_in_another_form_is_not_redundant() {
    let found = found_at(
        "schema = 1\n[secrets]\nnames = [\"?x\", \"key\", \"e*\"]\n\
         except = [\"\u{df}x\", \"key.\", \"e\u{301}\", \"ssx\", \"kay\"]\n",
    );
    assert_eq!(found, set(&[("redundant-except", "ssx"), ("redundant-except", "kay")]));
}

/// Each pattern that allowed was said to be unreachable; the one for the root was not.
#[test]
fn a_secret_name_for_everything_is_found_by_itself() {
    let found = found_at(
        "schema = 1\n[allowedPaths]\nlist = [\".\", \"docs\"]\nread = [\"docs/**\"]\n\
         [secrets]\nnames = [\"**\"]\n",
    );
    assert_eq!(found, set(&[("secret-everything", "**")]));
    // Not `.`, which has no name.
    let found = found_at(
        "schema = 1\n[allowedPaths]\nlist = [\".\", \"docs\"]\n[secrets]\nnames = [\"?*\"]\n",
    );
    assert_eq!(found, set(&[("unreachable-pattern", "docs")]));
}

/// A file whose only `allow` rule was removed no longer closed what the other file allows.
#[test]
fn a_rule_that_is_all_that_its_file_allows_is_not_to_be_removed() {
    let world = World::new();
    let opens = "schema = 1\n[secrets]\nnames = [\"*.pem\"]\n[[rules]]\nid = \"one\"\n\
        effect = \"allow\"\noperations = [\"read\"]\npaths = [\"ca.pem\"]\n";
    policy_file(&world, "one.toml", opens);
    policy_file(&world, "all.toml", "schema = 1\n[allowedPaths]\nread = [\"**\"]\n");
    let both = "schema = 1\nextends = [\"one.toml\", \"all.toml\"]\n";
    policy_file(&world, "both.toml", both);
    for name in ["both.toml", "one.toml"] {
        let list = found(&world, &[name, "--no-tree"]);
        let advice = list.iter().find(|finding| finding["id"] == "unreachable-rule").unwrap();
        let advice = advice["suggestion"].as_str().unwrap();
        assert!(!advice.contains("remove") && advice.contains("no longer closes"), "{advice}");
    }
}

/// They protected nothing, and nothing said so.
#[test]
fn words_and_letters_that_only_look_like_others_are_found() {
    let found = found_at(
        "schema = 1\n[extensions]\ndeny = [\"\u{435}nv\", \"env\"]\n\
         [[rules]]\nid = \"a\"\neffect = \"deny\"\n\
         paths = [\"**/*.\u{435}nv\", \"**/*.\u{435}\u{445}\u{435}\"]\n\
         agents = [\"Any\", \"all-in\"]\n\
         [[network.rules]]\nid = \"n\"\neffect = \"deny\"\nhosts = [\"everything\"]\n\
         agents = [\"all\"]\n",
    );
    let expected = [
        ("mixed-scripts", "\u{435}nv"),
        ("mixed-scripts", "**/*.\u{435}nv"),
        ("mixed-scripts", "**/*.\u{435}\u{445}\u{435}"),
        ("word-as-wildcard", "Any"),
        ("word-as-wildcard", "everything"),
        ("word-as-wildcard", "all"),
    ];
    assert_eq!(found, set(&expected));
}

/// A label that misses its files closes no host, and nothing said so.
#[test]
fn a_pattern_of_a_label_was_not_linted() {
    let found = found_at(
        "schema = 1\n[[labels]]\nid = \"a\"\n\
         paths = [\"*.csv\", \"app/[id]/**\", \"d\u{430}ta/**\", \"src/.*\", \"x/*.*\", \"ok/**\"]\n",
    );
    let expected = [
        ("root-only-name", "*.csv"),
        ("class-as-name", "app/[id]/**"),
        ("mixed-scripts", "d\u{430}ta/**"),
        ("regex-as-pattern", "src/.*"),
        ("dot-required", "x/*.*"),
        ("unused-label", "a"),
    ];
    assert_eq!(found, set(&expected));
}

/// Files that a misread pattern misses were not searched. A name matches at any depth there.
#[test]
fn a_pattern_of_files_with_invisible_text_was_not_linted() {
    let found = found_at(
        "schema = 1\n[files.invisible]\n\
         paths = [\"AGENTS.md\", \"app/[id]/x\", \"AG\u{415}NTS.md\", \"src/.*\", \"x/*.*\"]\n",
    );
    let expected = [
        ("class-as-name", "app/[id]/x"),
        ("mixed-scripts", "AG\u{415}NTS.md"),
        ("regex-as-pattern", "src/.*"),
        ("dot-required", "x/*.*"),
    ];
    assert_eq!(found, set(&expected));
}

#[test]
fn a_label_that_matches_nothing_in_the_workspace_was_not_told() {
    let world = World::new();
    std::fs::create_dir_all(world.path("src/data")).unwrap();
    std::fs::write(world.path("src/data/rows.csv"), "").unwrap();
    let policy = "schema = 1\n[[labels]]\nid = \"a\"\n\
        paths = [\n\"src/data\",\n\"nosuch/**\",\n]\n\
        [files.invisible]\npaths = [\n\"rows.csv\",\n\"AGENT.md\",\n]\n\
        [[rules]]\nid = \"a\"\neffect = \"deny\"\npaths = [\"src/data/rows.csv\"]\n";
    policy_file(&world, "p.toml", policy);
    let lines = |id: &str| -> Vec<_> {
        let list = found(&world, &["p.toml"]);
        let list = list.iter().filter(|finding| finding["id"] == id);
        list.map(|finding| finding["line"].as_u64().unwrap()).collect()
    };
    assert_eq!(lines("unmatched-glob"), [6, 11]);
    // Neither decides anything that a test could cover, also if a rule has the label's name.
    let tests = "[[tests]]\noperation = \"read\"\npath = \"y\"\nexpect = { effect = \"deny\" }\n";
    policy_file(&world, "p.toml", &format!("{policy}{tests}"));
    assert_eq!(lines("untested-rule"), [14]);
}

/// Advice to escape one of two brackets led to denials that protected nothing.
#[test]
fn a_name_in_two_brackets_of_which_one_is_escaped_was_no_finding() {
    let found = found_at(
        "schema = 1\n[[rules]]\nid = \"a\"\neffect = \"deny\"\n\
         paths = ['app/[[lang]\\]/page.tsx', 'post-[id].tsx', '{.env,config/*.pem}', '*/.env', \
         'my\u{2013}file/**', 'id\u{ff3f}rsa/**', '**/*.[hc]pp']\n",
    );
    // The text is that of single quotes here.
    let found: BTreeSet<_> = found
        .into_iter()
        .map(|(id, text)| (id, text.split('\'').next().unwrap().to_owned()))
        .filter(|(id, _)| id != "evadable-extension" && id != "shadowed-rule")
        .collect();
    let expected = [
        ("class-as-name", "app/[[lang]\\]/page.tsx"),
        ("class-as-name", "post-[id].tsx"),
        ("root-only-name", "{.env,config/*.pem}"),
        ("root-only-name", "*/.env"),
        ("mixed-scripts", "my\u{2013}file/**"),
        ("mixed-scripts", "id\u{ff3f}rsa/**"),
    ];
    assert_eq!(found, set(&expected));
}

/// Denials in other forms of these protected nothing, and nothing said so.
#[test]
fn some_forms_of_expressions_and_words_were_no_finding() {
    let found = found_at(
        "schema = 1\n[[rules]]\nid = \"a\"\neffect = \"deny\"\n\
         paths = [\".*/secret/.*\", \"src/.*/secret\", \"[secret|keys]/**\", \
         \"config/[env].yml\", \"[rwx]/**\"]\n",
    );
    let expected = [
        ("regex-as-pattern", ".*/secret/.*"),
        ("regex-as-pattern", "src/.*/secret"),
        ("class-as-name", "[secret|keys]/**"),
        ("class-as-name", "config/[env].yml"),
    ];
    assert_eq!(found, set(&expected));
}

/// The findings of one lint.
fn of_lint(world: &World, policy: &str, id: &str) -> Vec<serde_json::Value> {
    policy_file(world, "p.toml", policy);
    let mut list = found(world, &["p.toml", "--no-tree"]);
    list.retain(|finding| finding["id"] == id);
    list
}

/// `[extensions]` refused what the advice told to put there.
#[test]
fn an_extension_that_is_refused_was_advised() {
    let world = World::new();
    for (pattern, is_plain) in [
        ("**/*.pem", true),
        ("**/*.{pem,key}", false),
        ("**/*.tar.gz", false),
        ("**/*.ke[yY]", false),
    ] {
        let policy = format!(
            "schema = 1\n[allowedPaths]\nread = [\"**\"]\n[[rules]]\nid = \"r\"\n\
             effect = \"deny\"\npaths = [\"{pattern}\"]\n"
        );
        let list = of_lint(&world, &policy, "evadable-extension");
        assert_eq!(list.len(), 1, "{pattern}");
        let advice = list[0]["suggestion"].as_str().unwrap();
        assert!(advice.contains(&format!("`{pattern}.*`")), "{advice}");
        assert_eq!(advice.contains("extensions.deny"), is_plain, "{advice}");
    }
}

/// Nothing was said of them, and the tests passed.
#[test]
fn braces_and_classes_in_the_path_of_a_test_were_not_found() {
    let world = World::new();
    let is_found = |pattern: &str, path: &str| {
        let policy = format!(
            "schema = 1\n[allowedPaths]\nread = [\"{pattern}\"]\n[[tests]]\noperation = \"list\"\n\
             path = \"{path}\"\nexpect = {{ effect = \"deny\" }}\n"
        );
        of_lint(&world, &policy, "wildcard-in-test").len() == 1
    };
    assert!(is_found("p/{a,b}", "p/{a,b}") && is_found("p/**", "p/{a,b}/x"));
    assert!(is_found("p/[ab]", "p/[ab]") && is_found("p/[ab]/**", "p/[ab]/x"));
    // Names can have them.
    assert!(!is_found("app/[[]id[]]/page.tsx", "app/[id]/page.tsx"));
    assert!(!is_found("**", "{{cookiecutter.name}}/x") && !is_found("**", "a,{b}"));
}

/// A denial for `claude` alone applied to no agent, since none has that name by default.
#[test]
fn rules_for_agents_of_other_names_were_not_told() {
    let world = World::new();
    let noted = |effect: &str, agents: &str| {
        let policy = format!(
            "schema = 1\n[[rules]]\nid = \"r\"\neffect = \"{effect}\"\noperations = [\"read\"]\n\
             paths = [\"x\"]\nagents = [{agents}]\n"
        );
        policy_file(&world, "p.toml", &policy);
        let args = ["policy", "lint", "p.toml", "--no-tree"];
        let told = world.run(&[&args[..], &["--json"]].concat()).ok().json();
        let told = told["forOtherAgents"] == serde_json::json!(["r"]);
        assert_eq!(world.run(&args).ok().stderr.contains("by default"), told, "{agents}");
        told
    };
    assert!(noted("deny", "'claude'") && noted("ask", "'mcp', 'release-*'"));
    for agents in
        ["'*'", "'claude*'", "'Codex'", "'mcp-client', 'x'", "'exec'", "'cli'", "'client'"]
    {
        assert!(!noted("deny", agents), "{agents}");
    }
    assert!(!noted("allow", "'claude'"));
}
