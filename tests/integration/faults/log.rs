//! The log, changed while a gateway uses it, and a clock that goes back.

use std::{fs, io::Write as _};

use portcullis_audit::{Chain, Draft, Kind, Prepared};

use super::*;

/// Changes the log of a running gateway. It must serve nothing from then on,
/// whatever the request, and must report the reason to the operator.
///
/// Returns the gateway's messages.
#[track_caller]
fn after(operation: impl FnOnce(&World)) -> (World, String) {
    let world = World::with_policy(POLICY);
    world.file("a.txt", "old");
    let mut scripted_agent = ScriptedAgent::start(&world);
    receipt(&scripted_agent.ask(scripted_agent.write("a.txt", "served")));
    operation(&world);
    let before = world.state().join("audit");
    let before = consistency::snapshot(&before);
    let backups = consistency::snapshot(&world.state().join("backups"));
    let mut messages = Vec::new();
    for request in [
        scripted_agent.read("a.txt"),
        scripted_agent.write("a.txt", "late"),
        scripted_agent.write("new.txt", "late"),
        scripted_agent.read("missing.txt"),
        scripted_agent.read("../outside.txt"),
    ] {
        let answer = scripted_agent.ask(request);
        let (kind, message) = failure(&answer);
        assert_eq!(kind, "unavailable", "{answer}");
        assert!(answer["error"]["data"]["receipt"].is_null(), "{answer}");
        messages.push(message);
    }
    messages.dedup();
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert_eq!(world.read("a.txt"), "served");
    assert!(!world.path("new.txt").exists());
    let (status, said) = scripted_agent.end();
    assert!(!status.success(), "{status}");
    assert!(said.contains(&messages[0]), "the operator is told: {said}");
    assert_eq!(consistency::snapshot(&world.state().join("audit")), before, "nothing was written");
    assert_eq!(consistency::snapshot(&world.state().join("backups")), backups, "nor kept");
    (world, messages.remove(0))
}

fn segment(world: &World) -> std::path::PathBuf {
    world.state().join("audit/seg-000000.jsonl")
}

/// A restart suffices.
#[track_caller]
fn goes_on(world: &World) {
    world.write("a.txt", "after").ok();
    consistency::check(world);
}

#[test]
fn an_unlinked_log_stops_a_running_gateway() {
    let (world, said) = after(|world| fs::remove_file(segment(world)).unwrap());
    insta::assert_snapshot!(said, @"the audit log was deleted while in use; stop the gateways, look at it with `portcullis audit verify` and start again");
    goes_on(&world);

    let (world, said) = after(|world| {
        fs::rename(segment(world), world.base().join("aside")).unwrap();
    });
    insta::assert_snapshot!(said, @"the audit log was deleted while in use; stop the gateways, look at it with `portcullis audit verify` and start again");
    // Restored, it is as intact as it was.
    fs::rename(world.base().join("aside"), segment(&world)).unwrap();
    goes_on(&world);
    assert!(world.records().iter().filter(|record| record["kind"] == "start").count() > 1);
}

#[test]
fn a_replaced_log_stops_a_running_gateway() {
    let (world, said) = after(|world| {
        let copy = world.base().join("copy");
        fs::copy(segment(world), &copy).unwrap();
        fs::rename(&copy, segment(world)).unwrap();
    });
    insta::assert_snapshot!(said, @"the audit log was replaced while in use; stop the gateways, look at it with `portcullis audit verify` and start again");
    goes_on(&world);

    let (world, said) = after(|world| {
        let audit = world.state().join("audit");
        fs::rename(&audit, world.base().join("aside")).unwrap();
        fs::create_dir(&audit).unwrap();
    });
    insta::assert_snapshot!(said, @"the audit log was replaced while in use; stop the gateways, look at it with `portcullis audit verify` and start again");
    fs::remove_dir(world.state().join("audit")).unwrap();
    fs::rename(world.base().join("aside"), world.state().join("audit")).unwrap();
    goes_on(&world);
}

#[test]
fn a_truncated_log_stops_a_running_gateway() {
    let truncate = |world: &World, by: u64| {
        let file = fs::OpenOptions::new().write(true).open(segment(world)).unwrap();
        file.set_len(file.metadata().unwrap().len() - by).unwrap();
    };
    // In the middle of the last line, which the next start sets aside.
    let (world, said) = after(|world| truncate(world, 100));
    insta::assert_snapshot!(said, @"the audit log was cut short while in use; stop the gateways, look at it with `portcullis audit verify` and start again");
    world.fs(&["read", "a.txt"]).ok();
    world.run(&["audit", "verify"]).ok();

    let (_world, said) = after(|world| {
        let length = fs::metadata(segment(world)).unwrap().len();
        truncate(world, length);
    });
    insta::assert_snapshot!(said, @"the audit log was cut short while in use; stop the gateways, look at it with `portcullis audit verify` and start again");
}

