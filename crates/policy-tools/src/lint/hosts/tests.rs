//! Findings about rules of hosts.

use super::*;
use crate::{
    outline::outline,
    policy::{PolicySource, compile},
};

fn found(text: &str) -> Vec<(&'static str, String)> {
    let location = |finding: &Finding| {
        let text = format!("schema = 1\n{text}");
        text.get(finding.span.clone()).unwrap().to_owned()
    };
    findings(text).iter().map(|finding| (finding.id, location(finding))).collect()
}

fn findings(text: &str) -> Vec<Finding> {
    let source = PolicySource::from_text("p", &format!("schema = 1\n{text}"));
    let (policy, outline) = (compile(&source).unwrap(), outline(&source));
    let mut found = Vec::new();
    lint(Subject::new(&policy, &outline), &mut found);
    found
}

fn rule(id: &str, effect: &str, hosts: &str) -> String {
    format!(
        "[[network.rules]]\nid = \"{id}\"\neffect = \"{effect}\"\nhosts = [{hosts}]\nports = [443]\n"
    )
}

#[test]
fn hosts_of_many_people_are_told() {
    for (host, id) in [
        ("*.github.io", "shared-host"),
        ("*.windows.net", "shared-host"),
        ("d111.cloudfront.net", "shared-host"),
        ("*.s3.amazonaws.com", "shared-host"),
        ("webhook.site", "shared-host"),
        ("github.com", "shared-host"),
        ("*", "any-host"),
        ("*.com", "any-host"),
        ("*.co.uk", "any-host"),
        ("0.0.0.0/0", "any-host"),
        ("10.0.0.0/8", "unroutable-host"),
        ("127.0.0.1", "unroutable-host"),
    ] {
        let text = rule("x", "allow", &format!("\"{host}\""));
        assert_eq!(found(&text), [(id, format!("\"{host}\""))]);
        assert_eq!(found(&rule("x", "deny", &format!("\"{host}\""))), []);
    }
    let fine = "\"my.github.io\", \"*.my.github.io\", \"*.example.com\", \"*.shop.co.uk\", \"93.184.216.0/24\"";
    assert_eq!(found(&rule("x", "allow", fine)), []);
}

/// A rule that asks was told to ask.
#[test]
fn a_rule_that_asks_was_advised_to_ask_a_person() {
    for host in ["\"*\"", "\"github.com\""] {
        for (effect, advises) in [("allow", true), ("ask", false)] {
            let found = findings(&rule("x", effect, host));
            assert_eq!(found.len(), 1, "{host} {effect}");
            assert_eq!(found[0].suggestion.contains("ask a person"), advises, "{host} {effect}");
        }
    }
}

#[test]
fn rules_that_change_nothing_are_told() {
    let two = |first: (&str, &str), second: (&str, &str)| {
        found(&[rule("a", first.0, first.1), rule("b", second.0, second.1)].concat())
    };
    let (all, one) = ("\"*.example.com\"", "\"a.example.com\"");
    let finding = |id, rule: &str| [(id, format!("\"{rule}\""))];
    assert_eq!(two(("deny", all), ("allow", one)), finding("unreachable-rule", "b"));
    assert_eq!(two(("allow", one), ("deny", all)), finding("unreachable-rule", "a"));
    assert_eq!(two(("allow", all), ("allow", one)), finding("shadowed-rule", "b"));
    assert_eq!(two(("allow", one), ("allow", all)), finding("shadowed-rule", "a"));
    assert_eq!(two(("allow", one), ("allow", one)), finding("shadowed-rule", "b"));
    assert_eq!(two(("ask", all), ("allow", one)), finding("shadowed-rule", "b"));
    assert_eq!(two(("allow", all), ("deny", "\"a.example.com\", \"*.a.example.com\"")), []);
    assert_eq!(two(("allow", all), ("ask", one)), []);
    let label = "[[labels]]\nid = \"l\"\npaths = [\"data/**\"]\n";
    let read = [rule("a", "deny", "\"*\""), "whenRead = [\"l\"]\n".to_owned()].concat();
    assert_eq!(found(&[&read, &rule("b", "allow", one), label].concat()), []);
}

