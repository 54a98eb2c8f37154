//! Rule files in the format of gitleaks, and rules as their authors see them.

use sha2::{Digest as _, Sha256};

use crate::common::World;

const GITLEAKS: &str = r###"title = "a few rules"
minVersion = "v8.25.0"

[allowlist]
description = "global"
paths = ['''(?i)\.lock$''']
regexes = ['''^\${(?:[A-Z_]+)}$''']

[[rules]]
id = "braces"
description = "a brace that is one, and a bracket in a class"
regex = '''(?i)k[[]?{{([a-z]{8,10})}}'''
keywords = ["k{{", "K[{{"]

[[rules]]
id = "grouped"
regex = '''(x)-([0-9]{6})'''
secretGroup = 2
entropy = 1
keywords = ["x-"]
tags = ["a"]
[[rules.allowlists]]
condition = "AND"
regexTarget = "line"
regexes = ['''example''']
stopwords = ["123456"]

[[rules]]
id = "bundle"
path = '''\.p12$'''
"###;

fn world(secrets: &str, rules: &str) -> World {
    let mut world = World::new();
    let directory = world.base().join("policy");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("rules.toml"), rules).unwrap();
    world.set_policy(&format!(
        "schema = 1\n[allowedPaths]\nread = [\"**\"]\nwrite = [\"**\"]\n[secrets]\n{secrets}\n"
    ));
    world
}

const USE: &str = "rulesets = [{ file = \"rules.toml\", format = \"gitleaks\" }]";

fn check(world: &World) -> String {
    let done = world.run(&["policy", "check", "policy/policy.toml"]);
    assert_eq!(done.code, 4, "{done:?}");
    done.stderr
}

#[test]
fn rules_of_a_file_hold_and_decisions_name_their_place_in_it() {
    let world = world(USE, GITLEAKS);
    world.file("a", "k[{{abcdefgh}}\n");
    world.fs(&["read", "a"]).denied("secrets.rules.braces");
    assert_eq!(world.last()["policy"], "rules.toml");
    assert_eq!(world.last()["line"], 10);
    world.file("b", "x-111111\n");
    world.fs(&["read", "b"]).ok();
    world.file("b", "x-987654\n");
    world.fs(&["read", "b"]).denied("secrets.rules.grouped");
    world.file("c.p12", "anything");
    world.fs(&["read", "c.p12"]).denied("secrets.rules.bundle");
}

#[test]
fn allowlists_and_comments_count_only_when_asked_for() {
    for (honor, code) in [("", 3), ("honorAllowlists = false", 3), ("honorAllowlists = true", 0)] {
        let world = world(&format!("{USE}\n{honor}"), GITLEAKS);
        world.file("a.lock", "k[{{abcdefgh}}\n");
        world.file("b", "x-123456 example\n");
        world.file("c", "x-987654 # gitleaks:allow\n");
        for path in ["a.lock", "b", "c"] {
            assert_eq!(world.fs(&["read", path]).code, code, "{honor} {path}");
        }
        // Both parts of the condition must hold.
        world.file("d", "x-123456\n");
        world.file("e", "x-987654 example\n");
        for path in ["d", "e"] {
            world.fs(&["read", path]).denied("secrets.rules.grouped");
        }
    }
}

