//! No oracle: what is denied answers the same whether or not it is there.
//! `timing` says the same of the time that it takes.

use serde_json::{Value, json};

use crate::{acp_rig, common::World, relay::Relay};

/// Where an agent may not look.
pub(crate) fn world() -> World {
    let world = World::with_policy(acp_rig::POLICY);
    world.file("secret/key.txt", "TOP-SECRET\n");
    world.file("secret/deep/er/key.txt", "x".repeat(100_000));
    world.file("a.txt", "x".repeat(100_000));
    std::os::unix::fs::symlink("secret/key.txt", world.path("there")).unwrap();
    std::os::unix::fs::symlink("secret/gone.txt", world.path("gone")).unwrap();
    world
}

#[test]
fn the_agent_cannot_tell_by_the_answer_what_is_there() {
    let mut relay = Relay::start(world());
    let requests = [
        ("secret/key.txt", "secret/nix.txt"),
        ("secret/deep", "secret/dEep"),
        ("secret/deep/er/key.txt", "secret/deep/no/key.txt"),
        ("there", "gone"),
        ("secret/key.txt/x", "secret/nix.txt/x"),
        ("../outside", "../state"),
    ];
    for (there, gone) in requests {
        for write in [false, true] {
            let mut ask = |name: &str| {
                let request = if write { relay.write(name, "x") } else { relay.read(name) };
                let mut error = relay.ask_one(request)["error"].take();
                let receipt = error["data"]["receipt"].take();
                assert!(receipt["seq"].is_u64() && receipt["leaf"].is_string(), "{receipt}");
                error
            };
            let (there, gone) = (ask(there), ask(gone));
            assert_eq!(there, gone);
            assert_eq!(there["code"], -32001);
            assert_eq!(there["data"].as_object().unwrap().len(), 3, "{there}");
            let text = there.to_string();
            assert!(!text.contains("nix") && !text.contains("key.txt"), "{text}");
        }
    }
    // Both leave a record, alike but for the path.
    let world = relay.end();
    let mut records = world.requests();
    records.retain(|record| record["decision"] == "deny");
    assert_eq!(records.len(), requests.len() * 4);
    let bare = |record: &Value| {
        let mut record = record.clone();
        for field in ["seq", "t", "path", "resolved", "nonce", "prev"] {
            record.as_object_mut().unwrap().remove(field);
        }
        record
    };
    for four in records.chunks(4) {
        assert_eq!(bare(&four[0]), bare(&four[1]));
        assert_eq!(bare(&four[2]), bare(&four[3]));
    }
}

/// A file with a denied name was told by "not a directory".
#[test]
fn a_denied_name_on_the_way_is_not_told_by_what_stands_there() {
    let world = World::with_policy(
        r#"
schema = 1
[allowedPaths]
read = ["**"]
write = ["**"]

[[rules]]
id = "production"
effect = "deny"
paths = ["**/production.yaml"]
"#,
    );
    world.file("there/production.yaml", "secret");
    std::fs::create_dir(world.path("gone")).unwrap();
    let answers = ["there", "gone"].map(|directory| {
        let name = format!("{directory}/production.yaml/deeper/x");
        let mut said = Vec::new();
        for done in [
            world.write(&name, "x"),
            world.run_with_input(&["fs", "append", &name], "x"),
            world.fs(&["mkdir", &name]),
            world.fs(&["mkdir", "-p", &name]),
        ] {
            let done = done.denied("production");
            said.push(done.stderr.lines().next().unwrap().replace(directory, ""));
        }
        said
    });
    assert_eq!(answers[0], answers[1]);
    // What is not denied is told as it is.
    world.file("plain", "");
    let plain = world.write("plain/x", "x");
    assert!(plain.code == 1 && plain.stderr.contains("not a directory"), "{plain:?}");
}

/// What an operation that is allowed tells of what it may not show.
#[test]
fn listings_and_trees_do_not_show_what_is_denied() {
    let world = world();
    let listed = world.fs(&["ls", "--json", "."]).ok().json();
    assert!(!listed.to_string().contains("secret/"), "{listed}");
    let names: Vec<_> = listed["entries"].as_array().unwrap().iter().map(|e| &e["path"]).collect();
    assert!(names.contains(&&json!("a.txt")), "{listed}");
    assert!(!names.contains(&&json!("secret")), "{listed}");
}
