//! No disclosure of existence: a denied name has the same reply whether or not it exists. `timing`
//! tests the same for the time that it takes.

mod moves;

use std::{
    os::unix::{ffi::OsStrExt as _, fs::symlink},
    path::Path,
    sync::Mutex,
};

use portcullis::{
    gateway::{Client, Follower},
    model::{
        Encoding, GlobQuery, GrepQuery, LineRange, WorkspacePath,
        request::{Append, Edit, Glob, Grep, List, Mkdir, Read, Rename, Stat},
    },
};
use serde_json::{Value, json};

use crate::{
    acp_rig,
    approvals::{asked_again, begin, end, id, kinds, waiting},
    common::World,
    relay::Relay,
    requests::AnyRequest,
};

/// A world with paths that an agent may not see.
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

/// A file with a denied name was disclosed by "not a directory".
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
    // A name that is not denied gets its true error.
    world.file("plain", "");
    let plain = world.write("plain/x", "x");
    assert!(plain.code == 1 && plain.stderr.contains("not a directory"), "{plain:?}");
}

/// Output of an allowed operation about denied entries.
#[test]
fn listings_and_trees_do_not_show_what_is_denied() {
    let world = world();
    let listed = world.fs(&["ls", "--json", "."]).ok().json();
    assert!(!listed.to_string().contains("secret/"), "{listed}");
    let names: Vec<_> = listed["entries"].as_array().unwrap().iter().map(|e| &e["path"]).collect();
    assert!(names.contains(&&json!("a.txt")), "{listed}");
    assert!(!names.contains(&&json!("secret")), "{listed}");
}

/// Links that lead past or to names of which the agent may know nothing.
fn links(root: &Path) {
    for (link, target) in [
        ("file", "private/file"),
        ("out", "private/out"),
        ("loop", "private/loop"),
        ("beneath", "private/dir/a.md"),
        ("dir", "private/dir"),
        ("back", "private/dir/../../b.md"),
        ("further", "private/dir/x/y/../../../b.md"),
        ("self", "private/dir/.."),
        ("twice", "file"),
        ("closed", "nothing/file"),
        ("off", "private/off/x"),
    ] {
        symlink(target, root.join(link)).unwrap();
    }
}

/// A link disclosed whether a denied name is a link and its target: it was followed through that,
/// and only its end was decided on.
#[test]
fn a_link_to_a_denied_name_tells_nothing_of_what_is_there() {
    let open = "[\"*.md\", \"docs/**\", \"dir/*\", \
        \"{file,out,loop,beneath,dir,back,further,self,twice,closed,off,new}\"]";
    let policy = format!(
        "schema = 1\n[allowedPaths]\nread = {open}\nlist = {open}\nwrite = {open}\nremove = {open}\n\
         [[rules]]\nid = \"priv\"\neffect = \"deny\"\npaths = [\"private/**\"]\n"
    );
    let answers = [false, true].map(|there| {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("ws");
        std::fs::create_dir_all(root.join("docs/deep")).unwrap();
        for name in ["a.md", "b.md", "docs/a.md", "docs/deep/a.md"] {
            std::fs::write(root.join(name), "text\n").unwrap();
        }
        links(&root);
        if there {
            for name in ["private", "nothing"] {
                std::fs::create_dir(root.join(name)).unwrap();
            }
            for (link, target) in [
                ("private/file", "../a.md"),
                ("private/out", "/etc/passwd"),
                ("private/loop", "loop"),
                ("private/dir", "../docs/deep"),
                ("private/off", "../../off"),
                ("nothing/file", "../a.md"),
            ] {
                symlink(target, root.join(link)).unwrap();
            }
        }
        let gateway = acp_rig::gateway_under(&policy, &root, temp.path());
        let mut answers = Vec::new();
        for link in [
            "file", "out", "loop", "beneath", "dir", "dir/a.md", "back", "further", "self",
            "twice", "closed", "off",
        ] {
            for request in requests(&WorkspacePath::parse(link).unwrap()) {
                let (session, client) = (acp_rig::connection(), Client::default());
                let answer = request.put(&gateway, &session, client);
                let answer = answer.map(|reply| reply.output);
                let words = answer.unwrap_or_else(|error| format!("{error} {:?}", error.kind()));
                let kind = request.as_operation().kind();
                answers.push(format!("{kind} {link}: {words}"));
            }
        }
        answers
    });
    let [gone, there] = answers;
    let differ: Vec<_> = gone.iter().zip(&there).filter(|(gone, there)| gone != there).collect();
    assert!(differ.is_empty(), "{differ:#?}");
    // A name that is passed still leads on.
    assert!(there.iter().any(|answer| answer.starts_with("read back: Content")), "{there:#?}");
}

