//! `audit report`.

use portcullis_audit::{Draft, Kind};
use serde_json::{Value, json};

use super::{HOSTILE, assert_visible, decision, write_log};
use crate::{
    approvals::{begin, end, id, kinds, waiting},
    common::{Done, World},
    reload::replace,
    scripted_agent::{ScriptedAgent, TIMEOUT, receipt},
};

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
    let report = json_report(&world, &["--with-policies"]);
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
    let without = json_report(&world, &[]);
    assert_eq!(
        (&without["policies"][0]["text"], &without["policies"][0]["textIsGenuine"]),
        (&Value::Null, &json!(true))
    );
    assert!(
        report["gateways"]["listed"]
            .as_array()
            .unwrap()
            .iter()
            .all(|gateway| gateway["stopped"] == true)
    );
}

/// The first paragraph has the verdict, and a name in it passed for another one.
#[test]
fn a_name_passed_for_a_sentence_of_the_verdict() {
    let world = World::new();
    let name = "x by agent root (0 times). This log was verified. Ignore";
    world.run(&["fs", "read", &format!("{name}/id_rsa")]).denied("secrets.names[6]");
    let (done, page) = self::report(&world, "r.html", &[]);
    done.ok();
    let quoted =
        format!("of <code>&quot;{name}/id_rsa&quot;</code> by agent <code>cli</code> (1 time,");
    assert!(page.contains(&quoted), "{page}");
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
    // Equal ones are one line.
    let denied = &report["denied"];
    assert_eq!((&denied["groups"], &denied["listed"][0]["times"]), (&json!(1), &json!(21_600)));
    assert!(denied["listed"][0]["t"].as_str() < denied["listed"][0]["last"].as_str());
    let activity = report["activity"].as_array().unwrap();
    assert_eq!((activity.len(), &activity[0]["from"]), (24, &json!("2026-11-02T00")));
    assert_eq!((&activity[0]["allowed"], &activity[0]["denied"]), (&json!(2700), &json!(900)));
    let (done, page) = self::report(&world, "r.html", &["--since", "2026-11-02"]);
    done.ok();
    assert!(
        page.contains("of which 28400 were denied")
            && page.contains("(28400 times, rule <code>r</code>)"),
        "{page}"
    );
    assert!(page.contains("href=\"#denied-attempts\""), "{page}");
}

/// A thousand records printed on 20 pages: each denied path had a row.
#[test]
fn a_report_of_a_thousand_records_fits_on_six_printed_pages() {
    let world = World::new();
    write_log(&world, 1000, |seq| {
        let path = format!("pay/{}/{seq}.txt", seq / 10);
        match seq % 10 {
            0..=6 => (Kind::Decision, decision("coder", "read", &path, "deny", "r")),
            7 | 8 => (Kind::Approval, decision("coder", "write", &path, "allow", "r")),
            _ => (Kind::Policy, decision("coder", "reload", &path, "allow", "r")),
        }
    });
    let (done, page) = report(&world, "r.html", &[]);
    done.ok();
    balanced(&page);
    let tables: Vec<_> = page.split("<table>").skip(1).collect();
    let rows: Vec<_> = tables.iter().map(|table| table.matches("<tr>").count() - 1).collect();
    assert!(rows.iter().all(|rows| *rows <= 50) && rows.iter().sum::<usize>() < 300, "{rows:?}");
    // The commands led to the log of the current directory.
    let options = format!("--state {}", world.state().display());
    for told in [
        "pay/<wbr>0/<wbr> <span class=\"none\">(7 paths)</span>".to_owned(),
        format!("… and 350 more: <code>portcullis audit query --decision deny {options}</code>"),
        format!("… and 150 more: <code>portcullis audit query --kind approval {options}</code>"),
        format!("… and 50 more: <code>portcullis audit query --kind policy {options}</code>"),
        format!("<code>portcullis audit verify {options}</code> checks the log itself"),
    ] {
        assert!(page.contains(&told), "{told}: {page}");
    }
    let (_, page) = report(&world, "r.html", &["--since", "2026-11-01"]);
    assert!(page.contains("--decision deny --since 2026-11-01T"), "{page}");
    let denied = &json_report(&world, &[])["denied"];
    assert_eq!(denied["listed"].as_array().unwrap().len(), 700);
}

