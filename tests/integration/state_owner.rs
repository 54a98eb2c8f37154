//! A state directory belongs to the workspace that its `start` records name.

mod adoption;

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use cap_std::fs::Dir;
use portcullis::gateway::AuditLog;
use portcullis_audit::{Draft, Kind};
use serde_json::Value;

use crate::common::{Done, World, done};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A workspace with a file that was written through the gateway, and another one with the same
/// file, both as the system names them.
struct Two {
    world: World,
    own: PathBuf,
    other: PathBuf,
}

fn two() -> Two {
    let world = World::new();
    world.file("f.txt", "A1");
    world.write("f.txt", "A2").ok();
    let other = world.base().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("f.txt"), "B1").unwrap();
    let (own, other) = (world.root().canonicalize().unwrap(), other.canonicalize().unwrap());
    Two { world, own, other }
}

impl Two {
    fn starts(&self) -> Vec<Value> {
        let mut records = self.world.records();
        records.retain(|record| record["kind"] == "start");
        records
    }

    #[track_caller]
    fn refused(&self, args: &[&str]) {
        let before = self.starts().len();
        let refused = self.world.run(args);
        assert_eq!(refused.code, 1, "{args:?}: {refused:?}");
        let all = format!("{}{}", refused.text(), refused.stderr);
        for path in [&self.own, &self.other] {
            assert!(all.contains(&format!("`{}`", path.display())), "{args:?}: {refused:?}");
        }
        assert_eq!(self.starts().len(), before, "{args:?}");
    }

    /// Runs `portcullis ARGS…` in another directory, with the state as its only setting.
    fn elsewhere(&self, args: &[&str]) -> Done {
        let mut command = self.world.command(args);
        command.env_remove("PORTCULLIS_WORKSPACE").current_dir("/");
        done(command.output().unwrap())
    }
}

/// `restore` and `undo` overwrote files of the other workspace.
#[test]
fn a_state_directory_serves_one_workspace() {
    let two = two();
    let session = two.starts()[0]["session"].as_str().unwrap().to_owned();
    let there = ["--workspace", text(&two.other)];
    for args in [
        &["backup", "restore", "f.txt"][..],
        &["backup", "undo", "--session", &session, "--overwrite", "--yes"],
        &["backup", "diff", "f.txt"],
        &["backup", "show", "f.txt"],
        &["fs", "read", "f.txt", "--json"],
        &["fs", "rm", "f.txt"],
        &["mcp"],
        &["serve", "--listen", "127.0.0.1:0"],
        &["policy", "explain", "--record", "1"],
    ] {
        two.refused(&[args, &there].concat());
    }
    two.refused(&["run", "--workspace", text(&two.other), "--", "/bin/true"]);
    assert_eq!(std::fs::read_to_string(two.other.join("f.txt")).unwrap(), "B1");
    let found = two.world.run(&["doctor", "--workspace", text(&two.other), "--json"]);
    assert_eq!(found.code, 1, "{found:?}");
    two.world.run(&["backup", "restore", "f.txt"]).ok();
    assert_eq!(two.world.read("f.txt"), "A1");
}

/// An older state directory has only its log to determine its workspace.
#[test]
fn the_start_records_say_whose_a_state_directory_is() {
    let two = two();
    let noted = two.world.state().join("workspace");
    assert_eq!(std::fs::read_to_string(&noted).unwrap(), text(&two.own));
    std::fs::remove_file(&noted).unwrap();
    two.refused(&["fs", "read", "f.txt", "--workspace", text(&two.other)]);
    assert!(!noted.exists());
    two.world.fs(&["read", "f.txt"]).ok();
    assert_eq!(std::fs::read_to_string(&noted).unwrap(), text(&two.own));
}

/// The file decided, so `undo` took changes of the first workspace back in the second.
#[test]
fn a_file_that_contradicts_the_start_records_named_the_workspace() {
    let two = two();
    let session = two.starts()[0]["session"].as_str().unwrap().to_owned();
    let noted = two.world.state().join("workspace");
    std::fs::write(two.other.join("f.txt"), "A2").unwrap();
    std::fs::write(&noted, text(&two.other)).unwrap();
    for root in [&two.own, &two.other] {
        for args in [
            &["fs", "read", "f.txt"][..],
            &["backup", "undo", "--session", &session, "--yes"],
            &["backup", "restore", "f.txt"],
        ] {
            two.refused(&[args, &["--workspace", text(root)]].concat());
        }
    }
    assert_eq!(std::fs::read_to_string(two.other.join("f.txt")).unwrap(), "A2");
    let refused = two.world.fs(&["read", "f.txt"]);
    assert!(refused.stderr.contains(&format!("remove the file `{}`", noted.display())));
    std::fs::remove_file(&noted).unwrap();
    two.refused(&["fs", "read", "f.txt", "--workspace", text(&two.other)]);
    two.world.fs(&["read", "f.txt"]).ok();
    assert_eq!(std::fs::read_to_string(&noted).unwrap(), text(&two.own));
}

