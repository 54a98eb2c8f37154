//! Entries that got the names of what a session renamed, exchanged or gave another mode.

use std::fs;

use portcullis::{gateway::Exchange, model::request::SetAttributes};
use serde_json::json;

use super::*;

/// Returns the status of each step that an undo of everything shows.
#[track_caller]
fn statuses(world: &World) -> Vec<Value> {
    let shown = world.run(&["undo", "--dry-run", "--json"]);
    shown.json()["steps"].as_array().unwrap().iter().map(|step| step["status"].clone()).collect()
}

/// Asserts that an undo refuses, and takes no step with `--skip-conflicts`.
#[track_caller]
fn refuses(world: &World) {
    assert_eq!(statuses(world), ["conflict"]);
    let before = snapshot(&world.root());
    assert_eq!(world.run(&["undo", "--yes"]).code, 1);
    let skipped = world.run(&["undo", "--yes", "--skip-conflicts", "--json"]);
    assert_eq!((skipped.code, &skipped.json()["stepsDone"]), (1, &json!(0)), "{skipped:?}");
    assert_eq!(snapshot(&world.root()), before);
}

/// Regression: an undo of a rename moved whatever had the name.
#[test]
fn an_undo_moved_a_file_of_somebody_else() {
    let world = World::with_policy(POLICY);
    world.file("a", "mine");
    world.fs(&["mv", "a", "b"]).ok();
    assert_eq!(statuses(&world), ["ready"]);
    fs::remove_file(world.path("b")).unwrap();
    world.file("b", "ours");
    refuses(&world);
    let record = &world.requests()[0]["seq"].to_string();
    let restored = backup(&world, &["restore", "a", "--before", record, "--yes"]);
    assert_eq!((restored.code, world.read("b")), (1, "ours".to_owned()), "{restored:?}");
    world.run(&["undo", "--yes", "--overwrite"]).ok();
    assert_eq!((world.read("a"), world.path("b").exists()), ("ours".to_owned(), false));
}

#[test]
fn an_undo_moved_a_file_that_somebody_else_edited() {
    let world = World::with_policy(POLICY);
    world.file("a", "mine");
    world.fs(&["mv", "a", "b"]).ok();
    fs::write(world.path("b"), "more").unwrap();
    refuses(&world);
}

#[test]
fn an_undo_moved_a_directory_of_somebody_else() {
    let world = World::with_policy(POLICY);
    world.file("d/a", "mine");
    world.fs(&["mv", "d", "e"]).ok();
    // Entries that are made in the moved directory are no reason.
    world.file("e/b", "ours");
    assert_eq!(statuses(&world), ["ready"]);
    fs::remove_dir_all(world.path("e")).unwrap();
    world.file("e/a", "ours");
    refuses(&world);
}

/// Regression: the two entries of an exchange were not told apart.
#[test]
fn an_undo_exchanged_a_file_of_somebody_else() {
    let world = World::with_policy(POLICY);
    world.file("a", "one");
    world.file("b", "two");
    let agent = Agent::new(&world, 1);
    let rename = Rename { from: path("a"), to: path("b"), replace: false };
    agent.does(&Exchange { rename });
    drop(agent);
    assert_eq!(statuses(&world), ["ready"]);
    fs::remove_file(world.path("b")).unwrap();
    world.file("b", "ours");
    refuses(&world);
}

/// Regression: an entry behind a link that took the place of a directory passed for the session's.
#[test]
fn an_undo_moved_a_file_behind_a_link() {
    let world = World::with_policy(POLICY);
    world.file("a", "mine");
    fs::create_dir(world.path("d")).unwrap();
    world.fs(&["mv", "a", "d/b"]).ok();
    assert_eq!(statuses(&world), ["ready"]);
    world.file("e/b", "ours");
    fs::rename(world.path("d"), world.path("kept")).unwrap();
    symlink("e", world.path("d")).unwrap();
    refuses(&world);
}

/// Regression: the directory of somebody else behind a link was removed.
#[test]
fn an_undo_removed_a_directory_behind_a_link() {
    let world = World::with_policy(POLICY);
    world.file("d/a", "mine");
    world.fs(&["mv", "d/a", "b"]).ok();
    world.file("e/a/x", "ours");
    fs::remove_dir(world.path("d")).unwrap();
    symlink("e", world.path("d")).unwrap();
    refuses(&world);
    let refused = world.run(&["undo", "--yes", "--overwrite"]);
    assert_eq!((refused.code, world.read("e/a/x")), (1, "ours".to_owned()), "{refused:?}");
}

/// Regression: the mode of another file was set.
#[test]
fn an_undo_set_the_mode_of_a_file_of_somebody_else() {
    let world = World::with_policy(POLICY);
    let make = |content, mode| {
        world.file("a", content);
        fs::set_permissions(world.path("a"), PermissionsExt::from_mode(mode)).unwrap();
    };
    make("mine", 0o644);
    let agent = Agent::new(&world, 1);
    agent.does(&SetAttributes { path: path("a"), mode: Some(0o600), modified: None });
    drop(agent);
    assert_eq!(statuses(&world), ["ready"]);
    fs::remove_file(world.path("a")).unwrap();
    make("ours", 0o600);
    refuses(&world);
}

