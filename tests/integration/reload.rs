//! A running gateway takes another policy up, or keeps the old one.

mod files;

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{approvals::asked_again, common::World, relay::Relay};

/// Longer than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn policy(version: u64, more: &str) -> String {
    format!(
        "schema = 1\nname = \"p\"\nversion = {version}\n[allowedPaths]\nread = [\"**\"]\n\
         write = [\"**\"]\n{more}"
    )
}

const CLOSED: &str = "[[rules]]\nid = \"closed\"\neffect = \"deny\"\npaths = [\"a.txt\"]\n";

fn relay(more: &str) -> Relay {
    let world = World::with_policy(&policy(5, more));
    world.file("a.txt", "a\n");
    Relay::start(world)
}

/// Replaces the policy as editors do: a new file takes the name.
pub(crate) fn replace(world: &World, text: impl AsRef<[u8]>) {
    let file = world.base().join("policy/policy.toml");
    let fresh = world.base().join("policy/fresh");
    std::fs::write(&fresh, text).unwrap();
    std::fs::rename(&fresh, &file).unwrap();
}

fn hang_up(relay: &Relay) {
    let pid = rustix::process::Pid::from_raw(relay.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
}

/// The records about policies, once there are so many.
#[track_caller]
pub(crate) fn policies(world: &World, count: usize) -> Vec<Value> {
    let give_up = Instant::now() + TIMEOUT;
    loop {
        let mut records = world.records();
        records.retain(|record| record["kind"] == "policy");
        if records.len() >= count {
            assert_eq!(records.len(), count, "{records:?}");
            return records;
        }
        assert!(Instant::now() < give_up, "{records:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Checks that the new policy is in force: it comes into force right after its
/// record.
#[track_caller]
fn closed(relay: &mut Relay) {
    comes_to(relay, |answer| answer["error"]["data"]["rule"] == "closed");
}

/// A read is answered like that before long.
#[track_caller]
fn comes_to(relay: &mut Relay, is_so: impl Fn(&Value) -> bool) {
    let give_up = Instant::now() + TIMEOUT;
    loop {
        let read = relay.read("a.txt");
        if is_so(&relay.ask_one(read)) {
            return;
        }
        assert!(Instant::now() < give_up, "the old policy is still in force");
    }
}

#[test]
fn a_changed_file_is_taken_up_and_recorded_with_its_hash() {
    let mut relay = relay("");
    let read = relay.read("a.txt");
    assert!(relay.ask_one(read).get("result").is_some());
    replace(relay.world(), policy(6, CLOSED));
    let record = policies(relay.world(), 1).remove(0);
    assert_eq!(record["result"], "ok", "{record}");
    assert_eq!(record["facts"]["trigger"], "file");
    assert_eq!(
        (&record["facts"]["version"], &record["facts"]["oldVersion"]),
        (&6.into(), &5.into())
    );
    closed(&mut relay);
    let world = relay.end();
    let old = world.records()[0]["policySha256"].clone();
    assert_eq!(record["facts"]["oldSha256"], old);
    let new = record["policySha256"].as_str().unwrap();
    assert_eq!(world.last()["policySha256"], new);
    let kept = world.state().join("policies").join(format!("{new}.toml"));
    assert!(std::fs::read_to_string(kept).unwrap().contains("closed"));
}

#[test]
fn a_link_that_leads_elsewhere_is_a_change() {
    let world = World::with_policy(&policy(5, ""));
    world.file("a.txt", "a\n");
    let directory = world.base().join("policy");
    std::fs::rename(directory.join("policy.toml"), directory.join("5")).unwrap();
    std::fs::write(directory.join("6"), policy(6, CLOSED)).unwrap();
    std::os::unix::fs::symlink("5", directory.join("policy.toml")).unwrap();
    let mut relay = Relay::start(world);
    std::os::unix::fs::symlink("6", directory.join("fresh")).unwrap();
    std::fs::rename(directory.join("fresh"), directory.join("policy.toml")).unwrap();
    assert_eq!(policies(relay.world(), 1)[0]["result"], "ok");
    closed(&mut relay);
    relay.end();
}

/// The agent could exchange the link in the workspace for another one.
#[test]
fn a_policy_that_a_changed_link_leads_through_the_workspace_is_not_taken_up() {
    let mut relay = relay("");
    let base = relay.world().base().to_owned();
    std::fs::create_dir(base.join("other")).unwrap();
    std::fs::write(base.join("other/p.toml"), policy(6, CLOSED)).unwrap();
    std::os::unix::fs::symlink("../other", base.join("ws/link")).unwrap();
    std::os::unix::fs::symlink("../ws/link/p.toml", base.join("policy/fresh")).unwrap();
    std::fs::rename(base.join("policy/fresh"), base.join("policy/policy.toml")).unwrap();
    assert_eq!(policies(relay.world(), 1)[0]["result"], "refused");
    // All other trusted paths are looked up again, too.
    std::fs::create_dir(base.join("home")).unwrap_or_default();
    std::os::unix::fs::symlink("../ws", base.join("home/.config")).unwrap();
    replace(relay.world(), policy(7, CLOSED));
    assert_eq!(policies(relay.world(), 2)[1]["result"], "refused");
    let read = relay.read("a.txt");
    assert!(relay.ask_one(read).get("result").is_some());
    std::fs::remove_file(base.join("home/.config")).unwrap();
    replace(relay.world(), policy(8, CLOSED));
    assert_eq!(policies(relay.world(), 3)[2]["result"], "ok");
    closed(&mut relay);
    relay.end();
}

#[test]
fn a_signal_is_no_reason_to_stop() {
    let mut relay = relay("");
    hang_up(&relay);
    let read = relay.read("a.txt");
    assert!(relay.ask_one(read).get("result").is_some());
    // The same policy is no event.
    let world = relay.end();
    assert!(policies(&world, 0).is_empty());
}

#[test]
fn whatever_is_wrong_with_it_the_old_one_stays() {
    let mut relay = relay("");
    let base = relay.world().base().to_owned();
    std::fs::write(base.join("policy/loop.toml"), "schema = 1\nextends = [\"./policy.toml\"]\n")
        .unwrap();
    std::fs::write(base.join("ws/inside.toml"), "schema = 1\n").unwrap();
    let mut huge = policy(6, "").into_bytes();
    huge.resize(10 << 20, b'#');
    let extends = |file: &str| format!("schema = 1\nversion = 6\nextends = [\"{file}\"]\n");
    let test =
        "[[tests]]\noperation = \"read\"\npath = \"a.txt\"\nexpect = { effect = \"deny\" }\n";
    let many = (0..100_000).fold(policy(6, ""), |text, n| {
        text + &format!("[[rules]]\nid=\"r{n}\"\neffect=\"deny\"\npaths=[\"x\"]\n")
    });
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (policy(5, CLOSED).into(), "its version 5 is not greater than 5"),
        (policy(4, CLOSED).into(), "its version 4 is not greater than 5"),
        ("version = ".into(), "it does not load: not valid TOML"),
        (policy(6, "[[rules]]\nid = 1\n").into(), "it does not load: "),
        (policy(6, test).into(), "it does not load: test failed"),
        (policy(6, "[agent]\nterminal = \"allow\"\n").into(), "its `[agent]` section"),
        (extends("./loop.toml").into(), "it does not load: cannot extend"),
        (extends("./missing.toml").into(), "it does not load: cannot extend"),
        (extends("../ws/inside.toml").into(), "overlap"),
        (b"schema = 1\n# \xff\xfe\n".to_vec(), "it does not load: the file is not UTF-8"),
        (huge, "larger than 1 MiB"),
        (many.into_bytes(), "larger than 1 MiB"),
    ];
    for (count, (text, why)) in (1..).zip(&cases) {
        replace(relay.world(), text);
        let record = policies(relay.world(), count).pop().unwrap();
        assert_eq!(record["result"], "refused", "{record}");
        assert!(record["reason"].as_str().unwrap().contains(why), "{why}: {record}");
        assert_eq!(record["facts"]["refusedSha256"].as_str().unwrap().len(), 64, "{record}");
    }
    // The agent may have the other name.
    std::fs::write(base.join("policy/draft"), policy(6, CLOSED)).unwrap();
    std::fs::hard_link(base.join("policy/draft"), base.join("policy/kept")).unwrap();
    std::fs::rename(base.join("policy/draft"), base.join("policy/policy.toml")).unwrap();
    let record = policies(relay.world(), cases.len() + 1).pop().unwrap();
    assert!(record["reason"].as_str().unwrap().contains("hard link"), "{record}");
    std::fs::remove_file(base.join("policy/policy.toml")).unwrap();
    let record = policies(relay.world(), cases.len() + 2).pop().unwrap();
    assert!(record["reason"].as_str().unwrap().contains("no such file"), "{record}");
    let read = relay.read("a.txt");
    assert!(relay.ask_one(read).get("result").is_some());
    // It continues to watch.
    replace(relay.world(), policy(6, CLOSED));
    assert_eq!(policies(relay.world(), cases.len() + 3).pop().unwrap()["result"], "ok");
    closed(&mut relay);
    let records = relay.end().records();
    let old = &records[0]["policySha256"];
    let refused = records.iter().filter(|record| record["result"] == "refused");
    assert!(refused.clone().count() == cases.len() + 2);
    assert!(refused.into_iter().all(|record| record["policySha256"] == *old));
}

#[test]
fn each_request_is_judged_by_one_policy() {
    let mut relay = relay("");
    for version in 6..10 {
        replace(relay.world(), policy(version, if version % 2 == 0 { CLOSED } else { "" }));
        hang_up(&relay);
        let requests: Vec<_> = (0..300).map(|_| relay.read("a.txt")).collect();
        relay.ask(&requests);
        policies(relay.world(), usize::try_from(version - 5).unwrap());
    }
    let world = relay.end();
    let mut closed = std::collections::BTreeMap::new();
    for record in world.records() {
        let hash = record["policySha256"].as_str().unwrap_or_default().to_owned();
        if record["kind"] == "policy" {
            closed.insert(hash, record["facts"]["version"].as_u64().unwrap() % 2 == 0);
        } else if record["op"] == "read" {
            let denied = record["decision"] == "deny";
            assert_eq!(denied, closed.get(&hash).copied().unwrap_or(false), "{record}");
        }
    }
    assert_eq!(closed.len(), 4);
}

const ASKS: &str = "[[rules]]\nid = \"ask\"\neffect = \"ask\"\noperations = [\"write\"]\n\
    paths = [\"ask/**\"]\n[limits]\napprovalTimeout = \"10m\"\n";

#[test]
fn what_waits_is_approved_from_a_shell_and_under_one_policy_only() {
    let mut relay = relay(ASKS);
    for (change, code) in [(false, None), (true, Some(-32001))] {
        let write = relay.write("ask/a", if change { "2" } else { "1" });
        relay.say(&[write]);
        let question = relay.hear();
        assert_eq!(question["method"], "session/request_permission", "{question}");
        if change {
            let more = format!("{ASKS}{CLOSED}");
            replace(relay.world(), policy(6, &more));
            policies(relay.world(), 1);
        }
        let list = relay.world().run(&["approve", "--json"]).ok().json();
        let id = list["waiting"][0]["id"].as_str().unwrap().to_owned();
        let tool = question["params"]["toolCall"]["toolCallId"].as_str().unwrap();
        assert!(tool.ends_with(&format!("-{id}")), "{tool}");
        relay.world().run(&["approve", "--yes", &id]).ok();
        // The editor need not answer any more.
        assert_eq!(relay.hear()["method"], "$/cancel_request");
        if change {
            // The new policy asks, too.
            assert_eq!(relay.hear()["method"], "session/request_permission");
            asked_again(relay.world(), &list["waiting"][0]);
            assert_eq!(relay.hear()["method"], "$/cancel_request");
        }
        let answer = relay.heard().remove(0);
        assert_eq!(answer["error"]["code"].as_i64(), code, "{answer}");
    }
    let world = relay.end();
    assert_eq!(world.read("ask/a"), "1");
    let denied = world.last();
    assert!(denied["reason"].as_str().unwrap().contains("rejected"), "{denied}");
}

#[test]
fn no_agent_can_guess_the_name_of_a_question() {
    let secrets = [1, 2].map(|_| {
        let mut relay = relay(ASKS);
        let write = relay.write("ask/a", "1");
        relay.say(&[write]);
        let question = relay.hear();
        let list = relay.world().run(&["approve", "--json"]).ok().json();
        let id = list["waiting"][0]["id"].as_str().unwrap();
        let tool = question["params"]["toolCall"]["toolCallId"].as_str().unwrap();
        let secret = tool.strip_suffix(id).unwrap().to_owned();
        relay.world().run(&["approve", "--yes", id]).ok();
        assert_eq!(relay.hear()["method"], "$/cancel_request");
        assert!(relay.heard().remove(0).get("result").is_some());
        relay.end();
        secret
    });
    // 64 bits at least, and others in each session.
    assert!(secrets[0].len() > "portcullis-".len() + 16, "{secrets:?}");
    assert_ne!(secrets[0], secrets[1]);
}

#[test]
fn limits_of_a_new_policy_count_what_was_done() {
    let mut relay = relay("[limits]\nbytesWritten = \"1KiB\"\n");
    let write = relay.write("b", &"x".repeat(600));
    assert!(relay.ask_one(write).get("result").is_some());
    let tighter = format!("[limits]\nbytesWritten = \"700B\"\n{CLOSED}");
    replace(relay.world(), policy(6, &tighter));
    closed(&mut relay);
    let write = relay.write("b", &"x".repeat(200));
    assert_eq!(relay.ask_one(write)["error"]["data"]["rule"], "limits.bytesWritten");
    relay.end();
}