/// It also decided where the newest `start` record is far from the end of the log.
#[test]
fn a_file_contradicts_a_start_record_before_many_others() {
    let two = two();
    let state = Dir::from_std_file(std::fs::File::open(two.world.state()).unwrap());
    let log = AuditLog::open(&state).unwrap();
    for _ in 0..300 {
        let draft = Draft { path: Some("x".repeat(8000)), ..Draft::default() };
        log.note(Kind::Decision, draft, false).unwrap();
    }
    drop(log);
    std::fs::write(two.world.state().join("workspace"), text(&two.other)).unwrap();
    two.refused(&["fs", "read", "f.txt", "--workspace", text(&two.other)]);
}

/// The advice was to adopt a path that the file did not name.
#[test]
fn a_file_that_was_cut_says_how_to_mend_it() {
    let two = two();
    let noted = two.world.state().join("workspace");
    for cut in [two.own.parent().unwrap().to_str().unwrap(), "", "\n", "garbage"] {
        std::fs::write(&noted, cut).unwrap();
        let refused = two.world.fs(&["read", "f.txt"]);
        assert_eq!(refused.code, 1, "{cut:?}: {refused:?}");
        assert!(refused.stderr.contains(&format!("remove the file `{}`", noted.display())));
        std::fs::remove_file(&noted).unwrap();
        two.world.fs(&["read", "f.txt"]).ok();
    }
}

#[test]
fn a_workspace_has_one_identity_by_all_its_names() {
    let two = two();
    let link = two.world.base().join("link");
    symlink(&two.own, &link).unwrap();
    two.world.fs(&["read", "f.txt", "--workspace", text(&link)]).ok();
    let dotted = two.own.join("../ws/.");
    two.world.fs(&["read", "f.txt", "--workspace", text(&dotted)]).ok();
    symlink(&two.other, two.world.base().join("to-other")).unwrap();
    let link = two.world.base().join("to-other");
    two.refused(&["fs", "read", "f.txt", "--workspace", text(&link)]);
}

#[test]
fn a_workspace_that_moved_is_adopted_on_record() {
    let two = two();
    let moved = two.own.with_file_name("moved");
    std::fs::rename(&two.own, &moved).unwrap();
    let read = |more: &[&str]| {
        two.world.run(&[&["fs", "read", "f.txt", "--workspace", text(&moved)], more].concat())
    };
    assert_eq!(read(&[]).code, 1);
    assert_eq!(read(&["--adopt", text(&two.other)]).code, 1);
    let adopted = read(&["--adopt", text(&two.own)]).ok();
    assert!(adopted.stderr.contains(text(&two.own)), "{adopted:?}");
    let facts = two.starts().pop().unwrap()["facts"].clone();
    assert_eq!(facts["adopted"], text(&two.own));
    assert_eq!(facts["workspace"], text(&moved));
    // Once adopted, it stays so; adopting it again changes nothing.
    read(&[]).ok();
    assert_eq!(read(&["--adopt", text(&two.own)]).ok().stderr.matches("adopt").count(), 0);
    assert_eq!(two.starts().pop().unwrap()["facts"]["adopted"], Value::Null);
    std::fs::rename(&two.other, &two.own).unwrap();
    let back = two.world.fs(&["read", "f.txt"]);
    assert_eq!(back.code, 1, "{back:?}");
    two.world.run(&["audit", "verify"]).ok();
}

#[test]
fn an_agent_behind_run_and_mcp_adopts_too() {
    for args in [
        &["run", "--unconfined", "--adopt", "OLD", "--", "/bin/true"][..],
        &["mcp", "--adopt", "OLD"],
    ] {
        let two = two();
        let args: Vec<_> =
            args.iter().map(|arg| if *arg == "OLD" { text(&two.own) } else { arg }).collect();
        std::fs::rename(&two.own, two.own.with_file_name("gone")).unwrap();
        let mut command = two.world.command(&args);
        command.env("PORTCULLIS_WORKSPACE", &two.other);
        done(command.output().unwrap()).ok();
        assert_eq!(two.starts().pop().unwrap()["facts"]["adopted"], text(&two.own));
        let noted = std::fs::read_to_string(two.world.state().join("workspace")).unwrap();
        assert_eq!(noted, text(&two.other));
    }
}