#[test]
fn a_pin_holds_the_file_to_its_hash() {
    let hash: String = Sha256::digest(GITLEAKS).iter().map(|byte| format!("{byte:02x}")).collect();
    let pinned = |hash: &str| {
        format!(
            "rulesets = [{{ file = \"rules.toml\", format = \"gitleaks\", sha256 = \"{hash}\" }}]"
        )
    };
    let good = world(&pinned(&hash), GITLEAKS);
    good.run(&["policy", "check", "policy/policy.toml"]).ok();
    let other = world(&pinned(&hash), &GITLEAKS.replace("8,10", "8,11"));
    insta::assert_snapshot!(check(&other), @r##"
    error: cannot use the rules in "rules.toml"
     --> policy/policy.toml:6:22
      |
    6 | rulesets = [{ file = "rules.toml", format = "gitleaks", sha256 = "8f227152fe534580d1164a9801dd38fa55f988842273938345ce5fda377b2189" }]
      |                      ^^^^^^^^^^^^ its SHA-256 is not the one that is pinned, but 02ec9a0f033d454b05e71d477b74c66d87ea83ada82dce729d9b9710b943b96e

    portcullis: the policy does not load
    "##);
}

#[test]
fn what_the_policy_s_hash_covers() {
    let world = world(USE, GITLEAKS);
    let hash = |world: &World| {
        let args = ["policy", "check", "--json", "policy/policy.toml"];
        world.run(&args).ok().json()["policies"][0]["sha256"].clone()
    };
    let before = hash(&world);
    std::fs::write(world.base().join("policy/rules.toml"), GITLEAKS.replace("8,10", "8,11"))
        .unwrap();
    assert_ne!(hash(&world), before);
}

#[test]
fn a_file_that_vanishes_closes_everything() {
    let world = world(USE, GITLEAKS);
    world.file("a", "plain\n");
    world.fs(&["read", "a"]).ok();
    std::fs::remove_file(world.base().join("policy/rules.toml")).unwrap();
    assert_eq!(world.fs(&["read", "a"]).code, 4);
    insta::assert_snapshot!(check(&world), @r##"
    error: cannot use the rules in "rules.toml"
     --> policy/policy.toml:6:22
      |
    6 | rulesets = [{ file = "rules.toml", format = "gitleaks" }]
      |                      ^^^^^^^^^^^^ no such file

    portcullis: the policy does not load
    "##);
}

#[test]
fn what_is_wrong_in_a_rule_file_is_shown_there() {
    let rules = r#"
[[rules]]
id = "open"
regex = '(a'
[[rules]]
id = "open"
regex = 'a'
[[rules]]
id = "nothing"
[[rules]]
id = "bomb"
regex = '(?:(?:a{1000}){1000}){1000}'
kewords = ["a"]
[[rules]]
id = "group"
regex = 'a(b)'
secretGroup = 3
[extend]
useDefault = true
"#;
    insta::assert_snapshot!(check(&world(USE, rules)), @r##"
    error: unknown key `extend`
      --> rules.toml:18:2
       |
    18 | [extend]
       |  ^^^^^^ not a key here
       |
       = help: known keys: title, description, minVersion, allowlist, allowlists, rules

    error: unknown key `kewords` in `rules`
      --> rules.toml:13:1
       |
    13 | kewords = ["a"]
       | ^^^^^^^ not a key here
       |
       = help: did you mean `keywords`?

    error: the expression of the rule `open` cannot be used
     --> rules.toml:4:9
      |
    4 | regex = '(a'
      |         ^^^^ unclosed group, at character 1

    error: the rule id `open` is used twice
     --> rules.toml:6:6
      |
    6 | id = "open"
      |      ^^^^^^

    error: the rule `nothing` has neither `regex` nor `path`
     --> rules.toml:9:6
      |
    9 | id = "nothing"
      |      ^^^^^^^^^ would find nothing

    error: the expression of the rule `bomb` cannot be used
      --> rules.toml:12:9
       |
    12 | regex = '(?:(?:a{1000}){1000}){1000}'
       |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ compiled, it would be larger than 10 MiB; repeat less

    error: the group of the rule `group` cannot be used
      --> rules.toml:17:15
       |
    17 | secretGroup = 3
       |               ^ the last group of the expression is 1

    portcullis: the policy does not load
    "##);
    insta::assert_snapshot!(check(&world(USE, "rules = [")), @r##"
    error: not valid TOML: unclosed array, expected `]`
     --> rules.toml:1:10
      |
    1 | rules = [
      |          ^

    portcullis: the policy does not load
    "##);
    let embedded = World::with_policy("schema = 1\n");
    let done = embedded.run(&["policy", "check", "secrets"]).ok();
    assert!(done.text().starts_with("secrets: ok"), "{done:?}");
}

#[test]
fn what_is_wrong_in_a_rule_is_shown_with_its_line() {
    let secrets = r#"onRead = "redact"
onWrite = "warn"
maxScanTime = "2 s"
[[secrets.rules]]
id = "a"
regex = '\p{Greek}+'
[[secrets.rules]]
id = "a"
regex = 'tok_[0-9]{3}'
keywords = ["tok"]
entropy = -1
match = ["tok_123", "tok_12"]
notMatch = ["tok_999"]
[[secrets.rules]]
id = "b"
regex = '(x)'
group = 2
keywords = [""]"#;
    insta::assert_snapshot!(check(&world(secrets, "")), @r##"
    error: `onWrite = "warn"` cannot stand beside `onRead = "redact"`
     --> policy/policy.toml:7:11
      |
    7 | onWrite = "warn"
      |           ^^^^^^ expected "deny"
      |
      = help: an agent that may write secrets could compare placeholders with its guesses

    error: bad time "2 s"
     --> policy/policy.toml:8:15
      |
    8 | maxScanTime = "2 s"
      |               ^^^^^ expected a whole number and a unit, such as "10s"
      |
      = help: from "1ms" to "24h"; units are ms, s, m and h

    error: the expression cannot be used
      --> policy/policy.toml:11:9
       |
    11 | regex = '\p{Greek}+'
       |         ^^^^^^^^^^^^ Unicode not allowed here, at character 1
       |
       = help: expressions are over bytes; see `docs/policy.md`

    error: the rule id `a` is used twice
      --> policy/policy.toml:13:6
       |
    13 | id = "a"
       |      ^^^
       |
       = help: ids of rules about secrets must be unique in a file

    error: `secrets.rules.entropy` is out of range
      --> policy/policy.toml:16:11
       |
    16 | entropy = -1
       |           ^^ expected a number that is not negative

    error: the rule does not match its sample
      --> policy/policy.toml:17:21
       |
    17 | match = ["tok_123", "tok_12"]
       |                     ^^^^^^^^ a sample of `match`
       |
       = help: look at the expression and at `keywords`

    error: the rule matches a sample that it must not
      --> policy/policy.toml:18:13
       |
    18 | notMatch = ["tok_999"]
       |             ^^^^^^^^^ a sample of `notMatch`
       |
       = help: make the expression narrower

    error: there is no such group
      --> policy/policy.toml:22:9
       |
    22 | group = 2
       |         ^ the last group of the expression is 1

    error: bad keyword ""
      --> policy/policy.toml:23:13
       |
    23 | keywords = [""]
       |             ^^ expected 1 to 100 bytes

    portcullis: the policy does not load
    "##);
}

#[test]
fn the_stricter_of_two_policies_wins_and_rules_unite() {
    let mut world = World::new();
    let directory = world.base().join("policy");
    std::fs::create_dir_all(&directory).unwrap();
    let rule = |id: &str| {
        format!(
            "[[secrets.rules]]\nid = \"{id}\"\nregex = '{id}_[0-9]{{4}}'\nkeywords = [\"{id}_\"]\n"
        )
    };
    let parent = format!("schema = 1\n[secrets]\nonRead = \"redact\"\n{}", rule("one"));
    std::fs::write(directory.join("parent.toml"), parent).unwrap();
    let child = |on_read: &str| {
        format!(
            "schema = 1\nextends = [\"parent.toml\"]\n[allowedPaths]\nread = [\"**\"]\nwrite = [\"**\"]\n\
             [secrets]\n{on_read}\n{}",
            rule("two")
        )
    };
    world.set_policy(&child("onRead = \"warn\"\nonWrite = \"warn\""));
    world.file("a", "one_1111 two_2222\n");
    let text = world.fs(&["read", "a"]).ok();
    assert!(!text.text().contains("1111") && !text.text().contains("2222"), "{text:?}");
    world.write("b", "two_3333\n").denied("secrets.rules.two");
    world.set_policy(&child("onRead = \"deny\""));
    world.fs(&["read", "a"]).denied("secrets.rules.one");
}

#[test]
fn a_scan_past_its_time_denies() {
    let slow = "maxScanTime = \"1ms\"\n[[secrets.rules]]\nid = \"slow\"\nregex = '(?:[a-z]{1,40}[0-9]?){30}!'\n";
    let world = world(slow, "");
    world.file("a", "abcdefghij".repeat(200_000));
    world.fs(&["read", "a"]).denied("secrets.maxScanTime");
    assert_eq!(world.last()["rule"], "secrets.maxScanTime");
    assert_eq!(world.last()["line"], 6);
}

/// gitleaks reports the first group that has a text, or the last repetition of one: the rest of the
/// secret was shown.
#[test]
fn a_group_that_is_a_part_of_the_secret_left_the_rest_of_it_shown() {
    let rule = |regex: &str, more: &str| {
        format!(
            "[[rules]]\nid = \"part\"\nregex = \'\'\'{regex}\'\'\'\nkeywords = [\"lic\"]\n{more}"
        )
    };
    let redact = format!("onRead = \"redact\"\n{USE}");
    for (regex, text, shown) in [
        ("lic_([a-z0-9]{4}-){3}[a-z0-9]{4}", "lic_ab12-cd34-ef56-gh78", false),
        ("(lic_)[a-z0-9]{16}", "lic_ab12cd34ef56gh78", false),
        ("lic_(?P<kind>[a-z])_(?P<id>[a-z0-9]{8})", "lic_k_ab12cd34", false),
        ("lic: ([a-z0-9]{8})", "lic: ab12cd34", true),
    ] {
        let world = world(&redact, &rule(regex, ""));
        world.file("a", format!("{text}\n"));
        let done = world.fs(&["read", "a"]).ok();
        let read = done.text();
        let rest = text.split(|c: char| !c.is_ascii_alphanumeric()).find(|it| read.contains(it));
        assert_eq!(rest, shown.then_some("lic"), "{regex}: {read}");
        assert!(read.contains("portcullis-secret"), "{regex}: {read}");
    }
    let said = check(&world(&redact, &rule("lic_([a-z0-9]{4,}?)", "")));
    assert!(said.contains("lazy repetition"), "{said}");
}
