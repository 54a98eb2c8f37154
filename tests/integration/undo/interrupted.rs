//! Undos that stop between two steps.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use portcullis::{
    gateway::Exchange,
    undo::{self, Choice, History, Preview, Select},
};
use portcullis_audit::Directory;

use super::{complete_workspace::work, *};
use crate::{common::budget, seeded_random::Random};

/// Undoes the session until it has looked at `until` steps, and stops without a word. Returns the
/// number of all steps.
fn undo_until(world: &World, until: usize, choice: Choice) -> usize {
    let agent = Agent::new(world, 2);
    let log = Directory::new(world.state().join("audit"));
    let history = History::read(&log, &Select::Session("0101".to_owned())).unwrap();
    let steps = undo::plan(&history, Some(agent.gateway.backups())).unwrap();
    let mut preview = Preview::new(&agent.gateway, &agent.session, &history, steps);
    if choice != Choice::Refuse {
        preview.choose(choice);
    }
    let (all, mut looked_at) = (preview.steps.len(), 0);
    let mut progress = || {
        if looked_at == until {
            resume_unwind(Box::new(()));
        }
        looked_at += 1;
    };
    let approver = Client::default().approver;
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let (gateway, session) = (&agent.gateway, &agent.session);
        undo::perform(gateway, session, &mut preview, choice, approver, &mut progress)
    }));
    all
}

/// Saves files as programs do, by a new one that takes the name, and makes other changes that take
/// several steps to undo.
fn save(world: &World) {
    let agent = Agent::new(world, 1);
    for name in ["a", "b", "d/c"] {
        agent.write(&format!("{name}.new"), "new");
        agent.does(&Rename { from: path(&format!("{name}.new")), to: path(name), replace: true });
    }
    agent.does(&Rename { from: path("e"), to: path("d/e"), replace: true });
    let rename = Rename { from: path("a"), to: path("b"), replace: true };
    agent.does(&Exchange { rename });
    agent.rename("d", "moved");
    agent.write("moved/c", "newer");
}

/// Regression: an undo that stopped after it had renamed a file back, and before it restored what the
/// file had replaced, took its own rename for another session's: the next one could do nothing.
#[test]
fn an_undo_that_was_interrupted_could_not_be_continued() {
    let (mut until, mut all) = (0, 1);
    while until < all {
        let world = World::with_policy(POLICY);
        for name in ["a", "b", "d/c", "d/e", "e"] {
            world.file(name, format!("old {name}"));
        }
        let before = snapshot(&world.root());
        save(&world);
        all = undo_until(&world, until, Choice::Refuse);
        // Another one stops, too.
        undo_until(&world, until + 1, Choice::Refuse);
        let done = backup(&world, &["undo", "--session", "0101", "--yes"]);
        assert_eq!(done.code, 0, "{until}: {}{}", done.text(), done.stderr);
        assert_eq!(snapshot(&world.root()), before, "{until}: {}", done.text());
        let again = backup(&world, &["undo", "--session", "0101", "--yes"]).ok();
        assert!(again.text().starts_with("0 to do"), "{until}: {again:?}");
        world.run(&["audit", "verify"]).ok();
        until += 1;
    }
    assert!(all > 8, "{all}");
}

/// Regression: it could not be continued where something else was in conflict.
#[test]
fn an_undo_that_was_interrupted_could_not_be_continued_beside_a_conflict() {
    for (choice, option) in [(Choice::Skip, "--skip-conflicts"), (Choice::Overwrite, "--overwrite")]
    {
        let (mut until, mut all) = (0, 1);
        while until < all {
            let world = World::with_policy(POLICY);
            for name in ["a", "b", "d/c", "d/e", "e", "other"] {
                world.file(name, format!("old {name}"));
            }
            let mut wanted = snapshot(&world.root());
            let agent = Agent::new(&world, 1);
            agent.write("other", "new");
            drop(agent);
            save(&world);
            world.file("other", "somebody else's");
            all = undo_until(&world, until, choice);
            let done = backup(&world, &["undo", "--session", "0101", "--yes", option]);
            let found = snapshot(&world.root());
            if choice == Choice::Skip {
                assert_eq!(world.read("other"), "somebody else's", "{until}: {}", done.text());
                wanted.insert("other".to_owned(), found["other"].clone());
            }
            assert_eq!(found, wanted, "{option} {until}: {}", done.text());
            until += 1;
        }
        assert!(all > 8, "{all}");
    }
}

/// Undoes an interrupted undo, and then takes it again.
#[test]
fn an_interrupted_undo_that_is_undone_itself_can_be_taken_again() {
    let world = World::with_policy(POLICY);
    for name in ["a", "b", "d/c", "d/e", "e"] {
        world.file(name, format!("old {name}"));
    }
    let before = snapshot(&world.root());
    save(&world);
    let after = snapshot(&world.root());
    undo_until(&world, 6, Choice::Refuse);
    backup(&world, &["undo", "--session", "0202", "--yes"]).ok();
    assert_eq!(snapshot(&world.root()), after);
    backup(&world, &["undo", "--session", "0101", "--yes"]).ok();
    assert_eq!(snapshot(&world.root()), before);
}

/// The next undo may report a conflict where a directory was removed, restored and given attributes; what
/// it would overwrite is then the first undo's.
#[test]
fn undos_of_random_work_are_continued_wherever_they_stop() {
    let mut conflicts = 0;
    for seed in 1..=10 * budget() {
        let world = World::with_policy(POLICY);
        world.file("d/a", "first");
        world.file("f/g/h", "second");
        let before = snapshot(&world.root());
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let agent = Agent::new(&world, 1);
        agent.write("b", "x");
        for _ in 0..30 {
            work(&agent, &mut random);
        }
        drop(agent);
        undo_until(&world, usize::try_from(random.below(9)).unwrap(), Choice::Refuse);
        let mut done = backup(&world, &["undo", "--session", "0101", "--yes"]);
        if done.code != 0 {
            conflicts += 1;
            done = backup(&world, &["restore", "--to", "0", "--yes", "--overwrite"]).ok();
        }
        assert_eq!(snapshot(&world.root()), before, "seed {seed}: {}", done.text());
    }
    assert!(conflicts <= budget(), "{conflicts}");
}
