//! Differences between the `[network]` sections of two policies.

use super::Changes;
use crate::policy::{Effect, HostPattern, Labels, Limit, Network, NetworkRule};

/// Compares limits and rules.
pub(super) fn compare(changes: &mut Changes, old: &Network, new: &Network) {
    for (key, old, new) in [
        ("network.limits.bytesOut", &old.limits().bytes_out, &new.limits().bytes_out),
        ("network.limits.connections", &old.limits().connections, &new.limits().connections),
    ] {
        let maximum = |limit: &Option<Limit>| limit.as_ref().map(|limit| limit.maximum);
        changes.limit(key, maximum(old), maximum(new));
    }
    let ids = |network: &Network| {
        let ids: Vec<_> = network.credentials().iter().map(String::as_str).collect();
        ids.join(", ")
    };
    // The host of a credential that goes away is reached with any key, and without the limits on
    // methods and paths.
    let is_more = old.credentials() != new.credentials()
        && (!is_closed(new) || !new.credentials().is_subset(old.credentials()));
    changes.push("network.credentials", ids(old), ids(new), is_more);
    let words = |network: &Network| -> Vec<String> { network.rules().map(text).collect() };
    let (before, after) = (words(old), words(new));
    let (mut gone, mut added) = (only(&before, &after), only(&after, &before));
    let opens = opens(old, new);
    if opens && new.bounding_files() == 0 {
        // Sessions have a preset's hosts where no rule allows or asks.
        added += if added.is_empty() { "" } else { "; " };
        added += "the hosts of a preset";
    } else if opens && gone == added {
        gone = "the rules in their files".to_owned();
        added = "the same rules in other files".to_owned();
    }
    // Other words for the same decisions neither open nor close.
    match opens || self::opens(new, old) {
        true => changes.push("network.rules", gone, added, opens),
        false => changes.beside("network.rules", gone, added),
    }
    if old.needs_proxy() && !new.needs_proxy() {
        let [old, new] = ["attempts to connect are recorded", "none are"].map(str::to_owned);
        changes.push("network", old, new, true);
    }
}

/// True if a host may be reached that was not, or without a question that was asked.
fn opens(old: &Network, new: &Network) -> bool {
    if is_closed(new) {
        return false;
    }
    // All files that allow anything must allow a host, so a file narrows what the others allow. A
    // policy without such a file allows the hosts of a preset.
    let is_bounded = |before: &[&NetworkRule]| {
        new.grants().any(|mut now| now.all(|rule| before.iter().any(|own| allows(own, rule))))
    };
    let is_widened = match old.bounding_files() {
        0 => new.bounding_files() > 0,
        _ => !old.grants().all(|before| is_bounded(&before.collect::<Vec<_>>())),
    };
    let mut restrictions = old.rules().filter(|rule| rule.effect != Effect::Allow);
    is_widened || restrictions.any(|rule| !new.rules().any(|now| restricts(now, rule)))
}

/// True if no host can be reached, whatever is allowed.
fn is_closed(network: &Network) -> bool {
    let denies_all = |rule: &NetworkRule| {
        rule.effect == Effect::Deny
            && rule.hosts.contains(&HostPattern::Any)
            && rule.ports.is_none()
            && rule.agents.are_all()
            && rule.when_read.is_empty()
    };
    network.rules().any(denies_all)
}

/// True if `own` allows all that `rule` does, and asks no more.
fn allows(own: &NetworkRule, rule: &NetworkRule) -> bool {
    // Only a small network allows addresses that are not globally routable.
    let names_no_more = |host: &HostPattern, pattern: &HostPattern| match host {
        HostPattern::Network(network) => {
            let address = network.addr();
            pattern.names_address(address) || !host.names_address(address)
        }
        _ => true,
    };
    let has = |host: &HostPattern| {
        own.hosts.iter().any(|pattern| pattern.covers(host) && names_no_more(host, pattern))
    };
    rule.effect >= own.effect && rule.hosts.iter().all(has) && has_scope(own, rule)
}

/// True if `now` restricts all that `rule` does, at least as much.
fn restricts(now: &NetworkRule, rule: &NetworkRule) -> bool {
    let has = |list: &[HostPattern], host| list.iter().any(|own| own.covers(host));
    now.effect >= rule.effect
        && rule.hosts.iter().all(|host| has(&now.hosts, host))
        && now.except.iter().all(|host| has(&rule.except, host))
        && has_scope(now, rule)
        && (now.when_read.is_empty()
            || !rule.when_read.is_empty() && rule.when_read.is_subset(&now.when_read))
}

/// True if `own` is about all ports and agents that `rule` is about.
fn has_scope(own: &NetworkRule, rule: &NetworkRule) -> bool {
    let has_ports = match (&own.ports, &rule.ports) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(own), Some(ports)) => ports.iter().all(|port| own.contains(port)),
    };
    has_ports && (own.agents.are_all() || own.agents == rule.agents)
}