#[test]
fn a_log_that_somebody_else_writes_to_stops_a_running_gateway_and_the_next_start() {
    let (world, said) = after(|world| {
        let mut log = fs::OpenOptions::new().append(true).open(segment(world)).unwrap();
        log.write_all(b"{\"v\":1,\"forged\":true}\n").unwrap();
    });
    insta::assert_snapshot!(said, @"the audit log is damaged in `seg-000000.jsonl`: the field `nonce` is missing; see `portcullis audit verify`, then `portcullis audit recover`");
    for _ in 0..2 {
        let refused = world.fs(&["read", "a.txt"]);
        assert_eq!(refused.code, 5, "{refused:?}");
        assert!(refused.stderr.contains("`portcullis audit recover`"), "{refused:?}");
    }
}

/// Gives an entry of the backup store another year, in its name and in its
/// description: the content, a JSON object, its length, its hash, and sixteen
/// bytes of magic.
fn postdate(entry: &std::path::Path, year: &str, other: &str) {
    let name = entry.file_name().unwrap().to_str().unwrap();
    let bytes = fs::read(entry).unwrap();
    let (rest, footer) = bytes.split_at(bytes.len() - 56);
    let length = u64::from_le_bytes(footer[..8].try_into().unwrap());
    let (content, description) = rest.split_at(rest.len() - usize::try_from(length).unwrap());
    let description = String::from_utf8(description.to_vec()).unwrap();
    let id = format!("\"id\":\"{year}");
    assert!(description.contains(&id) && name.contains(&format!(".{year}")));
    let description = description.replacen(&id, &format!("\"id\":\"{other}"), 1);
    let hash = portcullis_audit::Hash::of(description.as_bytes());
    let parts = [content, description.as_bytes(), &footer[..8], hash.as_bytes(), &footer[40..]];
    let renamed = name.replacen(&format!(".{year}"), &format!(".{other}"), 1);
    fs::write(entry.with_file_name(renamed), parts.concat()).unwrap();
    fs::remove_file(entry).unwrap();
}

/// The clock of the machine cannot be set here without affecting other
/// processes, so the log and the backups come from a future instead.
#[test]
fn a_clock_that_was_set_back_breaks_neither_log_nor_backup_store() {
    let world = World::with_policy(POLICY);
    world.file("a.txt", "one");
    world.write("a.txt", "two").ok();
    let year = &world.records()[0]["t"].as_str().unwrap()[..4].to_owned();
    let future = "2099";
    // The log: a record as a gateway of that year would have appended it.
    let last = fs::read_to_string(segment(&world)).unwrap();
    let mut chain = Chain::after(last.lines().last().unwrap().as_bytes()).unwrap();
    let draft = Draft { op: Some("note".to_owned()), ..Draft::default() };
    let mut lines = Vec::new();
    let record = Prepared::new(Kind::Decision, &draft, [7; 16]).unwrap();
    let told = chain.append(&record, "2099-01-01T00:00:00.000000Z", &mut lines);
    fs::OpenOptions::new().append(true).open(segment(&world)).unwrap().write_all(&lines).unwrap();
    // The backup store: the one entry there is, as if kept in that year.
    let entry = consistency::walk(&world.state().join("backups"))
        .into_iter()
        .find(|path| path.is_file() && path.file_name().unwrap() != "usage")
        .unwrap();
    postdate(&entry, year, future);

    for content in ["three", "four"] {
        world.write("a.txt", content).ok();
    }
    let receipt = serde_json::json!({"seq": told.seq, "leaf": told.leaf.to_string()});
    consistency::receipts_are_kept(&world, &[receipt]);
    // The newest one is so by the order of changes, not by the clock.
    assert_eq!(world.run(&["backup", "show", "a.txt"]).ok().text(), "three");
    world.run(&["backup", "restore", "a.txt"]).ok();
    assert_eq!(world.read("a.txt"), "three");
    // The verifier reports it, and that the chain is intact nevertheless.
    let verified = world.run(&["audit", "verify"]).ok();
    assert!(verified.text().contains("warning: time-went-back: record 5 is of "), "{verified:?}");
    assert!(verified.text().contains("intact: "), "{verified:?}");
}

#[test]
fn the_state_directory_may_be_on_another_file_system() {
    for other in [true, false] {
        let world = World::with_policy(POLICY);
        let place = if other { world.state() } else { world.root() };
        let _disk = Disk::ext4(&place, &world.base().join("image"), 24);
        world.file("a.txt", "old");
        world.file("tree/b.txt", "x".repeat(300_000));
        let mut scripted_agent = ScriptedAgent::start(&world);
        receipt(&scripted_agent.ask(scripted_agent.write("a.txt", "new")));
        let read = scripted_agent.ask(scripted_agent.read("a.txt"));
        assert_eq!(read["result"]["content"], "new");
        assert!(scripted_agent.end().0.success());
        let removed = world.fs(&["rm", "-r", "tree", "--json"]).ok().json();
        world.run(&["backup", "restore", removed["backup"].as_str().unwrap()]).ok();
        assert_eq!(world.read("tree/b.txt").len(), 300_000);
        world.run(&["backup", "restore", "a.txt"]).ok();
        assert_eq!(world.read("a.txt"), "old");
        consistency::check(&world);
    }
}