pub(crate) fn requests(path: &WorkspacePath) -> Vec<Box<dyn AnyRequest>> {
    let path = path.clone();
    let glob = GlobQuery { pattern: "**".to_owned(), ..GlobQuery::default() };
    let grep = GrepQuery { pattern: "e".to_owned(), ..GrepQuery::default() };
    let new = WorkspacePath::parse("new").unwrap();
    vec![
        Box::new(Stat { path: path.clone() }),
        Box::new(List { path: path.clone() }),
        Box::new(Read {
            path: path.clone(),
            range: LineRange::default(),
            encoding: Encoding::Text,
        }),
        Box::new(Glob { path: path.clone(), query: glob }),
        Box::new(Grep { path: path.clone(), query: grep }),
        Box::new(Edit { path: path.clone(), old: "no".to_owned(), new: "x".to_owned() }),
        Box::new(Append { path: path.clone(), content: b"x".to_vec() }),
        Box::new(Mkdir { path: path.clone(), recursive: true, mode: None }),
        Box::new(Rename { from: new, to: path, replace: false }),
    ]
}

/// Collects the progress of a search.
#[derive(Default)]
struct RecordedProgress(Mutex<Vec<u64>>);

impl Follower for RecordedProgress {
    fn is_wanted(&self) -> bool {
        true
    }

    fn progress(&self, entries: u64) {
        self.0.lock().unwrap().push(entries);
    }
}

/// Progress counted every name, and so disclosed the number of hidden ones.
#[test]
fn the_progress_of_a_search_does_not_count_what_is_hidden() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("ws");
    std::fs::create_dir_all(root.join("pub")).unwrap();
    let rules = "[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"**/hidden-*\"]\n\
        [[rules]]\nid = \"q\"\neffect = \"ask\"\npaths = [\"**/asked\"]\n";
    let open = "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\n";
    let gateway = acp_rig::gateway_under(&format!("{open}{rules}"), &root, temp.path());
    let make = |name: &str| std::fs::write(root.join("pub").join(name), "").unwrap();
    ["a.md", "b.md"].into_iter().for_each(make);
    let told = || {
        let told = RecordedProgress::default();
        let query = GrepQuery { pattern: "x".to_owned(), ..GrepQuery::default() };
        let grep = Grep { path: WorkspacePath::parse("pub").unwrap(), query };
        let client = Client { follower: &told, ..Client::default() };
        gateway.handle(&acp_rig::connection(), &grep, client).unwrap();
        let mut told = told.0.into_inner().unwrap();
        // On a slow machine it is sent once more.
        told.dedup();
        told
    };
    assert_eq!(told(), [2]);
    make("asked");
    // More than are looked at between two looks at the clock.
    (0..600).for_each(|n| make(&format!("hidden-{n}")));
    assert_eq!(told(), [2]);
}

const ASKS: &str = r#"
[[rules]]
id = "person"
effect = "ask"
operations = ["read", "list", "stat", "edit", "remove"]
paths = ["hidden/**"]
reason = "not without a person"
"#;

