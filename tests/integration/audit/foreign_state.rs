//! A state directory from another party, with pipes and devices in the place of
//! files.

use std::path::Path;

use crate::common::{Done, World};

fn pipe(path: &Path) {
    std::fs::remove_file(path).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, path, 0o600.into()).unwrap();
}

fn world() -> World {
    let world = World::new();
    world.write("a.txt", "a").ok();
    world
}

fn audit(world: &World, args: &[&str]) -> Done {
    world.run(&[&["audit"], args].concat())
}

#[test]
fn what_is_no_file_of_a_policy_is_said_not_waited_for() {
    let world = world();
    let kept = std::fs::read_dir(world.state().join("policies")).unwrap();
    let policies: Vec<_> = kept.map(|entry| entry.unwrap().path()).collect();
    for is_device in [false, true] {
        for policy in &policies {
            pipe(policy);
            if is_device {
                std::fs::remove_file(policy).unwrap();
                std::os::unix::fs::symlink("/dev/zero", policy).unwrap();
            }
        }
        let verified = audit(&world, &["verify", "--policies"]);
        assert_eq!(verified.code, 5, "{verified:?}");
        assert!(verified.text().contains("something else than a file"), "{verified:?}");
        audit(&world, &["report", "-o", "report.json"]).ok();
        let report = std::fs::read_to_string(world.base().join("report.json")).unwrap();
        assert!(report.contains(r#""text": null"#), "{report}");
        let bundle = audit(&world, &["bundle", "-o", "bundle.zip"]);
        assert_eq!(bundle.code, 5, "{bundle:?}");
        assert!(bundle.stderr.contains("was changed"), "{bundle:?}");
    }
}

#[test]
fn what_is_no_file_of_a_checkpoint_or_a_key_is_said_not_waited_for() {
    for (name, code, commands) in [
        ("audit/checkpoint", 1, &[&["prove", "0"][..], &["bundle", "-o", "b.zip"]][..]),
        ("audit/key.vkey", 1, &[&["prove", "0"], &["bundle", "-o", "b.zip"]]),
        // Another program put it there: the log differs from what gateways
        // leave.
        ("keys/signed", 5, &[&["verify"]]),
    ] {
        let world = world();
        pipe(&world.state().join(name));
        for args in commands {
            let refused = audit(&world, args);
            assert_eq!(refused.code, code, "{name} {args:?}: {refused:?}");
            assert!(refused.stderr.contains("no regular file"), "{name} {args:?}: {refused:?}");
        }
    }
    let world = world();
    pipe(&world.state().join("audit/key.vkey"));
    // Its verifier finds it, and nothing else stands in its way.
    let report = audit(&world, &["report", "-o", "report.json"]);
    assert_eq!(report.code, 5, "{report:?}");
    assert!(world.base().join("report.json").exists());
}

#[test]
fn doctor_does_not_wait_for_a_pipe_in_the_place_of_the_log() {
    for name in ["audit/lock", "audit/seg-000000.jsonl"] {
        let world = world();
        pipe(&world.state().join(name));
        let done = world.run(&["doctor"]);
        assert!(done.text().contains("no regular file"), "{name}: {done:?}");
    }
}
