//! `[network]`: reports to an author about the hosts that a policy lets agents connect to.

use portcullis_audit::{Draft, Kind};
use serde_json::{Value, json};

use super::policy_file;
use crate::{common::World, review::write_log};

const SITES: &str = r#"schema = 1
name = "sites"
version = 1

[[network.rules]]
id = "sites"
effect = "allow"
hosts = ["*.example.com", "10.1.2.3"]
ports = [443]

[[network.rules]]
id = "person"
effect = "ask"
hosts = ["ask.example.net"]
ports = [443]
agents = ["codex*"]

[[network.rules]]
id = "never"
effect = "deny"
hosts = ["bad.example.com"]
reason = "ask the security team"

[[tests]]
operation = "connect"
host = "www.example.com"
port = 443
expect = { effect = "allow", rule = "sites" }

[[tests]]
operation = "connect"
host = "www.example.com"
port = 443
address = "169.254.169.254"
expect = { effect = "deny", rule = "network.address" }
"#;

fn explain(world: &World, args: &[&str]) -> Value {
    world.run(&[&["policy", "explain", "connect"], args, &["--json"]].concat()).ok().json()
}

#[test]
fn explain_says_what_is_decided_on_a_host_and_an_address_of_it() {
    let mut world = World::new();
    policy_file(&world, "sites.toml", SITES);
    world.use_policy("sites.toml");
    for (args, effect, rule) in [
        (&["www.example.com:443"][..], "allow", "sites"),
        (&["WWW.example.com:443", "--address", "93.184.216.34"], "allow", "sites"),
        (&["www.example.com:443", "--address", "10.1.2.3"], "allow", "sites"),
        (&["www.example.com:443", "--address", "127.0.0.1"], "deny", "network.address"),
        (&["bad.example.com:22"], "deny", "never"),
        (&["example.com:443"], "deny", "default"),
        (&["ask.example.net:443"], "deny", "default"),
        (&["ask.example.net:443", "--agent", "codex-1"], "ask", "person"),
        (&["[::1]:443"], "deny", "default"),
    ] {
        let said = explain(&world, args);
        assert_eq!(
            (&said["decision"]["effect"], &said["decision"]["rule"]),
            (&json!(effect), &json!(rule)),
            "{said}"
        );
    }
    let said = explain(&world, &["bad.example.com:443"]);
    assert_eq!(said["decision"]["reason"], "ask the security team");
    let rules: Vec<_> =
        said["rules"].as_array().unwrap().iter().map(|rule| &rule["rule"]).collect();
    assert_eq!(rules, ["sites", "never"]);
    assert_eq!(said["rules"][1]["line"], 19);
    for bad in ["www.example.com", "user@www.example.com:443", "127.1:443", "www.example.com.:443"]
    {
        assert_eq!(world.run(&["policy", "explain", "connect", bad]).code, 2, "{bad}");
    }
    assert_eq!(world.run(&["policy", "explain", "read", "a", "--address", "::1"]).code, 2);
}

#[test]
fn tests_of_connections_run_at_load_and_count_for_their_rules() {
    let mut world = World::new();
    policy_file(&world, "sites.toml", SITES);
    world.use_policy("sites.toml");
    let tested = world.run(&["policy", "test", "sites.toml", "--json"]).ok().json();
    let coverage = tested.to_string();
    assert!(coverage.contains("\"sites\"") && coverage.contains("\"never\""), "{tested}");
    let wrong = SITES.replace("rule = \"network.address\"", "rule = \"never\"");
    policy_file(&world, "wrong.toml", &wrong);
    let checked = world.run(&["policy", "check", "wrong.toml"]);
    assert_eq!(checked.code, 4);
    assert!(checked.stderr.contains("`network.address`"), "{checked:?}");
    // The same in a file of tests, which no load of the policy runs.
    policy_file(
        &world,
        "more.test.toml",
        "schema = 1\n[[tests]]\noperation = \"connect\"\nhost = \"bad.example.com\"\nport = 443\n\
         expect = { effect = \"deny\", rule = \"never\" }\n",
    );
    world.run(&["policy", "test", "sites.toml", "more.test.toml"]).ok();
}

