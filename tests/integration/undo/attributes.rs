//! Permission bits, times and links.

use std::os::unix::fs::MetadataExt as _;

use portcullis::{
    gateway::Exchange,
    model::request::{SetAttributes, Symlink},
};

use super::*;

#[test]
fn attributes_and_links_are_undone() {
    let world = World::with_policy(POLICY);
    for name in ["a", "b", "c"] {
        world.file(name, "x");
        std::fs::set_permissions(world.path(name), PermissionsExt::from_mode(0o644)).unwrap();
    }
    let before = snapshot(&world.root());
    let time = |name: &str| std::fs::metadata(world.path(name)).unwrap().mtime();
    let was = time("a");
    let agent = Agent::new(&world, 1);
    let set =
        |name, mode, modified| agent.does(&SetAttributes { path: path(name), mode, modified });
    set("a", Some(0o600), Some((1, 0)));
    set("a", Some(0o700), None);
    // A file that is written, and gets another time later.
    set("b", Some(0o755), Some((1, 0)));
    agent.write("b", "y");
    set("b", Some(0o700), None);
    // A file that is made and removed.
    agent.does(&Write { mode: Some(0o755), path: path("new"), content: b"x".to_vec() });
    set("new", Some(0o700), Some((1, 0)));
    agent.does(&Symlink { path: path("dir/link"), target: "../a".to_owned() });
    set("c", Some(0o700), None);
    std::fs::set_permissions(world.path("c"), PermissionsExt::from_mode(0o711)).unwrap();
    drop(agent);

    // Attributes that another process set are not overwritten without a
    // confirmation.
    let shown = backup(&world, &["undo", "--session", "0101", "--yes"]);
    assert_eq!(shown.code, 1, "{shown:?}");
    assert!(shown.text().contains("its mode was changed since"), "{shown:?}");
    std::fs::set_permissions(world.path("c"), PermissionsExt::from_mode(0o700)).unwrap();
    let done = backup(&world, &["undo", "--session", "0101", "--yes"]).ok();
    assert!(done.text().contains("setattr  a"), "{done:?}");
    assert_eq!(snapshot(&world.root()), before);
    assert_eq!(time("a"), was);
    let again = backup(&world, &["undo", "--session", "0101", "--yes"]).ok();
    assert!(again.text().starts_with("0 to do"), "{again:?}");
    world.run(&["audit", "verify"]).ok();
}

/// Regression: a mode that somebody else had set after a write was replaced by that of the backup.
#[test]
fn an_undo_of_a_write_replaced_the_mode_that_somebody_else_set() {
    let set = |world: &World, name: &str, mode| {
        std::fs::set_permissions(world.path(name), PermissionsExt::from_mode(mode)).unwrap();
    };
    for (name, is_changed_in_the_log) in [("written", false), ("set", false), ("set", true)] {
        let world = World::with_policy(POLICY);
        world.file(name, "x");
        set(&world, name, 0o644);
        let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
        one.write(name, "y");
        one.write(name, "z");
        let mut last = 0o644;
        if name == "set" {
            last = 0o755;
            one.does(&SetAttributes { path: path(name), mode: Some(last), modified: None });
        }
        let by = if is_changed_in_the_log {
            let change = SetAttributes { path: path(name), mode: Some(0o600), modified: None };
            format!("by record {} (agent agent)", two.does(&change))
        } else {
            set(&world, name, 0o600);
            "by something that is not in the log".to_owned()
        };
        drop((one, two));
        let before = snapshot(&world.root());
        let refused = world.run(&["undo", "--session", "0101", "--yes", "--json"]);
        let step = refused.json()["steps"][0].clone();
        assert_eq!((refused.code, &step["status"]), (1, &"conflict".into()), "{refused:?}");
        let reason = step["reason"].as_str().unwrap();
        assert_eq!(reason, format!("its mode was changed since, {by}"), "{name}");
        assert_eq!(snapshot(&world.root()), before);
        // As the session left it, it is undone.
        set(&world, name, last);
        if !is_changed_in_the_log {
            world.run(&["undo", "--session", "0101", "--yes"]).ok();
        } else {
            world.run(&["undo", "--session", "0101", "--yes", "--overwrite"]).ok();
        }
        assert_eq!(snapshot(&world.root())[name], "file 644 x");
    }
}

/// Regression: an undo passed over the restore of a file whose content was there already, with
/// another mode by a step before it, and reported success.
#[test]
fn an_undo_left_the_mode_of_a_file_that_was_made_again() {
    let last = |agent: &Agent, is_exchanged: bool| match is_exchanged {
        true => {
            agent.does(&Exchange {
                rename: Rename { from: path("x"), to: path("o"), replace: false },
            });
            agent.remove("o");
        }
        false => {
            agent.rename("x", "z");
            agent.does(&SetAttributes { path: path("z"), mode: Some(0o600), modified: None });
        }
    };
    for is_exchanged in [false, true] {
        let world = World::with_policy(POLICY);
        world.file("x", "same");
        world.file("o", "other");
        std::fs::set_permissions(world.path("x"), PermissionsExt::from_mode(0o600)).unwrap();
        let before = snapshot(&world.root());
        let agent = Agent::new(&world, 1);
        agent.remove("x");
        agent.does(&Write { path: path("x"), content: b"same".into(), mode: Some(0o644) });
        last(&agent, is_exchanged);
        drop(agent);
        world.run(&["undo", "--yes"]).ok();
        assert_eq!(snapshot(&world.root()), before, "{is_exchanged}");
    }
}

/// Regression: a change of the mode of a directory removed its sticky and its set-group-id bit,
/// and an undo left it so.
#[test]
fn an_undo_of_a_mode_left_a_directory_without_its_special_bits() {
    let world = World::with_policy(POLICY);
    for (name, mode) in [("spool", 0o1777), ("shared", 0o2775), ("tool", 0o755)] {
        match name {
            "tool" => drop(world.file(name, "x")),
            _ => std::fs::create_dir(world.path(name)).unwrap(),
        }
        std::fs::set_permissions(world.path(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    let modes = || {
        ["spool", "shared", "tool"]
            .map(|name| std::fs::metadata(world.path(name)).unwrap().mode() & 0o7777)
    };
    let agent = Agent::new(&world, 1);
    for name in ["spool", "shared", "tool"] {
        agent.does(&SetAttributes { path: path(name), mode: Some(0o700), modified: None });
    }
    drop(agent);
    // An agent neither sets nor removes these bits.
    assert_eq!(modes(), [0o1700, 0o2700, 0o700]);
    let undone = world.run(&["undo", "--yes", "--json"]).ok().json();
    assert_eq!((&undone["stepsDone"], modes()), (&3.into(), [0o1777, 0o2775, 0o755]));
}
