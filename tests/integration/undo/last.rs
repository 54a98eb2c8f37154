//! The session that an undo without a name undoes.

use portcullis::model::request::SetAttributes;

use super::*;

/// Regression: a session that left nothing to undo hid the one before it.
#[test]
fn a_session_that_left_everything_as_it_was_is_passed_over() {
    type SessionScript = fn(&Agent);
    let works: [SessionScript; 4] = [
        |agent| {
            agent.write("new", "x");
            agent.remove("new");
        },
        |agent| {
            agent.write("dir/new", "x");
            agent.remove("dir");
        },
        |agent| {
            agent.write("f", "evil");
        },
        |agent| {
            let modified = Some((1, 0));
            agent.does(&SetAttributes { path: path("f"), mode: None, modified });
        },
    ];
    for (number, work) in works.into_iter().enumerate() {
        let world = World::with_policy(POLICY);
        world.file("f", "good");
        Agent::new(&world, 1).write("f", "evil");
        work(&Agent::new(&world, 2));
        let done = world.run(&["undo", "--yes"]).ok();
        assert!(done.stderr.contains("skipped 0202"), "{number}: {done:?}");
        assert_eq!(world.read("f"), "good", "{number}");
        // The same command does not go on to an older session.
        let again = world.run(&["undo", "--yes"]).ok();
        assert!(again.text().contains("undone before"), "{number}: {again:?}");
    }
}

/// A mode is a change, where times are none.
#[test]
fn a_session_that_left_something_is_undone() {
    let world = World::with_policy(POLICY);
    world.file("f", "good");
    Agent::new(&world, 1).write("f", "evil");
    let agent = Agent::new(&world, 2);
    agent.does(&SetAttributes { path: path("f"), mode: Some(0o777), modified: None });
    drop(agent);
    let done = world.run(&["undo", "--yes"]).ok();
    assert!(!done.stderr.contains("skipped"), "{done:?}");
    assert_eq!(world.read("f"), "evil");
}

#[test]
fn without_a_session_that_left_something_the_command_says_so() {
    let world = World::with_policy(POLICY);
    let agent = Agent::new(&world, 1);
    agent.write("new", "x");
    agent.remove("new");
    drop(agent);
    let none = world.run(&["undo", "--yes"]);
    assert_eq!(none.code, 1, "{none:?}");
    assert!(none.stderr.contains("skipped 0101"), "{none:?}");
}
