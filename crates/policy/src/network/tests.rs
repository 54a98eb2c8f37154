//! Decisions on connections.

use super::*;
use crate::{PolicySource, compile};

fn policy(text: &str) -> Policy {
    compile(&PolicySource::from_text("p", &format!("schema = 1\n{text}"))).unwrap()
}

fn rule(id: &str, effect: &str, hosts: &str) -> String {
    format!(
        "[[network.rules]]\nid = \"{id}\"\neffect = \"{effect}\"\nhosts = [{hosts}]\nports = [443]\n"
    )
}

fn asked(policy: &Policy, host: &str) -> (Effect, String) {
    let decision = policy.evaluate_connect(
        &"agent".parse().unwrap(),
        &Connect::parse(host).unwrap(),
        &LabelIds::new(),
    );
    (decision.effect, decision.rule)
}

fn resolved(policy: &Policy, host: &str, address: &str) -> (Effect, String) {
    let connect = Connect::parse(host).unwrap();
    let agent = "agent".parse().unwrap();
    let decision = policy.evaluate_address(
        &agent,
        &connect,
        address.parse().unwrap(),
        false,
        &LabelIds::new(),
    );
    (decision.effect, decision.rule)
}

fn expected(effect: Effect, rule: &str) -> (Effect, String) {
    (effect, rule.to_owned())
}

#[test]
fn a_host_that_no_rule_names_is_denied() {
    let nothing = policy("[allowedPaths]\nread = [\"**\"]\n");
    assert_eq!(asked(&nothing, "example.com:443"), expected(Effect::Deny, "default"));
    assert!(!nothing.network().may_allow());
    let policy = policy(&rule("site", "allow", "\"example.com\", \"*.example.net\""));
    assert!(policy.network().may_allow());
    for (host, effect) in [
        ("example.com:443", Effect::Allow),
        ("EXAMPLE.com:443", Effect::Allow),
        ("a.example.net:443", Effect::Allow),
        ("a.b.example.net:443", Effect::Allow),
        ("example.com:80", Effect::Deny),
        ("example.net:443", Effect::Deny),
        ("badexample.net:443", Effect::Deny),
        ("a.example.com:443", Effect::Deny),
        ("example.com.evil.net:443", Effect::Deny),
        ("93.184.216.34:443", Effect::Deny),
    ] {
        assert_eq!(asked(&policy, host).0, effect, "{host}");
    }
}

#[test]
fn a_denial_beats_a_question_and_a_question_an_allowance() {
    let text = [
        rule("all", "allow", "\"*\""),
        rule("person", "ask", "\"*.example.com\", \"192.0.2.0/24\""),
        rule("never", "deny", "\"bad.example.com\", \"93.184.216.0/24\""),
    ];
    let policy = policy(&text.concat());
    assert_eq!(asked(&policy, "other.net:443"), expected(Effect::Allow, "all"));
    assert_eq!(asked(&policy, "www.example.com:443"), expected(Effect::Ask, "person"));
    assert_eq!(asked(&policy, "bad.example.com:443"), expected(Effect::Deny, "never"));
    assert_eq!(asked(&policy, "93.184.216.34:443"), expected(Effect::Deny, "never"));
    let site = "other.net:443";
    assert_eq!(resolved(&policy, site, "93.184.216.34"), expected(Effect::Deny, "never"));
    assert_eq!(resolved(&policy, site, "1.1.1.1"), expected(Effect::Allow, ADDRESS));
    assert_eq!(resolved(&policy, site, "192.0.2.1"), expected(Effect::Ask, "person"));
}

#[test]
fn a_question_lets_connect_without_an_allowance_beside_it() {
    let policy = policy(&rule("person", "ask", "\"example.com\""));
    assert_eq!(asked(&policy, "example.com:443"), expected(Effect::Ask, "person"));
    assert_eq!(asked(&policy, "example.net:443"), expected(Effect::Deny, "default"));
}

