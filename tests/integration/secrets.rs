//! Secrets in content by the public interfaces: the text that a reader gets, the content that a
//! writer may store, and an agent's attempts to see more.

mod disclosure;
mod forms;
mod invisible;
mod rulesets;
mod write_only;

use std::os::unix::fs::{MetadataExt as _, symlink};

use portcullis::acp::{Config, SourceMode};
use serde_json::{Value, json};

use crate::{
    acp_rig::{Rig, result},
    common::World,
};

/// Rules of two kinds, one of them over two lines.
pub(crate) const POLICY: &str = r#"schema = 1
[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["**"]

[secrets]
onRead = "redact"

[[secrets.rules]]
id = "token"
description = "a token"
regex = '\btok_[0-9a-z]{8}\b'
keywords = ["tok_"]
match = ["tok_00000000"]
notMatch = ["tok_"]

[[secrets.rules]]
id = "password"
regex = 'password:\s*([a-z0-9]{6,20})'
keywords = ["password"]
"#;

const TOKEN: &str = "tok_a1b2c3d4";
const FILE: &str = "# settings\ntoken = tok_a1b2c3d4\nport = 80\n";

pub(crate) fn world(on_read: &str) -> World {
    let world = World::with_policy(&POLICY.replace("\"redact\"", &format!("\"{on_read}\"")));
    world.file("app.conf", FILE);
    world
}

fn seen(world: &World, path: &str) -> String {
    world.fs(&["read", path]).ok().text().to_owned()
}

/// True if a file in the state directory contains the text. The backup store, which must contain
/// it, is left out.
pub(crate) fn state_shows(world: &World, text: &str) -> bool {
    let mut open = vec![world.state()];
    while let Some(path) = open.pop() {
        if path.ends_with("backups") {
            continue;
        }
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            let content = std::fs::read(&path).unwrap();
            if content.windows(text.len()).any(|part| part == text.as_bytes()) {
                return true;
            }
        }
    }
    false
}