/// Once data was read, hosts are closed but for one.
const LABELS: &str = r#"
[[labels]]
id = "data"
paths = ["data/**"]

[[network.rules]]
id = "after-data"
effect = "deny"
hosts = ["*"]
except = ["model.example.com"]
whenRead = ["data"]

[[tests]]
operation = "connect"
host = "www.example.com"
port = 443
whenRead = ["data"]
expect = { effect = "deny", rule = "after-data" }

[[tests]]
operation = "connect"
host = "model.example.com"
port = 443
whenRead = ["data"]
expect = { effect = "allow", rule = "sites" }
"#;

#[test]
fn labels_are_tested_explained_linted_and_only_narrowed() {
    let mut world = World::new();
    policy_file(&world, "base.toml", &format!("{SITES}{LABELS}"));
    let rule = |read: &str, expect: &str| {
        format!(
            "schema = 1\n[[tests]]\noperation = \"connect\"\nhost = \"www.example.com\"\nport = 443\n\
             whenRead = [\"{read}\"]\nexpect = {{ effect = \"{expect}\" }}\n"
        )
    };
    policy_file(&world, "good.test.toml", &rule("data", "deny"));
    world.run(&["policy", "test", "base.toml", "good.test.toml"]).ok();
    policy_file(&world, "bad.test.toml", &rule("dota", "allow"));
    assert_eq!(world.run(&["policy", "test", "base.toml", "bad.test.toml"]).code, 4);
    let child = "schema = 1\nextends = [\"./base.toml\"]\n\
        [[labels]]\nid = \"data\"\npaths = [\"more/**\"]\n\
        [[labels]]\nid = \"idle\"\npaths = [\"idle/**\"]\n\
        [[network.rules]]\nid = \"also\"\neffect = \"ask\"\nhosts = [\"*\"]\nwhenRead = [\"data\"]\n\
        except = [\"www.example.com\"]\n";
    policy_file(&world, "child.toml", child);
    world.use_policy("child.toml");
    for (host, read, rule) in [
        ("www.example.com:443", "src/a", "sites"),
        ("www.example.com:443", "data/a", "after-data"),
        ("www.example.com:443", "more/a", "after-data"),
        ("model.example.com:443", "more/a", "also"),
    ] {
        let said = explain(&world, &[host, "--read", "README", "--read", read]);
        assert_eq!(said["decision"]["rule"], rule, "{host} {read}");
    }
    let text = world.run(&["policy", "explain", "connect", "www.example.com:443"]).ok();
    assert!(text.text().contains("would apply once content labelled `data` was read"));
    assert_eq!(world.run(&["policy", "explain", "read", "a", "--read", "b"]).code, 2);
    let linted = world.run(&["policy", "lint", "child.toml", "--json"]).json().to_string();
    assert!(linted.contains("unused-label") && linted.contains("`idle`"), "{linted}");
    policy_file(&world, "sites.toml", SITES);
    let differs = world.run(&["policy", "diff", "base.toml", "sites.toml", "--json"]);
    let differs = differs.json().to_string();
    assert!(differs.contains("\"labels\"") && differs.contains("after-data"), "{differs}");
}