/// Regression: the newest change alone was compared with the disk. The mode or the name of an entry
/// before it went to the entry that had taken its place.
#[test]
fn an_undo_gave_the_file_of_somebody_else_what_another_file_had() {
    const THEIRS: &str = "a person's";
    let set = |agent: &Agent, mode| {
        agent.does(&SetAttributes { path: path("b"), mode: Some(mode), modified: None })
    };
    for first in ["mode", "rename", "replace"] {
        for second in ["mode", "write", "remove", "rename", "replace"] {
            for is_in_the_log in [false, true] {
                let case = format!("{first}, {second}, {is_in_the_log}");
                let world = World::with_policy(POLICY);
                world.file(if first == "mode" { "b" } else { "a" }, "mine");
                world.file("c", "mine, too");
                if first == "replace" {
                    world.file("b", "replaced");
                }
                let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
                let since = match first {
                    "mode" => set(&one, 0o755),
                    _ => one.rename("a", "b"),
                };
                if is_in_the_log {
                    two.remove("b");
                    let (path, content) = (path("b"), THEIRS.into());
                    two.does(&Write { path, content, mode: Some(0o600) });
                } else {
                    fs::remove_file(world.path("b")).unwrap();
                    world.file("b", THEIRS);
                    fs::set_permissions(world.path("b"), PermissionsExt::from_mode(0o600)).unwrap();
                }
                let until = match second {
                    "mode" => set(&one, 0o700),
                    "write" => one.write("b", "mine again"),
                    "remove" => one.remove("b"),
                    "rename" => one.rename("b", "d"),
                    _ => one.rename("c", "b"),
                };
                drop((one, two));
                let before = snapshot(&world.root());
                let refused = world.run(&["undo", "--session", "0101", "--yes", "--json"]);
                let shown = refused.json();
                let mut steps = shown["steps"].as_array().unwrap().iter();
                // The mode of what was only renamed differs from the log, too.
                let reason = match (first, second) {
                    ("mode", "rename") => "its mode was changed since".to_owned(),
                    _ => format!("between records {since} and {until}"),
                };
                assert!(
                    steps.any(|step| step["status"] == "conflict"
                        && step["reason"].as_str().unwrap().contains(&reason)),
                    "{case}: {shown}"
                );
                assert_eq!((refused.code, snapshot(&world.root())), (1, before), "{case}");
                // A restore of the whole workspace undoes what the log has of theirs, too.
                let restore = world.run(&["backup", "restore", "--at", "1h", "--dry-run"]);
                assert_eq!(restore.code, i32::from(!is_in_the_log), "{case}: {restore:?}");
                let skip = ["undo", "--session", "0101", "--yes", "--skip-conflicts"];
                assert_eq!(world.run(&skip).code, 1, "{case}");
                let left = snapshot(&world.root());
                let theirs: Vec<_> = left.iter().filter(|(_, is)| is.ends_with(THEIRS)).collect();
                let [(name, is)] = theirs[..] else { panic!("{case}: {left:?}") };
                assert!(name != "a" && !is.contains("644"), "{case}: {left:?}");
            }
        }
    }
}

#[test]
fn an_undo_set_the_mode_of_a_directory_that_somebody_else_had_made_anew() {
    let world = World::with_policy(POLICY);
    fs::create_dir(world.path("d")).unwrap();
    let agent = Agent::new(&world, 1);
    let set = |mode| {
        agent.does(&SetAttributes { path: path("d"), mode: Some(mode), modified: None });
    };
    set(0o777);
    agent.write("d/a", "one");
    set(0o755);
    assert_eq!(statuses(&world), ["ready"; 3]);
    fs::remove_dir_all(world.path("d")).unwrap();
    world.file("d/b", "ours");
    set(0o711);
    drop(agent);
    assert_eq!(statuses(&world), ["conflict", "unchanged", "conflict"]);
}

/// Content that the gateway replaced, the time of another name, and what an undo put back have other
/// identities.
#[test]
fn an_undo_of_an_entry_that_the_log_explains_is_ready() {
    let policy = format!("{POLICY}[files]\nhardlinks = {{ write = \"allow\" }}\n");
    let world = World::with_policy(&policy);
    for name in ["linked", "other", "part", "theirs", "d/a"] {
        world.file(name, "before");
    }
    fs::hard_link(world.path("linked"), world.path("link")).unwrap();
    let before = snapshot(&world.root());
    let [one, two] = [1, 2].map(|number| Agent::under(&policy, &world, number));
    let set = |name, mode, modified| {
        one.does(&SetAttributes { path: path(name), mode, modified });
    };
    let names = ["linked", "other", "part", "theirs", "d"];
    for name in names {
        set(name, Some(0o755), None);
    }
    set("link", None, Some((1, 0)));
    one.write("other", "once");
    let part = one.write("part", "once").to_string();
    two.write("theirs", "once");
    two.write("d/a", "once");
    world.run(&["undo", "--session", "0202", "--yes"]).ok();
    for name in names {
        match name {
            // Another mode would be in the way of an undo of the one record.
            "part" => set(name, None, Some((2, 0))),
            _ => set(name, Some(0o700), None),
        }
    }
    one.rename("linked", "moved");
    one.remove("other");
    one.rename("d", "e");
    drop((one, two));
    world.run(&["undo", "--record", &part, "--yes"]).ok();
    let undone = world.run(&["undo", "--session", "0101", "--yes"]);
    assert_eq!((undone.code, snapshot(&world.root())), (0, before), "{}", undone.text());
}

