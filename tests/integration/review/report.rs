//! `audit report`.

use portcullis_audit::{Draft, Kind};
use serde_json::{Value, json};

use super::{HOSTILE, assert_visible, decision, write_log};
use crate::common::{Done, World};

fn report(world: &World, name: &str, args: &[&str]) -> (Done, String) {
    let file = world.base().join(name);
    let file = file.to_str().unwrap();
    let done = world.run(&[&["audit", "report", "-o", file], args].concat());
    (done, std::fs::read_to_string(file).unwrap_or_default())
}

fn json_report(world: &World, args: &[&str]) -> Value {
    let (done, text) = report(world, "report.json", args);
    done.ok();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn its_numbers_are_those_of_the_log() {
    let world = World::new();
    world.write("a.txt", "one").ok();
    let first = world.records().iter().find_map(|r| r["after"].as_str().map(str::to_owned));
    world.write("a.txt", "two").ok();
    world.write("a.txt", "three").ok();
    let last = portcullis_audit::Hash::of(b"three").to_string();
    world.write("b.txt", "x").ok();
    world.fs(&["rm", "b.txt"]).ok();
    world.fs(&["read", "a.txt"]).ok();
    world.fs(&["read", ".env"]).denied("secrets.names[0]");
    world.run(&["fs", "read", "id_rsa", "--agent", "other"]).denied("secrets.names[6]");
    let report = json_report(&world, &[]);
    let records = world.records();
    let count = |wanted: &dyn Fn(&Value) -> bool| records.iter().filter(|r| wanted(r)).count();
    assert_eq!(report["records"], records.len());
    assert_eq!(report["valid"], true);
    assert_eq!(report["chain"]["head"]["seq"], records.len() - 1);
    assert_eq!(report["denied"]["total"], count(&|r| r["decision"] == "deny"));
    assert_eq!(report["denied"]["listed"][0]["path"], ".env");
    let agents = report["agents"].as_array().unwrap();
    assert_eq!(agents.len(), 2);
    assert_eq!((&agents[0]["name"], &agents[0]["denied"]), (&json!("cli"), &json!(1)));
    assert_eq!(agents[0]["allowed"], count(&|r| r["decision"] == "allow"));
    assert_eq!(agents[0]["changes"], 5);
    assert_eq!((&agents[0]["bytesRead"], &agents[0]["bytesWritten"]), (&json!(5), &json!(12)));
    let files = report["files"]["listed"].as_array().unwrap();
    assert_eq!(files[0]["path"], "a.txt");
    assert_eq!((&files[0]["changes"], &files[0]["before"]), (&json!(3), &Value::Null));
    assert_eq!(files[0]["after"], last.as_str());
    assert_ne!(files[0]["after"].as_str(), first.as_deref());
    assert_eq!((&files[1]["op"], &files[1]["after"]), (&json!("remove"), &Value::Null));
    let rules: u64 =
        report["rules"].as_array().unwrap().iter().map(|r| r["records"].as_u64().unwrap()).sum();
    assert_eq!(rules, count(&|r| r["decision"].is_string()) as u64);
    assert_eq!(report["workspaces"], json!([world.root().canonicalize().unwrap()]));
    let policy = &report["policies"][0];
    assert_eq!((&policy["name"], &policy["textIsGenuine"]), (&json!("default"), &json!(true)));
    assert!(policy["text"].as_str().unwrap().contains("[allowedPaths]"));
    assert!(
        report["gates"]["listed"].as_array().unwrap().iter().all(|gate| gate["stopped"] == true)
    );
}

#[test]
fn a_period_holds_only_its_records() {
    let world = World::new();
    write_log(&world, 200_000, |seq| {
        (
            Kind::Decision,
            decision("coder", "read", "a", if seq % 4 == 0 { "deny" } else { "allow" }, "r"),
        )
    });
    let report = json_report(&world, &["--since", "2026-11-02", "--until", "2026-11-03"]);
    assert_eq!(report["records"], 86_400);
    assert_eq!(report["denied"]["total"], 21_600);
    assert_eq!(report["denied"]["listed"].as_array().unwrap().len(), 2000);
    let activity = report["activity"].as_array().unwrap();
    assert_eq!((activity.len(), &activity[0]["from"]), (24, &json!("2026-11-02T00")));
    assert_eq!((&activity[0]["allowed"], &activity[0]["denied"]), (&json!(2700), &json!(900)));
    let (done, page) = self::report(&world, "r.html", &["--since", "2026-11-02"]);
    done.ok();
    assert!(page.contains("The first 2000 of 28400 are listed."));
}

#[test]
fn changes_are_settled_across_segments() {
    let world = World::new();
    // The intent is the last record of a segment, its outcome the first of the next.
    write_log(&world, 65_537, |seq| match seq {
        65_535 => {
            let draft = decision("coder", "write", "late.txt", "allow", "r");
            (
                Kind::Intent,
                Draft { result: None, after: Some(portcullis_audit::Hash::ZERO), ..draft },
            )
        }
        65_536 => (
            Kind::Outcome,
            Draft { of: Some(65_535), result: Some("ok".to_owned()), ..Draft::default() },
        ),
        0 => (Kind::Intent, decision("coder", "write", "never.txt", "allow", "r")),
        _ => (Kind::Decision, decision("coder", "read", "a", "allow", "r")),
    });
    let report = json_report(&world, &[]);
    assert_eq!(report["files"]["total"], 1);
    assert_eq!(report["files"]["listed"][0]["path"], "late.txt");
    assert_eq!(report["unsettled"], json!([0]));
}

#[test]
fn the_page_holds_no_markup_of_others_and_loads_nothing() {
    let world = World::new();
    write_log(&world, 3, |seq| {
        let mut draft = decision(HOSTILE, HOSTILE, HOSTILE, "deny", HOSTILE);
        draft.reason = Some(HOSTILE.to_owned());
        draft.policy = Some(HOSTILE.to_owned());
        draft.policy_sha256 = Some("../../../etc/passwd\u{202e}".to_owned());
        draft.findings = Some(vec![json!({ "rule": HOSTILE })]);
        draft.facts = Some(
            [("policyName".to_owned(), HOSTILE.into()), ("workspace".to_owned(), HOSTILE.into())]
                .into(),
        );
        let kind = [Kind::Start, Kind::Decision, Kind::Approval][usize::try_from(seq).unwrap()];
        (kind, draft)
    });
    let (done, page) = report(&world, "r.html", &[]);
    done.ok();
    assert_visible(&page);
    assert!(
        !page.contains("<script") && !page.contains("onerror") && page.contains("&lt;script&gt;")
    );
    for wanted in ["http:", "https:", "src=", "url(", "@import"] {
        assert!(!page.contains(wanted), "{wanted}");
    }
    assert!(page.contains("default-src 'none'"));
    balanced(&page);
    let (done, text) = report(&world, "r.json", &[]);
    done.ok();
    assert_visible(&text);
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["agents"][0]["name"], HOSTILE);
}

/// Every element that is opened is closed, in order.
fn balanced(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    for piece in page.split('<').skip(1) {
        let tag = piece.split('>').next().unwrap();
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if matches!(name, "!doctype" | "meta" | "br") || tag.ends_with('/') {
            continue;
        }
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn damage_and_a_changed_policy_are_said() {
    let world = World::new();
    world.write("a.txt", "one").ok();
    world.write("b.txt", "two").ok();
    let policies = std::fs::read_dir(world.state().join("policies")).unwrap();
    let policy = policies.map(|entry| entry.unwrap().path()).next().unwrap();
    let mut text = std::fs::read_to_string(&policy).unwrap();
    text.push_str("# harmless\n");
    std::fs::write(&policy, text).unwrap();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap();
    std::fs::write(&segment, text.replacen("\"path\":\"a.txt\"", "\"path\":\"z.txt\"", 1)).unwrap();
    let (done, page) = report(&world, "r.html", &[]);
    assert_eq!(done.code, 5, "{done:?}");
    assert!(page.contains("The log is damaged") && page.contains("broken-link"));
    assert!(page.contains("does not have this hash"));
    assert_eq!(report(&world, "r.txt", &[]).0.code, 2);
}
