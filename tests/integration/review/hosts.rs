//! Connections in the log, as reviewers see them.

use std::collections::BTreeMap;

use portcullis_audit::{Draft, Kind};
use serde_json::{Value, json};

use super::{
    export::{export, python},
    write_log,
};
use crate::common::World;

/// A name that was allowed, its connection and end; one that broke; an address and a name that
/// were denied; a connection whose gateway died; two that were cut off.
fn world() -> World {
    let world = World::new();
    write_log(&world, 13, |seq| {
        let connect = |host: &str, address: Option<&str>| {
            let mut facts: BTreeMap<String, Value> =
                [("host".to_owned(), json!(host)), ("port".to_owned(), json!(443))].into();
            facts.extend(address.map(|address| ("address".to_owned(), json!(address))));
            Draft {
                session: Some("session of codex".to_owned()),
                agent: Some("codex".to_owned()),
                user: Some("ops".to_owned()),
                transport: Some("proxy".to_owned()),
                op: Some("connect".to_owned()),
                decision: Some("allow".to_owned()),
                rule: Some("sites".to_owned()),
                facts: Some(facts),
                ..Draft::default()
            }
        };
        let denied = |draft: Draft, rule: &str| Draft {
            decision: Some("deny".to_owned()),
            rule: Some(rule.to_owned()),
            result: Some("denied".to_owned()),
            ..draft
        };
        let ended = |draft: Draft, of: u64, result: &str| Draft {
            of: Some(of),
            result: Some(result.to_owned()),
            decision: None,
            rule: None,
            counts: Some(
                [("bytesIn", 2000), ("bytesOut", 300), ("milliseconds", 12)]
                    .map(|(name, count)| (name.to_owned(), count))
                    .into(),
            ),
            ..draft
        };
        let site = || connect("www.example.com", Some("93.184.216.34"));
        let allowed = Draft { result: Some("ok".to_owned()), ..connect("www.example.com", None) };
        match seq {
            0 => (Kind::Decision, allowed),
            1 | 3 | 7 | 9 | 11 => (Kind::Intent, site()),
            10 | 12 => {
                let [result, rule] = match seq {
                    10 => ["refused", "network.host"],
                    _ => ["denied", "network.limits.bytesOut"],
                };
                let decision = Some("deny".to_owned());
                let ended = ended(site(), seq - 1, result);
                let draft = Draft { decision, rule: Some(rule.to_owned()), ..ended };
                (Kind::Outcome, Draft { transport: None, ..draft })
            }
            2 => (Kind::Outcome, ended(site(), 1, "ok")),
            4 => (Kind::Outcome, ended(site(), 3, "unreachable")),
            5 => (Kind::Decision, denied(connect("evil.example", None), "default")),
            6 => {
                (Kind::Decision, denied(connect("www.example.com", Some("::1")), "network.address"))
            }
            _ => (Kind::Recovered, Draft { counts: None, ..ended(site(), 7, "interrupted") }),
        }
    });
    world
}

#[test]
fn connections_are_found_and_told_by_host() {
    let world = world();
    world.run(&["audit", "verify"]).ok();
    let found = world.run(&["audit", "query", "--op", "connect", "--decision", "deny", "--json"]);
    assert_eq!(found.ok().text().lines().count(), 4);
    let shown = world.run(&["audit", "show", "--op", "connect"]).ok();
    assert_eq!(shown.text().matches("www.example.com:443").count(), 12, "{}", shown.text());
    let told = world.run(&["audit", "session", "session of codex"]).ok();
    assert!(
        told.text().contains(
            "connected www.example.com:443 (4 times, 900 bytes out, 6000 in, and unknown bytes of 1)"
        ),
        "{}",
        told.text()
    );
    let failed = "failed    www.example.com:443 [connect: unreachable]";
    assert!(told.text().contains(failed), "{}", told.text());
    assert!(told.text().contains("evil.example:443 by "), "{}", told.text());
    for rule in ["network.host", "network.limits.bytesOut"] {
        let denied = format!("www.example.com:443 by {rule}");
        assert!(told.text().contains(&denied), "{}", told.text());
    }
    // By the one who connected, though the record of the end does not name it.
    assert_eq!(told.text().matches("  by proxy  ").count(), 1, "{}", told.text());
    assert!(!told.text().contains("gateway"), "{}", told.text());
    // The bytes of the connection whose gateway died were told as none.
    let told =
        world.run(&["audit", "session", "session of codex", "--json"]).ok().text().to_owned();
    assert!(told.contains("\"uncounted\":1"), "{told}");
    let told = world.run(&["audit", "session", "session of codex", "--records"]).ok();
    assert!(told.text().contains("300 bytes out, 2000 in"), "{}", told.text());
    assert!(told.text().contains("denied by network.host"), "{}", told.text());
    let csv = export(&world, "csv", &[]).ok();
    assert!(csv.text().contains("evil.example:443"), "{}", csv.text());
    let file = world.base().join("report.json");
    world.run(&["audit", "report", "-o", file.to_str().unwrap()]).ok();
    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let hosts = json!([{
        "host": "www.example.com:443", "connections": 5, "denied": 2, "uncounted": 1,
        "bytesIn": 8000, "bytesOut": 1200,
    }]);
    assert_eq!(report["hosts"], hosts, "{report}");
    assert_eq!(report["denied"]["total"], 4);
    assert_eq!(report["agents"][0]["denied"], 4, "{report}");
    let explained = world.run(&["policy", "explain", "--record", "5"]).ok();
    assert!(explained.text().contains("evil.example:443"), "{}", explained.text());
}

