//! Errors of patterns and rules.

use super::*;

#[test]
fn bad_patterns() {
    let text = r##"schema = 1
[allowedPaths]
read = ["/src/**", "src/", "a**", "{a", "[b-a]"]
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: bad pattern "/src/**"
     --> policy/policy.toml:3:9
      |
    3 | read = ["/src/**", "src/", "a**", "{a", "[b-a]"]
      |         ^^^^^^^^^ the pattern starts with `/`; patterns are relative to the workspace root
      |
      = help: leave out the `/` at the start: `/src` is `src`

    error: bad pattern "src/"
     --> policy/policy.toml:3:20
      |
    3 | read = ["/src/**", "src/", "a**", "{a", "[b-a]"]
      |                    ^^^^^^ the pattern has an empty component; for all that is in a directory write `directory/**`

    error: bad pattern "a**"
     --> policy/policy.toml:3:28
      |
    3 | read = ["/src/**", "src/", "a**", "{a", "[b-a]"]
      |                            ^^^^^ `**` must be a whole component, as in `a/**/b`

    error: bad pattern "{a"
     --> policy/policy.toml:3:35
      |
    3 | read = ["/src/**", "src/", "a**", "{a", "[b-a]"]
      |                                   ^^^^ `{` has no matching `}`

    error: bad pattern "[b-a]"
     --> policy/policy.toml:3:41
      |
    3 | read = ["/src/**", "src/", "a**", "{a", "[b-a]"]
      |                                         ^^^^^^^ a range in a class `[…]` runs backwards
      |
      = help: a range goes from the first character to the last: `[a-z]`; in a name `[` is `[[]` and `]` is `[]]`, as in `[[]user-id[]]`

    portcullis: the policy does not load
    "##);
}

#[test]
fn a_bad_agent_pattern() {
    let text = r##"schema = 1
[[rules]]
id = "x"
effect = "deny"
paths = ["a"]
agents = ["a/*"]
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: bad agent pattern "a/*"
     --> policy/policy.toml:6:11
      |
    6 | agents = ["a/*"]
      |           ^^^^^ the pattern must be a single name, without `/` or `**`

    portcullis: the policy does not load
    "##);
}

#[test]
fn a_bad_extension() {
    let text = r##"schema = 1
[extensions]
deny = ["*.exe", "tar.gz"]
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: bad extension "*.exe"
     --> policy/policy.toml:3:9
      |
    3 | deny = ["*.exe", "tar.gz"]
      |         ^^^^^^^ expected one extension without dots or wildcards, such as "pem"
      |
      = help: write "exe"

    error: bad extension "tar.gz"
     --> policy/policy.toml:3:18
      |
    3 | deny = ["*.exe", "tar.gz"]
      |                  ^^^^^^^^ expected one extension without dots or wildcards, such as "pem"

    portcullis: the policy does not load
    "##);
}

#[test]
fn a_rule_id_used_twice() {
    let text = r##"schema = 1
[[rules]]
id = "x"
effect = "deny"
paths = ["a"]
[[rules]]
id = "x"
effect = "deny"
paths = ["b"]
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: the rule id `x` is used twice
     --> policy/policy.toml:7:6
      |
    7 | id = "x"
      |      ^^^ used before
      |
      = help: decisions and records name a rule by its id, so it must be unique

    portcullis: the policy does not load
    "##);
}

#[test]
fn a_rule_id_of_a_parent() {
    let text = r##"schema = 1
extends = ["baseline"]
[[rules]]
id = "git"
effect = "deny"
paths = ["a"]
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: the rule id `git` is used twice
     --> policy/policy.toml:4:6
      |
    4 | id = "git"
      |      ^^^^^ used by baseline too
      |
      = help: ids must be unique in a policy and all that it extends

    portcullis: the policy does not load
    "##);
}

#[test]
fn a_rule_id_that_is_built_in() {
    let text = r##"schema = 1
[[rules]]
id = "secrets.names"
effect = "deny"
paths = ["a"]
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: the rule id `secrets.names` is that of a built-in rule
     --> policy/policy.toml:3:6
      |
    3 | id = "secrets.names"
      |      ^^^^^^^^^^^^^^^ reserved
      |
      = help: choose another, such as "my-secrets-names"

    portcullis: the policy does not load
    "##);
}

/// Records could not tell them from the gateway's own, and a denial by `serve.limits.mine` never
/// counted for `limits.denials`.
#[test]
fn a_rule_id_that_the_gateway_uses_itself() {
    for id in ["batch", "search.beneath", "serve.limits.mine", "workspace.hidden"] {
        let text =
            format!("schema = 1\n[[rules]]\nid = \"{id}\"\neffect = \"deny\"\npaths = [\"a\"]\n");
        let said = check(&text);
        let wanted = format!("error: the rule id `{id}` is that of a built-in rule");
        assert!(said.contains(&wanted), "{said}");
        assert!(said.contains("= help: choose another, such as \"my-"), "{said}");
    }
}

#[test]
fn a_rule_without_what_it_needs() {
    let text = r##"schema = 1
[[rules]]
id = "x"
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: `rules` has no `effect`
     --> policy/policy.toml:2:1
      |
    2 | [[rules]]
      | ^^^^^^^^^
      |
      = help: add `effect = …`: one of "allow", "ask", "deny"

    error: `rules` has no `paths`
     --> policy/policy.toml:2:1
      |
    2 | [[rules]]
      | ^^^^^^^^^
      |
      = help: add `paths = …`: a list of strings

    portcullis: the policy does not load
    "##);
}

#[test]
fn an_allow_rule_for_everything() {
    let text = r##"schema = 1
[[rules]]
id = "x"
effect = "allow"
paths = ["a"]
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: an `allow` rule must name its `operations`
     --> policy/policy.toml:4:1
      |
    4 | effect = "allow"
      | ^^^^^^
      |
      = help: add `operations = ["write"]`, for instance

    portcullis: the policy does not load
    "##);
}

#[test]
fn a_rule_that_never_applies() {
    let text = r##"schema = 1
[[rules]]
id = "x"
effect = "deny"
paths = []
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: `paths` is empty, so the rule would never apply
     --> policy/policy.toml:5:9
      |
    5 | paths = []
      |         ^^ expected at least one

    portcullis: the policy does not load
    "##);
}
