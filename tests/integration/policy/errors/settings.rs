//! Errors of settings.

use super::*;

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
      = help: did you mean `operationsPerSecond`?

    portcullis: the policy does not load
    "##);
}

#[test]
fn bad_settings_of_the_agent() {
    let text = r##"schema = 1
[agent]
env = ["A=b"]
read = ["usr", "/", "/usr/../etc"]
"##;
    insta::assert_snapshot!(check(text), @r##"
    error: bad environment variable "A=b"
     --> policy/policy.toml:3:8
      |
    3 | env = ["A=b"]
      |        ^^^^^ expected a name such as "PATH": letters, digits and `_`
      |
      = help: the value comes from the environment of the gateway; variables pass by name only

    error: bad path "usr"
     --> policy/policy.toml:4:9
      |
    4 | read = ["usr", "/", "/usr/../etc"]
      |         ^^^^^ expected an absolute path

    error: bad path "/"
     --> policy/policy.toml:4:16
      |
    4 | read = ["usr", "/", "/usr/../etc"]
      |                ^^^ `/` contains the workspace and the gateway's own state

    error: bad path "/usr/../etc"
     --> policy/policy.toml:4:21
      |
    4 | read = ["usr", "/", "/usr/../etc"]
      |                     ^^^^^^^^^^^^^ expected a path without `.`, `..`, empty components or a slash at the end

    portcullis: the policy does not load
    "##);
}

#[test]
fn the_network_of_earlier_versions_names_what_took_its_place() {
    for network in ["\"none\"", "{ connect = [443] }"] {
        let stderr = check(&format!("schema = 1\n[agent]\nnetwork = {network}\n"));
        assert!(stderr.contains("policy.toml:3:1"), "{stderr}");
        assert!(stderr.contains("[[network.rules]]"), "{stderr}");
    }
}
