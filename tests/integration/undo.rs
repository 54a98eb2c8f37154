//! Undo by the command line: of a path, a record, a session, or everything since a record; shown
//! first, conflicts named, every step decided, backed up and recorded, and nothing lost when it is
//! killed.

mod asked_paths;
mod attributes;
mod complete_workspace;
mod counted_directories;
mod failed;
mod interleaved;
mod interrupted;
mod last;
mod links;
mod moved;
mod names;
mod pruned;
mod refused;
mod removed_directories;
mod replaced;

use std::{
    collections::BTreeMap,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use portcullis::{
    gateway::{Changed, Client, Gateway, Request},
    model::{
        Session, Transport, WorkspacePath,
        request::{Mkdir, Remove, Rename, Write},
    },
};
use serde_json::Value;

use crate::{
    acp_rig,
    common::{Done, World},
};

const POLICY: &str = r#"
schema = 1
name = "open"
version = 1

[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["**"]

[backups]
keep = { versions = 10000, days = 30, size = "1GiB" }
"#;

fn backup(world: &World, args: &[&str]) -> Done {
    world.run(&[&["backup"], args].concat())
}

/// An agent's session on a gateway in this process.
struct Agent {
    gateway: Gateway,
    session: Session,
}

impl Agent {
    fn new(world: &World, number: u8) -> Self {
        Self::under(POLICY, world, number)
    }

    fn under(policy: &str, world: &World, number: u8) -> Self {
        let gateway = acp_rig::gateway_under(policy, &world.root(), world.base());
        let session = Session {
            id: format!("{number:02x}").repeat(16),
            agent: "agent".parse().unwrap(),
            user: "user".to_owned(),
            transport: Transport::Acp,
            acp: None,
        };
        gateway.start(&session, BTreeMap::new()).unwrap();
        Self { gateway, session }
    }

    #[track_caller]
    fn does(&self, change: &dyn Request<Output = Changed>) -> u64 {
        let reply = self.gateway.handle(&self.session, change, Client::default());
        reply.unwrap_or_else(|error| panic!("{:?}: {error}", change.as_operation())).receipt.seq
    }

    #[track_caller]
    fn write(&self, name: &str, content: &str) -> u64 {
        self.does(&Write { path: path(name), content: content.into(), mode: None })
    }

    #[track_caller]
    fn remove(&self, name: &str) -> u64 {
        self.does(&Remove { path: path(name), recursive: true })
    }

    #[track_caller]
    fn rename(&self, from: &str, to: &str) -> u64 {
        self.does(&Rename { from: path(from), to: path(to), replace: true })
    }

    #[track_caller]
    fn mkdir(&self, name: &str) -> u64 {
        self.does(&Mkdir { path: path(name), recursive: true, mode: None })
    }
}

fn path(text: &str) -> WorkspacePath {
    WorkspacePath::parse(text).unwrap()
}

/// Everything in the workspace: type, mode and content by path.
fn snapshot(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let (path, facts) = (entry.path(), entry.path().symlink_metadata().unwrap());
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let what = if facts.is_dir() {
                pending.push(path.clone());
                format!("directory {:o}", facts.permissions().mode() & 0o7777)
            } else if facts.is_symlink() {
                format!("link {}", std::fs::read_link(&path).unwrap().display())
            } else {
                let content = std::fs::read_to_string(&path).unwrap();
                format!("file {:o} {content}", facts.permissions().mode() & 0o7777)
            };
            found.insert(name, what);
        }
    }
    found
}