/// It was told to be a denial that leaves open what it asks about itself, and not told of where it
/// changes nothing. A denial after a read hid what is open before it.
#[test]
fn a_question_after_a_read_was_taken_for_a_denial() {
    let labels = ["l", "m"].map(|id| format!("[[labels]]\nid = \"{id}\"\npaths = [\"{id}\"]\n"));
    let all = |rules: &[&str]| {
        let mut found = found(&[&labels.concat(), &*rules.concat()].concat());
        found.retain(|(id, _)| *id != "any-host");
        found.into_iter().map(|(id, place)| format!("{id} {place}")).collect::<Vec<_>>()
    };
    let after = |read: &str, id: &str, effect: &str, hosts: &str| {
        format!("{}whenRead = [{read}]\n", rule(id, effect, hosts))
    };
    let (name, beneath) = ("\"paste.example\"", "\"*.paste.example\"");
    let (one, two) = ("\"l\"", "\"l\", \"m\"");
    let both = format!("{name}, {beneath}");
    let (open, none) = (&*rule("open", "allow", "\"*\""), &[""; 0]);
    let partly = ["partly-denied-host \"paste.example\""];
    let asks = &*after(one, "asks", "ask", name);
    assert_eq!(all(&[open, asks]), partly);
    assert_eq!(all(&[open, &after(one, "asks", "ask", &both)]), none);
    let other = ["partly-denied-host \"*.paste.example\""];
    assert_eq!(all(&[open, asks, &rule("d", "deny", beneath)]), other);
    // It allows nothing.
    let denied = &*rule("denied", "deny", name);
    assert_eq!(all(&[&after(one, "asks", "ask", "\"*\""), denied]), none);
    // What is denied after a read is open before it.
    assert_eq!(all(&[open, denied, &after(one, "later", "deny", beneath)]), partly);

    let useless = ["shadowed-rule \"asks\""];
    assert_eq!(all(&[asks, denied]), useless);
    let wide = &*after(two, "wide", "deny", "\"*\"");
    assert_eq!(all(&[asks, wide]), useless);
    assert_eq!(all(&[&after(two, "asks", "ask", name), &after(one, "d", "deny", name)]), none);
    let exempt = format!("except = [{name}]\n");
    assert_eq!(all(&[asks, wide, &exempt]), none);
    assert_eq!(all(&[asks, &exempt, wide, &exempt]), ["denies-nothing \"asks\""]);
    // An approval from before the read does not cover the question after it.
    assert_eq!(all(&[&rule("before", "ask", name), asks]), none);
}

#[test]
fn denials_that_leave_a_part_of_a_domain_open_are_told() {
    let two = |effect: &str, hosts: &str, denied: &str| {
        found(&[rule("a", effect, hosts), rule("b", "deny", denied)].concat())
    };
    let finding = |host: &str| [("partly-denied-host", format!("\"{host}\""))];
    let (name, beneath) = ("\"paste.example\"", "\"*.paste.example\"");
    for effect in ["allow", "ask"] {
        let open = two(effect, "\"*\"", name);
        assert_eq!(open[1..], finding("paste.example"), "{effect}");
        assert_eq!(two(effect, "\"*\"", beneath)[1..], finding("*.paste.example"), "{effect}");
        assert_eq!(two(effect, "\"*\"", &format!("{name}, {beneath}")).len(), 1);
    }
    // Nothing lets these through.
    assert_eq!(two("allow", "\"other.example\"", name), []);
    assert_eq!(two("allow", "\"93.184.216.0/24\"", "\"93.184.216.34\""), []);
    let other = rule("a", "allow", "\"*.example\"").replace("443", "80");
    let denied = format!("{other}{}", rule("b", "deny", name));
    assert_eq!(found(&denied)[1..], [("denies-nothing", "\"b\"".to_owned())]);
    let observe = format!("[network]\nmode = \"observe\"\n{}", rule("b", "deny", name));
    assert_eq!(found(&observe), finding("paste.example"));
}

/// They passed for denials, and each connection that they were about was allowed.
#[test]
fn a_denial_at_ports_that_are_not_allowed_had_no_finding() {
    let allow = rule("allowed", "allow", "\"*.example.com\"");
    let label = "[[labels]]\nid = \"customers\"\npaths = [\"data/**\"]\n";
    let denied = |more: &str| {
        let deny =
            "[[network.rules]]\nid = \"denied\"\neffect = \"deny\"\nwhenRead = [\"customers\"]\n";
        let found = found(&format!("{label}{allow}{deny}{more}"));
        found.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(denied("hosts = [\"*\"]\nports = [80]\n"), ["denies-nothing"]);
    assert_eq!(denied("hosts = [\"*\"]\nexcept = [\"*\"]\n"), ["denies-nothing"]);
    assert_eq!(denied("hosts = [\"*\"]\n"), [""; 0]);
    assert_eq!(denied("hosts = [\"*.other.org\"]\nports = [80]\n"), [""; 0]);
}

/// They passed for denials of everything.
#[test]
fn denials_of_one_address_or_of_ipv4_alone_had_no_finding() {
    let label = "[[labels]]\nid = \"l\"\npaths = [\"data/**\"]\n";
    let all = |allowed: &str, denied: &str| {
        let deny = format!("{}whenRead = [\"l\"]\n", rule("d", "deny", denied));
        let mut found = found(&[label, &rule("a", "allow", allowed), &deny].concat());
        found.retain(|(id, _)| *id != "any-host");
        found.into_iter().map(|(id, place)| format!("{id} {place}")).collect::<Vec<_>>()
    };
    let (names, none) = ("\"*.example.com\"", &[""; 0]);
    for any in ["\"0.0.0.0\"", "\"::\""] {
        assert_eq!(all(names, any), [format!("word-as-wildcard {any}")]);
    }
    for any in ["\"0.0.0.0/0\"", "\"::/0\""] {
        for open in [names, "\"*\""] {
            assert_eq!(all(open, any), [format!("partly-denied-host {any}")], "{open}");
        }
    }
    for closed in [
        "\"*\", \"0.0.0.0\"",
        "\"127.0.0.1\", \"0.0.0.0\", \"::\"",
        "\"0.0.0.0/0\", \"::/0\"",
        "\"*\", \"0.0.0.0/0\"",
        "\"8.0.0.0/8\"",
    ] {
        assert_eq!(all(names, closed), none, "{closed}");
    }
    // No address of IPv6 is allowed.
    assert_eq!(all("\"93.184.216.0/24\"", "\"0.0.0.0/0\""), none);
}
