//! Segments that are gone, with and without a record of it.

use portcullis_audit::Segment;
use serde_json::json;

use super::{audit, second, text, write_log, write_log_at};
use crate::{
    common::World,
    shipping::{copies, the_copy},
};

#[test]
fn pruned_segments_leave_their_roots() {
    let world = World::new();
    write_log(&world, 200_000, "2026-01-01T00:00:00.000000Z");
    world.run(&["audit", "checkpoint"]).ok();
    let kept = world.base().join("kept");
    std::fs::copy(audit(&world).join("checkpoints/131072"), &kept).unwrap();
    let nothing = world.run(&["audit", "prune", "--before", "2025-01-01", "--yes"]).ok();
    assert!(nothing.text().starts_with("nothing to prune"), "{nothing:?}");
    let refused = world.run(&["audit", "prune", "--before", "2026-06-01"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    world.run(&["audit", "prune", "--before", "2026-06-01", "--yes"]).ok();
    for (number, there) in [(0, false), (1, false), (2, true), (3, true)] {
        assert_eq!(audit(&world).join(Segment(number).to_string()).exists(), there, "{number}");
    }
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    let report = world.run(&["audit", "verify", "--json", "--head", text(&kept)]).ok().json();
    assert_eq!((&report["pruned"], &report["records"]), (&json!(131_072), &json!(68_932)));
    let other = second(&["log", text(&audit(&world))]).ok().json();
    assert_eq!(other["head"]["leaf"], report["head"]["leaf"]);
    let shown = world.run(&["audit", "show", "--kind", "pruned", "--json"]).ok();
    assert_eq!(shown.json()["facts"]["segments"], 2);
    assert!(shown.json()["user"].is_string(), "who had it pruned: {shown:?}");
    a_pruned_period_is_not_an_empty_one(&world);
    // A record that is there is proved past those that are not.
    let proof = world.base().join("proof");
    std::fs::write(&proof, &world.run(&["audit", "prove", "140000"]).ok().stdout).unwrap();
    let key = world.base().join("log.vkey");
    std::fs::write(&key, &world.run(&["audit", "key"]).ok().stdout).unwrap();
    world.run(&["audit", "check-proof", text(&proof), "--key", text(&key)]).ok();
    second(&["proof", text(&proof), "--key", text(&key)]).ok();
    let other = second(&["log", text(&audit(&world)), "--key", text(&key)]).ok().json();
    assert_eq!(other["signed"], report["signed"]["records"]);
    // Other roots than those that were signed.
    let roots = std::fs::read_to_string(audit(&world).join("roots")).unwrap();
    let swapped: String = [1, 0, 2].iter().map(|at| &roots[at * 65..][..65]).collect();
    std::fs::write(audit(&world).join("roots"), swapped).unwrap();
    for done in [world.run(&["audit", "verify"]), second(&["log", text(&audit(&world))])] {
        assert!(done.code == 5 && done.text().contains("wrong-root"), "{done:?}");
    }
    std::fs::write(audit(&world).join("roots"), roots).unwrap();
    // Pruned records cannot be proved, and are no damage.
    for args in [&["5"][..], &["--from", "5"]] {
        let refused = world.run(&[&["audit", "prove"], args].concat());
        assert_eq!(refused.code, 1, "{args:?}: {refused:?}");
        assert!(refused.stderr.contains("pruned"), "{args:?}: {refused:?}");
    }
    world.run(&["audit", "prove", "--from", "65536"]).ok();
    // A segment more than the record states.
    std::fs::remove_file(audit(&world).join(Segment(2).to_string())).unwrap();
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
    assert_eq!(second(&["log", text(&audit(&world))]).code, 5);
}

/// A report stated for it that nothing was denied and that there are no gaps.
fn a_pruned_period_is_not_an_empty_one(world: &World) {
    let file = world.base().join("r.html");
    for (since, is_told) in [("2025-06-01", true), ("2026-01-02", false)] {
        world.run(&["audit", "report", "--since", since, "-o", text(&file)]).ok();
        let page = std::fs::read_to_string(&file).unwrap();
        let told = "records 0 to 131071 were pruned (record 200000)";
        assert_eq!(page.contains(told), is_told, "{since}");
        let query = world.run(&["audit", "query", "--since", since, "--kind", "stop"]).ok();
        assert_eq!(query.stderr.contains("before record 131072"), is_told, "{query:?}");
    }
    let bundle = world.base().join("b.zip");
    let done = world.run(&["audit", "bundle", "-o", text(&bundle)]).ok();
    assert!(done.stderr.contains("before record 131072"), "{done:?}");
}

/// The last record of a segment was older than others in it, and of the segments
/// before.
#[test]
fn where_the_clock_was_set_back_no_newer_record_is_pruned() {
    for (newer, gone) in [(30_000, 0), (65_535, 0), (65_536, 1), (100_000, 1), (140_000, 2)] {
        let world = World::new();
        write_log_at(&world, 200_000, |seq| match seq == newer {
            true => "2026-08-01T00:00:00.000000Z",
            false => "2026-01-01T00:00:00.000000Z",
        });
        let pruned = world.run(&["audit", "checkpoint"]).code
            + world.run(&["audit", "prune", "--before", "2026-06-01", "--yes"]).code;
        assert_eq!(pruned, 0, "{newer}");
        let is_gone = |number: u64| !audit(&world).join(Segment(number).to_string()).exists();
        assert_eq!((0..4).filter(|number| is_gone(*number)).count(), gone, "{newer}");
        world.run(&["audit", "verify"]).ok();
    }
}

/// Records that a target did not have were removed without a word, and its copy, which
/// was right before, was damaged for good.
#[test]
fn what_a_target_does_not_have_is_not_pruned_unasked() {
    let world = World::new();
    let target = world.base().join("copies");
    let config = world.base().join("portcullis.toml");
    std::fs::write(&config, format!("[audit]\nship = [{{ to = {target:?} }}]\n")).unwrap();
    let run = |args: &[&str]| {
        let mut command = world.command(args);
        crate::common::done(command.env("PORTCULLIS_CONFIG", &config).output().unwrap())
    };
    let verify = |copy: &std::path::Path| {
        let mut command = world.command(&["audit", "verify", "--json", "--dir", text(copy)]);
        command.env_remove("PORTCULLIS_STATE").env_remove("PORTCULLIS_WORKSPACE");
        let report = crate::common::done(command.output().unwrap()).ok().json();
        report["signed"]["records"].as_u64().unwrap()
    };
    let time = "2026-01-01T00:00:00.000000Z";
    write_log(&world, 70_000, time);
    run(&["audit", "checkpoint"]).ok();
    run(&["audit", "ship"]).ok();
    let former = the_copy(&target);
    let sent = verify(&former);
    // It begins with the same records.
    write_log(&world, 200_000, time);
    run(&["audit", "checkpoint"]).ok();
    let prune = ["audit", "prune", "--before", "2027-01-01", "--yes"];
    let refused = run(&prune);
    assert!(refused.code == 1 && refused.stderr.contains("audit ship"), "{refused:?}");
    run(&[&prune[..], &["--unshipped"]].concat()).ok();
    run(&["audit", "ship"]).ok();
    let there = copies(&target);
    assert_eq!(there.len(), 2, "{there:?}");
    assert_eq!(verify(&former), sent);
    verify(there.last().unwrap());
    // Records that a target has are pruned as ever.
    let status = run(&["audit", "ship", "--status", "--json"]).ok().json();
    assert_eq!(status["behind"], 0, "{status}");
}

/// No command stored them anew, and `compress` took the log for damaged.
#[test]
fn roots_that_are_lost_are_stored_anew() {
    let world = World::new();
    write_log(&world, 140_000, "2026-01-01T00:00:00.000000Z");
    world.run(&["audit", "checkpoint"]).ok();
    let complete = std::fs::read_to_string(audit(&world).join("roots")).unwrap();
    for left in ["", &complete[..65]] {
        std::fs::write(audit(&world).join("roots"), left).unwrap();
        let refused = world.run(&["audit", "compress"]);
        assert_eq!(refused.code, if left.is_empty() { 1 } else { 0 }, "{refused:?}");
        world.run(&["audit", "checkpoint"]).ok();
        assert_eq!(std::fs::read_to_string(audit(&world).join("roots")).unwrap(), complete);
    }
    world.run(&["audit", "prune", "--before", "2026-06-01", "--yes"]).ok();
    world.run(&["audit", "verify"]).ok();
}

/// They took the log for damaged, and advised to begin a new one.
#[test]
fn reading_commands_beside_a_prune_find_no_damage() {
    let world = World::new();
    write_log(&world, 200_000, "2026-01-01T00:00:00.000000Z");
    world.run(&["audit", "checkpoint"]).ok();
    let prune = ["audit", "prune", "--before", "2026-06-01", "--yes"];
    let mut pruning = world.command(&prune).stdout(std::process::Stdio::null()).spawn().unwrap();
    while pruning.try_wait().unwrap().is_none() {
        for args in [&["status"][..], &["audit", "blame", "src/file-1.rs"]] {
            let read = world.run(args);
            let is_changed = read.code == 1 && read.stderr.contains("changed while it was read");
            assert!(read.code == 0 || is_changed, "{args:?}: {read:?}");
        }
    }
    world.run(&["audit", "verify"]).ok();
}
