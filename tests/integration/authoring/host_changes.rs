//! `policy diff` and `policy learn` about hosts: what opens, and what a log shows to be needed.

use portcullis_audit::{Draft, Kind};
use serde_json::{Value, json};

use super::policy_file;
use crate::{
    common::{Done, World},
    review::write_log,
};

fn rule(id: &str, effect: &str, hosts: &str, rest: &str) -> String {
    format!("[[network.rules]]\nid = \"{id}\"\neffect = \"{effect}\"\nhosts = [{hosts}]\n{rest}\n")
}

fn diff(world: &World, old: &str, new: &str) -> Done {
    for (side, text) in [("old", old), ("new", new)] {
        policy_file(world, &format!("{side}.toml"), &format!("schema = 1\n{text}"));
    }
    world.run(&["policy", "diff", "old.toml", "new.toml", "--no-new-access"])
}

/// Rules that went away counted as closing where nothing was left that allows, although a preset's
/// hosts are allowed there.
#[test]
fn rules_that_go_away_open_the_hosts_of_a_preset() {
    let world = World::new();
    let all = rule("all", "deny", "\"*\"", "");
    let one = rule("one", "deny", "\"a.example\"", "");
    let site = rule("site", "allow", "\"x.example\"", "ports = [443]");
    let person = rule("person", "ask", "\"x.example\"", "ports = [443]");
    for (old, new) in [
        (all.clone(), String::new()),
        (one.clone(), String::new()),
        (all.clone(), one.clone()),
        (site.clone(), String::new()),
        (person.clone(), String::new()),
        (site.clone(), one.clone()),
        (format!("{site}{all}"), String::new()),
    ] {
        let done = diff(&world, &old, &new);
        assert_eq!(done.code, 4, "{old} -> {new}: {done:?}");
        assert!(done.text().contains("becomes allowed:\n  setting network.rules"), "{done:?}");
    }
    let done = diff(&world, &site, "");
    assert!(done.text().contains("site allow x.example:443 -> the hosts of a preset"), "{done:?}");
    let wider = one.replace("\"a.example\"", "\"a.example\", \"b.example\"");
    for (old, new) in [
        (String::new(), all.clone()),
        // What is left closes as much.
        (one.clone(), all.clone()),
        (one.clone(), one.replace("\"one\"", "\"other\"")),
        (one, wider),
        (site.clone(), all.clone()),
        (format!("{site}{person}"), format!("{all}{site}")),
    ] {
        let done = diff(&world, &old, &new);
        assert_eq!(done.code, 0, "{old} -> {new}: {done:?}");
    }
}

/// A file that was added beside the ones that allowed hosts counted as opening its own.
#[test]
fn a_file_that_only_narrows_hosts_opens_none() {
    let world = World::new();
    let base = rule("e", "allow", "\"*.example\"", "ports = [443]");
    policy_file(&world, "base.toml", &format!("schema = 1\n{base}"));
    let extends = "extends = [\"./base.toml\"]\n";
    let narrow = rule("n", "allow", "\"a.example\", \"b.com\"", "ports = [443, 80]");
    let narrow = format!("{extends}{narrow}");
    assert_eq!(diff(&world, extends, &narrow).code, 0);
    for host in ["b.com:443", "a.example:80"] {
        let args = ["policy", "explain", "connect", host, "--policy", "new.toml", "--json"];
        assert_eq!(world.run(&args).ok().json()["decision"]["effect"], "deny", "{host}");
    }
    assert_eq!(diff(&world, &narrow, extends).code, 4);
    let other = narrow.replace("b.com", "c.example");
    assert_eq!(diff(&world, &narrow, &other).code, 4);
    // The same rules in one file allow what either allows.
    let rules = narrow.replace(extends, "");
    assert_eq!(diff(&world, &narrow, &rules).code, 4);
    let done = diff(&world, &narrow, &format!("{base}{rules}"));
    assert_eq!(done.code, 4, "{done:?}");
    assert!(done.text().contains("-> the same rules in other files"), "{done:?}");
}

/// `*` allows no address for private use, but counted as if it did.
#[test]
fn a_rule_that_names_addresses_opens_beside_one_for_every_host() {
    let world = World::new();
    let all = rule("all", "allow", "\"*\", \"0.0.0.0/0\"", "ports = [443]");
    let named = all.replace("\"*\"", "\"*\", \"10.0.0.0/8\"");
    assert_eq!(diff(&world, &all, &named).code, 4);
    assert_eq!(diff(&world, &named, &all).code, 0);
    assert_eq!(diff(&world, &named, &named.replace("10.0.0.0/8", "10.1.0.0/16")).code, 0);
}