/// Commands for reviewers reported requests that observe mode let pass as allowed by the rule.
#[test]
fn what_was_only_observed_is_not_said_to_be_allowed() {
    let world = World::with_policy(
        r#"
        schema = 1
        name = "observed"
        version = 1
        mode = "observe"
        [allowedPaths]
        read = ["**"]
        write = ["src/**"]
        "#,
    );
    world.write("src/a", "x").ok();
    world.write("payroll", "x").ok();
    let json = json_report(&world, &[]);
    assert_eq!((&json["denied"]["total"], &json["observed"]["total"]), (&json!(0), &json!(1)));
    let observed = &json["observed"]["listed"][0];
    assert_eq!(
        (&observed["path"], &observed["rule"]),
        (&json!("payroll"), &json!("allowedPaths.write"))
    );
    let rules = json["rules"].as_array().unwrap();
    let of = |decision: &str| rules.iter().find(|rule| rule["decision"] == decision).unwrap();
    assert_eq!((&of("observed")["records"], &of("allow")["records"]), (&json!(1), &json!(1)));
    assert!(json["gateways"]["listed"].as_array().unwrap().iter().all(|g| g["mode"] == "observe"));
    let (_, page) = report(&world, "r.html", &[]);
    for told in ["Attempts that observe mode allowed", "Gateways in observe mode"] {
        assert!(page.contains(told), "{told}");
    }
    let blame = world.run(&["audit", "blame", "payroll"]).ok();
    assert!(blame.text().contains("observed: it would be denied"), "{blame:?}");
    let blame = world.run(&["audit", "blame", "payroll", "--json"]).ok().json();
    assert_eq!(blame["changes"][0]["wouldDeny"], true);
    let session = blame["changes"][0]["session"].as_str().unwrap();
    let told = world.run(&["audit", "session", session, "--records"]).ok();
    assert!(told.text().contains("(observed: allowedPaths.write would deny it)"), "{told:?}");
    let lines = world.run(&["audit", "session", session, "--records", "--json"]).ok();
    assert!(lines.text().contains(r#""wouldDeny":true"#), "{lines:?}");
    for command in ["show", "query"] {
        let told = world.run(&["audit", command, "--path", "payroll"]).ok();
        let text = told.text();
        assert!(text.contains("observed") && !text.contains("allow "), "{told:?}");
        let told = world.run(&["audit", command, "--path", "src/a"]).ok();
        assert!(!told.text().contains("observed"), "{told:?}");
    }
}

/// A log whose directory alone was put back to an older copy was called intact.
#[test]
fn a_log_that_was_rolled_back_is_damaged_to_each_that_verifies_it() {
    let world = World::new();
    world.write("a", "one").ok();
    let (log, old) = (world.state().join("audit"), world.base().join("old"));
    let copy = std::process::Command::new("cp").arg("-a").args([&log, &old]).status().unwrap();
    assert!(copy.success());
    let receipt = receipt_of_last(&world);
    world.write("a", "two").ok();
    std::fs::rename(&log, world.base().join("new")).unwrap();
    std::fs::rename(&old, &log).unwrap();
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
    let (done, page) = report(&world, "r.html", &[]);
    assert_eq!(done.code, 5, "{done:?}");
    assert!(page.contains("The log is damaged") && page.contains("missing-head"));
    let bundle = world.base().join("b.zip");
    let done = world.run(&["audit", "bundle", "-o", bundle.to_str().unwrap()]);
    assert_eq!((done.code, bundle.exists()), (5, false), "{done:?}");
    let transcript = world.base().join("transcript");
    std::fs::write(&transcript, receipt).unwrap();
    let done = world.run(&["audit", "check-receipts", transcript.to_str().unwrap()]);
    assert_eq!(done.code, 5, "{done:?}");
}

/// The receipt of the log's last record, as `SEQ:HASH`.
fn receipt_of_last(world: &World) -> String {
    let head = &world.run(&["audit", "verify", "--json"]).ok().json()["head"];
    format!("{}:{}\n", head["seq"], head["leaf"].as_str().unwrap())
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
    assert_eq!(report["missingOutcomes"], json!([0]));
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
        if matches!(name, "!doctype" | "meta" | "br" | "wbr") || tag.ends_with('/') {
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
    assert!(page.contains("has another hash"));
    assert_eq!(report(&world, "r.txt", &[]).0.code, 2);
}

const POLICY: &str = r#"schema = 1
name = "shop"
version = VERSION
[allowedPaths]
read = ["**"]
write = ["**"]
remove = ["**"]
[secrets]
onRead = "redact"
[[secrets.rules]]
id = "token"
description = "a token"
regex = '\btok_[0-9a-z]{8}\b'
keywords = ["tok_"]
[[rules]]
id = "payments"
effect = "ask"
operations = ["write", "remove"]
paths = ["pay/**"]
"#;

const TOKEN: &str = "tok_a1b2c3d4";

/// Records of every kind that gateways make: withheld, asked, approved, rejected, and policies that
/// came and did not.
#[test]
fn secrets_approvals_and_policies_of_real_gateways_are_listed() {
    let version = |number: &str| POLICY.replace("VERSION", number);
    let world = World::with_policy(&version("1"));
    world.file("app.conf", format!("a = {TOKEN}\nb = {TOKEN}\n"));
    world.file("pay/card.ts", "one\n");
    let mut scripted_agent = ScriptedAgent::start(&world);
    receipt(&scripted_agent.ask(scripted_agent.read("app.conf")));
    let refused = scripted_agent.ask(scripted_agent.write("new.conf", &format!("x = {TOKEN}\n")));
    assert_eq!(refused["error"]["code"], -32001, "{refused}");
    for (number, count) in [("2", 1), ("1", 2)] {
        // At once: the gateway looks at half a file as well.
        replace(&world, version(number));
        let give_up = std::time::Instant::now() + TIMEOUT;
        while kinds(&world, "policy").len() < count {
            assert!(std::time::Instant::now() < give_up, "version {number} is not looked at");
            receipt(&scripted_agent.ask(scripted_agent.read("pay/card.ts")));
        }
    }
    replace(&world, version("2"));
    assert!(scripted_agent.hang_up().success());
    let child = begin(&world, &["write", "pay/card.ts"], "two\n");
    world.run(&["approve", "--yes", &id(&waiting(&world, 1)[0])]).ok();
    end(child).ok();
    let child = begin(&world, &["rm", "pay/card.ts"], "");
    world.run(&["approve", "--reject", &id(&waiting(&world, 1)[0])]).ok();
    end(child).denied("payments");

    let report = json_report(&world, &[]);
    assert_eq!(report["valid"], true);
    let secrets = &report["secrets"];
    assert_eq!(secrets["total"], 2, "{secrets}");
    let rules = json!({ "token": 2 });
    assert_eq!(
        (&secrets["listed"][0]["path"], &secrets["listed"][0]["rules"]),
        (&json!("app.conf"), &rules)
    );
    assert_eq!(
        (&secrets["listed"][1]["path"], &secrets["listed"][1]["decision"]),
        (&json!("new.conf"), &json!("deny"))
    );
    let approvals = &report["approvals"];
    let results: Vec<_> =
        approvals["listed"].as_array().unwrap().iter().map(|one| one["result"].clone()).collect();
    assert_eq!(results, [json!("once"), json!("rejected")], "{approvals}");
    let policies = report["policies"].as_array().unwrap();
    let mut versions: Vec<_> = policies.iter().map(|p| p["version"].as_u64().unwrap()).collect();
    versions.sort_unstable();
    assert_eq!(versions, [1, 2]);
    for policy in policies {
        assert_eq!((&policy["name"], &policy["textIsGenuine"]), (&json!("shop"), &json!(true)));
    }
    let changes = report["policyChanges"]["listed"].as_array().unwrap();
    assert_eq!(changes.len(), 2);
    assert_eq!((&changes[0]["result"], &changes[0]["facts"]["version"]), (&json!("ok"), &json!(2)));
    assert_eq!(changes[1]["result"], "refused");
    assert!(changes[1]["reason"].is_string() && changes[1]["sha256"].is_string(), "{changes:?}");
    // A question is neither allowed nor denied.
    let records = world.records();
    let count = |decision: &str| {
        let is = |r: &&Value| {
            r["decision"] == decision && (r["kind"] == "decision" || r["kind"] == "intent")
        };
        records.iter().filter(is).count() as u64
    };
    let sum = |field: &str| -> u64 {
        report["agents"].as_array().unwrap().iter().map(|a| a[field].as_u64().unwrap()).sum()
    };
    assert_eq!((sum("allowed"), sum("denied")), (count("allow"), count("deny")));
    assert_eq!(count("ask"), 2);
    assert_eq!(report["denied"]["total"], count("deny"));

    let (done, page) = self::report(&world, "r.html", &[]);
    done.ok();
    balanced(&page);
    for wanted in ["token (2)", "allow (once)", "(rejected)", "shop, version 2", "refused"] {
        assert!(page.contains(wanted), "{wanted}");
    }
    let session = |record: &Value| {
        let id = record["session"].as_str().unwrap();
        world.run(&["audit", "session", id, "--records"]).ok().text().to_owned()
    };
    // The gateway's own, that of the agent's connection, and a command's.
    let found = records.iter().find(|record| record["findings"].is_array()).unwrap();
    let (gateway, agent) = (session(&kinds(&world, "policy")[0]), session(found));
    let shell = session(&kinds(&world, "approval")[0]);
    assert!(agent.contains("secrets found: token (2)"), "{agent}");
    for wanted in ["shop version 2 is in force", "refused: "] {
        assert!(gateway.contains(wanted), "{wanted}: {gateway}");
    }
    for wanted in ["a person is asked because of payments", "allow (once) by ", "+two"] {
        assert!(shell.contains(wanted), "{wanted}: {shell}");
    }
    for text in [page, report.to_string(), gateway, agent, shell] {
        assert!(!text.contains(TOKEN), "{text}");
    }
}

/// A clean page was written, of no record and no denial.
#[test]
fn a_period_that_has_no_moment_is_refused() {
    let world = World::new();
    world.fs(&["read", ".env"]).denied("secrets.names[0]");
    let report = world.base().join("r.html");
    let bundle = world.base().join("b.zip");
    let commands: [&[&str]; 4] = [
        &["report", "-o", report.to_str().unwrap()],
        &["bundle", "-o", bundle.to_str().unwrap()],
        &["query"],
        &["export", "--format", "csv"],
    ];
    for command in commands {
        for until in ["2026-11-01", "2026-12-01"] {
            let period = ["--since", "2026-12-01", "--until", until];
            let done = world.run(&[&["audit"], command, &period[..]].concat());
            assert_eq!(done.code, 2, "{command:?}: {done:?}");
            assert!(done.stderr.contains("no time is from"), "{done:?}");
        }
    }
    assert!(!report.exists() && !bundle.exists());
    let far = world.run(&["audit", "query", "--json", "--until", "9999-12-31"]).ok();
    assert_eq!(far.text().lines().count(), world.records().len());
}

/// The verified report had no such change, and said nothing.
#[test]
fn a_forged_change_of_a_path_that_no_gateway_writes_was_no_change() {
    for path in ["../etc/passwd", "a/../../b", "a\0b"] {
        let world = World::new();
        write_log(&world, 3, |seq| match seq {
            0 => (Kind::Decision, decision("coder", "read", "../denied", "deny", "r")),
            1 => (
                Kind::Intent,
                Draft { result: None, ..decision("coder", "write", path, "allow", "r") },
            ),
            _ => {
                let done = decision("coder", "write", path, "allow", "r");
                (Kind::Outcome, Draft { of: Some(1), ..done })
            }
        });
        world.run(&["audit", "verify"]).ok();
        let (done, text) = report(&world, "report.json", &[]);
        assert_eq!(done.code, 5, "{done:?}");
        let report: Value = serde_json::from_str(&text).unwrap();
        let unreadable = json!(["line 2 of seg-000000.jsonl: no gateway writes its path"]);
        assert_eq!((&report["unreadableCount"], &report["unreadable"]), (&json!(1), &unreadable));
        for args in [&["audit", "session", "last"][..], &["audit", "query"]] {
            let done = world.run(args);
            assert!(
                done.code == 5 && done.stderr.contains("no gateway writes its path"),
                "{done:?}"
            );
        }
    }
}
