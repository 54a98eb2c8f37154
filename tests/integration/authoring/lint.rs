//! `portcullis policy lint`.

use std::collections::BTreeSet;

use portcullis::policy_tools::LINTS;
use serde_json::Value;

use self::patterns::MISREAD;
use super::policy_file;
use crate::common::World;

mod bounds;
mod patterns;

/// A policy with everything that a lint finds.
const BAD: &str = r#"schema = 1

[allowedPaths]
read = ["**", "src/**"]
write = ["src/**", "src/**", "generated/**", "docs/**"]

[secrets]
names = ["*.pem"]
except = ["ca.pem", "notes.txt"]

[[rules]]
id = "generated"
effect = "deny"
operations = ["write"]
paths = ["generated/**"]

[[rules]]
id = "generated-again"
effect = "deny"
operations = ["write"]
paths = ["generated/**"]

[[rules]]
id = "part"
effect = "deny"
operations = ["append"]
paths = ["generated/deep/**"]

[[rules]]
id = "but-this"
effect = "allow"
operations = ["write"]
paths = ["generated/keep.txt"]

[[rules]]
id = "anyhow"
effect = "allow"
operations = ["append"]
paths = ["src/log.txt"]

[[rules]]
id = "images"
effect = "deny"
paths = ["docs/*.iso"]

[[tests]]
operation = "write"
path = "generated/x"
expect = { effect = "deny", rule = "generated" }
"#;

fn world() -> World {
    let world = World::new();
    for file in ["src/a.rs", "src/log.txt", "docs/disk.iso", "generated/deep/x"] {
        world.file(file, "text");
    }
    policy_file(&world, "bad.toml", BAD);
    world
}

pub(super) fn found(world: &World, args: &[&str]) -> Vec<Value> {
    let json = world.run(&[&["policy", "lint", "--json"], args].concat()).ok().json();
    json["findings"].as_array().unwrap().clone()
}

