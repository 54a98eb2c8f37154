//! What an author sees of each kind of error.

use crate::common::World;

/// What `policy check` prints for a policy with this text.
fn check(text: &str) -> String {
    let mut world = World::new();
    world.set_policy(text);
    let done = world.run(&["policy", "check", "policy/policy.toml"]);
    assert_eq!(done.code, 4, "{done:?}");
    assert_eq!(done.text(), "");
    done.stderr
}

#[test]
fn a_missing_schema() {
    let text = r##"name = "x"
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: the policy has no `schema`
    --> policy/policy.toml
     = help: start the file with `schema = 1`

    portcullis: the policy does not load
    "##);
}

#[test]
fn a_schema_of_another_version() {
    let text = r##"schema = 2
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: this version reads schema 1 only
     --> policy/policy.toml:1:10
      |
    1 | schema = 2
      |          ^ expected 1

    portcullis: the policy does not load
    "##);
}

#[test]
fn an_unknown_key_and_the_nearest_known_one() {
    let text = r##"schema = 1
[allowedPaths]
raed = ["**"]
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: unknown key `raed` in `allowedPaths`
     --> policy/policy.toml:3:1
      |
    3 | raed = ["**"]
      | ^^^^ not a key here
      |
      = help: did you mean `read`?

    portcullis: the policy does not load
    "##);
}

#[test]
fn an_unknown_key_that_is_like_no_other() {
    let text = r##"schema = 1
[backups]
place = "/tmp"
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: unknown key `place` in `backups`
     --> policy/policy.toml:3:1
      |
    3 | place = "/tmp"
      | ^^^^^ not a key here
      |
      = help: known keys: keep

    portcullis: the policy does not load
    "##);
}

#[test]
fn a_duplicate_key() {
    let text = r##"schema = 1
[files]
symlinks = "deny"
symlinks = "beneath"
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: not valid TOML: duplicate key
     --> policy/policy.toml:4:1
      |
    4 | symlinks = "beneath"
      | ^^^^^^^^

    portcullis: the policy does not load
    "##);
}

