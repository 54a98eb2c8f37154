//! No oracle: what is denied answers the same whether or not it is there.
//! `timing` says the same of the time that it takes.

use serde_json::{Value, json};

use crate::{
    acp_rig,
    approvals::{begin, end, id, kinds, waiting},
    common::World,
    relay::Relay,
};

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

const ASKS: &str = r#"
schema = 1
[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["**"]

[[rules]]
id = "person"
effect = "ask"
operations = ["read", "list", "stat", "edit", "remove"]
paths = ["hidden/**"]
reason = "not without a person"
"#;

/// Where a rule asks, only what is there was asked about: the question, or that there
/// was none, told what is there and what is in it.
#[test]
fn what_a_person_is_asked_about_is_asked_about_whether_or_not_it_is_there() {
    let world = World::with_policy(ASKS);
    world.file("hidden/there", "treasure\n");
    world.file("hidden/binary", b"\0");
    std::os::unix::fs::symlink("hidden/there", world.path("link")).unwrap();
    std::os::unix::fs::symlink("hidden/gone", world.path("dangling")).unwrap();
    let read =
        ["hidden/there", "hidden/gone", "hidden/binary", "hidden/there/beneath", "hidden/a/b"];
    let questions = [
        ("read", vec![], &read[..]),
        ("stat", vec![], &read[..]),
        ("ls", vec![], &["hidden", "hidden/there", "hidden/gone"][..]),
        ("edit", vec!["--old", "x", "--new", "y"], &read[..]),
        ("rm", vec![], &["hidden/gone"][..]),
        ("read", vec![], &["link", "dangling"][..]),
    ];
    for (operation, more, paths) in questions {
        let asked = paths.iter().map(|path| {
            let child = begin(&world, &[&[operation, *path], &more[..]].concat(), "");
            let mut asked = waiting(&world, 1).remove(0);
            world.run(&["approve", "--reject", &id(&asked)]).ok();
            let done = end(child).denied("person");
            assert!(done.stderr.contains("a person was asked and rejected it"), "{done:?}");
            let fields = asked.as_object_mut().unwrap();
            let own = ["id", "session", "secondsLeft", "before", "path", "askedPath"];
            own.iter().for_each(|field| drop(fields.remove(*field)));
            let asked = asked.to_string().replace(path, "PATH");
            let said = done.stderr.lines().last().unwrap().replace(path, "PATH");
            (asked, said.split_once("record").map(|(said, _)| said.to_owned()))
        });
        let asked: Vec<_> = asked.collect();
        assert!(asked.windows(2).all(|two| two[0] == two[1]), "{operation}: {asked:#?}");
    }
    assert!(world.requests().iter().all(|record| record["result"] != "notFound"));
}

/// A wrong guess at the old text was answered at once, and a right one asked: the agent
/// learned the content before anybody had seen the question.
#[test]
fn a_guess_at_what_a_person_is_asked_to_disclose_asks_whether_or_not_it_is_right() {
    let world = World::with_policy(&ASKS.replace(r#""read", "list", "stat", "edit""#, r#""read""#));
    world.file("hidden/there", "treasure\n");
    let guesses = ["gold", "treasure", "r"].map(|old| {
        let edit = ["edit", "hidden/there", "--old", old, "--new", "x"];
        let child = begin(&world, &edit, "");
        let asked = waiting(&world, 1).remove(0);
        world.run(&["approve", "--reject", &id(&asked)]).ok();
        let done = end(child).denied("person");
        let said = done.stderr.lines().last().unwrap().split_once("record").unwrap().0.to_owned();
        (asked["rules"].clone(), done.stdout, said)
    });
    assert!(guesses.iter().all(|guess| *guess == guesses[0]), "{guesses:#?}");
    assert_eq!(world.read("hidden/there"), "treasure\n");
    assert!(kinds(&world, "intent").is_empty());
}

/// After a yes whoever asked hears how it is.
#[test]
fn what_is_not_there_is_told_after_a_yes() {
    let world = World::with_policy(ASKS);
    let child = begin(&world, &["read", "hidden/gone"], "");
    let asked = waiting(&world, 1).remove(0);
    assert_eq!(asked["change"], "discloses `hidden/gone`");
    world.run(&["approve", &id(&asked)]).ok();
    let done = end(child);
    assert!(done.code == 1 && done.stderr.contains("not found"), "{done:?}");
    let (approval, record) = (kinds(&world, "approval").remove(0), world.last());
    assert_eq!((&record["op"], &record["result"]), (&json!("read"), &json!("notFound")));
    assert_eq!(record["facts"]["approval"], approval["seq"]);
    // What came there since is not what the yes was for.
    let child = begin(&world, &["read", "hidden/gone"], "");
    let asked = waiting(&world, 1).remove(0);
    world.file("hidden/gone", "treasure\n");
    world.run(&["approve", &id(&asked)]).ok();
    assert!(end(child).denied("person").stderr.contains("is not what was approved"));
}

/// Whoever may look without asking hears at once why a change cannot be made.
#[test]
fn nobody_is_asked_about_a_change_that_fails_of_what_everybody_may_see() {
    let world = World::with_policy(&ASKS.replace(r#""read", "list", "stat", "edit""#, r#""edit""#));
    world.file("hidden/there", "treasure\n");
    let edit = world.fs(&["edit", "hidden/there", "--old", "x", "--new", "y"]);
    assert!(edit.code == 1 && edit.stderr.contains("old text"), "{edit:?}");
    let gone = world.fs(&["rm", "hidden/gone"]);
    assert!(gone.code == 1 && gone.stderr.contains("not found"), "{gone:?}");
    assert!(kinds(&world, "approval").is_empty());
}

/// A batch asks nobody, and told the two apart all the same.
#[test]
fn a_batch_tells_nothing_of_what_a_person_is_asked_about() {
    let world = World::with_policy(ASKS);
    world.file("hidden/there", "treasure\n");
    let batch = |path: &str| {
        let changes = json!([{ "op": "edit", "path": path, "old": "treasure", "new": "y" }]);
        let done = world.run_with_input(&["fs", "batch"], changes.to_string()).denied("person");
        done.stderr.lines().next().unwrap().replace(path, "PATH")
    };
    assert_eq!(batch("hidden/there"), batch("hidden/gone"));
}
