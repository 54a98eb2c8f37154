//! Undo of the complete workspace to its state at a record.

use std::{
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use portcullis::{
    model::request::{Append, Restore, SetAttributes, Symlink},
    undo::{self, Choice, History, Preview, Select, Status},
};
use portcullis_audit::Directory;

use super::*;
use crate::seeded_random::Random;

/// Random work by an agent, as a person would not think of it.
pub(super) fn work(agent: &Agent, random: &mut Random) {
    const NAMES: [&str; 12] =
        ["a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a", "f", "f/a", "f/g/h", "f/g"];
    let mut name = || path(NAMES[usize::try_from(random.below(12)).unwrap()]);
    let (one, two) = (name(), name());
    let change: Box<dyn Request<Output = Changed>> = match random.below(11) {
        0..3 => Box::new(Write {
            path: one,
            content: format!("{}", random.below(1000)).into(),
            mode: (random.below(2) == 0).then_some(0o640),
        }),
        3 => Box::new(Append { path: one, content: b"+".to_vec() }),
        4 => Box::new(Remove { path: one, recursive: true }),
        5 => Box::new(Mkdir { path: one, recursive: true, mode: None }),
        7 => Box::new(Symlink { path: one, target: "nowhere".to_owned() }),
        8 | 9 => {
            let mode = Some([0o700, 0o755, 0o711][usize::try_from(random.below(3)).unwrap()]);
            let modified = (random.below(2) == 0).then_some((1, 2));
            Box::new(SetAttributes { path: one, mode, modified })
        }
        6 => Box::new(Rename { from: one, to: two, replace: true }),
        _ => match agent.gateway.backups().entries_of(&one).unwrap().entries.pop() {
            Some(entry) => {
                let backup = entry.id.to_string();
                Box::new(Restore { path: one, backup, dry_run: false })
            }
            None => return,
        },
    };
    // Many make no sense, and the gateway refuses them.
    let _ = agent.gateway.handle(&agent.session, &*change, Client::default());
}

#[test]
fn the_whole_workspace_becomes_what_it_was_at_any_record() {
    for seed in 1..=4_u64 {
        let world = World::with_policy(POLICY);
        world.file("d/a", "first");
        std::fs::set_permissions(world.path("d/a"), PermissionsExt::from_mode(0o600)).unwrap();
        symlink("nowhere", world.path("c")).unwrap();
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let agent = Agent::new(&world, 1);
        let first = agent.write("b", "x");
        let mut moments = vec![(first + 1, snapshot(&world.root()))];
        for _ in 0..40 {
            work(&agent, &mut random);
            let last = world.records().last().unwrap()["seq"].as_u64().unwrap();
            moments.push((last, snapshot(&world.root())));
        }
        // Back and forth: each is an undo of what the one before did, too.
        for _ in 0..4 {
            let (record, wanted) = &moments[usize::try_from(random.below(41)).unwrap()];
            let log = Directory::new(world.state().join("audit"));
            let history = History::read(&log, &Select::After(*record)).unwrap();
            let steps = undo::plan(&history, Some(agent.gateway.backups())).unwrap();
            let mut preview = Preview::new(&agent.gateway, &agent.session, &history, steps);
            let blocked: Vec<_> = preview
                .steps
                .iter()
                .filter(|(_, status)| !matches!(status, Status::Ready | Status::Unchanged))
                .collect();
            assert!(
                blocked.is_empty(),
                "seed {seed}, record {record}: {blocked:#?} of {:#?}",
                preview.steps
            );
            let done = undo::perform(
                &agent.gateway,
                &agent.session,
                &mut preview,
                Choice::Refuse,
                Client::default().approver,
                &mut || (),
            );
            assert_eq!(done.stopped, None, "seed {seed}, record {record}");
            let left_out = preview.count(|s| !matches!(s, Status::Done | Status::Unchanged));
            assert_eq!(left_out, 0, "{:?}", preview.steps);
            assert_eq!(&snapshot(&world.root()), wanted, "seed {seed}, record {record}");
        }
        // And by the command.
        let (record, wanted) = &moments[0];
        drop(agent);
        backup(&world, &["restore", "--to", &record.to_string(), "--yes"]).ok();
        assert_eq!(&snapshot(&world.root()), wanted, "seed {seed}");
        world.run(&["audit", "verify"]).ok();
    }
}

/// A version that retention had deleted, and that an older one was to replace, kept the original
/// from being restored: so an agent could prevent every undo.
#[test]
fn what_came_in_between_keeps_no_original_from_coming_back() {
    let policy = POLICY.replace("versions = 10000", "versions = 2");
    let world = World::with_policy(&policy);
    let names =
        ["plain", "mode", "away", "removed", "elsewhere", "over", "mixed", "dir/in", "tree/a/in"];
    for name in names {
        world.file(name, format!("original {name}"));
    }
    let before = snapshot(&world.root());
    let agent = Agent::under(&policy, &world, 1);
    let chmod = |name: &str, mode| {
        agent.does(&SetAttributes { path: path(name), mode: Some(mode), modified: None })
    };
    for round in 0..8 {
        let evil = format!("evil {round}");
        for name in names {
            agent.write(name, &evil);
        }
        chmod("mode", 0o755);
        chmod("mode", 0o644);
        agent.rename("away", "away2");
        agent.rename("away2", "away");
        agent.remove("removed");
        agent.rename("elsewhere", "elsewhere2");
        agent.write("elsewhere2", &format!("other {round}"));
        chmod("elsewhere2", 0o600);
        agent.rename("elsewhere2", "elsewhere");
        agent.write("temporary", &evil);
        agent.rename("temporary", "over");
        chmod("mixed", 0o700);
        agent.rename("mixed", "mixed2");
        agent.remove("mixed2");
        agent.write("mixed", &evil);
        agent.rename("dir", "dir2");
        agent.write("dir2/in", &evil);
        agent.rename("dir2", "dir");
        agent.does(&Remove { path: path("tree"), recursive: true });
    }
    drop(agent);
    backup(&world, &["undo", "--session", "0101", "--yes"]).ok();
    assert_eq!(snapshot(&world.root()), before);
    // Nothing of it is undone a second time.
    let again = backup(&world, &["undo", "--session", "0101", "--yes"]).ok();
    assert!(again.text().starts_with("0 to do"), "{again:?}");
}

#[test]
fn whatever_an_agent_does_is_undone_though_few_versions_are_kept() {
    let policy = POLICY.replace("versions = 10000", "versions = 2");
    for seed in 1..=6_u64 {
        let world = World::with_policy(&policy);
        world.file("d/a", "first");
        world.file("f/g/h", "second");
        symlink("nowhere", world.path("c")).unwrap();
        let before = snapshot(&world.root());
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let agent = Agent::under(&policy, &world, 1);
        agent.write("b", "x");
        for _ in 0..100 {
            work(&agent, &mut random);
        }
        drop(agent);
        let done = backup(&world, &["undo", "--session", "0101", "--yes"]);
        assert_eq!(done.code, 0, "seed {seed}: {}{}", done.text(), done.stderr);
        assert_eq!(snapshot(&world.root()), before, "seed {seed}: {}", done.text());
    }
}

#[test]
fn killed_in_the_middle_an_undo_is_finished_by_the_next() {
    const UNDO: [&str; 5] = ["backup", "restore", "--to", "0", "--yes"];
    let (mut killed, mut whole, mut random) = (0, None, Random::new(0x2545_f491));
    for round in 0..9 {
        let world = World::with_policy(POLICY);
        for file in 0..6 {
            world.file(&format!("d/{file}"), format!("before {file} ").repeat(500));
        }
        world.file("t/x/y", "tree");
        let before = snapshot(&world.root());
        let agent = Agent::new(&world, 1);
        for file in 0..6 {
            agent.write(&format!("d/{file}"), &format!("after {file} ").repeat(500));
            agent.write(&format!("new/{file}"), "new");
        }
        agent.rename("t", "u");
        agent.remove("u");
        agent.write("last", "x");
        drop(agent);
        let after = snapshot(&world.root());
        let Some(longest) = whole else {
            let started = Instant::now();
            world.run(&UNDO).ok();
            whole = Some(u64::try_from(started.elapsed().as_micros()).unwrap());
            assert_eq!(snapshot(&world.root()), before);
            continue;
        };
        let mut child =
            world.command(&UNDO).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        thread::sleep(Duration::from_micros(random.below(longest)));
        child.kill().unwrap();
        match child.wait().unwrap().code() {
            None => killed += 1,
            // The one that was measured was held up.
            Some(_) => whole = Some((longest / 2).max(1)),
        }
        // Every file is one of the two, complete.
        world.fs(&["ls"]).ok();
        for (name, what) in snapshot(&world.root()) {
            let known = [&before, &after].into_iter().any(|all| all.get(&name) == Some(&what));
            assert!(known || name.starts_with('u'), "round {round}: {name}");
        }
        backup(&world, &["verify"]).ok();
        // By record, and by session: what was undone is not undone again.
        match round % 2 {
            0 => backup(&world, &["undo", "--session", "0101", "--yes"]).ok(),
            _ => world.run(&UNDO).ok(),
        };
        assert_eq!(snapshot(&world.root()), before, "round {round}");
        world.run(&["audit", "verify"]).ok();
    }
    assert!(killed > 0, "none was killed in time");
}
