//! Directories that a session made and removed, or moved, after others had put something into them.

use std::fs;

use serde_json::json;

use super::*;

/// Undoes the first session, and returns the statuses of its steps.
#[track_caller]
fn undone(world: &World, code: i32) -> Vec<Value> {
    let done = world.run(&["undo", "--session", "0101", "--yes", "--json"]);
    assert_eq!(done.code, code, "{done:?}");
    done.json()["steps"].as_array().unwrap().iter().map(|step| step["status"].clone()).collect()
}

/// Regression: what a person had put into the directory was lost, and nothing was said.
#[test]
fn an_undo_lost_what_a_person_put_into_a_removed_directory() {
    for is_moved_before in [false, true] {
        let world = World::with_policy(POLICY);
        let agent = Agent::new(&world, 1);
        agent.mkdir("d/sub");
        agent.write("d/sub/own", "agent's");
        world.file("d/sub/p", "a person's");
        let removed = if is_moved_before {
            agent.rename("d", "e");
            "e"
        } else {
            "d"
        };
        agent.remove(removed);
        drop(agent);
        undone(&world, 0);
        let found: Vec<_> = snapshot(&world.root()).into_keys().collect();
        assert_eq!(found, ["d", "d/sub", "d/sub/p"]);
        assert_eq!(world.read("d/sub/p"), "a person's");
    }
}

#[test]
fn an_undo_lost_what_another_session_put_into_a_removed_directory() {
    let world = World::with_policy(POLICY);
    let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
    one.mkdir("d");
    two.write("d/p", "theirs");
    one.remove("d");
    drop((one, two));
    undone(&world, 0);
    assert_eq!(world.read("d/p"), "theirs");
}

/// A file that the session had written there was changed: nobody knows which one is wanted.
#[test]
fn an_undo_lost_a_change_of_a_file_in_a_removed_directory() {
    let world = World::with_policy(POLICY);
    let agent = Agent::new(&world, 1);
    agent.write("d/f", "agent's");
    world.file("d/f", "a person's");
    agent.remove("d");
    drop(agent);
    assert!(undone(&world, 1).contains(&json!("conflict")));
    assert!(!world.path("d").exists());
    let skipped = world.run(&["undo", "--session", "0101", "--yes", "--skip-conflicts"]);
    assert_eq!((skipped.code, world.read("d/f")), (1, "a person's".to_owned()), "{skipped:?}");
}

#[test]
fn a_directory_that_a_session_moved_keeps_what_others_put_into_it() {
    let world = World::with_policy(POLICY);
    let agent = Agent::new(&world, 1);
    agent.write("d/own", "agent's");
    world.file("d/p", "a person's");
    agent.rename("d", "e");
    drop(agent);
    undone(&world, 0);
    assert_eq!(snapshot(&world.root()).into_keys().collect::<Vec<_>>(), ["d", "d/p"]);
}

/// Only what somebody else put there is a reason to restore it.
#[test]
fn a_directory_with_nothing_of_others_stays_removed() {
    let world = World::with_policy(POLICY);
    let agent = Agent::new(&world, 1);
    agent.write("d/a/own", "1");
    agent.write("d/a/own", "2");
    agent.mkdir("d/b");
    agent.does(&portcullis::model::request::Symlink {
        path: path("d/link"),
        target: "a".to_owned(),
    });
    agent.rename("d/a", "d/c");
    agent.remove("d");
    drop(agent);
    assert!(undone(&world, 0).is_empty());
    assert!(fs::read_dir(world.root()).unwrap().next().is_none());
}
