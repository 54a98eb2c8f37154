//! Undos of changes between which, or after which, others changed the same paths.

use portcullis::undo::{self, Choice, History, Preview, Select, Status};
use portcullis_audit::Directory;
use serde_json::json;

use super::*;

/// Asserts that an undo of the first session refuses for a reason, changes nothing, and leaves out
/// what it refuses.
#[track_caller]
fn refuses(world: &World, reason: &str) {
    let before = snapshot(&world.root());
    shows(world, reason);
    let skipped = world.run(&["undo", "--session", "0101", "--yes", "--skip-conflicts"]);
    assert_eq!(skipped.code, 1, "{skipped:?}");
    assert_eq!(snapshot(&world.root()), before);
}

/// Asserts that an undo of the first session refuses for a reason, and changes nothing.
#[track_caller]
fn shows(world: &World, reason: &str) {
    let before = snapshot(&world.root());
    let shown = world.run(&["undo", "--session", "0101", "--dry-run"]);
    assert!(shown.code == 1 && unwrapped(&shown).contains(reason), "{shown:?}");
    let refused = world.run(&["undo", "--session", "0101", "--yes"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert_eq!(snapshot(&world.root()), before);
}

/// Returns the printed text without its line breaks.
fn unwrapped(done: &Done) -> String {
    done.text().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Regression: both versions of the session were undone in one step, and the other session's with
/// them.
#[test]
fn an_undo_dropped_what_another_session_wrote_between() {
    for in_the_log in [true, false] {
        let world = World::with_policy(POLICY);
        let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
        let first = one.write("c", "1");
        let reason = if in_the_log {
            format!("record {} (agent agent) changed it", two.write("c", "12"))
        } else {
            world.file("c", "12");
            "something that is not in the log changed it".to_owned()
        };
        let second = one.write("c", "123");
        drop((one, two));
        refuses(&world, &format!("{reason} between records {first} and {second}"));
        // Of the whole workspace the other session's change was to be undone, too.
        let restore = ["backup", "restore", "--at", "1h", "--yes"];
        assert_eq!(world.run(&restore).code, i32::from(!in_the_log));
        world.run(&["undo", "--session", "0101", "--yes", "--overwrite"]);
        assert!(!world.path("c").exists());
        world.run(&restore).ok();
    }
}

/// It went with the file, by another name.
#[test]
fn an_undo_dropped_what_another_session_wrote_before_a_rename() {
    let world = World::with_policy(POLICY);
    let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
    one.write("a", "1");
    let theirs = two.write("a", "12");
    one.rename("a", "b");
    one.write("b", "123");
    drop((one, two));
    shows(&world, &format!("record {theirs} (agent agent) changed it"));
    let skipped = world.run(&["undo", "--session", "0101", "--yes", "--skip-conflicts"]);
    assert_eq!((skipped.code, world.read("a")), (1, "123".to_owned()), "{skipped:?}");
}

/// Programs that save a file by a rename over it dropped what a person wrote between two of these.
#[test]
fn an_undo_dropped_what_was_written_between_two_renames_over_a_file() {
    for was_there in [true, false] {
        let world = World::with_policy(POLICY);
        if was_there {
            world.file("f", "0");
        }
        let one = Agent::new(&world, 1);
        for (temp, content) in [("t1", "1"), ("t2", "2")] {
            one.write(temp, content);
            one.rename(temp, "f");
            if temp == "t1" {
                world.file("f", "a person's");
            }
        }
        drop(one);
        shows(&world, "something that is not in the log changed it");
    }
}

/// A file that somebody stored while the undo compared it was replaced or removed: the change was
/// based on no version.
#[test]
fn an_undo_dropped_what_was_stored_while_it_compared() {
    const LARGE: usize = 8 << 20;
    let mut races = 0;
    for round in 0..10 {
        let world = World::with_policy(POLICY);
        let was_there = round % 2 == 0;
        if was_there {
            world.file("f", "before");
        }
        let one = Agent::new(&world, 1);
        one.write("f", &"x".repeat(LARGE));
        drop(one);
        let begun = std::time::Instant::now();
        world.run(&["undo", "--session", "0101", "--dry-run"]).ok();
        let time = begun.elapsed();
        let mut undo = world.command(&["undo", "--session", "0101", "--yes"]).spawn().unwrap();
        std::thread::sleep(time * (5 + round) / 10);
        let temp = world.file(".theirs", "theirs");
        std::fs::rename(temp, world.path("f")).unwrap();
        // Where it was faster, it was done before.
        races += u32::from(undo.try_wait().unwrap().is_none());
        let done = undo.wait_with_output().unwrap();
        assert_eq!(world.read("f"), "theirs", "round {round}: {done:?}");
    }
    assert!(races > 0, "the race was not run");
}

/// The file of both is gone, and nothing was said.
#[test]
fn an_undo_dropped_what_another_session_wrote_before_a_removal() {
    let world = World::with_policy(POLICY);
    let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
    one.write("a", "1");
    let theirs = two.write("a", "12");
    one.remove("a");
    drop((one, two));
    refuses(&world, &format!("record {theirs} (agent agent) changed it"));
}

#[test]
fn what_was_undone_between_is_no_conflict() {
    let world = World::with_policy(POLICY);
    world.file("a", "0");
    world.file("b", "0");
    let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
    one.write("a", "1");
    one.rename("b", "c");
    two.write("a", "2");
    two.write("c", "2");
    world.run(&["undo", "--session", "0202", "--yes"]).ok();
    one.write("a", "3");
    one.write("c", "3");
    drop((one, two));
    world.run(&["undo", "--session", "0101", "--yes"]).ok();
    assert_eq!((world.read("a"), world.read("b")), ("0".to_owned(), "0".to_owned()));
    assert!(!world.path("c").exists());
}

/// Regression: the preview found no conflict, and half of the undo was done: a directory that is not
/// removed, because it is not empty, counted as gone.
#[test]
fn an_undo_was_half_done_because_of_a_directory_that_stayed() {
    let world = World::with_policy(POLICY);
    world.file("b", "original");
    world.file("k", "original");
    let agent = Agent::new(&world, 1);
    agent.write("k", "agent");
    agent.remove("b");
    agent.write("b/c", "agent");
    drop(agent);
    world.file("b/mine", "somebody's");
    let before = snapshot(&world.root());
    for command in [&["undo"][..], &["backup", "restore", "--at", "1h"]] {
        let shown = world.run(&[command, &["--dry-run"]].concat());
        assert!(shown.code == 1 && shown.text().contains("1 in conflict"), "{shown:?}");
        assert_eq!(world.run(&[command, &["--yes"]].concat()).code, 1);
        assert_eq!(snapshot(&world.root()), before);
    }
    world.run(&["undo", "--yes", "--overwrite"]);
    assert_eq!((world.read("b"), world.read("k")), ("original".to_owned(), "original".to_owned()));
}

/// Regression: an undo reported as unchanged what another session had moved.
#[test]
fn an_undo_found_nothing_of_a_file_that_another_session_moved() {
    let world = World::with_policy(POLICY);
    let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
    one.write("evil.sh", "evil");
    let moved = two.rename("evil.sh", "tool.sh");
    drop((one, two));
    let reason = format!("it was moved to `tool.sh`, by record {moved} of session 0202");
    refuses(&world, &reason);
    let left = world.run(&["undo", "--session", "0101", "--yes", "--overwrite"]);
    assert_eq!((left.code, world.read("tool.sh")), (1, "evil".to_owned()), "{left:?}");
    std::fs::remove_file(world.path("tool.sh")).unwrap();
    world.run(&["undo", "--session", "0101", "--yes"]).ok();
}

/// Regression: a session that changed nothing hid the one before it.
#[test]
fn the_last_session_that_changed_something_is_undone() {
    let world = World::with_policy(POLICY);
    world.file("f", "good");
    std::fs::create_dir(world.path("d")).unwrap();
    Agent::new(&world, 1).write("f", "evil");
    let agent = Agent::new(&world, 2);
    agent.mkdir("d");
    agent.rename("f", "f");
    drop(agent);
    let status = world.run(&["status", "--json"]).ok().json();
    assert_eq!(status["session"]["changes"], json!(0), "{status}");
    world.run(&["undo", "--yes"]).ok();
    assert_eq!(world.read("f"), "good");
}

/// Regression: what took a name between the comparison and the rename back was removed.
#[test]
fn an_undo_removed_an_entry_that_nobody_had_confirmed() {
    for is_shown in [false, true] {
        let world = World::with_policy(POLICY);
        world.file("a", "mine");
        let agent = Agent::new(&world, 1);
        agent.rename("a", "b");
        if is_shown {
            world.file("a", "to replace");
        }
        let log = Directory::new(world.state().join("audit"));
        let history = History::read(&log, &Select::Session("0101".to_owned())).unwrap();
        let steps = undo::plan(&history, None).unwrap();
        let mut preview = Preview::new(&agent.gateway, &agent.session, &history, steps);
        assert_eq!(
            preview.count(|status| matches!(status, Status::Conflict(_))),
            usize::from(is_shown)
        );
        if is_shown {
            std::fs::remove_file(world.path("a")).unwrap();
        }
        world.file("a/precious", "somebody's");
        let (session, approver) = (&agent.session, Client::default().approver);
        let perform = |preview: &mut Preview| {
            let choice = Choice::Overwrite;
            undo::perform(&agent.gateway, session, preview, choice, approver, &mut || ());
            preview.count(|status| *status == Status::Done)
        };
        assert_eq!(perform(&mut preview), 0);
        assert_eq!(preview.count(|status| matches!(status, Status::Conflict(_))), 1);
        assert_eq!(world.read("a/precious"), "somebody's");
        // Shown, it is replaced.
        let steps = undo::plan(&history, None).unwrap();
        let mut preview = Preview::new(&agent.gateway, session, &history, steps);
        assert_eq!(perform(&mut preview), 1);
        assert_eq!(world.read("a"), "mine");
    }
}