fn text(rule: &NetworkRule) -> String {
    let hosts: Vec<_> = rule.hosts.iter().map(HostPattern::to_string).collect();
    let ports = match &rule.ports {
        Some(ports) => {
            format!(":{}", ports.iter().map(u16::to_string).collect::<Vec<_>>().join(","))
        }
        None => String::new(),
    };
    let agents = if rule.agents.are_all() { "" } else { " for some agents" };
    let except: Vec<_> = rule.except.iter().map(|host| format!(" except {host}")).collect();
    let labels: Vec<_> = rule.when_read.iter().map(|id| format!(" once {id} was read")).collect();
    let conditions = [except.concat(), labels.join(" or")].concat();
    format!("{} {} {}{ports}{conditions}{agents}", rule.id(), rule.effect, hosts.join(", "))
}

/// Compares what content is called: a path that has a label no more opens.
pub(super) fn compare_labels(changes: &mut Changes, old: &Labels, new: &Labels) {
    let words = |labels: &Labels| -> Vec<String> {
        let all = labels.paths().iter();
        all.flat_map(|(id, paths)| paths.iter().map(move |path| format!("{id} {path}"))).collect()
    };
    let (before, after) = (words(old), words(new));
    let (gone, added) = (only(&before, &after), only(&after, &before));
    let opens = !gone.is_empty();
    changes.push("labels", gone, added, opens);
}

fn only(these: &[String], others: &[String]) -> String {
    let these = these.iter().filter(|text| !others.contains(text));
    these.cloned().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use crate::{
        compare::compare_settings,
        policy::{PolicySource, compile},
    };

    fn rule(id: &str, effect: &str, hosts: &str, ports: &str) -> String {
        format!(
            "[[network.rules]]\nid = \"{id}\"\neffect = \"{effect}\"\nhosts = [{hosts}]\nports = [{ports}]\n"
        )
    }

    fn opens(old: &str, new: &str) -> Vec<(&'static str, bool)> {
        let policy = |text: &str| {
            compile(&PolicySource::from_text("p", &format!("schema = 1\n{text}"))).unwrap()
        };
        let changes = compare_settings(&policy(old), &policy(new));
        changes.into_iter().map(|change| (change.key, change.opens)).collect()
    }

    #[test]
    fn more_hosts_ports_and_fewer_denials_open() {
        let all = rule("a", "allow", "\"*.example.com\"", "80, 443");
        let one = rule("a", "allow", "\"www.example.com\"", "443");
        let ask = rule("a", "ask", "\"www.example.com\"", "443");
        let bad = rule("no", "deny", "\"bad.example.com\"", "443");
        for (old, new, is_open) in [
            (String::new(), one.clone(), true),
            // A preset's hosts are allowed where no rule allows any.
            (one.clone(), String::new(), true),
            (all.clone(), one.clone(), false),
            (one.clone(), all.clone(), true),
            (one.clone(), ask.clone(), false),
            (ask, one.clone(), true),
            (all.clone(), format!("{all}{bad}"), false),
            (format!("{all}{bad}"), all.clone(), true),
            (one, rule("a", "allow", "\"www.example.com\"", "22"), true),
        ] {
            let found = opens(&old, &new);
            assert_eq!(found.first(), Some(&("network.rules", is_open)), "{old}->{new}");
        }
        // Attempts to connect have no record any more.
        assert_eq!(opens("[network]\n", ""), [("network", true)]);
        let read = |rule: &str| {
            let label = "[[labels]]\nid = \"l\"\npaths = [\"data/**\"]\n";
            format!("{all}{}whenRead = [\"l\"]\n{label}", rule)
        };
        let closed = read(&rule("no", "deny", "\"*\"", "443"));
        assert_eq!(opens(&all, &closed), [("network.rules", false), ("labels", false)]);
        assert_eq!(opens(&closed, &all), [("network.rules", true), ("labels", true)]);
        let open = closed.replace("whenRead", "except = [\"www.example.com\"]\nwhenRead");
        assert_eq!(opens(&closed, &open), [("network.rules", true)]);
        // It denies no more than before, and was said to.
        let decides = |old: &str, new: &str| {
            let policy = |text: &str| {
                compile(&PolicySource::from_text("p", &format!("schema = 1\n{text}"))).unwrap()
            };
            let changes = compare_settings(&policy(old), &policy(new));
            changes.iter().map(|change| (change.opens, change.decides)).collect::<Vec<_>>()
        };
        let more = closed.replace("[\"*\"]", "[\"*\", \"10.0.0.0/8\"]");
        assert_eq!(decides(&more, &closed), [(false, false)]);
        assert_eq!(decides(&closed, &more), [(false, false)]);
        assert_eq!(decides(&all, &format!("{all}{bad}")), [(false, true)]);
        let asked = read(&rule("no", "ask", "\"other.example\"", "443"));
        assert_eq!(opens(&all, &asked), [("network.rules", false), ("labels", false)]);
        let ids = |ids| format!("[network]\ncredentials = [{ids}]\n");
        assert_eq!(opens(&ids(""), &ids("\"a\"")), [("network.credentials", true)]);
        // The host of `a` may be reached with another key.
        assert_eq!(opens(&ids("\"a\", \"b\""), &ids("\"b\"")), [("network.credentials", true)]);
        let limit = |bytes| format!("[network.limits]\nbytesOut = \"{bytes}\"\n{all}");
        assert_eq!(opens(&limit("1B"), &limit("2B")), [("network.limits.bytesOut", true)]);
        assert_eq!(opens(&limit("2B"), &limit("1B")), [("network.limits.bytesOut", false)]);
    }
}