#[test]
fn a_session_is_undone_after_it_was_shown() {
    let world = World::with_policy(POLICY);
    world.file("src/main.rs", "fn main() {}\n");
    world.file("notes/old.md", "old");
    world.file("keep/a", "a");
    std::fs::create_dir(world.path("keep/empty")).unwrap();
    std::fs::set_permissions(world.path("keep/empty"), PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::set_permissions(world.path("src/main.rs"), PermissionsExt::from_mode(0o750)).unwrap();
    symlink("../keep", world.path("notes/link")).unwrap();
    let before = snapshot(&world.root());

    let agent = Agent::new(&world, 1);
    for version in 0..5 {
        agent.write("src/main.rs", &format!("version {version}"));
    }
    agent.write("new/deep/file.txt", "made by the agent");
    agent.mkdir("new/other/empty");
    agent.rename("notes/old.md", "notes/renamed.md");
    agent.write("notes/renamed.md", "changed after it was renamed");
    agent.remove("notes/link");
    agent.remove("keep");
    agent.write("keep", "now a file");
    drop(agent);
    let after = snapshot(&world.root());

    // Nothing without a yes.
    let shown = backup(&world, &["undo", "--session", "0101"]);
    assert!(shown.code == 1 && shown.stderr.contains("add --yes"), "{shown:?}");
    let object = backup(&world, &["undo", "--session", "0101", "--json"]);
    assert_eq!((object.code, &object.json()["ok"]), (1, &false.into()));
    assert_eq!(snapshot(&world.root()), after);
    let text = shown.text();
    assert!(text.contains("restore  src/main.rs  (records"), "{text}");
    assert!(text.contains("rename   notes/renamed.md -> notes/old.md"), "{text}");
    assert!(text.contains("rmdir    new/deep"), "{text}");
    assert!(!text.contains("conflict"), "{text}");

    let done = backup(&world, &["undo", "--session", "0101", "--yes", "--json"]).ok().json();
    assert_eq!((&done["done"], &done["leftOut"]), (&true.into(), &serde_json::json!([])));
    assert_eq!(snapshot(&world.root()), before);

    // Decided and recorded as any request; the record names the change that it undid.
    let own = done["session"].as_str().unwrap();
    let intents: Vec<Value> = world
        .requests()
        .into_iter()
        .filter(|record| record["kind"] == "intent" && record["session"] == own)
        .collect();
    assert_eq!(intents.len(), usize::try_from(done["stepsDone"].as_u64().unwrap()).unwrap());
    let main = intents.iter().find(|record| record["path"] == "src/main.rs").unwrap();
    assert_eq!((&main["op"], &main["rule"]), (&"restore".into(), &"allowedPaths.write".into()));
    assert_eq!(main["facts"]["undoes"].as_array().unwrap().len(), 5);
    world.run(&["audit", "verify"]).ok();

    // Once more: all is already so. And the undo itself can be undone.
    let again = backup(&world, &["undo", "--session", "0101", "--yes"]).ok();
    let by = format!("0 to do, 12 undone before\nundone already, by session {}\n", &own[..12]);
    assert_eq!(again.text(), by, "{again:?}");
    backup(&world, &["undo", "--session", own, "--yes"]).ok();
    assert_eq!(snapshot(&world.root()), after);
}

/// Regression: after an agent that failed without a change, the second one put back what the first
/// had undone.
#[test]
fn an_undo_without_a_session_took_an_undo_back() {
    let world = World::with_policy(POLICY);
    world.file("f", "good");
    let agent = Agent::new(&world, 1);
    agent.write("f", "evil");
    // Two changes undo this one.
    agent.write("new/directory/f", "evil");
    drop(agent);
    let undone = world.run(&["undo", "--yes"]).ok();
    assert_eq!(world.read("f"), "good", "{undone:?}");
    drop(Agent::new(&world, 2));
    let again = world.run(&["undo", "--yes"]).ok();
    assert_eq!(world.read("f"), "good", "{again:?}");
    assert!(!world.path("new").exists(), "{again:?}");
    assert!(again.text().contains("undone before"), "{again:?}");
    // Named, it is taken back, and the preview says what that means.
    let session =
        undone.stderr.split_once("--session ").unwrap().1.split([' ', '`']).next().unwrap();
    let back = backup(&world, &["undo", "--session", session]);
    let told = "takes back an undo of session 010101010101";
    assert!(format!("{}{}", back.text(), back.stderr).contains(told), "{back:?}");
    let back = backup(&world, &["undo", "--session", session, "--yes", "--json"]).ok().json();
    assert_eq!(back["undoOf"], serde_json::json!(["01".repeat(16)]), "{back}");
    assert_eq!(world.read("f"), "evil");
    // What took it back is an undo, too.
    world.run(&["undo", "--yes"]).ok();
    assert_eq!(world.read("f"), "good");
}

/// Runs the rest of the command line on a terminal and answers the question.
const TERMINAL: &str = r#"
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
said = b""
while b"[y/N]" not in said:
    said += os.read(terminal, 4096)
os.write(terminal, sys.argv[1].encode() + b"\n")
try:
    while more := os.read(terminal, 4096):
        said += more
except OSError:
    pass
sys.stdout.buffer.write(said)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

#[test]
fn on_a_terminal_somebody_is_asked() {
    let world = World::with_policy(POLICY);
    world.file("a", "one");
    let agent = Agent::new(&world, 1);
    agent.write("a", "two");
    drop(agent);
    for (answer, content) in [("", "two"), ("n", "two"), ("yes please", "two"), ("y", "one")] {
        let undo = world.command(&["backup", "undo", "--session", "0101"]);
        let mut command = std::process::Command::new("/usr/bin/python3");
        command.args(["-S", "-c", TERMINAL, answer]).arg(undo.get_program()).args(undo.get_args());
        command.env_clear().envs(undo.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let done = crate::common::done(command.output().unwrap()).ok();
        assert!(done.text().contains("restore  a"), "{done:?}");
        assert_eq!(world.read("a"), content, "{answer}");
    }
}

#[test]
fn one_record_is_undone_by_its_intent_or_its_outcome() {
    let world = World::with_policy(POLICY);
    world.file("a", "one");
    let agent = Agent::new(&world, 1);
    let write = agent.write("a", "two");
    let made = agent.write("b", "new");
    drop(agent);
    backup(&world, &["undo", "--record", &made.to_string(), "--yes"]).ok();
    assert!(!world.path("b").exists());
    backup(&world, &["undo", "--record", &(write + 1).to_string(), "--yes"]).ok();
    assert_eq!(world.read("a"), "one");
    let wrong = backup(&world, &["undo", "--record", "0", "--yes"]);
    assert_eq!(wrong.code, 1);
    assert!(wrong.stderr.contains("record 0 changed nothing"), "{wrong:?}");
    let wrong = backup(&world, &["undo", "--record", "99999"]);
    assert!(wrong.stderr.contains("there is no record 99999"), "{wrong:?}");
    let wrong = backup(&world, &["undo", "--session", "ffff"]);
    assert!(wrong.stderr.contains("no such session: `ffff`"), "{wrong:?}");
    // The last session that is no undo: nothing is left to do.
    assert!(backup(&world, &["undo"]).ok().text().contains("2 undone before"));
    Agent::new(&world, 2).write("a", "three");
    // It is shown; without a terminal nobody agrees.
    assert_eq!(backup(&world, &["undo"]).code, 1);
    assert_eq!(backup(&world, &["undo", "--session", ""]).code, 2);
}

#[test]
fn conflicts_are_shown_and_nothing_is_done_unless_somebody_chooses() {
    let world = World::with_policy(POLICY);
    for name in ["other-session", "outside", "mine", "gone"] {
        world.file(name, "before");
    }
    let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
    for name in ["other-session", "outside", "mine", "gone", "made"] {
        one.write(name, "by one");
    }
    let theirs = two.write("other-session", "by two");
    drop((one, two));
    world.file("outside", "by an editor");
    std::fs::remove_file(world.path("gone")).unwrap();
    let now = snapshot(&world.root());

    let refused = backup(&world, &["undo", "--session", "0101", "--yes"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    let text = refused.text();
    assert!(
        text.contains(&format!("it was changed since, by record {theirs} (agent agent)")),
        "{text}"
    );
    assert!(text.contains("changed since, by something that is not in the log"), "{text}");
    assert!(text.contains("it was removed since"), "{text}");
    assert!(text.contains("2 to do, 3 in conflict"), "{text}");
    assert!(refused.stderr.contains("--skip-conflicts"), "{refused:?}");
    assert_eq!(snapshot(&world.root()), now);

    let left = backup(&world, &["undo", "--session", "0101", "--yes", "--skip-conflicts"]);
    // Not all is as it was.
    assert_eq!(left.code, 1, "{left:?}");
    assert_eq!(world.read("mine"), "before");
    assert!(!world.path("made").exists());
    assert_eq!(world.read("other-session"), "by two");
    assert_eq!(world.read("outside"), "by an editor");
    assert!(!world.path("gone").exists());

    let done = backup(&world, &["undo", "--session", "0101", "--yes", "--overwrite", "--json"])
        .ok()
        .json();
    for name in ["other-session", "outside", "mine", "gone"] {
        assert_eq!(world.read(name), "before", "{name}");
    }
    // Overwritten content is backed up.
    let own = done["session"].as_str().unwrap().to_owned();
    backup(&world, &["undo", "--session", &own, "--yes"]).ok();
    assert_eq!(world.read("outside"), "by an editor");
    assert_eq!(world.read("other-session"), "by two");
}

#[test]
fn what_others_put_into_a_directory_keeps_it() {
    let world = World::with_policy(POLICY);
    let agent = Agent::new(&world, 1);
    agent.write("d/mine", "x");
    agent.mkdir("e");
    drop(agent);
    world.file("d/theirs", "y");
    let done = backup(&world, &["undo", "--session", "0101", "--yes"]).ok();
    assert!(done.text().contains("skipped"), "{done:?}");
    assert!(done.stderr.contains("left out: rmdir d (`d/theirs` is in it)"), "{done:?}");
    assert_eq!(snapshot(&world.root()).into_keys().collect::<Vec<_>>(), ["d", "d/theirs"]);
}

#[test]
fn names_that_changed_hands_get_their_own_back() {
    let world = World::with_policy(POLICY);
    for name in ["a", "b", "d/x", "d/y"] {
        world.file(name, format!("this is {name}"));
    }
    let before = snapshot(&world.root());
    let agent = Agent::new(&world, 1);
    // Two swap their names, a third is replaced by a rename.
    agent.rename("a", "tmp");
    agent.rename("b", "a");
    agent.rename("tmp", "b");
    agent.rename("b", "d/x");
    agent.rename("d", "elsewhere/far/d");
    agent.write("elsewhere/far/d/y", "changed");
    agent.write("d/x", "another d");
    agent.remove("d");
    agent.rename("elsewhere/far/d", "d");
    agent.write("d/z", "new");
    drop(agent);
    backup(&world, &["undo", "--session", "0101", "--yes"]).ok();
    assert_eq!(snapshot(&world.root()), before);
}

#[test]
fn what_is_as_it_was_needs_no_step_though_much_was_done_and_undone() {
    let world = World::with_policy(POLICY);
    world.file("a", "a0");
    let agent = Agent::new(&world, 1);
    agent.rename("a", "b");
    agent.write("b", "b1");
    agent.mkdir("d");
    agent.rename("b", "d/c");
    drop(agent);
    backup(&world, &["undo", "--session", "0101", "--yes"]).ok();
    assert_eq!(snapshot(&world.root()).into_keys().collect::<Vec<_>>(), ["a"]);
    let length = world.requests().len();
    let none = backup(&world, &["restore", "--to", "0", "--yes"]).ok();
    assert!(none.text().starts_with("0 to do"), "{none:?}");
    assert_eq!(world.requests().len(), length);
}

#[test]
fn a_path_becomes_what_it_was_before_a_record_or_at_a_time() {
    let world = World::with_policy(POLICY);
    world.file("d/a", "a0");
    world.file("d/b", "b0");
    world.file("other", "o0");
    let agent = Agent::new(&world, 1);
    agent.write("d/a", "a1");
    let second = agent.write("d/a", "a2");
    agent.write("other", "o1");
    agent.rename("d/b", "moved");
    agent.write("moved", "b1");
    agent.remove("d");
    drop(agent);
    let moment = {
        let records = world.records();
        let record = records.iter().find(|record| record["seq"] == second).unwrap();
        record["t"].as_str().unwrap().to_owned()
    };
    let before = second.to_string();
    let shown = backup(&world, &["restore", "d/a", "--before", &before, "--dry-run"]).ok();
    // A file that was removed with its directory is restored with it.
    assert!(shown.text().contains("restore  d  ("), "{shown:?}");
    assert!(shown.text().contains("2 to do"), "{shown:?}");
    assert!(!world.path("d").exists());
    // The complete directory, with entries that were moved out of it.
    backup(&world, &["restore", "d", "--before", &before, "--yes"]).ok();
    assert_eq!((world.read("d/a"), world.read("d/b")), ("a1".to_owned(), "b0".to_owned()));
    assert!(!world.path("moved").exists());
    assert_eq!(world.read("other"), "o1");
    backup(&world, &["restore", "d/a", "--at", &moment, "--yes"]).ok();
    assert_eq!(world.read("d/a"), "a2");
    backup(&world, &["restore", "d", "--at", "2h", "--yes"]).ok();
    assert_eq!((world.read("d/a"), world.read("d/b")), ("a0".to_owned(), "b0".to_owned()));
    assert_eq!(world.read("other"), "o1");
    let none = backup(&world, &["restore", "other", "--at", "0s", "--yes"]).ok();
    assert!(none.text().contains("0 to do"), "{none:?}");
    let odd = backup(&world, &["restore", "../x", "--at", "2h"]);
    assert_eq!(odd.code, 3, "{odd:?}");
    // The whole workspace, which is shown.
    assert_eq!(backup(&world, &["restore", "--at", "2h"]).code, 1);
    for wrong in ["tomorrow", "2026-11-23T06:00", "-2h"] {
        assert_eq!(backup(&world, &["restore", "d", "--at", wrong, "--yes"]).code, 2, "{wrong}");
    }
    assert_eq!(backup(&world, &["restore", "--to", "src"]).code, 2);
    assert_eq!(backup(&world, &["restore"]).code, 2);
    assert_eq!(backup(&world, &["restore", "--to", "99999"]).code, 1);
}

/// A preview showed a step as one to do that the real run left out, because it depends on one that
/// conflicts.
#[test]
fn a_preview_shows_what_skipping_conflicts_leaves_out() {
    let world = World::with_policy(POLICY);
    world.fs(&["mkdir", "d"]).ok();
    world.write("d/x", "new").ok();
    world.file("d/x", "by another program");
    let options = ["restore", "--to", "0", "--skip-conflicts"];
    let shown = backup(&world, &[&options[..], &["--dry-run", "--json"]].concat());
    let done = backup(&world, &[&options[..], &["--yes", "--json"]].concat());
    assert_eq!(shown.code, done.code, "{shown:?} {done:?}");
    let left_out = |done: &Done| -> Vec<(String, String)> {
        let steps = done.json()["leftOut"].as_array().unwrap().clone();
        let text = |step: &Value, key: &str| step[key].as_str().unwrap_or_default().to_owned();
        steps.iter().map(|step| (text(step, "path"), text(step, "status"))).collect()
    };
    assert_eq!(left_out(&shown), left_out(&done));
    assert!(left_out(&shown).iter().any(|(_, status)| status == "depends"), "{shown:?}");
}