#[test]
fn a_reader_gets_a_placeholder_and_the_record_names_rule_line_and_hash() {
    let world = world("redact");
    let text = seen(&world, "app.conf");
    let placeholder = text.lines().nth(1).unwrap().strip_prefix("token = ").unwrap();
    assert!(placeholder.starts_with("[portcullis-secret:token:"), "{text}");
    assert_eq!(text.replace(placeholder, TOKEN), FILE);
    let record = world.last();
    assert_eq!(record["decision"], "allow");
    let findings = record["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0]["rule"], "token");
    assert_eq!(findings[0]["line"], 2);
    assert_eq!(findings[0]["action"], "redacted");
    assert_eq!(findings[0]["hash"].as_str().unwrap().len(), 32);
    assert!(!state_shows(&world, TOKEN));
    // The same for a repeated read, and for another agent.
    assert_eq!(seen(&world, "app.conf"), text);
    let other = world.run(&["fs", "--agent", "other", "read", "app.conf"]).ok();
    assert_eq!(other.text(), text);
    let base64 = world.fs(&["read", "app.conf", "--base64"]).ok();
    assert!(!base64.text().contains("dG9rX2ExYjJjM2Q0"), "{base64:?}");
}

#[test]
fn deny_and_warn_do_what_they_say_and_are_recorded() {
    let denying = world("deny");
    let refused = denying.fs(&["read", "app.conf"]).denied("secrets.rules.token");
    assert!(refused.stderr.contains("a token") && !refused.stderr.contains(TOKEN), "{refused:?}");
    assert_eq!(denying.last()["findings"][0]["action"], "denied");
    assert_eq!(denying.last()["line"], 12);
    denying.fs(&["edit", "app.conf", "--old", "80", "--new", "81"]).denied("secrets.rules.token");
    // The complete file counts, for any requested or appended part.
    denying.fs(&["read", "app.conf", "--line", "3"]).denied("secrets.rules.token");
    denying.run_with_input(&["fs", "append", "app.conf"], "x\n").denied("secrets.rules.token");
    denying.write("new.conf", format!("x\n{TOKEN}\n")).denied("secrets.rules.token");
    assert!(!denying.path("new.conf").exists());
    assert_eq!(denying.last()["findings"][0]["line"], 2);
    // Nor does a byte at the end of the last line release its content.
    denying.file("end.conf", format!("port = 80\ntoken = {TOKEN}"));
    denying.run_with_input(&["fs", "append", "end.conf"], "X").denied("secrets.rules.token");
    denying.fs(&["read", "end.conf"]).denied("secrets.rules.token");
    // Content without a secret may replace one.
    denying.write("app.conf", "port = 80\n").ok();

    let warning = World::with_policy(
        &POLICY.replace("onRead = \"redact\"", "onRead = \"warn\"\nonWrite = \"warn\""),
    );
    warning.file("app.conf", FILE);
    assert_eq!(seen(&warning, "app.conf"), FILE);
    assert_eq!(warning.last()["findings"][0]["action"], "warned");
    warning.write("b", format!("{TOKEN}\n")).ok();
    let intent = warning.requests().into_iter().find(|record| record["kind"] == "intent").unwrap();
    assert_eq!(intent["findings"][0]["action"], "warned");
    assert!(!state_shows(&warning, TOKEN));
}

#[test]
fn a_secret_split_by_an_append_or_an_edit_is_found_in_the_result() {
    let world = world("redact");
    world.file("half", "tok_a1b2");
    world.run_with_input(&["fs", "append", "half"], "c3d4\n").denied("secrets.rules.token");
    world.file("half", "tok_a1b2+c3d4\n");
    world.fs(&["edit", "half", "--old", "+", "--new", ""]).denied("secrets.rules.token");
    assert_eq!(world.read("half"), "tok_a1b2+c3d4\n");
}

#[test]
fn what_was_read_can_be_written_and_only_what_was_changed_differs() {
    let world = world("redact");
    let text = seen(&world, "app.conf");
    let inode = std::fs::metadata(world.path("app.conf")).unwrap().ino();
    world.write("app.conf", text.replace("port = 80", "port = 8080")).ok();
    assert_eq!(world.read("app.conf"), FILE.replace("80", "8080"));
    assert_ne!(std::fs::metadata(world.path("app.conf")).unwrap().ino(), inode);
    let intent = world.requests().into_iter().rfind(|record| record["kind"] == "intent").unwrap();
    assert_eq!(intent["findings"][0]["action"], "preserved");
    assert_eq!(intent["bytes"], FILE.len() + 2);
    world.run_with_input(&["fs", "append", "app.conf"], "host = x\n").ok();
    world.fs(&["edit", "app.conf", "--old", "# settings", "--new", "# all"]).ok();
    assert_eq!(world.read("app.conf"), "# all\ntoken = tok_a1b2c3d4\nport = 8080\nhost = x\n");
    // The text to replace is looked for in the redacted text, so that the result discloses nothing
    // of the rest.
    let guess = world.fs(&["edit", "app.conf", "--old", "tok_a", "--new", "x"]);
    assert!(guess.stderr.contains("occurs 0 times"), "{guess:?}");
    // With its placeholder, a line goes.
    let line = text.lines().nth(1).unwrap();
    world.fs(&["edit", "app.conf", "--old", &format!("{line}\n"), "--new", ""]).ok();
    assert_eq!(world.read("app.conf"), "# all\nport = 8080\nhost = x\n");
    assert!(!state_shows(&world, TOKEN));
}

#[test]
fn lines_and_limits_count_what_the_reader_sees() {
    let mut world = World::with_policy(POLICY);
    world.use_policy("default");
    let body = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWZnaGlqa2xtbm9wcXJzdHV2";
    world.file(
        "a.txt",
        format!(
            "one\n-----BEGIN PRIVATE KEY-----\n{body}\n{body}\n-----END PRIVATE KEY-----\ntwo\n"
        ),
    );
    let whole = seen(&world, "a.txt");
    assert!(!whole.contains(body) && whole.lines().count() == 3, "{whole}");
    assert_eq!(world.fs(&["read", "a.txt", "--line", "3", "--limit", "1"]).ok().text(), "two\n");
    let middle = world.fs(&["read", "a.txt", "--line", "2", "--limit", "1"]).ok();
    assert!(middle.text().contains("[portcullis-secret:private-key:"), "{middle:?}");
}

#[test]
fn the_editor_transport_redacts_and_puts_back() {
    let mut rig = Rig::under(POLICY, |_| {}).made_ready(json!({}));
    let path = rig.path("app.conf");
    std::fs::write(&path, FILE).unwrap();
    rig.agent.send(&rig.read(7, "app.conf"));
    let text = rig.agent.hear()["result"]["content"].as_str().unwrap().to_owned();
    assert!(!text.contains(TOKEN) && text.contains("portcullis-secret:token:"), "{text}");
    rig.agent.send(&rig.write(8, "app.conf", &text.replace("port = 80", "port = 81")));
    let written = rig.agent.hear();
    assert!(written.get("error").is_none(), "{written}");
    let changed = FILE.replace("port = 80", "port = 81");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), changed);
    rig.agent.send(&rig.write(9, "app.conf", &text.replace("token = ", "# token = ")));
    let refused = rig.agent.hear();
    assert_eq!(refused["error"]["code"], -32001);
    assert_eq!(refused["error"]["data"]["rule"], "secrets.placeholder");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), changed);
    assert!(!rig.log().contains(TOKEN));
}

