//! Undos that are refused, or impossible.

use super::*;

#[test]
fn the_policy_decides_on_every_step_and_limits_do_not_count() {
    let mut world = World::with_policy(POLICY);
    world.file("a", "a0");
    world.file("locked/b", "b0");
    let agent = Agent::new(&world, 1);
    agent.write("a", "a1");
    agent.write("locked/b", "b1");
    agent.write("locked/new", "n");
    for number in 0..20 {
        agent.write(&format!("made/{number}"), "m");
    }
    drop(agent);
    world.set_policy(&format!(
        "{POLICY}\n[limits]\nfilesRemoved = 3\noperationsPerSecond = 5\ndenials = 2\n\
         [[rules]]\nid = \"locked\"\neffect = \"deny\"\n\
         operations = [\"write\", \"remove\", \"restore\"]\npaths = [\"locked/**\"]\n"
    ));
    let refused = backup(&world, &["undo", "--session", "0101", "--yes"]);
    assert_eq!(refused.code, 1);
    assert!(refused.text().contains("impossible restore  locked/b"), "{refused:?}");
    assert!(refused.text().contains("denied by rule `locked`"), "{refused:?}");
    let left = backup(&world, &["undo", "--session", "0101", "--yes", "--skip-conflicts"]);
    // Not all is as it was.
    assert_eq!(left.code, 1, "{left:?}");
    assert_eq!((world.read("a"), world.read("locked/b")), ("a0".to_owned(), "b1".to_owned()));
    assert!(!world.path("made").exists() && world.path("locked/new").exists());
}

/// Regression: the preview decided on the name of a directory only. The run stopped at its step.
#[test]
fn directories_with_entries_that_may_not_be_written_passed_for_possible_to_undo() {
    let policy = format!(
        "{POLICY}\n[[rules]]\nid = \"images\"\neffect = \"deny\"\noperations = [\"write\", \
         \"restore\", \"rename\"]\npaths = [\"**/*.png\"]\n"
    );
    for is_renamed in [false, true] {
        let mut world = World::with_policy(POLICY);
        world.file("a", "a0");
        world.file("dir/in/a.png", "x");
        let agent = Agent::new(&world, 1);
        agent.write("a", "a1");
        match is_renamed {
            true => agent.rename("dir", "new"),
            false => agent.remove("dir"),
        };
        drop(agent);
        world.set_policy(&policy);
        let shown = world.run(&["undo", "--yes", "--json"]);
        let shown = (shown.code, shown.json()["steps"][0].clone());
        assert_eq!((shown.0, &shown.1["status"]), (1, &"impossible".into()), "{shown:?}");
        assert!(
            shown.1["reason"].as_str().unwrap().contains("denied by rule `images`"),
            "{shown:?}"
        );
        // Nothing was tried.
        assert_eq!(world.read("a"), "a1");
    }
}

/// Regression: a step about which a rule asks passed for impossible.
#[test]
fn steps_about_which_a_rule_asks_passed_for_impossible() {
    let mut world = World::with_policy(POLICY);
    for name in ["a", "b", "c", "d"] {
        world.file(name, name);
    }
    Agent::new(&world, 2).remove("d");
    let agent = Agent::new(&world, 1);
    agent.write("a", "a1");
    agent.remove("b");
    agent.rename("c", "new");
    drop(agent);
    world.set_policy(&format!(
        "{POLICY}\n[[rules]]\nid = \"asked\"\neffect = \"ask\"\n\
         operations = [\"write\", \"remove\", \"restore\", \"rename\"]\npaths = [\"**\"]\n"
    ));
    let shown = world.run(&["undo", "--session", "0101", "--dry-run", "--json"]).ok().json();
    let steps = shown["steps"].as_array().unwrap();
    assert!(steps.len() == 3 && steps.iter().all(|step| step["status"] == "ready"), "{shown}");
    let args = ["undo", "--session", "0202", "--yes"];
    let mut undo = world.command(&args).spawn().unwrap();
    let asked = crate::approvals::waiting(&world, 1).remove(0);
    world.run(&["approve", &crate::approvals::id(&asked), "--yes"]).ok();
    assert!(undo.wait().unwrap().success());
    assert_eq!(world.read("d"), "d");
}

/// A move back would disclose it: the preview reported that as possible, and the run stopped
/// there for ever.
#[test]
fn a_move_out_of_what_may_not_be_read_is_shown_to_be_impossible() {
    let world = World::with_policy(&format!(
        "{POLICY}\n[[rules]]\nid = \"drop\"\neffect = \"deny\"\noperations = [\"read\"]\n\
         paths = [\"inbox/**\"]\n"
    ));
    world.file("a", "a0");
    world.file("b", "b0");
    world.file("inbox/x", "x");
    let agent = Agent::new(&world, 1);
    agent.write("a", "a1");
    agent.rename("b", "inbox/b");
    drop(agent);
    let shown = backup(&world, &["undo", "--session", "0101", "--dry-run"]);
    assert_eq!(shown.code, 1, "{shown:?}");
    assert!(shown.text().contains("impossible rename"), "{shown:?}");
    let left = backup(&world, &["undo", "--session", "0101", "--yes", "--skip-conflicts"]);
    assert_eq!(left.code, 1, "{left:?}");
    assert_eq!((world.read("a"), world.read("inbox/b")), ("a0".to_owned(), "b0".to_owned()));
}

#[test]
fn what_retention_let_go_is_said_to_be_gone() {
    let policy = POLICY.replace("versions = 10000", "versions = 1");
    let world = World::with_policy(&policy);
    world.file("a", "0");
    let agent = Agent::under(&policy, &world, 1);
    let records: Vec<u64> = (1..5).map(|version| agent.write("a", &version.to_string())).collect();
    drop(agent);
    let record = records[2].to_string();
    let refused = backup(&world, &["restore", "a", "--before", &record, "--yes"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.text().contains("is no longer stored"), "{refused:?}");
    // The session's first version is never let go.
    backup(&world, &["undo", "--session", "0101", "--yes"]).ok();
    assert_eq!(world.read("a"), "0");
}

#[test]
fn a_damaged_log_is_said_with_its_own_exit_code() {
    let world = World::with_policy(POLICY);
    let agent = Agent::new(&world, 1);
    // Longer than the part that a gateway reads when it opens the log.
    for number in 0..150 {
        agent.write("a", &format!("{number}"));
    }
    agent.gateway.stop(&agent.session).unwrap();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines[0] = "not a record".to_owned();
    std::fs::write(&segment, lines.join("\n") + "\n").unwrap();
    let refused = backup(&world, &["undo", "--session", "0101", "--yes"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.stderr.contains("is no record"), "{refused:?}");
    assert_eq!(world.read("a"), "149");
}
