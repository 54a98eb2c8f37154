//! Directories that the records of two requests count as made.

use portcullis::gateway::Follower;

use super::*;

/// Carries out other requests just before the one that it follows has its record.
struct Meanwhile<'a>(&'a (dyn Fn() + Sync));

impl Follower for Meanwhile<'_> {
    fn begins(&self) -> bool {
        (self.0)();
        true
    }
}

/// The operations whose intents count one directory.
fn makers(world: &World) -> Vec<Value> {
    let mut records = world.requests();
    records.retain(|record| record["kind"] == "intent" && record["counts"]["directories"] == 1);
    records.into_iter().map(|record| record["op"].clone()).collect()
}

/// The second request counted the directory before the first one made it. Its undo removed the
/// directory, so that nothing was taken to be there for the undo of the first one.
#[test]
fn an_undo_left_what_was_in_a_directory_that_two_records_count() {
    let undo = ["undo", "--session", "0101", "--yes"];
    let restore = ["backup", "restore", "--at", "1h", "--yes"];
    for (case, undo) in (0..4).flat_map(|case| [(case, &undo[..]), (case, &restore)]) {
        let (is_rename, is_moved_before) = (case % 2 == 1, case / 2 == 1);
        let world = World::with_policy(POLICY);
        world.file("c", "the operator's");
        let before = snapshot(&world.root());
        let agent = Agent::new(&world, 1);
        let first = || {
            let _ = if is_rename { agent.rename("c", "d/a") } else { agent.write("d/a", "new") };
            if is_moved_before {
                agent.rename("d/a", "z");
            }
        };
        let mkdir = Mkdir { path: path("d/b"), recursive: true, mode: None };
        let meanwhile = Meanwhile(&first);
        let client = Client { follower: &meanwhile, ..Client::default() };
        agent.gateway.handle(&agent.session, &mkdir, client).unwrap();
        if !is_moved_before {
            agent.rename("d/a", "z");
        }
        drop(agent);
        assert_eq!(makers(&world), [if is_rename { "rename" } else { "write" }, "mkdir"]);
        let done = world.run(undo).ok();
        assert_eq!(snapshot(&world.root()), before, "case {case}: {done:?}");
    }
}

#[test]
fn a_directory_that_is_made_anew_is_removed_again() {
    for is_moved in [false, true] {
        let world = World::with_policy(POLICY);
        let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
        one.write("d/a", "1");
        two.write("first", "1");
        let _ = if is_moved { one.rename("d", "e") } else { one.remove("d") };
        two.write("d/b", "2");
        drop((one, two));
        assert_eq!(makers(&world), ["write", "write"]);
        world.run(&["undo", "--session", "0202", "--yes"]).ok();
        assert!(!world.path("d").exists());
        world.run(&["undo", "--session", "0101", "--yes"]).ok();
        assert!(snapshot(&world.root()).is_empty());
    }
}
