//! Steps of an undo that cannot be carried out.

use serde_json::json;

use super::*;
use crate::consistency;

/// Damages the stored backup of the file at `path`, or of the directory.
fn damage(world: &World, path: &str) {
    let listed = backup(world, &["list", path, "--json"]).ok().json();
    let id = listed["backups"][0]["id"].as_str().unwrap().to_owned();
    let entries = consistency::walk(&world.state().join("backups"));
    let entry = entries.into_iter().find(|entry| entry.to_string_lossy().contains(&id)).unwrap();
    let mut bytes = std::fs::read(&entry).unwrap();
    bytes[5] ^= 1;
    std::fs::write(&entry, bytes).unwrap();
}

/// The path and status of each step.
fn steps(steps: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let steps = steps.as_array().unwrap().iter();
    steps.map(|step| (text(&step["path"]), text(&step["status"]))).collect()
}

fn statuses(wanted: [(&str, &str); 3]) -> Vec<(String, String)> {
    wanted.map(|(path, status)| (path.to_owned(), status.to_owned())).to_vec()
}

/// Regression: the preview found no fault in the backup, and the undo stopped there for ever.
#[test]
fn a_damaged_backup_stopped_an_undo_half_way() {
    let world = World::with_policy(POLICY);
    for name in ["a", "b", "c/f", "c/g/h"] {
        world.file(name, "the good old content");
    }
    let agent = Agent::new(&world, 1);
    agent.write("a", "evil");
    agent.write("b", "evil");
    agent.remove("c");
    drop(agent);
    damage(&world, "b");
    let undo = ["undo", "--session", "0101", "--json"];
    for more in ["--dry-run", "--yes"] {
        let shown = world.run(&[&undo[..], &[more]].concat());
        assert_eq!(shown.code, 1, "{shown:?}");
        let wanted = statuses([("c", "ready"), ("a", "ready"), ("b", "impossible")]);
        assert_eq!(steps(&shown.json()["steps"]), wanted, "{shown:?}");
        assert_eq!((world.read("a"), world.read("b")), ("evil".to_owned(), "evil".to_owned()));
    }
    damage(&world, "c");
    for more in [&["--dry-run"][..], &["--yes"]] {
        let left = world.run(&[&undo[..], &["--skip-conflicts"], more].concat());
        assert_eq!(left.code, 1, "{left:?}");
        assert_eq!(left.json()["leftOut"].as_array().unwrap().len(), 2, "{left:?}");
    }
    assert_eq!(world.read("a"), "the good old content");
    assert_eq!(world.read("b"), "evil");
    assert!(!world.path("c").exists());
}

/// Regression: the object named none of the steps that were done, and `--skip-conflicts` stopped as well.
#[test]
fn an_undo_that_failed_in_the_middle_named_no_step() {
    for choice in [None, Some("--skip-conflicts"), Some("--overwrite")] {
        let world = World::with_policy(POLICY);
        for name in ["a", "b", "c"] {
            world.file(name, "good");
        }
        let agent = Agent::new(&world, 1);
        for name in ["a", "b", "c"] {
            agent.write(name, "evil");
        }
        drop(agent);
        // A file with several names is denied only when it is opened.
        std::fs::hard_link(world.path("b"), world.base().join("other")).unwrap();
        let undo = ["undo", "--session", "0101", "--json"];
        let shown = world.run(&[&undo[..], &["--dry-run"]].concat()).ok().json();
        let ready = statuses([("a", "ready"), ("b", "ready"), ("c", "ready")]);
        assert_eq!(steps(&shown["steps"]), ready);

        let failed = world.run(&[&undo[..], &["--yes"], choice.as_slice()].concat());
        let object = failed.json();
        assert_eq!(
            (&object["ok"], &object["steps"][1]["status"]),
            (&json!(false), &json!("failed"))
        );
        assert!(object["steps"][1]["reason"].as_str().unwrap().contains("files.hardlinks.write"));
        assert_eq!((world.read("a"), world.read("b")), ("good".to_owned(), "evil".to_owned()));
        let undone = object["receipts"].as_array().unwrap().len();
        assert_eq!(object["stepsDone"], json!(undone));
        if choice.is_some() {
            assert_eq!((failed.code, undone, &object["done"]), (1, 2, &json!(true)), "{failed:?}");
            let wanted = statuses([("a", "done"), ("b", "failed"), ("c", "done")]);
            assert_eq!(steps(&object["steps"]), wanted);
            assert_eq!(steps(&object["leftOut"]), wanted[1..2]);
            assert_eq!(world.read("c"), "good");
            continue;
        }
        assert_eq!((failed.code, undone, &object["done"]), (3, 1, &json!(false)), "{failed:?}");
        assert_eq!(object["error"]["rule"], "files.hardlinks.write");
        assert_eq!(world.requests().pop().unwrap()["seq"], object["receipt"]["seq"]);
        let wanted = statuses([("a", "done"), ("b", "failed"), ("c", "ready")]);
        assert_eq!(steps(&object["steps"]), wanted);
        assert_eq!(steps(&object["leftOut"]), wanted[1..]);
        assert_eq!(world.read("c"), "evil");
        // The same command goes on from there.
        std::fs::remove_file(world.base().join("other")).unwrap();
        let rest = world.run(&[&undo[..], &["--yes"]].concat()).ok().json();
        let wanted =
            [("b", "done"), ("c", "done")].map(|(path, s)| (path.to_owned(), s.to_owned()));
        assert_eq!((steps(&rest["steps"]), &rest["undoneBefore"]), (wanted.to_vec(), &json!(1)));
        assert_eq!((world.read("b"), world.read("c")), ("good".to_owned(), "good".to_owned()));
    }
}

/// A rename would move what the failed step left.
#[test]
fn a_step_that_depends_on_one_that_failed_is_left_out() {
    let world = World::with_policy(POLICY);
    world.file("d/f", "good");
    world.file("e", "good");
    let agent = Agent::new(&world, 1);
    agent.rename("d", "moved");
    agent.write("moved/f", "evil");
    agent.write("e", "evil");
    drop(agent);
    std::fs::hard_link(world.path("moved/f"), world.base().join("other")).unwrap();
    let undo = ["undo", "--session", "0101", "--json", "--yes", "--skip-conflicts"];
    let failed = world.run(&undo);
    assert_eq!(failed.code, 1, "{failed:?}");
    let mut found = steps(&failed.json()["steps"]);
    found.sort();
    assert_eq!(found, statuses([("d", "depends"), ("e", "done"), ("moved/f", "failed")]));
    assert_eq!((world.read("moved/f"), world.read("e")), ("evil".to_owned(), "good".to_owned()));
}

/// Regression: it counted none of the steps that overwrite something.
#[test]
fn the_preview_of_an_overwriting_undo_had_nothing_to_do() {
    let world = World::with_policy(POLICY);
    world.file("a", "good");
    let agent = Agent::new(&world, 1);
    agent.write("a", "evil");
    drop(agent);
    world.file("a", "by an editor");
    for command in [&["undo", "--session", "0101"][..], &["backup", "restore", "--to", "0"]] {
        let shown = world.run(&[command, &["--overwrite", "--dry-run"]].concat()).ok();
        assert!(shown.text().contains("1 to do, 1 of them in conflict"), "{shown:?}");
    }
}