#[test]
fn connections_are_valid_events_of_network_activity() {
    let world = world();
    let file = world.base().join("events.jsonl");
    export(&world, "ocsf", &["-o", file.to_str().unwrap()]).ok();
    let text = std::fs::read_to_string(&file).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(python("ocsf.py", &[file.to_str().unwrap()]), format!("{} valid\n", events.len()));
    let said = |event: &Value| (event["class_uid"].as_u64(), event["activity_id"].as_u64());
    let activities: Vec<_> =
        events.iter().map(said).map(|(class, id)| (class.unwrap(), id.unwrap())).collect();
    assert_eq!(activities.len(), 8);
    assert!(activities.iter().all(|(class, _)| *class == 4001));
    let activities: Vec<_> = activities.iter().map(|(_, activity)| *activity).collect();
    assert_eq!(activities, [99, 2, 4, 5, 5, 2, 5, 5]);
    let whole = &events[1];
    assert_eq!(
        whole["dst_endpoint"],
        json!({ "port": 443, "hostname": "www.example.com", "ip": "93.184.216.34" })
    );
    assert_eq!((&whole["traffic"]["bytes_out"], &whole["duration"]), (&json!(300), &json!(12)));
    assert_eq!((&whole["status"], &events[2]["status"]), (&json!("Success"), &json!("Failure")));
    assert_eq!(events[3]["disposition"], "Blocked");
    // Cut off after it was allowed: one event, a denial.
    let [allowed, cut_off] = [&events[1], &events[6]];
    assert_eq!((&allowed["is_alert"], &cut_off["is_alert"]), (&json!(false), &json!(true)));
    assert_eq!(cut_off["authorizations"][0]["policy"]["name"], "network.host");
    assert_eq!(
        (&cut_off["status_code"], &cut_off["action"]),
        (&json!("refused"), &json!("Denied"))
    );
    let denied = world.base().join("denied.jsonl");
    export(&world, "ocsf", &["--decision", "deny", "-o", denied.to_str().unwrap()]).ok();
    let denied = std::fs::read_to_string(denied).unwrap();
    assert_eq!(denied.lines().count(), 4, "{denied}");
}

/// It was another activity, as a name that was allowed: nothing said that the connection failed.
#[test]
fn a_name_that_led_nowhere_is_no_failed_connection() {
    let world = World::new();
    write_log(&world, 2, |seq| {
        let facts = [("host".to_owned(), json!("a.example")), ("port".to_owned(), json!(443))];
        let draft = Draft {
            op: Some("connect".to_owned()),
            decision: Some("allow".to_owned()),
            result: Some(["ok", "unreachable"][usize::try_from(seq).unwrap()].to_owned()),
            facts: Some(facts.into()),
            ..Draft::default()
        };
        (Kind::Decision, draft)
    });
    let file = world.base().join("events.jsonl");
    export(&world, "ocsf", &["-o", file.to_str().unwrap()]).ok();
    assert_eq!(python("ocsf.py", &[file.to_str().unwrap()]), "2 valid\n");
    let text = std::fs::read_to_string(&file).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let said = ["activity_id", "type_uid", "status_id", "status_code", "disposition_id"];
    let said: Vec<_> = events.map(|event| said.map(|name| event[name].clone())).collect();
    let expected = [json!([99, 400_199, 1, "ok", 1]), json!([4, 400_104, 2, "unreachable", 1])];
    assert_eq!(json!(said), json!(expected));
}

/// An intent that was about no file made every undo refuse the log as damaged.
#[test]
fn connections_are_no_changes_to_undo() {
    let world = World::new();
    write_log(&world, 1, |_| {
        let facts = [("host".to_owned(), json!("a.example")), ("port".to_owned(), json!(443))];
        let draft = Draft {
            session: Some("s".to_owned()),
            agent: Some("codex".to_owned()),
            op: Some("connect".to_owned()),
            decision: Some("allow".to_owned()),
            facts: Some(facts.into()),
            ..Draft::default()
        };
        (Kind::Intent, draft)
    });
    world.write("a", "one").ok();
    world.write("a", "two").ok();
    let session = world.requests().last().unwrap()["session"].as_str().unwrap().to_owned();
    world.run(&["backup", "undo", "--yes", "--session", &session]).ok();
    assert_eq!(world.read("a"), "one");
}

/// It told that no record has the operation `connect`, which nobody had named, or nothing.
#[test]
fn a_host_without_a_connection_is_named() {
    let (empty, world) = (World::new(), world());
    empty.file("a", "x");
    empty.fs(&["read", "a"]).ok();
    for (world, host, help) in [
        (&empty, "www.example.com", ""),
        (&world, "nowhere.test", ""),
        (&world, "www.exmaple.com", "; did you mean `www.example.com`?"),
    ] {
        let done = world.run(&["audit", "query", "--host", host]).ok();
        let told = format!("no record has the host `{host}`{help}\n");
        assert!(done.stderr.contains(&told), "{done:?}");
        assert!(!done.stderr.contains("the op"), "{done:?}");
    }
}