#[test]
fn a_buffer_of_the_editor_is_redacted_and_gets_its_secrets_back() {
    let change = |config: &mut Config| config.source = SourceMode::Editor;
    let offers = json!({"readTextFile": true, "writeTextFile": true});
    let mut rig = Rig::under(POLICY, change).made_ready(offers);
    std::fs::write(rig.path("app.conf"), "old\n").unwrap();
    let answer = |rig: &mut Rig, method: &str, reply: Value| {
        let asked = rig.editor.hear();
        assert_eq!(asked["method"], method, "{asked}");
        rig.editor.send(&result(asked["id"].clone(), reply));
        asked
    };
    rig.agent.send(&rig.read(7, "app.conf"));
    answer(&mut rig, "fs/read_text_file", json!({"content": FILE}));
    let text = rig.agent.hear()["result"]["content"].as_str().unwrap().to_owned();
    assert!(!text.contains(TOKEN) && text.ends_with("port = 80\n"), "{text}");
    rig.agent.send(&rig.write(8, "app.conf", &text.replace("port = 80", "port = 81")));
    answer(&mut rig, "fs/read_text_file", json!({"content": FILE}));
    let asked = answer(&mut rig, "fs/write_text_file", Value::Null);
    assert_eq!(asked["params"]["content"], FILE.replace("port = 80", "port = 81"));
    let reply = rig.agent.hear();
    assert!(reply.get("error").is_none(), "{reply}");
}

#[test]
fn a_link_shows_what_its_target_shows() {
    let world = world("redact");
    symlink("app.conf", world.path("link")).unwrap();
    let text = seen(&world, "app.conf");
    assert_eq!(seen(&world, "link"), text);
    world.write("link", text.replace("port = 80", "port = 81")).ok();
    assert_eq!(world.read("app.conf"), FILE.replace("80", "81"));
}

#[test]
fn the_key_is_made_once_for_its_owner_alone() {
    let world = world("redact");
    let text = seen(&world, "app.conf");
    let key = world.state().join("secrets.key");
    let look = std::fs::metadata(&key).unwrap();
    assert_eq!((look.mode() & 0o7777, look.len()), (0o600, 32));
    std::fs::remove_file(&key).unwrap();
    assert_ne!(seen(&world, "app.conf"), text, "another key, another placeholder");
    // Reads under the old key are unknown.
    world.write("app.conf", &text).denied("secrets.placeholder");
    std::fs::write(&key, "short").unwrap();
    let broken = world.fs(&["read", "app.conf"]);
    assert_eq!(broken.code, 1);
    assert!(broken.stderr.contains("secrets.key"), "{broken:?}");
}

/// Each of these showed a part of a secret: the delimiter of two taken by the first, a
/// byte order mark before `^`, a token longer than usual, `@` in a password.
#[test]
fn secrets_that_were_shown_in_part_are_withheld() {
    let world = World::with_policy(
        "schema = 1\nextends = [\"secrets\"]\n[allowedPaths]\nread = [\"**\"]\nwrite = [\"**\"]\n",
    );
    let long = "0aB1cD2eF3gH4iJ5kL6m".repeat(45);
    let [one, two] =
        ["aB38", "cD47"].map(|start| format!("{start}Q~bVelZHjjOddRisyl0Ke971EytOlwcPU"));
    let key = format!(
        "-----BEGIN RSA PRIVATE {}\n{long}\n# rotated\nZz9{long}\n-----END RSA PRIVATE KEY-----\n",
        "KEY-----"
    );
    for (text, secrets, secret) in [
        (format!("= {one} {two} \n"), 2, "Q~"),
        (format!("= '{one}'{two}'\n"), 2, "Q~"),
        (format!("\u{feff}{one}\n"), 1, "Q~"),
        (format!("//registry.example.org/:_authToken={long}\n"), 1, "aB1"),
        (format!("glpat-{long}\n"), 1, "aB1"),
        (format!("ghp_{long}\n"), 1, "aB1"),
        ("U=postgres://shop:Tr0ub4dor@3xyzS@db.internal/shop\n".to_owned(), 1, "xyzS"),
        (key, 1, "Zz9"),
    ] {
        world.file("file", &text);
        let shown = seen(&world, "file");
        assert!(!shown.contains(secret), "{shown}");
        assert_eq!(shown.matches("[portcullis-secret:").count(), secrets, "{shown}");
        assert_eq!(world.write("new", &text).code, 3, "{text}");
    }
}

/// An assignment without a value took the next line's key for its secret, and the search went on
/// behind that key.
#[test]
fn an_empty_assignment_above_a_secret_showed_it() {
    let policy = |rules: &str| {
        format!(
            "schema = 1\nextends = [\"secrets\"]\n[allowedPaths]\nread = [\"**\"]\nwrite = [\"**\"]\n{rules}"
        )
    };
    let own = "[[secrets.rules]]\nid = \"pw\"\nregex = '(?i)password\\s*=\\s*(\\S{4,})'\n";
    for (rules, text) in [
        ("", "//npm.example.org/:_authToken =\n//npm.example.com/:_authToken = real-4711abcd\n"),
        (own, "password =\ndb_password = real-4711abcd\n"),
        (own, "password = password = real-4711abcd\n"),
    ] {
        let world = World::with_policy(&policy(rules));
        world.file("file", text);
        let shown = seen(&world, "file");
        assert!(!shown.contains("4711"), "{shown}");
    }
}