/// A log of connections: the host, the effect, the rule and the address, if that was decided on.
/// Denials by default are those of a policy that observed.
fn connections(world: &World, asked: &[(&str, &str, &str, Option<&str>)]) {
    write_log(world, asked.len() as u64, |seq| {
        let (host, effect, rule, address) = asked[usize::try_from(seq).unwrap()];
        let mut facts = vec![("host".to_owned(), json!(host)), ("port".to_owned(), json!(443))];
        facts.extend(address.map(|address| ("address".to_owned(), json!(address))));
        let draft = Draft {
            agent: Some("codex".to_owned()),
            op: Some("connect".to_owned()),
            decision: Some(effect.to_owned()),
            would_deny: (rule == "default").then_some(true),
            rule: Some(rule.to_owned()),
            facts: Some(facts.into_iter().collect()),
            ..Draft::default()
        };
        (Kind::Decision, draft)
    });
}

/// A name was proposed although its address is refused, each attempt counted twice, the hosts were
/// not among the requests, and those that are allowed by now counted as opened.
#[test]
fn learn_proposes_no_name_whose_address_is_refused_and_counts_an_attempt_once() {
    let mut world = World::new();
    let site = rule("site", "allow", "\"now.example\"", "ports = [443]");
    policy_file(&world, "p.toml", &format!("schema = 1\n{site}"));
    world.use_policy("p.toml");
    let refused = "network.address";
    connections(
        &world,
        &[
            ("now.example", "allow", "default", None),
            ("open.example", "allow", "default", None),
            ("open.example", "allow", "default", None),
            ("private.example", "allow", "default", None),
            ("private.example", "deny", refused, Some("10.0.0.1")),
            ("own.example", "allow", "default", None),
            ("own.example", "deny", refused, Some("93.184.216.34")),
            // A limit says nothing about the host.
            ("busy.example", "allow", "default", None),
            ("busy.example", "deny", "network.limits.connections", Some("93.184.216.35")),
        ],
    );
    let learned = world.run(&["policy", "learn", "--json"]).ok().json();
    let said = |host: &Value| json!([host["host"], host["requests"], host["example"]]);
    let hosts: Vec<_> = learned["hosts"].as_array().unwrap().iter().map(said).collect();
    assert_eq!(hosts, [json!(["busy.example", 1, 7]), json!(["open.example", 2, 1])], "{learned}");
    assert_eq!((&learned["requests"], &learned["allowedNow"]), (&json!(6), &json!(1)));
    assert_eq!(learned["stillDenied"], json!({ "network.address": 2 }));
    let text = world.run(&["policy", "learn"]).ok();
    insta::assert_snapshot!(text.stderr, @r"
    note: the log was not verified; `portcullis audit verify` does that
    6 requests read; 0 patterns and 0 extensions to allow
      2 hosts to allow
      `own.example:443` is left out (record 5): `network.address` denies an address that it had
      `private.example:443` is left out (record 3): `network.address` denies an address that it had
      1 are allowed by now
      with the proposal, `network.address` denies 2
    with the proposal, 3 more of the recorded requests are allowed
      what is listed is allowed to every agent, not only to the one that requested it
    ");
    let patch = text.text();
    assert!(!patch.contains("private.example") && !patch.contains("own.example"), "{patch}");
    // A rule that names the address lets the name through.
    let named = rule("lan", "allow", "\"now.example\", \"10.0.0.0/8\"", "ports = [443]");
    policy_file(&world, "p.toml", &format!("schema = 1\n{named}"));
    let learned = world.run(&["policy", "learn", "--json"]).ok().json();
    let hosts: Vec<_> = learned["hosts"].as_array().unwrap().iter().map(said).collect();
    assert!(hosts.contains(&json!(["private.example", 1, 3])), "{learned}");
    assert_eq!(learned["stillDenied"], json!({ "network.address": 1 }));
}

/// No rule of hosts opens a host that a credential alone reaches, but one was proposed.
#[test]
fn learn_proposes_no_host_that_a_credential_alone_reaches() {
    let mut world = World::new();
    policy_file(&world, "p.toml", "schema = 1\n");
    world.use_policy("p.toml");
    let rule = "network.credentials";
    connections(&world, &[("model.example", "deny", rule, None)]);
    let learned = world.run(&["policy", "learn", "--json"]).ok().json();
    assert_eq!((&learned["hosts"], &learned["requests"]), (&json!([]), &json!(1)), "{learned}");
    assert_eq!(learned["stillDenied"], json!({ rule: 1 }));
}