#[test]
fn a_syntax_error() {
    let text = r##"schema = 1
[allowedPaths
read = ["**"]
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: not valid TOML: unclosed table, expected `]`
     --> policy/policy.toml:2:14
      |
    2 | [allowedPaths
      |              ^

    portcullis: the policy does not load
    "##);
}

#[test]
fn a_wrong_type() {
    let text = r##"schema = 1
[allowedPaths]
read = "**"
list = [1]
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: `allowedPaths.read` cannot be a string
     --> policy/policy.toml:3:8
      |
    3 | read = "**"
      |        ^^^^ expected a list of strings

    error: `allowedPaths.list` cannot be an integer
     --> policy/policy.toml:4:9
      |
    4 | list = [1]
      |         ^ expected a string

    portcullis: the policy does not load
    "##);
}

#[test]
fn a_table_where_tables_belong() {
    let text = r##"schema = 1
[rules]
id = "x"
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: `rules` cannot be a table
     --> policy/policy.toml:2:1
      |
    2 | [rules]
      | ^^^^^^^ expected tables written with double brackets, as in `[[rules]]`

    portcullis: the policy does not load
    "##);
}

#[test]
fn a_word_that_is_none_of_those_expected() {
    let text = r##"schema = 1
[files]
symlinks = "benath"
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: `files.symlinks` cannot be "benath"
     --> policy/policy.toml:3:12
      |
    3 | symlinks = "benath"
      |            ^^^^^^^^ expected "beneath" or "deny"
      |
      = help: did you mean "beneath"?

    portcullis: the policy does not load
    "##);
}

#[test]
fn an_operation_that_does_not_exist() {
    let text = r##"schema = 1
[[rules]]
id = "x"
effect = "deny"
paths = ["a"]
operations = ["delete"]
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: `rules.operations` cannot be "delete"
     --> policy/policy.toml:6:15
      |
    6 | operations = ["delete"]
      |               ^^^^^^^^ expected one of "read", "list", "write", "remove", "rename", "append", "edit", "stat", "glob", "grep", "watch", "mkdir", "restore"

    portcullis: the policy does not load
    "##);
}

#[test]
fn a_bad_size() {
    let text = r##"schema = 1
[files]
maxReadSize = "10MB"
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: bad size "10MB"
     --> policy/policy.toml:3:15
      |
    3 | maxReadSize = "10MB"
      |               ^^^^^^ expected a whole number and a unit, such as "10MiB"
      |
      = help: units are B, KiB, MiB, GiB and TiB

    portcullis: the policy does not load
    "##);
}

#[test]
fn a_number_out_of_range() {
    let text = r##"schema = 1
[backups]
keep = { versions = 0 }
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: `backups.keep.versions` is out of range
     --> policy/policy.toml:3:21
      |
    3 | keep = { versions = 0 }
      |                     ^ expected a whole number from 1 to 1000000

    portcullis: the policy does not load
    "##);
}

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
      |                                         ^^^^^^^ `[]` is empty or its range runs backwards

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

#[test]
fn times_and_modes() {
    let text = r##"schema = 1
mode = "observ"
[limits]
approvalTimeout = "2 minutes"
[[rules]]
id = "approval"
effect = "asks"
paths = ["a"]
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: `mode` cannot be "observ"
     --> policy/policy.toml:2:8
      |
    2 | mode = "observ"
      |        ^^^^^^^^ expected "enforce" or "observe"
      |
      = help: did you mean "observe"?

    error: bad time "2 minutes"
     --> policy/policy.toml:4:19
      |
    4 | approvalTimeout = "2 minutes"
      |                   ^^^^^^^^^^^ expected a whole number and a unit, such as "2m"
      |
      = help: from "1s" to "24h"; units are s, m and h

    error: the rule id `approval` is that of a built-in rule
     --> policy/policy.toml:6:6
      |
    6 | id = "approval"
      |      ^^^^^^^^^^ reserved
      |
      = help: choose another, such as "my-approval"

    error: `rules.effect` cannot be "asks"
     --> policy/policy.toml:7:10
      |
    7 | effect = "asks"
      |          ^^^^^^ expected one of "allow", "ask", "deny"
      |
      = help: did you mean "ask"?

    portcullis: the policy does not load
    "##);
}

#[test]
fn bad_limits() {
    let text = r##"schema = 1
[limits]
operationsPerSecond = 0
bytesWritten = 200
filesRemoved = -1
denials = 0
operations = 5
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: `limits.operationsPerSecond` is out of range
     --> policy/policy.toml:3:23
      |
    3 | operationsPerSecond = 0
      |                       ^ expected a whole number from 1 to 1000000

    error: `limits.bytesWritten` cannot be an integer
     --> policy/policy.toml:4:16
      |
    4 | bytesWritten = 200
      |                ^^^ expected a size such as "10MiB"

    error: `limits.filesRemoved` is out of range
     --> policy/policy.toml:5:16
      |
    5 | filesRemoved = -1
      |                ^^ expected a whole number from 0 to 1000000000

    error: `limits.denials` is out of range
     --> policy/policy.toml:6:11
      |
    6 | denials = 0
      |           ^ expected a whole number from 1 to 1000000000

    error: unknown key `operations` in `limits`
     --> policy/policy.toml:7:1
      |
    7 | operations = 5
      | ^^^^^^^^^^ not a key here
      |
      = help: known keys: operationsPerSecond, bytesWritten, filesRemoved, denials, approvalTimeout

    portcullis: the policy does not load
    "##);
}

#[test]
fn bad_settings_of_the_agent() {
    let text = r##"schema = 1
[agent]
env = ["A=b"]
read = ["usr", "/", "/usr/../etc"]
network = "all"
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: bad environment variable "A=b"
     --> policy/policy.toml:3:8
      |
    3 | env = ["A=b"]
      |        ^^^^^ expected a name such as "PATH": letters, digits and `_`
      |
      = help: the value comes from the environment of the gate; variables pass by name only

    error: bad path "usr"
     --> policy/policy.toml:4:9
      |
    4 | read = ["usr", "/", "/usr/../etc"]
      |         ^^^^^ expected an absolute path

    error: bad path "/"
     --> policy/policy.toml:4:16
      |
    4 | read = ["usr", "/", "/usr/../etc"]
      |                ^^^ `/` holds the workspace and the gate's own state

    error: bad path "/usr/../etc"
     --> policy/policy.toml:4:21
      |
    4 | read = ["usr", "/", "/usr/../etc"]
      |                     ^^^^^^^^^^^^^ expected a path without `.`, `..`, empty components or a slash at the end

    error: `agent.network` cannot be "all"
     --> policy/policy.toml:5:11
      |
    5 | network = "all"
      |           ^^^^^ expected "none" or a table

    portcullis: the policy does not load
    "##);
}

#[test]
fn extends_of_what_does_not_exist() {
    let text = r##"schema = 1
extends = ["basline", "./other.toml"]
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: cannot extend "basline"
     --> policy/policy.toml:2:12
      |
    2 | extends = ["basline", "./other.toml"]
      |            ^^^^^^^^^ no embedded policy has this name; did you mean `baseline`?

    error: cannot extend "./other.toml"
     --> policy/policy.toml:2:23
      |
    2 | extends = ["basline", "./other.toml"]
      |                       ^^^^^^^^^^^^^^ no such file

    portcullis: the policy does not load
    "##);
}

#[test]
fn hidden_characters() {
    let text = r##"schema = 1
[allowedPaths]
read = ["a\u200Bb"]
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: bad pattern "a\u{200b}b"
     --> policy/policy.toml:3:9
      |
    3 | read = ["a\u200Bb"]
      |         ^^^^^^^^^^ the pattern holds control, bidirectional or zero-width characters

    portcullis: the policy does not load
    "##);
}

#[test]
fn a_failing_test() {
    let text = r##"schema = 1
[allowedPaths]
read = ["**"]
[[tests]]
operation = "read"
path = "a"
expect = { effect = "deny", rule = "x" }
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: test failed: `read` of `a` by agent `agent` is allowed by `allowedPaths.read` (policy/policy.toml:3)
     --> policy/policy.toml:7:10
      |
    7 | expect = { effect = "deny", rule = "x" }
      |          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ expected deny by `x`
      |
      = help: correct the policy or what the test expects

    portcullis: the policy does not load
    "##);
}

#[test]
fn a_test_of_a_rename_without_a_new_name() {
    let text = r##"schema = 1
[[tests]]
operation = "rename"
path = "a"
expect = { effect = "deny" }
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: a test of `rename` needs the new name
     --> policy/policy.toml:3:13
      |
    3 | operation = "rename"
      |             ^^^^^^^^
      |
      = help: add `to = "…"`

    portcullis: the policy does not load
    "##);
}

#[test]
fn several_errors_at_once() {
    let text = r##"schema = 1
nane = "x"
[allowedPaths]
read = ["/a"]
[files]
maxReadSize = 10
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: unknown key `nane`
     --> policy/policy.toml:2:1
      |
    2 | nane = "x"
      | ^^^^ not a key here
      |
      = help: did you mean `name`?

    error: bad pattern "/a"
     --> policy/policy.toml:4:9
      |
    4 | read = ["/a"]
      |         ^^^^ the pattern starts with `/`; patterns are relative to the workspace root

    error: `files.maxReadSize` cannot be an integer
     --> policy/policy.toml:6:15
      |
    6 | maxReadSize = 10
      |               ^^ expected a size such as "10MiB"

    portcullis: the policy does not load
    "##);
}