#[test]
fn a_policy_that_extends_another_one_opens_no_host() {
    let world = World::new();
    policy_file(&world, "sites.toml", SITES);
    let wider = "schema = 1\nextends = [\"./sites.toml\"]\n[[network.rules]]\nid = \"all\"\n\
        effect = \"allow\"\nhosts = [\"*\"]\nports = [22, 443]\n";
    policy_file(&world, "wider.toml", wider);
    let decided = |policy: &str, host: &str| {
        let args = ["policy", "explain", "connect", host, "--policy", policy, "--json"];
        world.run(&args).ok().json()["decision"]["rule"].as_str().unwrap().to_owned()
    };
    assert_eq!(decided("wider.toml", "www.example.com:443"), "all");
    for (host, rule) in [
        ("www.example.com:22", "default"),
        ("other.example:443", "default"),
        ("bad.example.com:443", "never"),
    ] {
        assert_eq!(decided("wider.toml", host), rule, "{host}");
    }
    let open = "schema = 1\nextends = [\"strict\"]\n[[network.rules]]\nid = \"all\"\n\
        effect = \"allow\"\nhosts = [\"*\"]\nports = [443]\n";
    policy_file(&world, "open.toml", open);
    assert_eq!(decided("open.toml", "www.example.com:443"), "no-network");
    // Openings are reported, and closings are not.
    let all = wider.replace("extends = [\"./sites.toml\"]\n", "");
    policy_file(&world, "all.toml", &all);
    let diff = |old: &str, new: &str| {
        world.run(&["policy", "diff", old, new, "--no-new-access", "--json"])
    };
    assert_eq!(diff("sites.toml", "all.toml").code, 4);
    assert_eq!(diff("all.toml", "wider.toml").code, 0);
}

#[test]
fn hosts_that_many_people_share_are_linted() {
    let world = World::new();
    let text = SITES.replace("\"10.1.2.3\"", "\"10.1.2.3\", \"*.github.io\"");
    policy_file(&world, "shared.toml", &text);
    let found = world.run(&["policy", "lint", "shared.toml", "--json", "--no-tree"]).json();
    let ids = found.to_string();
    for id in ["shared-host", "unroutable-host"] {
        assert!(ids.contains(id), "{found}");
    }
    // `policy check` warns of rules that protect less than they seem to.
    let warned = world.run(&["policy", "check", "shared.toml"]).ok();
    assert!(warned.stderr.contains("warning[shared-host]"), "{warned:?}");
}

#[test]
fn denied_hosts_are_learned_and_denied_ones_stay() {
    let mut world = World::new();
    policy_file(&world, "sites.toml", SITES);
    world.use_policy("sites.toml");
    let hosts = [
        ("packages.example.org", 443),
        ("packages.example.org", 443),
        ("mirror.example.org", 443),
        ("git.example.org", 22),
        ("bad.example.com", 443),
        ("10.9.9.9", 443),
    ];
    write_log(&world, 6, |seq| {
        let (host, port) = hosts[usize::try_from(seq).unwrap()];
        let facts = [("host".to_owned(), json!(host)), ("port".to_owned(), json!(port))];
        let draft = Draft {
            session: Some("s".to_owned()),
            agent: Some("codex".to_owned()),
            transport: Some("proxy".to_owned()),
            op: Some("connect".to_owned()),
            decision: Some("deny".to_owned()),
            rule: Some("default".to_owned()),
            result: Some("denied".to_owned()),
            facts: Some(facts.into()),
            ..Draft::default()
        };
        (Kind::Decision, draft)
    });
    let learned = world.run(&["policy", "learn", "--json"]).ok().json();
    let found: Vec<_> = learned["hosts"].as_array().unwrap().iter().collect();
    let said =
        |host: &Value| (host["host"].clone(), host["port"].clone(), host["requests"].clone());
    let found: Vec<_> = found.into_iter().map(said).collect();
    let wanted = [
        ("git.example.org", 22, 1),
        ("mirror.example.org", 443, 1),
        ("packages.example.org", 443, 2),
    ];
    assert_eq!(found, wanted.map(|(host, port, times)| (json!(host), json!(port), json!(times))));
    assert_eq!(learned["stillDenied"]["never"], 1, "{learned}");
    let diff = world.run(&["policy", "learn"]).ok();
    let added: String = diff
        .text()
        .lines()
        .filter_map(|line| line.strip_prefix('+').filter(|_| !line.starts_with("+++")))
        .fold(String::new(), |text, line| text + line + "\n");
    policy_file(&world, "learned.toml", &format!("{SITES}{added}"));
    world.use_policy("learned.toml");
    assert_eq!(explain(&world, &["git.example.org:22"])["decision"]["rule"], "learned-22");
    assert_eq!(explain(&world, &["git.example.org:443"])["decision"]["rule"], "default");
    let again = world.run(&["policy", "learn", "--json"]).ok().json();
    assert_eq!(again["hosts"].as_array().unwrap().len(), 0, "{again}");
}