#[test]
fn a_comment_leaves_lints_out_up_to_the_next_empty_line() {
    let world = world();
    let text = "schema = 1\n[allowedPaths]\nread = [\"src/**\"]\n# lint: allow unmatched-glob, spelling\n\
        write = [\n    \"one/**\",\n]\n\nremove = [\"two/**\"]\n";
    policy_file(&world, "allowed.toml", text);
    let found: Vec<_> = found(&world, &["allowed.toml"])
        .iter()
        .map(|found| format!("{} {}:{}", found["id"], found["line"], found["column"]))
        .filter(|found| found.contains("unmatched-glob") || found.contains("unknown-lint"))
        .collect();
    assert_eq!(found, [r#""unknown-lint" 4:31"#, r#""unmatched-glob" 9:11"#]);
}

#[test]
fn findings_have_id_place_reason_and_suggestion() {
    let world = world();
    let done = world.run(&["policy", "lint", "bad.toml"]).ok();
    insta::assert_snapshot!(done.text(), @r#"
    warning[untested-rule]: `allowedPaths.read` decides no test
     --> bad.toml:4:1
      |
    4 | read = ["**", "src/**"]
      | ^^^^
      |
      = note: without a test a change of the policy can disable the rule unnoticed
      = help: add a test with `expect = { …, rule = "allowedPaths.read" }`

    warning[covered-pattern]: `src/**` is covered by another pattern of the list: `**`
     --> bad.toml:4:15
      |
    4 | read = ["**", "src/**"]
      |               ^^^^^^^^
      |
      = note: a pattern that another one of the list covers has no effect, and distracts a reviewer
      = help: remove `src/**`

    warning[untested-rule]: `allowedPaths.write` decides no test
     --> bad.toml:5:1
      |
    5 | write = ["src/**", "src/**", "generated/**", "docs/**"]
      | ^^^^^
      |
      = help: add a test with `expect = { …, rule = "allowedPaths.write" }`

    warning[delayed-execution]: an agent may write what something else executes later: `docs/.git/x`, `src/.git/x`, `docs/git~0/x` and many more
     --> bad.toml:5:10
      |
    5 | write = ["src/**", "src/**", "generated/**", "docs/**"]
      |          ^^^^^^^^
      |
      = note: another program runs such a file later, outside of the gateway
      = help: add `extends = ["baseline"]`, which denies them

    warning[duplicate-pattern]: `src/**` stands in this list before: `src/**`
     --> bad.toml:5:20
      |
    5 | write = ["src/**", "src/**", "generated/**", "docs/**"]
      |                    ^^^^^^^^
      |
      = note: if a pattern appears twice, removing one of them changes nothing
      = help: remove `src/**`

    warning[unreachable-pattern]: all that `generated/**` allows is denied by `generated` (bad.toml:12)
     --> bad.toml:5:30
      |
    5 | write = ["src/**", "src/**", "generated/**", "docs/**"]
      |                              ^^^^^^^^^^^^^^
      |
      = note: what it allows is denied elsewhere, so it permits nothing
      = help: remove `generated/**`

    warning[evadable-extension]: `*.pem` denies `x.pem`, but not `x.pem.bak`
     --> bad.toml:8:10
      |
    8 | names = ["*.pem"]
      |          ^^^^^^^
      |
      = note: an agent that may choose file names evades the rule with another ending
      = help: put `pem` into `extensions.deny`, where any part of a name counts, or add `*.pem.*`

    warning[untested-rule]: `secrets.names[0]` decides no test
     --> bad.toml:8:10
      |
    8 | names = ["*.pem"]
      |          ^^^^^^^
      |
      = help: add a test with `expect = { …, rule = "secrets.names[0]" }`

    warning[unmatched-glob]: `ca.pem` matches nothing in this workspace
     --> bad.toml:9:11
      |
    9 | except = ["ca.pem", "notes.txt"]
      |           ^^^^^^^^
      |
      = note: a pattern that matches nothing is often misspelt, and then protects or permits nothing
      = help: check the spelling, or remove the pattern; keep it when the files are yet to come

    warning[redundant-except]: no pattern in `secrets.names` of this file matches `notes.txt` itself
     --> bad.toml:9:21
      |
    9 | except = ["ca.pem", "notes.txt"]
      |                     ^^^^^^^^^^^
      |
      = note: an exception that matches no secret name suggests that something is open
      = help: remove it; an exception cuts names of its own file only, and must match the very entry that would be secret

    warning[unmatched-glob]: `notes.txt` matches nothing in this workspace
     --> bad.toml:9:21
      |
    9 | except = ["ca.pem", "notes.txt"]
      |                     ^^^^^^^^^^^

    warning[duplicate-rule]: the rule `generated-again` says what `generated` says (bad.toml:12)
      --> bad.toml:18:6
       |
    18 | id = "generated-again"
       |      ^^^^^^^^^^^^^^^^^
       |
       = note: two equal rules differ as soon as only one of them is changed
       = help: remove one of `generated` and `generated-again`

    warning[untested-rule]: `generated-again` decides no test
      --> bad.toml:18:6
       |
    18 | id = "generated-again"
       |      ^^^^^^^^^^^^^^^^^
       |
       = help: add a test with `expect = { …, rule = "generated-again" }`

    warning[shadowed-rule]: the rule `part` denies nothing that `generated` does not deny (bad.toml:12)
      --> bad.toml:24:6
       |
    24 | id = "part"
       |      ^^^^^^
       |
       = note: a rule that changes nothing suggests a protection or a permission that is not there
       = help: remove `part`, or widen its `paths` or `operations`

    warning[untested-rule]: `part` decides no test
      --> bad.toml:24:6
       |
    24 | id = "part"
       |      ^^^^^^
       |
       = help: add a test with `expect = { …, rule = "part" }`

    warning[unreachable-rule]: all that the rule `but-this` allows is denied by `generated` (bad.toml:12)
      --> bad.toml:30:6
       |
    30 | id = "but-this"
       |      ^^^^^^^^^^
       |
       = note: what it allows is denied elsewhere, so the rule permits nothing
       = help: remove `but-this`; no `allow` rule overrides a denial

    warning[untested-rule]: `but-this` decides no test
      --> bad.toml:30:6
       |
    30 | id = "but-this"
       |      ^^^^^^^^^^
       |
       = help: add a test with `expect = { …, rule = "but-this" }`

    warning[unmatched-glob]: `generated/keep.txt` matches nothing in this workspace
      --> bad.toml:33:10
       |
    33 | paths = ["generated/keep.txt"]
       |          ^^^^^^^^^^^^^^^^^^^^

    warning[shadowed-rule]: the rule `anyhow` allows nothing that `allowedPaths` does not allow anyhow
      --> bad.toml:36:6
       |
    36 | id = "anyhow"
       |      ^^^^^^^^
       |
       = help: remove `anyhow`, or narrow `allowedPaths`

    warning[untested-rule]: `anyhow` decides no test
      --> bad.toml:36:6
       |
    36 | id = "anyhow"
       |      ^^^^^^^^
       |
       = help: add a test with `expect = { …, rule = "anyhow" }`

    warning[untested-rule]: `images` decides no test
      --> bad.toml:42:6
       |
    42 | id = "images"
       |      ^^^^^^^^
       |
       = help: add a test with `expect = { …, rule = "images" }`

    warning[evadable-extension]: `docs/*.iso` denies `docs/x.iso`, but not `docs/x.iso.bak`
      --> bad.toml:44:10
       |
    44 | paths = ["docs/*.iso"]
       |          ^^^^^^^^^^^^
       |
       = help: put `iso` into `extensions.deny`, where any part of a name counts, or add `docs/*.iso.*`

    22 warnings
    "#);
    for finding in found(&world, &["bad.toml"]) {
        for key in ["id", "file", "message", "reason", "suggestion"] {
            assert!(!finding[key].as_str().unwrap().is_empty(), "{finding}");
        }
        assert!(finding["line"].as_u64().unwrap() > 0, "{finding}");
    }
}

#[test]
fn every_lint_finds_something() {
    let world = world();
    policy_file(&world, "none.toml", "schema = 1\n[allowedPaths]\nread = [\"src\"]\n");
    policy_file(&world, "top.toml", "schema = 1\n[allowedPaths]\nwrite = [\"src/**\"]\n");
    let opens = "schema = 1\nextends = [\"top.toml\"]\n[[rules]]\nid = \"more\"\neffect = \"allow\"\n\
        operations = [\"write\"]\npaths = [\"docs/**\"]\n";
    policy_file(&world, "opens.toml", opens);
    policy_file(&world, "misread.toml", MISREAD);
    let excepted = "schema = 1\n[secrets]\nnames = [\".env\"]\nexcept = [\"**\"]\n";
    policy_file(&world, "excepted.toml", excepted);
    policy_file(&world, "secret.toml", "schema = 1\n[secrets]\nnames = [\"**\"]\n");
    let bounded = "schema = 1\n# lint: allow spelling\n[limits]\ndenials = 5\n";
    policy_file(&world, "bounded.toml", bounded);
    let mut files = vec!["bad.toml", "none.toml", "opens.toml", "misread.toml", "excepted.toml"];
    policy_file(&world, "history.toml", "schema = 1\n[git]\nhistory = \"allow\"\n");
    let hosts = "schema = 1\n[[network.rules]]\nid = \"hosts\"\neffect = \"allow\"\n\
        hosts = [\"*.com\", \"*.github.io\", \"127.0.0.1\"]\nports = [443]\n\
        [[network.rules]]\nid = \"closed\"\neffect = \"deny\"\nhosts = [\"*\"]\nwhenRead = [\"data\"]\n\
        [[labels]]\nid = \"data\"\npaths = [\"data/**\"]\n\
        [[labels]]\nid = \"idle\"\npaths = [\"idle/**\"]\n";
    policy_file(&world, "hosts.toml", hosts);
    let part = "schema = 1\n[[network.rules]]\nid = \"all\"\neffect = \"allow\"\nhosts = [\"*\"]\n\
        ports = [443]\n[[network.rules]]\nid = \"part\"\neffect = \"deny\"\nhosts = [\"paste.example\"]\n\
        [[network.rules]]\nid = \"other\"\neffect = \"deny\"\nhosts = [\"a.example\"]\nports = [80]\n";
    policy_file(&world, "part.toml", part);
    files.extend(["secret.toml", "bounded.toml", "history.toml", "hosts.toml", "part.toml"]);
    let list = found(&world, &files);
    let mut ids: BTreeSet<_> =
        list.iter().map(|finding| finding["id"].as_str().unwrap().to_owned()).collect();
    // These look at `[[secrets.rules]]` or need many patterns; their own tests show what they find.
    let rules = [
        "not-compared",
        "regex-huge-repetition",
        "regex-without-keywords",
        "keyword-outside-match",
        "value-not-redacted",
        "word-boundary",
    ];
    ids.extend(rules.map(str::to_owned));
    let known: BTreeSet<_> = LINTS.iter().map(|lint| lint.id.to_owned()).collect();
    assert_eq!(ids, known);
    let opens: Vec<_> = list.iter().filter(|finding| finding["file"] == "opens.toml").collect();
    assert!(opens.iter().any(|finding| finding["id"] == "unreachable-rule"), "{opens:?}");
}

/// It may be a policy, and there was no mention of it.
#[test]
fn a_file_of_tests_whose_policy_is_not_named_is_mentioned() {
    let world = World::new();
    for name in ["good.toml", "staging.test.toml", "good.test.toml"] {
        policy_file(&world, name, "schema = 1\n");
    }
    let checked =
        world.run(&["policy", "check", "good.toml", "staging.test.toml", "good.test.toml"]);
    assert!(checked.stderr.contains("`staging.test.toml` is a test file"), "{checked:?}");
    assert!(!checked.stderr.contains("`good.test.toml`"), "{checked:?}");
}

#[test]
fn warnings_can_be_denied_and_single_lints_left_out() {
    let world = world();
    let lint = |args: &[&str]| world.run(&[&["policy", "lint", "bad.toml"], args].concat());
    assert_eq!(lint(&["--deny-warnings"]).code, 4);
    let mut args = vec!["--deny-warnings"];
    args.extend(LINTS.iter().flat_map(|lint| ["--allow", lint.id]));
    assert!(lint(&args).ok().text().contains("nothing found"));
    assert_eq!(lint(&["--allow", "nonsense"]).code, 2);
}

/// A repository can have a directory with such a name, and the pattern is none of it.
#[test]
fn a_directory_named_as_a_wildcard_was_taken_for_what_a_pattern_names() {
    let world = World::new();
    world.file("**/x", "x");
    world.file("src[1]/x", "x");
    let policy = "schema = 1\n[allowedPaths]\nread = [\"**\"]\nwrite = [\"src[1]\"]\n";
    policy_file(&world, "wild.toml", policy);
    let list = found(&world, &["wild.toml", "--allow", "no-tests"]);
    let closed = list.iter().filter(|finding| finding["id"] == "entry-without-content");
    assert_eq!(closed.count(), 0, "{list:?}");
}

/// Embedded policies are clean, except for findings that depend on the workspace.
#[test]
fn the_embedded_policies_are_clean() {
    let world = World::new();
    for name in ["default", "read-only", "coding-agent", "docs-writer", "strict"] {
        let list = found(&world, &[name, "--no-tree"]);
        assert_eq!(list, Vec::<Value>::new(), "{name}");
    }
}

#[test]
fn sarif_is_for_code_scanning() {
    let world = world();
    let log = world.run(&["policy", "lint", "bad.toml", "--sarif"]).ok().json();
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let rules: BTreeSet<_> = run["tool"]["driver"]["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| rule["id"].as_str().unwrap().to_owned())
        .collect();
    let results = run["results"].as_array().unwrap();
    assert_eq!(results.len(), found(&world, &["bad.toml"]).len());
    for result in results {
        assert!(rules.contains(result["ruleId"].as_str().unwrap()), "{result}");
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "bad.toml");
        let region = &place["region"];
        let at = |key: &str| region[key].as_u64().unwrap();
        assert!((at("startLine"), at("startColumn")) <= (at("endLine"), at("endColumn")));
    }
    insta::assert_snapshot!(serde_json::to_string_pretty(&results[0]).unwrap(), @r#"
    {
      "level": "warning",
      "locations": [
        {
          "physicalLocation": {
            "artifactLocation": {
              "uri": "bad.toml"
            },
            "region": {
              "endColumn": 5,
              "endLine": 4,
              "startColumn": 1,
              "startLine": 4
            }
          }
        }
      ],
      "message": {
        "text": "`allowedPaths.read` decides no test. without a test a change of the policy can disable the rule unnoticed. add a test with `expect = { …, rule = \"allowedPaths.read\" }`"
      },
      "ruleId": "untested-rule"
    }
    "#);
    assert_eq!(world.run(&["policy", "lint", "bad.toml", "--sarif", "--deny-warnings"]).code, 4);
}

#[test]
fn what_does_not_load_is_not_linted() {
    let world = World::new();
    policy_file(&world, "p.toml", "schema = 1\nraed = 1\n");
    let done = world.run(&["policy", "lint", "p.toml"]);
    assert_eq!(done.code, 4);
    assert!(done.stderr.contains("unknown key `raed`"), "{}", done.stderr);
}

#[test]
fn a_check_warns_of_what_misleads_and_of_nothing_else() {
    let world = World::new();
    policy_file(&world, "p.toml", MISREAD);
    let checked = world.run(&["policy", "check", "p.toml", "--json"]).ok().json();
    let warnings = checked["policies"][0]["warnings"].as_array().unwrap();
    let ids: BTreeSet<_> = warnings.iter().map(|found| found["id"].as_str().unwrap()).collect();
    let expected = [
        "agent-name",
        "class-as-name",
        "dot-required",
        "mixed-scripts",
        "regex-as-pattern",
        "root-only-name",
        "unguarded-operation",
        "wildcard-in-test",
        "word-as-wildcard",
    ];
    assert_eq!(ids, expected.into());
    let printed = world.run(&["policy", "check", "p.toml"]).ok();
    assert!(printed.text().starts_with("p.toml: ok, "), "{printed:?}");
    for id in expected {
        assert!(printed.stderr.contains(&format!("warning[{id}]")), "{printed:?}");
    }
    for name in ["default", "baseline", "strict"] {
        let printed = world.run(&["policy", "check", name]).ok();
        assert_eq!(printed.stderr, "", "{name}");
    }
}
