//! Output for an author for each kind of error.

mod misread;
mod rules;
mod settings;

use crate::common::World;

/// Returns the output of `policy check` for a policy with this text.
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

/// The parser went on after the missing bracket and printed four more errors.
#[test]
fn a_syntax_error_is_reported_without_those_that_follow_from_it() {
    let text = "schema = 1\n[allowedPaths]\nread = [\"**\"\nlist = [\"**\"]\nwrite = []\n";
    insta::assert_snapshot!(check(text), @r##"
    error: not valid TOML: missing comma between array elements, expected `,`
     --> policy/policy.toml:4:1
      |
    4 | list = ["**"]
      | ^

    portcullis: the policy does not load
    "##);
    insta::assert_snapshot!(check("schema = 1\nname = shop\n"), @r##"
    error: not valid TOML: string values must be quoted
     --> policy/policy.toml:2:8
      |
    2 | name = shop
      |        ^^^^

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
      |               ^^^^^^^^ expected one of "read", "list", "write", "remove", "rename", "append", "edit", "stat", "glob", "grep", "watch", "mkdir", "setattr", "symlink", "restore"
      |
      = help: did you mean "remove"?

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
      |         ^^^^^^^^^^ the pattern contains control, bidirectional or zero-width characters

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
      |
      = help: leave out the `/` at the start: `/src` is `src`

    error: `files.maxReadSize` cannot be an integer
     --> policy/policy.toml:6:15
      |
    6 | maxReadSize = 10
      |               ^^ expected a size such as "10MiB"

    portcullis: the policy does not load
    "##);
}