/// Under a rule that asks, only existing paths led to a question: the question, or its absence,
/// disclosed the path and its content.
#[test]
fn what_a_person_is_asked_about_is_asked_about_whether_or_not_it_is_there() {
    let world = World::with_rules(ASKS);
    world.file("hidden/there", "treasure\n");
    world.file("hidden/binary", b"\0");
    std::os::unix::fs::symlink("hidden/there", world.path("link")).unwrap();
    std::os::unix::fs::symlink("hidden/gone", world.path("dangling")).unwrap();
    world.file("a.txt", "a\n");
    for (link, target) in [("chain", "../a.txt"), ("leaves", "/etc/passwd")] {
        symlink(target, world.path(&format!("hidden/{link}"))).unwrap();
        symlink(format!("hidden/{link}"), world.path(link)).unwrap();
    }
    let read =
        ["hidden/there", "hidden/gone", "hidden/binary", "hidden/there/beneath", "hidden/a/b"];
    let questions = [
        ("read", vec![], &read[..]),
        ("stat", vec![], &read[..]),
        ("ls", vec![], &["hidden", "hidden/there", "hidden/gone"][..]),
        ("edit", vec!["--old", "x", "--new", "y"], &read[..]),
        ("rm", vec![], &["hidden/gone"][..]),
        ("read", vec![], &["link", "dangling", "chain", "leaves"][..]),
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

/// A wrong guess at the old text was answered at once, and a right one asked: the agent learned the
/// content before an operator had seen the question.
#[test]
fn a_guess_at_what_a_person_is_asked_to_disclose_asks_whether_or_not_it_is_right() {
    let world = World::with_rules(&ASKS.replace(r#""read", "list", "stat", "edit""#, r#""read""#));
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

/// The client gets the true error after an approval.
#[test]
fn what_is_not_there_is_told_after_a_yes() {
    let world = World::with_rules(ASKS);
    let child = begin(&world, &["read", "hidden/gone"], "");
    let asked = waiting(&world, 1).remove(0);
    assert_eq!(asked["change"], "discloses `hidden/gone`");
    world.run(&["approve", "--yes", &id(&asked)]).ok();
    let done = end(child);
    assert!(done.code == 1 && done.stderr.contains("not found"), "{done:?}");
    let (approval, record) = (kinds(&world, "approval").remove(0), world.last());
    assert_eq!((&record["op"], &record["result"]), (&json!("read"), &json!("notFound")));
    assert_eq!(record["facts"]["approval"], approval["seq"]);
    // A file that came there since is not covered by the approval.
    let child = begin(&world, &["read", "hidden/gone"], "");
    let asked = waiting(&world, 1).remove(0);
    world.file("hidden/gone", "treasure\n");
    world.run(&["approve", "--yes", &id(&asked)]).ok();
    asked_again(&world, &asked);
    assert!(end(child).denied("person").stdout.is_empty());
}

/// A client that may look without asking gets the reason at once why a change cannot be made.
#[test]
fn nobody_is_asked_about_a_change_that_fails_of_what_everybody_may_see() {
    let world = World::with_rules(&ASKS.replace(r#""read", "list", "stat", "edit""#, r#""edit""#));
    world.file("hidden/there", "treasure\n");
    let edit = world.fs(&["edit", "hidden/there", "--old", "x", "--new", "y"]);
    assert!(edit.code == 1 && edit.stderr.contains("old text"), "{edit:?}");
    let gone = world.fs(&["rm", "hidden/gone"]);
    assert!(gone.code == 1 && gone.stderr.contains("not found"), "{gone:?}");
    assert!(kinds(&world, "approval").is_empty());
}

/// A batch asks no question, and disclosed the difference all the same.
#[test]
fn a_batch_tells_nothing_of_what_a_person_is_asked_about() {
    let world = World::with_rules(ASKS);
    world.file("hidden/there", "treasure\n");
    let batch = |path: &str| {
        let changes = json!([{ "op": "edit", "path": path, "old": "treasure", "new": "y" }]);
        let done = world.run_with_input(&["fs", "batch"], changes.to_string()).denied("person");
        done.stderr.lines().next().unwrap().replace(path, "PATH")
    };
    assert_eq!(batch("hidden/there"), batch("hidden/gone"));
}

/// `ls` of a directory of which nothing is shown gave the number of such names.
#[test]
fn names_that_are_not_utf8_are_not_counted_where_no_name_is_shown() {
    let world = World::with_policy(
        "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"d\", \"open{,/**}\"]\n",
    );
    for directory in ["d", "open"] {
        std::fs::create_dir(world.path(directory)).unwrap();
        for name in [&b"\xff"[..], b"\xfe"] {
            let path = world.path(directory).join(std::ffi::OsStr::from_bytes(name));
            std::fs::write(path, "x").unwrap();
        }
    }
    let count = |directory: &str| world.fs(&["ls", directory, "--json"]).json()["notUtf8"].clone();
    assert_eq!((count("d"), count("open")), (json!(0), json!(2)));
    let skipped = |directory: &str| {
        let found = world.fs(&["glob", "**", directory, "--json"]);
        String::from_utf8_lossy(&found.stdout).into_owned()
    };
    assert!(!skipped("d").contains("notUtf8"), "{}", skipped("d"));
    assert!(skipped("open").contains("notUtf8"), "{}", skipped("open"));
}
