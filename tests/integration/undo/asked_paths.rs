//! Restores of a path show and change what was asked for.

use std::{fs, os::unix::fs::MetadataExt as _};

use portcullis::model::request::SetAttributes;

use super::*;

fn steps(done: &Done) -> Vec<Value> {
    done.json()["steps"].as_array().unwrap().clone()
}

/// A file that programs had saved by way of a temporary name got those names back.
#[test]
fn a_file_that_was_saved_by_a_rename_is_restored_alone() {
    let world = World::with_policy(POLICY);
    world.file("a", "0");
    world.file("other", "0");
    let agent = Agent::new(&world, 1);
    for content in ["1", "2"] {
        let temporary = format!("a.tmp{content}");
        agent.write(&temporary, content);
        agent.rename(&temporary, "a");
        agent.write("other", content);
    }
    agent.write("new.tmp", "1");
    agent.rename("new.tmp", "new");
    drop(agent);
    for (path, action) in [("a", "restore"), ("new", "remove")] {
        let done = backup(&world, &["restore", path, "--at", "1h", "--yes", "--json"]).ok();
        let steps = steps(&done);
        assert_eq!(steps.len(), 1, "{done:?}");
        assert_eq!((&steps[0]["path"], &steps[0]["action"]), (&path.into(), &action.into()));
    }
    assert_eq!((world.read("a"), world.read("other")), ("0".to_owned(), "2".to_owned()));
    for gone in ["a.tmp1", "a.tmp2", "new", "new.tmp"] {
        assert!(!world.path(gone).exists(), "{gone}");
    }
    // What something else has put there since is a conflict.
    let world = World::with_policy(POLICY);
    world.file("a", "0");
    let agent = Agent::new(&world, 1);
    agent.write("a.tmp", "1");
    agent.rename("a.tmp", "a");
    drop(agent);
    world.file("a", "somebody's");
    let refused = backup(&world, &["restore", "a", "--at", "1h", "--yes", "--json"]);
    assert_eq!((refused.code, &steps(&refused)[0]["status"]), (1, &"conflict".into()));
    assert_eq!(world.read("a"), "somebody's");
}

/// Regression: the mode of a file that was saved by a rename passed for one that something else had
/// set, unless it was that of the file before.
#[test]
fn the_mode_of_a_file_that_was_saved_by_a_rename_was_a_conflict() {
    for (is_made_with, is_set_later) in [(None, false), (Some(0o640), false), (Some(0o640), true)] {
        let world = World::with_policy(POLICY);
        let mode = |name: &str| fs::metadata(world.path(name)).unwrap().mode() & 0o7777;
        let set = |name: &str, mode| {
            fs::set_permissions(world.path(name), PermissionsExt::from_mode(mode)).unwrap();
        };
        world.file("a", "0");
        set("a", 0o664);
        let agent = Agent::new(&world, 1);
        agent.does(&Write { mode: is_made_with, path: path("tmp"), content: b"1".to_vec() });
        agent.write("tmp", "2");
        if is_set_later {
            agent.does(&SetAttributes { path: path("tmp"), mode: Some(0o600), modified: None });
        }
        agent.rename("tmp", "a");
        drop(agent);
        let saved = mode("a");
        let restore = ["restore", "a", "--at", "1h", "--yes", "--json"];
        if is_made_with.is_some() {
            // A mode that something else set still is one.
            set("a", 0o755);
            let refused = backup(&world, &restore);
            assert_eq!((refused.code, &steps(&refused)[0]["status"]), (1, &"conflict".into()));
            set("a", saved);
        }
        backup(&world, &restore).ok();
        assert_eq!((world.read("a"), mode("a")), ("0".to_owned(), 0o664));
    }
}

/// The last step of a preview listed the records of all files that had come and gone meanwhile.
#[test]
fn a_step_lists_the_records_of_its_own_paths() {
    let world = World::with_policy(POLICY);
    world.file("a", "0");
    let agent = Agent::new(&world, 1);
    agent.write("a", "1");
    agent.write("passing", "1");
    agent.rename("passing", "passed");
    agent.remove("passed");
    drop(agent);
    let records = world.records();
    let touched = |record: &Value| {
        let of = &records[usize::try_from(record.as_u64().unwrap()).unwrap()];
        (of["path"].clone(), of["to"].clone())
    };
    let done = backup(&world, &["restore", "--at", "1h", "--yes", "--json"]).ok();
    let steps = steps(&done);
    assert_eq!(steps.len(), 1, "{done:?}");
    for record in steps[0]["records"].as_array().unwrap() {
        assert_eq!(touched(record), ("a".into(), Value::Null), "{done:?}");
    }
    // All of them count as undone.
    let again = backup(&world, &["undo", "--session", "0101", "--json", "--yes"]).ok().json();
    assert_eq!((&again["undoneBefore"], &again["steps"]), (&4.into(), &serde_json::json!([])));
}