/// A later change that the log has is no conflict.
#[test]
fn an_undo_of_what_was_changed_again_is_ready() {
    let world = World::with_policy(POLICY);
    world.file("a", "one");
    world.file("d/x", "two");
    let before = snapshot(&world.root());
    let agent = Agent::new(&world, 1);
    agent.rename("a", "b");
    agent.does(&SetAttributes { path: path("b"), mode: Some(0o600), modified: Some((1, 0)) });
    agent.rename("b", "c");
    agent.write("c", "three");
    agent.rename("d", "e");
    agent.write("e/x", "four");
    agent.rename("c", "e/c");
    agent.rename("e", "f");
    drop(agent);
    world.run(&["undo", "--yes"]).ok();
    assert_eq!(snapshot(&world.root()), before);
}

/// Its path could not be looked at, by a link in the place of its directory, and was not compared.
#[test]
fn an_undo_through_a_link_removed_what_others_had_changed() {
    let world = World::with_policy(POLICY);
    fs::create_dir(world.path("d")).unwrap();
    let agent = Agent::new(&world, 1);
    agent.write("d/a", "mine");
    drop(agent);
    fs::rename(world.path("d"), world.path("e")).unwrap();
    symlink("e", world.path("d")).unwrap();
    world.file("e/a", "ours");
    let done = world.run(&["undo", "--overwrite", "--yes", "--json"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert_eq!(done.json()["steps"][0]["status"], "impossible", "{done:?}");
    assert_eq!(world.read("e/a"), "ours");
}

/// Files that another session had put there by the gateway were moved, or became executable.
#[test]
fn an_undo_took_what_another_session_had_made_for_the_sessions_own() {
    for is_directory in [false, true] {
        let world = World::with_policy(POLICY);
        for name in ["moved", "one", "other", "mode"] {
            world.file(&if is_directory { format!("{name}/x") } else { name.to_owned() }, "mine");
        }
        let (before, after) = if is_directory { (0o700, 0o755) } else { (0o755, 0o644) };
        fs::set_permissions(world.path("mode"), fs::Permissions::from_mode(before)).unwrap();
        let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
        one.rename("moved", "there");
        one.does(&Exchange {
            rename: Rename { from: path("one"), to: path("other"), replace: false },
        });
        one.does(&SetAttributes { path: path("mode"), mode: Some(after), modified: None });
        for name in ["there", "other", "mode"] {
            two.remove(name);
            two.write(&if is_directory { format!("{name}/x") } else { name.to_owned() }, "theirs");
        }
        drop((one, two));
        let undo = ["undo", "--session", "0101", "--json"];
        let shown = world.run(&[&undo[..], &["--dry-run"]].concat()).json();
        let steps = shown["steps"].as_array().unwrap();
        assert_eq!(steps.len(), 3, "{shown}");
        assert!(steps.iter().all(|step| step["status"] == "conflict"), "{shown}");
        let before = snapshot(&world.root());
        let skipped = world.run(&[&undo[..], &["--yes", "--skip-conflicts"]].concat());
        assert_eq!((skipped.code, snapshot(&world.root())), (1, before), "{skipped:?}");
    }
}

/// The other changes of its session counted as those of others.
#[test]
fn an_undo_of_one_record_took_its_sessions_own_edit_for_somebody_elses() {
    let world = World::with_policy(POLICY);
    world.file("a", "mine");
    let agent = Agent::new(&world, 1);
    let record = agent.rename("a", "b").to_string();
    agent.write("b", "edited");
    drop(agent);
    world.run(&["undo", "--record", &record, "--yes"]).ok();
    assert_eq!((world.read("a"), world.path("b").exists()), ("edited".to_owned(), false));
}

/// The undo between excused everything that came after it.
#[test]
fn an_undo_after_another_one_moved_what_a_third_session_had_made() {
    let world = World::with_policy(POLICY);
    world.file("a", "mine");
    let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
    one.rename("a", "b");
    two.remove("b");
    two.write("b", "theirs");
    drop((one, two));
    world.run(&["undo", "--session", "0202", "--yes"]).ok();
    let undo = ["undo", "--session", "0101", "--dry-run", "--json"];
    let status = || world.run(&undo).json()["steps"][0]["status"].clone();
    assert_eq!(status(), "ready");
    let three = Agent::new(&world, 3);
    three.remove("b");
    three.write("b", "another's");
    drop(three);
    assert_eq!(status(), "conflict");
}