/// Connections of a log were left out.
#[test]
fn a_replay_decides_connections_again_by_their_names() {
    let world = World::new();
    policy_file(&world, "sites.toml", SITES);
    let open = SITES.replace("\"*.example.com\", \"10.1.2.3\"", "\"*.example.org\"");
    policy_file(&world, "other.toml", open.split("[[tests]]").next().unwrap());
    // The host, the effect and the rule, and whether it was about the address.
    let asked = [
        ("www.example.com", "allow", "sites", false),
        ("www.example.com", "deny", "network.address", true),
        ("www.example.org", "deny", "default", false),
        ("www.example.org", "deny", "default", false),
        ("bad.example.com", "deny", "never", false),
        ("cdn.example.com", "deny", "network.limits.connections", true),
    ];
    write_log(&world, 6, |seq| {
        let (host, effect, rule, has_address) = asked[usize::try_from(seq).unwrap()];
        let mut facts = vec![("host".to_owned(), json!(host)), ("port".to_owned(), json!(443))];
        facts.extend(has_address.then(|| ("address".to_owned(), json!("10.0.0.1"))));
        let draft = Draft {
            agent: Some("codex".to_owned()),
            op: Some("connect".to_owned()),
            decision: Some(effect.to_owned()),
            rule: Some(rule.to_owned()),
            facts: Some(facts.into_iter().collect()),
            ..Draft::default()
        };
        (Kind::Decision, draft)
    });
    let found = world.run(&["policy", "replay", "other.toml", "--json"]).ok().json();
    let counts = (&found["requests"], &found["same"], &found["changed"]);
    // Connections that were denied for an address or a limit are denied by name now.
    assert_eq!(counts, (&json!(6), &json!(3), &json!(3)), "{found}");
    let changes = found["changes"].as_array().unwrap().iter();
    let changes: Vec<_> =
        changes.map(|c| (&c["operation"], &c["path"], &c["new"]["rule"])).collect();
    let connect = json!("connect");
    let changed = [(&connect, &json!("www.example.org:443"), &json!("sites"))];
    assert_eq!(changes[..1], changed);
    assert_eq!(changes[1].1, "www.example.com:443");
    let found = world.run(&["policy", "replay", "sites.toml", "--json"]).ok().json();
    assert_eq!((&found["same"], &found["changed"]), (&json!(4), &json!(0)), "{found}");
    assert_eq!(
        found["undecided"],
        json!({ "network.address": 1, "network.limits.connections": 1 })
    );
}

