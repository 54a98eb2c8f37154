//! A person who approves sees no secret either: not in the question, and
//! nowhere that it is kept.

use std::process::Stdio;

use serde_json::json;

use super::{begin, end, id, waiting};
use crate::{
    acp_rig::{Rig, result},
    common::World,
};

const POLICY: &str = r#"schema = 1
[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["**"]
[files]
binary = { read = "base64", write = "base64" }
[limits]
approvalTimeout = "10m"
[secrets]
onRead = "redact"
[[secrets.rules]]
id = "token"
regex = '\btok_[0-9a-z]{8}\b'
keywords = ["tok_"]
[[rules]]
id = "asks"
effect = "ask"
operations = ["write", "remove", "rename", "restore"]
paths = ["**"]
"#;

const TOKEN: &str = "tok_a1b2c3d4";
const FILE: &str = "# settings\ntoken = tok_a1b2c3d4\nport = 80\n";

fn world(on_read: &str) -> World {
    let world = World::with_policy(&POLICY.replace("\"redact\"", &format!("\"{on_read}\"")));
    world.file("app.conf", FILE);
    world
}

/// Checks that both forms of the preview at a shell show no secret; returns the
/// change.
#[track_caller]
fn shown(world: &World) -> (String, String) {
    let asked = waiting(world, 1).remove(0);
    let list = world.run(&["approve", "--list"]).ok();
    assert!(!asked.to_string().contains(TOKEN), "{asked}");
    assert!(!list.text().contains(TOKEN), "{list:?}");
    (id(&asked), asked["change"].as_str().unwrap().to_owned())
}

#[test]
fn at_a_shell_the_difference_is_that_of_the_redacted_view() {
    let world = world("redact");
    let text = world.fs(&["read", "app.conf"]).ok().text().to_owned();
    let child = begin(&world, &["write", "app.conf"], &text.replace("port = 80", "port = 81"));
    let (id, change) = shown(&world);
    assert!(change.contains("-port = 80\n+port = 81\n"), "{change}");
    assert!(change.contains(" token = [portcullis-secret:token:"), "{change}");
    // A file of the repository could hide there what it does.
    assert!(change.ends_with(
        "(what placeholders stand for is not shown, and may be anything: look at the files)\n"
    ));
    let taken = world.run(&["approve", "--yes", &id, "--json"]).ok();
    assert!(!taken.text().contains(TOKEN), "{taken:?}");
    let done = end(child).ok();
    assert!(!done.stderr.contains(TOKEN), "{done:?}");
    // The bytes themselves were approved, and are there again.
    assert_eq!(world.read("app.conf"), FILE.replace("80", "81"));

    for args in [
        &["edit", "app.conf", "--old", "# settings", "--new", "# all"][..],
        &["append", "app.conf"],
        &["rm", "app.conf"],
        &["mv", "app.conf", "b.conf"],
    ] {
        let child = begin(&world, args, "x = 1\n");
        let (id, change) = shown(&world);
        assert!(change.contains("port = 81"), "{args:?}: {change}");
        let taken = world.run(&["approve", "--reject", &id, "--json"]).ok();
        assert!(!taken.text().contains(TOKEN), "{taken:?}");
        let done = end(child).denied("asks");
        assert!(!done.stderr.contains(TOKEN), "{done:?}");
    }
    assert!(!crate::secrets::state_shows(&world, TOKEN));
}

#[test]
fn where_a_reader_would_get_nothing_no_difference_is_shown() {
    for (world, path, content) in [
        (world("deny"), "app.conf", FILE.into()),
        // Binary content has no redacted view.
        (world("redact"), "app.bin", [b"\0".to_vec(), FILE.into()].concat()),
        (
            world("redact"),
            "app.utf16",
            FILE.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>(),
        ),
    ] {
        world.file(path, content);
        for args in [&["rm", path][..], &["write", path]] {
            let child = begin(&world, args, "new\n");
            let (id, change) = shown(&world);
            assert_eq!(change, "the content has secrets and is not shown");
            world.run(&["approve", "--reject", &id]).ok();
            end(child).denied("asks");
        }
        assert!(!crate::secrets::state_shows(&world, TOKEN));
    }
}

#[test]
fn the_editor_is_shown_the_redacted_view() {
    let mut rig = Rig::under(POLICY, |_| {}).made_ready(json!({}));
    let path = rig.path("app.conf");
    std::fs::write(&path, FILE).unwrap();
    rig.agent.send(&rig.read(7, "app.conf"));
    let text = rig.agent.hear()["result"]["content"].as_str().unwrap().to_owned();
    rig.agent.send(&rig.write(8, "app.conf", &text.replace("port = 80", "port = 81")));
    let asked = rig.editor.hear();
    assert_eq!(asked["method"], "session/request_permission", "{asked}");
    assert!(!asked.to_string().contains(TOKEN), "{asked}");
    let shown = asked["params"]["toolCall"]["content"][0]["content"]["text"].as_str().unwrap();
    assert!(shown.contains(" token = [portcullis-secret:token:"), "{shown}");
    assert!(shown.contains("-port = 80\n+port = 81\n"), "{shown}");
    let outcome = json!({ "outcome": "selected", "optionId": "once" });
    rig.editor.send(&result(asked["id"].clone(), json!({ "outcome": outcome })));
    assert!(rig.agent.hear().get("result").is_some());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), FILE.replace("80", "81"));
    // A secret of the agent's own is denied without a question.
    rig.agent.send(&rig.write(9, "new.conf", &format!("{TOKEN}\n")));
    let refused = rig.agent.hear();
    assert_eq!(refused["error"]["data"]["rule"], "secrets.rules.token");
    assert!(!refused.to_string().contains(TOKEN) && !rig.log().contains(TOKEN));
}

#[test]
fn a_backup_that_is_put_back_is_not_shown_in_the_clear() {
    let world = world("redact");
    let child = begin(&world, &["write", "app.conf"], "port = 80\n");
    let (id, change) = shown(&world);
    assert!(change.contains("-token = [portcullis-secret:token:"), "{change}");
    world.run(&["approve", "--yes", &id]).ok();
    end(child).ok();
    let mut restore = world.command(&["backup", "restore", "app.conf"]);
    let child = restore.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (id, change) = shown(&world);
    assert!(change.starts_with("puts the backup "), "{change}");
    world.run(&["approve", "--yes", &id]).ok();
    let restored = end(child).ok();
    assert!(!format!("{restored:?}").contains(TOKEN), "{restored:?}");
    assert_eq!(world.read("app.conf"), FILE);
    assert!(!crate::secrets::state_shows(&world, TOKEN));
}