/// One state directory served two workspaces, and an undo in one put contents of the other there.
#[test]
fn a_workspace_that_is_still_there_lost_its_state_directory() {
    let two = two();
    let adopt = |command: &[&str]| {
        let options = ["--workspace", text(&two.other), "--adopt", text(&two.own)];
        two.world.run(&[command, &options].concat())
    };
    let link = two.world.base().join("link");
    symlink(&two.own, &link).unwrap();
    for command in [&["fs", "read", "f.txt"][..], &["backup", "undo", "--last"]] {
        let refused = adopt(command);
        let all = format!("{}{}", refused.text(), refused.stderr);
        assert!(refused.code == 1 && all.contains("is still there"), "{command:?} {refused:?}");
    }
    let named = ["--workspace", text(&two.other), "--adopt", text(&link)];
    assert_eq!(two.world.run(&[&["fs", "read", "f.txt"], &named[..]].concat()).code, 1);
    let noted = std::fs::read_to_string(two.world.state().join("workspace")).unwrap();
    assert_eq!(noted, text(&two.own));
    two.world.fs(&["read", "f.txt"]).ok();
    // A file in its place is no workspace.
    std::fs::rename(&two.own, two.own.with_file_name("gone")).unwrap();
    std::fs::write(&two.own, "").unwrap();
    adopt(&["fs", "read", "f.txt"]).ok();
}

/// Regression: only a directory at the former path itself counted, not one to which a link leads.
#[test]
fn a_workspace_that_left_a_link_to_it_lost_its_state_directory() {
    let two = two();
    let moved = two.own.with_file_name("moved");
    std::fs::rename(&two.own, &moved).unwrap();
    symlink(&moved, &two.own).unwrap();
    let adopt = |root: &Path| {
        let options = ["--workspace", text(root), "--adopt", text(&two.own)];
        two.world.run(&[&["fs", "read", "f.txt"], &options[..]].concat())
    };
    let refused = adopt(&two.other);
    assert!(refused.code == 1 && refused.stderr.contains("is still there"), "{refused:?}");
    // The workspace itself, which has moved.
    adopt(&moved).ok();
    assert_eq!(two.starts().pop().unwrap()["facts"]["adopted"], text(&two.own));
}

/// Regression: the workspace, which was at both paths, had no state directory any more at its own.
#[test]
fn a_workspace_that_is_mounted_at_another_path_too_lost_its_state_directory() {
    let two = two();
    let inner = two.world.command(&["fs", "read", "f.txt", "--adopt", text(&two.own)]);
    let script = "mount --bind \"$1\" \"$2\" && PORTCULLIS_WORKSPACE=$2 && shift 2 && exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["-Urm", "sh", "-c", script, "sh", text(&two.own), text(&two.other)])
        .arg(inner.get_program())
        .args(inner.get_args())
        .env_clear()
        .envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let refused = done(command.output().unwrap());
    assert!(refused.code == 1 && refused.stderr.contains("is still there"), "{refused:?}");
    two.world.fs(&["read", "f.txt"]).ok();
}

/// Regression: `--workspace` was not compared with the owner of `--state`, so the log of another
/// workspace was changed.
#[test]
fn a_log_of_another_workspace_than_the_named_one_was_changed() {
    let two = two();
    let there = ["--workspace", text(&two.other)];
    let log = || std::fs::read(two.world.state().join("audit/seg-000000.jsonl")).unwrap();
    let before = log();
    let keys = std::fs::read(two.world.state().join("audit/key.vkey")).unwrap();
    for args in [
        &["audit", "checkpoint"][..],
        &["audit", "compress"],
        &["audit", "key", "--new"],
        &["audit", "prune", "--before", "2027-01-01", "--yes"],
        &["audit", "recover", "--yes"],
    ] {
        two.refused(&[args, &there].concat());
    }
    let config = two.world.base().join("ship.toml");
    let copy = two.world.base().join("shipped");
    std::fs::create_dir(&copy).unwrap();
    std::fs::write(&config, format!("[[audit.ship]]\nto = {:?}\n", text(&copy))).unwrap();
    two.refused(&["audit", "ship", "--config", text(&config), there[0], there[1]]);
    assert_eq!((log(), std::fs::read_dir(copy).unwrap().count()), (before, 0));
    assert_eq!(std::fs::read(two.world.state().join("audit/key.vkey")).unwrap(), keys);
    // The owner, by each of its names, also once it is gone.
    let link = two.world.base().join("link");
    symlink(&two.own, &link).unwrap();
    two.world.run(&["audit", "checkpoint", "--workspace", text(&link)]).ok();
    two.elsewhere(&["audit", "checkpoint"]).ok();
    std::fs::rename(&two.own, two.own.with_file_name("gone")).unwrap();
    two.world.run(&["audit", "checkpoint", "--workspace", text(&two.own)]).ok();
    two.elsewhere(&["audit", "checkpoint"]).ok();
}

