//! `policy diff` about hosts.

use super::policy_file;
use crate::common::{Done, World};

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