#[test]
fn an_address_that_is_not_routable_needs_a_rule_that_names_it() {
    let any = policy(&rule("any", "allow", "\"*\", \"0.0.0.0/0\", \"::/0\""));
    let named = policy(&rule("lan", "allow", "\"*\", \"10.0.0.0/8\", \"::1\""));
    for (address, by_name) in
        [("10.0.0.1", Effect::Allow), ("::1", Effect::Allow), ("127.0.0.1", Effect::Deny)]
    {
        let host = Connect { host: Host::parse(address).unwrap(), port: 443 }.to_string();
        assert_eq!(asked(&any, &host), expected(Effect::Deny, ADDRESS));
        assert_eq!(resolved(&any, "a.example:443", address), expected(Effect::Deny, ADDRESS));
        assert_eq!(asked(&named, &host).0, by_name, "{address}");
        assert_eq!(resolved(&named, "a.example:443", address).0, by_name, "{address}");
        assert_eq!(resolved(&named, "a.example:80", address).0, Effect::Deny, "{address}");
    }
    // Written as IPv6 it is another address, which no rule can name.
    assert_eq!(resolved(&named, "a.example:443", "::ffff:10.0.0.1").0, Effect::Deny);
    assert_eq!(resolved(&any, "1.1.1.1:443", "1.0.0.1"), expected(Effect::Deny, ADDRESS));
    let (agent, connect) = ("agent".parse().unwrap(), Connect::parse("a.example:443").unwrap());
    let own =
        any.evaluate_address(&agent, &connect, "1.1.1.1".parse().unwrap(), true, &LabelIds::new());
    assert_eq!((own.effect, own.rule.as_str()), (Effect::Deny, ADDRESS));
}

#[test]
fn observe_lets_pass_what_no_rule_is_about() {
    let text = [
        "[network]\nmode = \"observe\"\n".to_owned(),
        rule("never", "deny", "\"bad.example\""),
        rule("person", "ask", "\"ask.example\""),
    ];
    let policy = policy(&text.concat());
    let (agent, other) = ("agent".parse().unwrap(), Connect::parse("other.example:22").unwrap());
    let decision = policy.evaluate_connect(&agent, &other, &LabelIds::new());
    assert_eq!((decision.effect, decision.would_deny), (Effect::Allow, true));
    assert_eq!(asked(&policy, "bad.example:443"), expected(Effect::Deny, "never"));
    assert_eq!(asked(&policy, "ask.example:443"), expected(Effect::Ask, "person"));
    assert_eq!(resolved(&policy, "other.example:22", "10.0.0.1"), expected(Effect::Deny, ADDRESS));
    assert_eq!(asked(&policy.enforcing(), "other.example:22").0, Effect::Deny);
}

#[test]
fn agents_and_ports_of_a_rule_count() {
    let text = "[[network.rules]]\nid = \"x\"\neffect = \"allow\"\nhosts = [\"a.example\"]\n\
                ports = [22, 443]\nagents = [\"codex*\"]\n\
                [[network.rules]]\nid = \"no\"\neffect = \"deny\"\nhosts = [\"b.example\"]\n";
    let policy = policy(text);
    let ask = |agent: &str, host: &str| {
        let connect = Connect::parse(host).unwrap();
        policy.evaluate_connect(&agent.parse().unwrap(), &connect, &LabelIds::new()).rule
    };
    assert_eq!(ask("codex-1", "a.example:22"), "x");
    assert_eq!(ask("codex-1", "a.example:80"), "default");
    assert_eq!(ask("other", "a.example:22"), "default");
    assert_eq!(ask("other", "b.example:9999"), "no");
}