/// Labels were looked up by session, but a read and a connection of one sandbox have different
/// sessions, and labels of another workspace's log were not seen. A denial for a credential was
/// decided again.
#[test]
fn a_replay_knows_the_labels_that_a_sandbox_carried() {
    let world = World::new();
    let text = "schema = 1\nname = \"p\"\nversion = 1\n[[labels]]\nid = \"data\"\n\
                paths = [\"data/**\"]\n[[network.rules]]\nid = \"site\"\neffect = \"allow\"\n\
                hosts = [\"a.example\"]\nports = [443]\n[[network.rules]]\nid = \"closed\"\n\
                effect = \"deny\"\nhosts = [\"*\"]\nwhenRead = [\"data\"]\n";
    policy_file(&world, "labels.toml", text);
    let read = json!({ "data": { "record": 7, "path": "data/x", "boot": "other" } });
    let records = [
        ("label", "one", "", Some(("labels", json!({ "data": "data/x" })))),
        ("connect", "one", "closed", None),
        ("connect", "two", "site", None),
        ("connect", "two", "closed", Some(("whenRead", read))),
        ("connect", "two", "network.credentials", None),
    ];
    write_log(&world, 5, |seq| {
        let (op, boot, rule, fact) = records[usize::try_from(seq).unwrap()].clone();
        let effect = if rule == "site" { "allow" } else { "deny" };
        let mut facts =
            vec![("host".to_owned(), json!("a.example")), ("port".to_owned(), json!(443))];
        facts.extend(fact.map(|(name, value)| (name.to_owned(), value)));
        let draft = Draft {
            boot: Some(boot.to_owned()),
            session: Some(format!("session {seq}")),
            agent: Some("codex".to_owned()),
            op: Some(op.to_owned()),
            decision: Some(effect.to_owned()).filter(|_| op == "connect"),
            rule: Some(rule.to_owned()).filter(|_| op == "connect"),
            facts: Some(facts.into_iter().collect()),
            ..Draft::default()
        };
        (Kind::Decision, draft)
    });
    let found = world.run(&["policy", "replay", "labels.toml", "--json"]).ok().json();
    assert_eq!((&found["same"], &found["changed"]), (&json!(3), &json!(0)), "{found}");
    assert_eq!(found["undecided"], json!({ "network.credentials": 1 }));
}

/// Only what a gateway had labelled counted, not what the policy that was tried labels; and nothing
/// counted what labels would close if they were carried on.
#[test]
fn a_replay_labels_what_was_read_and_counts_what_carrying_labels_on_would_close() {
    let world = World::new();
    let text = "schema = 1\nname = \"p\"\nversion = 1\n[[labels]]\nid = \"data\"\n\
                paths = [\"data/**\"]\n[[network.rules]]\nid = \"site\"\neffect = \"allow\"\n\
                hosts = [\"a.example\", \"model.example\"]\nports = [443]\n[[network.rules]]\n\
                id = \"closed\"\neffect = \"deny\"\nhosts = [\"*\"]\n\
                except = [\"model.example\"]\nwhenRead = [\"data\"]\n";
    policy_file(&world, "labels.toml", text);
    // Boot, agent, operation and its subject.
    let records = [
        ("1", "a", "connect", "a.example", ""),
        ("1", "a", "read", "data/x", ""),
        ("1", "a", "connect", "a.example", ""),
        ("1", "a", "write", "data/y", ""),
        ("1", "a", "write", "tmp", ""),
        ("1", "a", "rename", "tmp", "out.md"),
        // The agent's next session has read nothing yet.
        ("2", "a", "connect", "a.example", ""),
        ("2", "a", "connect", "model.example", ""),
        ("2", "a", "read", "out.md", ""),
        ("2", "a", "connect", "a.example", ""),
        // Another agent's session reads what the first one wrote, and one does not.
        ("3", "b", "read", "README", ""),
        ("3", "b", "connect", "a.example", ""),
        ("4", "c", "rename", "out.md", "moved.md"),
        ("4", "c", "write", "out.md", ""),
        ("4", "c", "read", "out.md", ""),
        ("4", "c", "connect", "a.example", ""),
        ("4", "c", "edit", "moved.md", ""),
        ("4", "c", "connect", "a.example", ""),
        ("4", "c", "write", "kept.md", ""),
        ("5", "d", "remove", "moved.md", ""),
        ("5", "d", "write", "moved.md", ""),
        ("5", "d", "read", "moved.md", ""),
        ("5", "d", "connect", "a.example", ""),
        // An exchange shows what had the other name.
        ("6", "e", "exchange", "other.md", "data/x"),
        ("6", "e", "connect", "a.example", ""),
    ];
    write_log(&world, records.len() as u64, |seq| {
        let (boot, agent, op, subject, to) = records[usize::try_from(seq).unwrap()];
        let (is_connect, is_exchange) = (op == "connect", op == "exchange");
        let op = if is_exchange { "rename" } else { op };
        let connection = [("host".to_owned(), json!(subject)), ("port".to_owned(), json!(443))];
        let exchange = [("exchange".to_owned(), json!(true))];
        let named = |path: &str| Some(path.to_owned()).filter(|path| !path.is_empty());
        let is_change = !["connect", "read"].contains(&op);
        let draft = Draft {
            boot: Some(boot.to_owned()),
            session: Some(format!("session {seq}")),
            agent: Some(agent.to_owned()),
            op: Some(op.to_owned()),
            path: named(subject).filter(|_| !is_connect),
            to: named(to),
            decision: Some("allow".to_owned()),
            rule: Some("site".to_owned()),
            result: Some("ok".to_owned()).filter(|_| op == "read"),
            facts: is_connect
                .then(|| connection.into_iter().collect())
                .or_else(|| is_exchange.then(|| exchange.into_iter().collect())),
            ..Draft::default()
        };
        (if is_change { Kind::Intent } else { Kind::Decision }, draft)
    });
    let found = world.run(&["policy", "replay", "labels.toml", "--json"]).ok().json();
    let changes = |list: &Value| {
        let list = list["changes"].as_array().unwrap().iter();
        let list = list.filter(|change| change["operation"] == "connect");
        list.map(|change| json!([change["agent"], change["records"], change["first"]])).collect()
    };
    let enforced: Vec<_> = changes(&found);
    assert_eq!(enforced, [json!(["a", 1, 2]), json!(["e", 1, 24])], "{found}");
    let counts = |to: &str| {
        let found = &found["propagation"][to];
        let listed: Vec<_> = changes(found);
        (json!([found["files"], found["sandboxes"], found["connections"]]), listed)
    };
    let by_files = [json!(["a", 1, 9]), json!(["c", 1, 17])];
    assert_eq!(counts("files"), (json!([1, 2, 2]), by_files.to_vec()), "{found}");
    let by_sessions = [json!(["a", 2, 6]), json!(["c", 1, 17])];
    assert_eq!(counts("sessions"), (json!([1, 2, 3]), by_sessions.to_vec()), "{found}");
    let text = world.run(&["policy", "replay", "labels.toml"]).ok();
    assert!(text.text().contains("       3 connections would be restricted"), "{text:?}");
    // A policy without labels has none to carry on.
    policy_file(&world, "sites.toml", SITES);
    let found = world.run(&["policy", "replay", "sites.toml", "--json"]).ok().json();
    assert_eq!(found["propagation"], Value::Null);
}

