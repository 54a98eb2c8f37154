//! Verifier, gateway and repair agree on a log, whatever was done to it.

use portcullis_audit::Hash;
use serde_json::Value;

use crate::{common::World, proof::second};

/// The lines of the log's only segment.
pub(crate) fn lines(world: &World) -> Vec<String> {
    let text = std::fs::read_to_string(world.state().join("audit/seg-000000.jsonl")).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Writes them with valid links, as an attacker does who knows the format.
pub(crate) fn write_linked(world: &World, lines: &[String]) {
    let mut prev = Hash::ZERO;
    let mut text = String::new();
    for line in lines {
        let (head, tail) = line.rsplit_once("\"prev\":\"").unwrap();
        let line = format!("{head}\"prev\":\"{prev}{}", &tail[64..]);
        prev = Hash::leaf(line.as_bytes());
        text += &line;
        text.push('\n');
    }
    std::fs::write(world.state().join("audit/seg-000000.jsonl"), text).unwrap();
}

/// Removes all that is signed, here and beside the key.
pub(crate) fn remove_signatures(world: &World) {
    for name in ["audit/checkpoint", "audit/frontier", "keys/signed"] {
        std::fs::remove_file(world.state().join(name)).unwrap();
    }
    std::fs::remove_dir_all(world.state().join("audit/checkpoints")).unwrap();
}

/// The verifier took the record for one, gateways refused the log, and the repair found nothing to
/// do.
#[test]
fn a_record_with_prev_twice_is_damage_to_every_command_and_repaired() {
    let world = World::new();
    world.file("a", "x");
    for _ in 0..3 {
        world.fs(&["read", "a"]).ok();
    }
    let mut changed = lines(&world);
    let at = changed.len() - 2;
    let twice = format!("\"prev\":\"{}\",\"nonce\"", "0".repeat(64));
    changed[at] = changed[at].replace("\"nonce\"", &twice);
    write_linked(&world, &changed);
    remove_signatures(&world);

    let verified = world.run(&["audit", "verify", "--json"]);
    let damage = verified.json()["damages"][0].clone();
    assert_eq!((verified.code, &damage["kind"]), (5, &"duplicate-key".into()), "{damage}");
    let other = second(&["log", world.state().join("audit").to_str().unwrap()]);
    assert_eq!((other.code, &other.json()["kind"]), (5, &damage["kind"]));
    assert_eq!(other.json()["line"], damage["line"]);
    for args in [&["show"][..], &["query"], &["query", "--path", "a"], &["report", "-o", "r.html"]]
    {
        let read = world.run(&[&["audit"], args].concat());
        assert_eq!(read.code, 5, "{args:?}: {read:?}");
    }
    assert_eq!(world.fs(&["read", "a"]).code, 5);
    world.run(&["audit", "recover", "--yes"]).ok();
    world.fs(&["read", "a"]).ok();
    let verified = world.run(&["audit", "verify", "--json"]).ok();
    assert_eq!(verified.json()["valid"], Value::Bool(true));
}

/// The keys' public part, or the signatures and the end with them, could be removed, and
/// the log was intact to the verifiers.
#[test]
fn a_log_without_its_key_or_signatures_is_damaged_and_can_go_on() {
    for (gone, kind) in [
        (&["audit/key.vkey"][..], "missing-key"),
        (&["audit/key.vkey", "audit/checkpoint", "audit/frontier", "keys"], "missing-key"),
        (&["audit/checkpoint", "audit/frontier", "keys/signed"], "missing-checkpoint"),
    ] {
        let world = World::new();
        world.file("a", "x");
        for _ in 0..3 {
            world.fs(&["read", "a"]).ok();
        }
        let kept = lines(&world);
        write_linked(&world, &kept[..6]);
        for name in gone {
            let path = world.state().join(name);
            let removed =
                if path.is_dir() { std::fs::remove_dir_all } else { std::fs::remove_file };
            removed(path).unwrap();
        }
        if gone.len() > 1 {
            std::fs::remove_dir_all(world.state().join("audit/checkpoints")).unwrap();
        } else {
            write_linked(&world, &kept);
        }
        let verified = world.run(&["audit", "verify", "--json"]);
        let damage = &verified.json()["damages"][0];
        assert_eq!((verified.code, &damage["kind"]), (5, &kind.into()), "{damage}");
        let other = second(&["log", world.state().join("audit").to_str().unwrap()]);
        assert_eq!((other.code, &other.json()["kind"]), (5, &kind.into()), "{gone:?}");
        let recovered = world.run(&["audit", "recover", "--yes"]);
        if gone.contains(&"keys") {
            // Its private key is gone, too.
            assert_eq!(recovered.code, 1, "{recovered:?}");
            world.run(&["audit", "key", "--new"]).ok();
            world.run(&["audit", "recover", "--yes"]).ok();
        } else {
            assert_eq!(recovered.code, 0, "{recovered:?}");
        }
        world.run(&["audit", "verify"]).ok();
        let said = world.records().into_iter().filter(|record| record["kind"] == "recovered");
        let said: Vec<_> = said.map(|record| record["facts"]["what"].clone()).collect();
        assert_eq!(said.contains(&"unsigned".into()), gone.len() > 1, "{said:?}");
        world.fs(&["read", "a"]).ok();
        let verified = world.run(&["audit", "verify", "--json"]).ok().json();
        assert_eq!(verified["signed"]["records"], verified["records"], "{gone:?}");
        assert_eq!(verified["warnings"].as_array().unwrap().len(), 0, "{verified}");
    }
}

/// The next gateway signed what was left of such a log, and nothing showed any more that its end
/// had been cut off.
#[test]
fn a_gateway_records_that_all_checkpoints_are_gone_before_it_signs() {
    let world = World::new();
    world.file("a", "x");
    for _ in 0..3 {
        world.fs(&["read", "a"]).ok();
    }
    let kept = lines(&world);
    write_linked(&world, &kept[..6]);
    for name in ["audit/checkpoint", "audit/frontier", "keys/signed"] {
        std::fs::remove_file(world.state().join(name)).unwrap();
    }
    std::fs::remove_dir_all(world.state().join("audit/checkpoints")).unwrap();
    let warned = world.fs(&["read", "a"]).ok();
    assert!(warned.stderr.contains("no checkpoint of the audit log is left"), "{warned:?}");
    let records = world.records();
    let recovered: Vec<_> =
        records.iter().filter(|record| record["facts"]["what"] == "unsigned").collect();
    assert_eq!((recovered.len(), &recovered[0]["kind"]), (1, &"recovered".into()));
    world.run(&["audit", "verify"]).ok();
    // Once.
    world.fs(&["read", "a"]).ok();
    let count = |record: &Value| record["facts"]["what"] == "unsigned";
    assert_eq!(world.records().into_iter().filter(count).count(), 1);
}

/// A log whose records had all been changed and linked anew was served, for only its length was
/// compared with the checkpoint beside the key.
#[test]
fn a_log_that_does_not_continue_after_the_record_that_was_signed_is_refused() {
    let world = World::new();
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    let kept: Vec<_> = lines(&world)
        .into_iter()
        .map(|line| line.replace("\"agent\":\"cli\"", "\"agent\":\"nobody\""))
        .collect();
    write_linked(&world, &kept);
    assert_eq!(world.fs(&["read", "a"]).code, 5);
}

/// They printed a forged record as if it were one, without a word.
#[test]
fn commands_that_read_the_log_say_that_they_did_not_verify_it() {
    let world = World::new();
    world.write("a", "x").ok();
    let records = lines(&world);
    let forged = records.iter().position(|line| line.contains("\"op\":\"write\"")).unwrap();
    let mut changed = records.clone();
    changed[forged] = changed[forged].replace("\"agent\":\"cli\"", "\"agent\":\"bob\"");
    let text = changed.iter().map(|line| format!("{line}\n")).collect::<String>();
    std::fs::write(world.state().join("audit/seg-000000.jsonl"), text).unwrap();
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
    let session = world.records()[0]["session"].as_str().unwrap_or_default().to_owned();
    for args in [
        &["audit", "show", "--json"][..],
        &["audit", "show", "--last", "1"],
        &["audit", "query", "--json"],
        &["audit", "query", "--stats", "agent"],
        &["audit", "blame", "a"],
        &["audit", "session"],
        &["audit", "session", &session],
        &["audit", "export", "--format", "csv"],
        &["policy", "replay", "default"],
        &["policy", "diff", "--log", "default", "read-only"],
    ] {
        let done = world.run(args);
        let notes = done.stderr.lines().filter(|line| line.contains("not verified"));
        assert_eq!(notes.count(), 1, "{args:?}: {done:?}");
        assert!(done.stderr.contains("`portcullis audit verify`"), "{args:?}: {done:?}");
        assert!(!done.text().contains("not verified"), "{args:?}: {done:?}");
    }
    let world = World::new();
    world.write("a", "x").ok();
    let doctor = world.run(&["doctor", "--json"]).json();
    let log =
        doctor["checks"].as_array().unwrap().iter().find(|check| check["name"] == "audit log");
    assert_eq!(log.unwrap()["facts"]["checked"], "end", "{doctor}");
}

/// The second verifier reported them before it read the log, and named no line.
#[test]
fn two_receipts_of_one_record_are_the_same_first_damage_to_both_verifiers() {
    let world = World::new();
    world.file("a", "x");
    for _ in 0..3 {
        world.fs(&["read", "a"]).ok();
    }
    let kept = lines(&world);
    let leaf = |seq: usize| Hash::leaf(kept[seq].as_bytes()).to_string();
    let beyond = kept.len() + 5;
    let directory = world.state().join("audit");
    let mut changed = kept.clone();
    changed[2] = changed[2].replace("\"v\":1", "\"v\":2");
    for (name, seq, log, expected) in [
        ("of a record that is there", 3, &kept, ("wrong-head", 4)),
        ("behind an earlier damage", 3, &changed, ("unsupported-version", 3)),
        ("beyond the end", beyond, &kept, ("missing-head", 0)),
    ] {
        std::fs::write(directory.join("seg-000000.jsonl"), log.join("\n") + "\n").unwrap();
        let right = if seq < kept.len() { leaf(seq) } else { leaf(0) };
        let heads = [format!("--head={seq}:{right}"), format!("--head={seq}:{}", leaf(1))];
        let [one, two] = [heads[0].as_str(), heads[1].as_str()];
        for heads in [[one, two], [two, one]] {
            let first = world.run(&[&["audit", "verify", "--json"][..], &heads].concat());
            let found = first.json()["damages"][0].clone();
            let place = (found["kind"].as_str().unwrap(), found["line"].as_u64().unwrap_or(0));
            assert_eq!((first.code, place), (5, expected), "{name}: {found}");
            let other = second(&[&["log", directory.to_str().unwrap()][..], &heads].concat());
            assert_eq!(other.code, 5, "{name}: {other:?}");
            for fact in ["kind", "segment", "seq", "line"] {
                assert_eq!(other.json()[fact], found[fact], "{name}: {fact}");
            }
        }
    }
}