#[test]
fn patterns_have_one_meaning() {
    use HostPatternError as E;
    for (text, shown) in [
        ("*", "*"),
        ("*.Example.com", "*.example.com"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1/32", "127.0.0.1"),
        ("::1", "::1"),
        ("FC00::/7", "fc00::/7"),
        ("0.0.0.0/0", "0.0.0.0/0"),
    ] {
        assert_eq!(HostPattern::parse(text).unwrap().to_string(), shown);
    }
    for (text, why) in [
        ("", E::Host(crate::model::HostError::Empty)),
        ("**", E::Wildcard),
        ("a.*", E::Wildcard),
        ("*a.example", E::Wildcard),
        ("*.*.example", E::Wildcard),
        ("10.0.0.1/8", E::HostBits),
        ("10.0.0.0/33", E::Network),
        ("10.0.0.0/08", E::Network),
        ("10.0.0.0/+8", E::Network),
        ("10.0.0.0/", E::Network),
        ("example.com/8", E::Network),
        ("10/8", E::Host(crate::model::HostError::Ipv4)),
        ("::ffff:10.0.0.0/104", E::Host(crate::model::HostError::Mapped)),
        ("example.com:443", E::Port),
        ("10.0.0.1:443", E::Port),
        ("example.com.", E::Host(crate::model::HostError::EmptyLabel)),
        ("*.", E::Host(crate::model::HostError::Empty)),
    ] {
        assert_eq!(HostPattern::parse(text), Err(why), "{text}");
    }
}

/// The decision on a host after content with these labels was read.
fn after(policy: &Policy, read: &[&str], host: &str, address: Option<&str>) -> Decision {
    let (agent, connect) = ("agent".parse().unwrap(), Connect::parse(host).unwrap());
    let read = read.iter().map(|id| (*id).to_owned()).collect();
    match address.map(|address| address.parse().unwrap()) {
        Some(address) => policy.evaluate_address(&agent, &connect, address, false, &read),
        None => policy.evaluate_connect(&agent, &connect, &read),
    }
}

const LABELS: &str = "[[labels]]\nid = \"data\"\npaths = [\"data/**\"]\n\
    [[labels]]\nid = \"keys\"\npaths = [\"keys/**\"]\n";

#[test]
fn a_rule_with_labels_holds_once_one_of_them_was_read() {
    let text = [
        LABELS.to_owned(),
        rule("all", "allow", "\"*\", \"10.0.0.0/8\""),
        "[[network.rules]]\nid = \"closed\"\neffect = \"deny\"\nwhenRead = [\"data\"]\n\
         hosts = [\"*\", \"10.0.0.0/8\"]\nexcept = [\"model.example\", \"10.1.1.1\"]\n"
            .to_owned(),
        "[[network.rules]]\nid = \"person\"\neffect = \"ask\"\nwhenRead = [\"keys\", \"data\"]\n\
         hosts = [\"model.example\", \"unknown.example\"]\n"
            .to_owned(),
    ];
    let policy = policy(&text.concat());
    let decision = |read: &[&str], host: &str, address| {
        let decision = after(&policy, read, host, address);
        (decision.effect, decision.rule)
    };
    let (allow, ask, deny) = (Effect::Allow, Effect::Ask, Effect::Deny);
    assert_eq!(decision(&[], "a.example:443", None).0, allow);
    assert_eq!(decision(&["keys"], "a.example:443", None).0, allow);
    assert_eq!(decision(&["data"], "a.example:443", None), (deny, "closed".to_owned()));
    assert_eq!(decision(&["data"], "model.example:443", None), (ask, "person".to_owned()));
    assert_eq!(decision(&["keys"], "model.example:443", None).0, ask);
    // The exemption holds for the name's addresses, and by address.
    let at = Some("10.2.2.2");
    assert_eq!(decision(&["data"], "model.example:443", at).0, allow);
    assert_eq!(decision(&["data"], "a.example:443", at), (deny, "closed".to_owned()));
    assert_eq!(decision(&["data"], "a.example:443", Some("10.1.1.1")).0, allow);
    assert_eq!(decision(&["data"], "10.1.1.1:443", None).0, allow);
    // A rule that asks with labels allows no connection that is denied without it.
    assert_eq!(decision(&["keys"], "unknown.example:80", None).0, deny);
    let reason = after(&policy, &["data", "keys"], "model.example:443", None).reason;
    assert_eq!(reason.unwrap(), "content labelled `data`, `keys` was read");
}

#[test]
fn rules_with_labels_alone_let_nobody_connect_and_bound_nothing() {
    let text = "[[network.rules]]\nid = \"person\"\neffect = \"ask\"\nwhenRead = [\"data\"]\n\
                hosts = [\"a.example\"]\n";
    let policy = policy(&format!("{LABELS}{text}"));
    assert!(!policy.network().may_allow());
    assert_eq!(policy.network().bounding_files(), 0);
    assert_eq!(after(&policy, &["data"], "a.example:443", None).rule, "default");
}

#[test]
fn a_label_that_is_misspelt_is_an_error() {
    let compiled =
        |text: &str| compile(&PolicySource::from_text("p", &format!("schema = 1\n{text}")));
    let rule = "[[network.rules]]\nid = \"x\"\neffect = \"deny\"\nhosts = [\"*\"]\n";
    for (text, problem) in [
        (format!("{LABELS}{rule}whenRead = [\"dota\"]\n"), "did you mean \"data\"?"),
        (format!("{rule}whenRead = [\"data\"]\n"), "no label `data`"),
        (format!("{LABELS}{LABELS}"), "is there twice"),
        (
            format!("{LABELS}{rule}except = [\"a.example\"]\n"),
            "`except` is for rules with `whenRead`",
        ),
        (
            format!("{LABELS}{}whenRead = [\"data\"]\n", rule.replace("deny", "allow")),
            "an `allow` rule has no `whenRead`",
        ),
    ] {
        let error = compiled(&text).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn a_session_gives_hosts_where_its_policy_is_silent() {
    let agent = "agent".parse().unwrap();
    let with = |text: &str, bound: bool| {
        let mut policy = policy(text);
        let mut hosts = SessionHosts::new(bound);
        for host in ["model.example", "*.model.example", "10.0.0.5"] {
            hosts.add(format!("preset:it:{host}"), HostPattern::parse(host).unwrap(), 443);
        }
        policy.give_hosts(hosts);
        policy
    };
    let withheld = |policy: &Policy| {
        policy
            .withheld_hosts(policy.network().session_hosts(), &agent)
            .map(|rule| rule.id.clone())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let given = expected(Effect::Allow, "preset:it:model.example");
    let default = expected(Effect::Deny, "default");

    let silent = with("", false);
    assert!(silent.network().may_allow());
    assert_eq!(asked(&silent, "model.example:443"), given);
    assert_eq!(asked(&silent, "model.example:80"), default);
    assert_eq!(asked(&silent, "other.example:443"), default);
    assert_eq!(asked(&silent, "10.0.0.5:443").0, Effect::Allow);
    assert_eq!(silent.place_of(silent.network().rules().next().unwrap()), None);
    assert_eq!(withheld(&silent), "");

    let denies = with(&rule("no", "deny", "\"a.model.example\", \"10.0.0.0/8\""), false);
    assert_eq!(asked(&denies, "model.example:443"), given);
    assert_eq!(asked(&denies, "a.model.example:443"), expected(Effect::Deny, "no"));
    assert_eq!(asked(&denies, "10.0.0.5:443"), expected(Effect::Deny, "no"));
    assert_eq!(withheld(&denies), "preset:it:*.model.example preset:it:10.0.0.5");

    let own = rule("own", "allow", "\"own.example\", \"a.model.example\"");
    let bounds = with(&own, false);
    assert_eq!(asked(&bounds, "model.example:443"), default);
    assert_eq!(asked(&bounds, "own.example:443"), expected(Effect::Allow, "own"));
    assert_eq!(withheld(&bounds).split(' ').count(), 3);
    let both = with(&own, true);
    assert_eq!(asked(&both, "own.example:443"), default);
    assert_eq!(asked(&both, "a.model.example:443"), expected(Effect::Allow, "own"));

    assert_eq!(asked(&with("[network]\nmode = \"observe\"\n", true), "own.example:443"), default);
    for text in [&own, "[network]\nmode = \"observe\"\n"] {
        let mut none = policy(text);
        none.give_hosts(SessionHosts::new(true));
        assert_eq!(asked(&none, "own.example:443"), default);
        assert!(!none.network().may_allow());
    }

    let mut reloaded = policy("");
    reloaded.keep_hosts(&bounds);
    assert_eq!(asked(&reloaded, "model.example:443"), given);
}

#[test]
fn a_credential_may_be_used_that_every_file_names_which_names_any() {
    let named =
        |text: &str| policy(text).network().credentials().iter().cloned().collect::<Vec<_>>();
    assert!(named(&rule("all", "allow", "\"*\"")).is_empty());
    assert_eq!(named("[network]\ncredentials = [\"model\", \"search\"]\n"), ["model", "search"]);
    let ids = |ids: &[&str]| StatedNetwork {
        credentials: Some(ids.iter().map(|id| (*id).to_owned()).collect()),
        ..StatedNetwork::default()
    };
    let both =
        |ours: StatedNetwork, theirs| ours.and(theirs).complete(Vec::new(), |_| None).credentials;
    assert_eq!(both(ids(&["a", "b"]), ids(&["b", "c"])), ["b".to_owned()].into());
    assert_eq!(both(ids(&[]), ids(&["b"])).len(), 0);
    assert_eq!(both(StatedNetwork::default(), ids(&["b"])), ["b".to_owned()].into());
    let bad = "schema = 1\n[network]\ncredentials = [\"a b\"]\n";
    assert!(compile(&PolicySource::from_text("p", bad)).is_err());
}