/// The rest of a domain stayed open beneath `*`, and nothing said so.
#[test]
fn a_check_warns_of_denials_that_leave_a_part_of_a_domain_open() {
    let world = World::new();
    let warned = |hosts: &str, denied: &str| {
        let text = format!(
            "schema = 1\nname = \"p\"\nversion = 1\n[[network.rules]]\nid = \"a\"\neffect = \"allow\"\n\
             hosts = [{hosts}]\nports = [443]\n[[network.rules]]\nid = \"d\"\neffect = \"deny\"\n\
             hosts = [{denied}]\n"
        );
        policy_file(&world, "p.toml", &text);
        let checked = world.run(&["policy", "check", "p.toml", "--json"]).ok().json();
        let warnings = checked["policies"][0]["warnings"].as_array().unwrap().clone();
        let said = |found: &Value| found["id"].as_str().unwrap().to_owned();
        warnings.iter().map(said).collect::<Vec<_>>()
    };
    let [any, partly] = ["any-host", "partly-denied-host"];
    assert_eq!(warned("\"*\"", "\"paste.example\""), [any, partly]);
    assert_eq!(warned("\"*\"", "\"*.paste.example\""), [any, partly]);
    assert_eq!(warned("\"*\"", "\"paste.example\", \"*.paste.example\""), [any]);
    assert_eq!(warned("\"*.co.uk\"", "\"other.example\""), [any]);
    assert_eq!(warned("\"*.shop.co.uk\"", "\"other.example\""), [""; 0]);
}
