//! Undos of changes in a directory that another session moved since.

use std::fs;

use portcullis::model::request::SetAttributes;
use serde_json::json;

use super::*;

/// Regression: the undo reported as unchanged what was still there by another name.
#[test]
fn an_undo_found_nothing_in_a_directory_that_another_session_moved() {
    type Change = fn(&Agent) -> u64;
    let changes: [(Change, &str); 5] = [
        (|agent| agent.write("d/new", "evil"), "e/new"),
        (|agent| agent.write("d/f", "evil"), "e/f"),
        (|agent| agent.mkdir("d/made"), "e/made"),
        (|agent| agent.rename("d/f", "d/g"), "e/g"),
        (
            |agent| {
                let mode = Some(0o777);
                agent.does(&SetAttributes { path: path("d/f"), mode, modified: None })
            },
            "e/f",
        ),
    ];
    for (change, at) in changes {
        for is_made_again in [false, true] {
            let world = World::with_policy(POLICY);
            world.file("d/f", "good");
            fs::set_permissions(world.path("d/f"), PermissionsExt::from_mode(0o644)).unwrap();
            let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
            change(&one);
            let moved = two.rename("d", "e");
            drop((one, two));
            if is_made_again {
                // As the session found it.
                world.file("d/f", "good");
                fs::set_permissions(world.path("d/f"), PermissionsExt::from_mode(0o644)).unwrap();
            }
            let before = snapshot(&world.root());
            let done = world.run(&["undo", "--session", "0101", "--yes", "--json"]);
            assert_eq!(done.code, 1, "{at}: {done:?}");
            let object = done.json();
            let step = &object["steps"][0];
            let status = step["status"].as_str().unwrap();
            assert!(["conflict", "impossible"].contains(&status), "{at}: {step}");
            let told = format!("it was moved to `{at}`, by record {moved} of session 0202");
            assert!(step["reason"].as_str().unwrap().contains(&told), "{at}: {step}");
            assert_eq!(object["stepsDone"], json!(0));
            assert_eq!(snapshot(&world.root()), before);
        }
    }
}

/// The names in later records are those of the time after the session's own renames.
#[test]
fn an_undo_found_nothing_of_what_another_session_moved_after_a_rename() {
    let world = World::with_policy(POLICY);
    let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
    one.write("d/f", "evil");
    one.rename("d", "e");
    let moved = two.rename("e/f", "g");
    drop((one, two));
    let shown = world.run(&["undo", "--session", "0101", "--dry-run", "--json"]);
    assert_eq!(shown.code, 1, "{shown:?}");
    let told = format!("it was moved to `g`, by record {moved} of session 0202");
    assert!(shown.text().contains(&told), "{shown:?}");
}

/// A move that was undone is no reason.
#[test]
fn a_directory_that_was_moved_back_is_undone() {
    let world = World::with_policy(POLICY);
    let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
    one.write("d/f", "evil");
    two.rename("d", "e");
    two.rename("e", "d");
    drop((one, two));
    world.run(&["undo", "--session", "0101", "--yes"]).ok();
    assert!(!world.path("d").exists());
    let again = world.run(&["undo", "--session", "0101", "--yes"]).ok();
    assert!(again.text().contains("undone before"), "{again:?}");
}

/// The renames of a restore that was taken back counted as those of somebody else.
#[test]
fn a_session_was_impossible_to_undo_after_a_restore_that_was_taken_back() {
    type Changes = fn(&Agent) -> u64;
    let changes: [Changes; 4] = [
        |agent| {
            agent.write("c", "1");
            agent.write("t", "2");
            agent.rename("t", "c");
            agent.rename("c", "e")
        },
        |agent| {
            agent.write("d/c", "1");
            agent.write("t", "2");
            agent.rename("t", "d/c");
            agent.rename("d", "d9")
        },
        |agent| {
            agent.write("d/c", "1");
            agent.remove("d/c");
            agent.rename("d", "d9")
        },
        |agent| {
            agent.write("d/c", "1");
            agent.write("t", "2");
            agent.rename("t", "d/c");
            agent.rename("d/c", "d/e")
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let world = World::with_policy(POLICY);
        world.file("d/keep", "x");
        let before = snapshot(&world.root());
        let one = Agent::new(&world, 1);
        let last = change(&one);
        drop(one);
        let after = snapshot(&world.root());
        let end = world.records().last().unwrap()["seq"].to_string();
        let restore = |to: &str| backup(&world, &["restore", "--to", to, "--yes"]).ok();
        restore(&(last - 1).to_string());
        assert_ne!(snapshot(&world.root()), after, "{number}");
        restore(&end);
        assert_eq!(snapshot(&world.root()), after, "{number}");
        let done = world.run(&["undo", "--session", "0101", "--yes", "--json"]);
        assert_eq!(done.code, 0, "{number}: {done:?}");
        assert_eq!(snapshot(&world.root()), before, "{number}");
    }
}

/// A move there and back by another session, and one that was not taken back.
#[test]
fn an_undo_names_the_last_move_by_another_session() {
    let world = World::with_policy(POLICY);
    let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
    one.write("c", "1");
    one.rename("c", "e");
    two.rename("e", "c");
    two.rename("c", "e");
    let moved = two.rename("e", "f");
    drop((one, two));
    let shown = world.run(&["undo", "--session", "0101", "--dry-run", "--json"]);
    assert_eq!(shown.code, 1, "{shown:?}");
    let told = format!("it was moved to `f`, by record {moved} of session 0202");
    assert!(shown.text().contains(&told), "{shown:?}");
}