/// Regression: nothing said whose log it is.
#[test]
fn a_log_of_another_workspace_than_the_named_one_was_shown_without_a_note() {
    let two = two();
    for args in
        [&["audit", "verify"][..], &["audit", "show"], &["audit", "query"], &["audit", "key"]]
    {
        let note = |root: &Path| {
            let shown = two.world.run(&[args, &["--workspace", text(root)]].concat()).ok();
            shown.stderr.matches("note: the log is of the workspace").count()
        };
        assert_eq!((note(&two.other), note(&two.own)), (1, 0), "{args:?}");
    }
}

/// It went on to record changes of its own files in the log that belonged to another one.
#[test]
fn a_state_directory_was_adopted_while_a_gateway_used_it() {
    let two = two();
    let moved = two.own.with_file_name("moved");
    let mut command = two.world.command(&["mcp"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut gateway = command.spawn().unwrap();
    while two.starts().len() < 2 {
        assert_eq!(gateway.try_wait().unwrap(), None);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::fs::rename(&two.own, &moved).unwrap();
    let adopt = ["--workspace", text(&moved), "--adopt", text(&two.own)];
    let adopt = || two.world.run(&[&["fs", "read", "f.txt"], &adopt[..]].concat());
    let refused = adopt();
    assert!(refused.code == 1 && refused.stderr.contains("1 gateway"), "{refused:?}");
    drop(gateway.stdin.take());
    gateway.wait().unwrap();
    adopt().ok();
}

/// Regression: the state directory of the former path was not looked for, and an undo changed what the
/// own one has.
#[test]
fn an_undo_that_adopts_took_back_changes_of_its_own() {
    let two = two();
    std::fs::rename(&two.own, two.own.with_file_name("gone")).unwrap();
    let run = |args: &[&str]| {
        let mut command = two.world.command(args);
        command.env("PORTCULLIS_WORKSPACE", &two.other).env_remove("PORTCULLIS_STATE");
        done(command.output().unwrap())
    };
    run(&["fs", "mv", "f.txt", "g.txt"]).ok();
    for command in [&["undo", "--yes"][..], &["backup", "restore", "f.txt"], &["backup", "list"]] {
        let refused = run(&[command, &["--adopt", text(&two.own)]].concat());
        assert_eq!(refused.code, 2, "{command:?}: {refused:?}");
        assert!(refused.stderr.contains("--state"), "{command:?}: {refused:?}");
    }
    assert!(two.other.join("g.txt").exists());
    let named = two.world.state();
    let state = ["--state", text(&named), "--adopt", text(&two.own)];
    let commands: [&[&str]; 5] = [
        &["backup", "list"],
        &["backup", "verify"],
        &["doctor"],
        &["status"],
        &["policy", "explain", "read", "f.txt"],
    ];
    for command in commands {
        assert_eq!(run(&[command, &state].concat()).code, 2, "{command:?}");
    }
    std::fs::write(two.other.join("f.txt"), "A2").unwrap();
    run(&[&["undo", "--yes"][..], &state].concat()).ok();
    assert_eq!(std::fs::read_to_string(two.other.join("f.txt")).unwrap(), "A1");
}

/// Regression: only the change was left out.
#[test]
fn a_dry_run_adopted_a_state_directory() {
    let two = two();
    let moved = two.own.with_file_name("moved");
    std::fs::rename(&two.own, &moved).unwrap();
    let adopt = ["--dry-run", "--workspace", text(&moved), "--adopt", text(&two.own)];
    for command in [
        &["undo"][..],
        &["backup", "undo", "--record", "1"],
        &["backup", "restore", "f.txt"],
        &["backup", "restore", "--to", "0"],
        &["backup", "prune"],
        &["git", "import"],
    ] {
        let refused = two.world.run(&[command, &adopt].concat());
        assert_eq!(refused.code, 2, "{command:?}: {refused:?}");
        assert!(refused.stderr.contains("--adopt"), "{command:?}: {refused:?}");
    }
    let noted = std::fs::read_to_string(two.world.state().join("workspace")).unwrap();
    assert_eq!((noted.as_str(), two.starts().len()), (text(&two.own), 1));
}

#[test]
fn nothing_is_adopted_that_nobody_had() {
    let world = World::new();
    world.file("f.txt", "x");
    assert_eq!(world.fs(&["read", "f.txt", "--adopt", "/nowhere"]).code, 1);
    let served = world.run(&["serve", "--adopt", "/nowhere", "--listen", "127.0.0.1:0"]);
    assert_eq!(served.code, 2, "{served:?}");
    world.fs(&["read", "f.txt"]).ok();
}

/// Run in another directory it reported that the file had been removed.
#[test]
fn blame_looks_at_the_workspace_of_the_log() {
    let two = two();
    let blame = |more: &[&str]| two.elsewhere(&[&["audit", "blame", "--json"], more].concat());
    let absolute = two.own.join("f.txt");
    for path in ["f.txt", text(&absolute)] {
        let found = blame(&[path]).ok().json();
        assert_eq!((&found["state"], &found["path"]), (&"same".into(), &"f.txt".into()));
        assert_eq!(found["workspace"], text(&two.own));
        assert_eq!(found["notChecked"], Value::Null);
    }
    // A copy of the log names it, too.
    let copy = two.world.base().join("copy");
    std::fs::rename(two.world.state().join("audit"), &copy).unwrap();
    let found = blame(&["f.txt", "--dir", text(&copy)]).ok().json();
    assert_eq!((&found["state"], &found["workspace"]), (&"same".into(), &text(&two.own).into()));
}

#[test]
fn what_is_not_the_workspace_of_the_log_is_not_looked_at() {
    let two = two();
    let check = |more: &[&str]| {
        let found = two.elsewhere(&[&["audit", "blame", "f.txt", "--json"], more].concat()).ok();
        assert!(found.stderr.contains("not checked"), "{found:?}");
        let found = found.json();
        assert_eq!(found["state"], "notChecked", "{found}");
        assert!(found["notChecked"].as_str().unwrap().contains(text(&two.own)), "{found}");
        assert_eq!(found["changes"][0]["op"], "write");
    };
    check(&["--workspace", text(&two.other)]);
    let session = two.starts()[0]["session"].as_str().unwrap().to_owned();
    let content = || {
        let events = two.elsewhere(&["audit", "session", &session, "--records", "--json"]).ok();
        let events = events.text().lines().map(|line| serde_json::from_str(line).unwrap());
        let mut contents = events.filter_map(|event: Value| event.get("content").cloned());
        contents.next().unwrap()
    };
    assert_eq!(content(), "text");
    std::fs::rename(&two.own, two.own.with_file_name("away")).unwrap();
    check(&[]);
    assert_eq!(content(), "notChecked");
}

#[test]
fn absolute_paths_are_those_of_the_workspace_of_the_log() {
    let two = two();
    let absolute = two.own.join("f.txt");
    let query = ["audit", "query", "--json", "--kind", "intent", "--path", text(&absolute)];
    assert_eq!(two.elsewhere(&query).ok().text().lines().count(), 1);
    let listed = two.elsewhere(&["backup", "list", "--json", text(&absolute)]).ok();
    assert!(listed.text().contains("f.txt"), "{listed:?}");
}

/// Regression: of two first starts at once, the one that did not get the directory left the newest
/// `start` record.
#[test]
fn a_start_without_the_state_directory_left_a_record() {
    let world = World::new();
    for attempt in 0..12 {
        let state = world.base().join(format!("state-{attempt}"));
        let children = ["one", "two"].map(|name| {
            let root = world.base().join(name);
            std::fs::create_dir_all(&root).unwrap();
            let mut command = world.command(&["fs", "ls"]);
            command.env("PORTCULLIS_WORKSPACE", root).env("PORTCULLIS_STATE", &state);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        let ended = children.map(|child| done(child.wait_with_output().unwrap()));
        let owner = std::fs::read_to_string(state.join("workspace")).unwrap();
        let log = std::fs::read_to_string(state.join("audit/seg-000000.jsonl")).unwrap();
        let records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        for start in records.filter(|record| record["kind"] == "start") {
            assert_eq!(start["facts"]["workspace"], *owner, "{start}");
        }
        let refused: Vec<_> = ended.iter().filter(|end| end.code != 0).collect();
        assert_eq!(refused.len(), 1, "{ended:?}");
        assert!(refused[0].stderr.contains(&format!("`{owner}`")), "{refused:?}");
    }
}
