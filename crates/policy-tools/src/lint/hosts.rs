//! `[[network.rules]]`: hosts that many people share, rules that change nothing, denials that leave
//! a part of a domain open, and addresses that are not globally routable.

use std::ops::Range;

use toml::de::DeTable;

use super::{
    finding::Finding,
    labels::MODELS,
    subject::{Subject, only_bound},
};
use crate::policy::{Effect, HostPattern, Mode};

/// Domains beneath which everybody can get a name, and the service behind them.
const SHARED: [(&str, &str); 30] = [
    ("s3.amazonaws.com", "buckets of all customers"),
    ("amazonaws.com", "buckets and machines of all customers"),
    ("appspot.com", "programs of everybody"),
    ("azurewebsites.net", "programs of all customers"),
    ("blob.core.windows.net", "files of all customers"),
    ("deno.dev", "programs of everybody"),
    ("digitaloceanspaces.com", "files of all customers"),
    ("firebaseapp.com", "sites of everybody"),
    ("firebaseio.com", "data of all customers"),
    ("fly.dev", "programs of everybody"),
    ("github.io", "sites of everybody"),
    ("gitlab.io", "sites of everybody"),
    ("googleusercontent.com", "content of everybody"),
    ("herokuapp.com", "programs of everybody"),
    ("netlify.app", "sites of everybody"),
    ("ngrok-free.app", "tunnels of everybody"),
    ("ngrok.io", "tunnels of everybody"),
    ("onrender.com", "programs of everybody"),
    ("pages.dev", "sites of everybody"),
    ("r2.dev", "files of everybody"),
    ("readthedocs.io", "sites of everybody"),
    ("run.app", "programs of everybody"),
    ("storage.googleapis.com", "files of all customers"),
    ("supabase.co", "data of all customers"),
    ("surge.sh", "sites of everybody"),
    ("trycloudflare.com", "tunnels of everybody"),
    ("vercel.app", "programs of everybody"),
    ("web.app", "sites of everybody"),
    ("webhook.site", "requests that everybody can read"),
    ("workers.dev", "programs of everybody"),
];

/// Hosts that keep, for everybody to read, what anybody sends with an account of their own or none.
const PUBLIC: [&str; 21] = [
    "0x0.st",
    "api.github.com",
    "api.telegram.org",
    "bitbucket.org",
    // Packages are published at the name itself, not at `index.` and `static.`.
    "crates.io",
    "discord.com",
    "file.io",
    "gist.github.com",
    "github.com",
    "gitlab.com",
    "hooks.slack.com",
    "huggingface.co",
    "pastebin.com",
    "registry.npmjs.org",
    "rubygems.org",
    "s3.amazonaws.com",
    "storage.googleapis.com",
    "transfer.sh",
    "upload.pypi.org",
    "uploads.github.com",
    "webhook.site",
];

/// Domains of content delivery networks. A client that may connect to one customer's host can
/// request another customer's inside the connection.
const DELIVERY: [&str; 10] = [
    "akamai.net",
    "akamaiedge.net",
    "akamaized.net",
    "azureedge.net",
    "azurefd.net",
    "b-cdn.net",
    "cloudflare.net",
    "cloudfront.net",
    "edgekey.net",
    "fastly.net",
];

/// Labels beneath the domain of a country, beneath which everybody can get a name, as in `co.uk`.
const REGISTRIES: [&str; 18] = [
    "ac", "co", "com", "edu", "go", "gob", "gouv", "gov", "ltd", "me", "mil", "ne", "net", "nom",
    "or", "org", "plc", "sch",
];

/// One rule as written.
struct Rule {
    file: usize,
    id: String,
    span: Range<usize>,
    effect: Effect,
    hosts: Vec<(HostPattern, Range<usize>)>,
    /// The ports; `None` for all of them.
    ports: Option<Vec<i64>>,
    agents: Option<Vec<String>>,
    /// It applies only once something was read.
    is_conditional: bool,
}

pub(super) fn lint(subject: Subject<'_>, found: &mut Vec<Finding>) {
    let files = subject.outline.iter().enumerate();
    let all: Vec<_> = files.flat_map(|(number, file)| rules(number, &file.text)).collect();
    let linted: Vec<_> = subject.linted().collect();
    for rule in all.iter().filter(|rule| linted.contains(&rule.file)) {
        if rule.effect != Effect::Deny && !rule.is_conditional {
            let has_credential = !subject.policy.network().credentials().is_empty();
            rule.hosts
                .iter()
                .for_each(|(host, span)| shared(rule, host, span, has_credential, found));
        } else {
            let is_observing = subject.policy.network().mode() == Mode::Observe;
            partly_denied(rule, &all, is_observing, found);
        }
        // A rule that applies only at times neither hides another rule nor is hidden by one.
        if !rule.is_conditional {
            useless(rule, &all, found);
        }
    }
}

/// Finds hosts that more parties control than the author may expect.
fn shared(
    rule: &Rule,
    host: &HostPattern,
    span: &Range<usize>,
    has_credential: bool,
    found: &mut Vec<Finding>,
) {
    let mut find = |id, message: String, suggestion: &str| {
        let (file, span, suggestion) = (rule.file, span.clone(), suggestion.to_owned());
        found.push(Finding { id, file, span, message, suggestion });
    };
    let text = host.to_string();
    if let Some(kind) = host.special() {
        let message = format!("`{text}` is {kind}: what answers there is this machine, or near it");
        return find("unroutable-host", message, "name the one address that is meant");
    }
    let is_open = match host {
        HostPattern::Any => true,
        HostPattern::Beneath(name) => is_registry(name.as_str()),
        HostPattern::Network(network) => network.prefix_len() < 8,
        HostPattern::Name(_) => false,
    };
    if is_open {
        let message = format!("`{text}` lets an agent send what it reads to anybody");
        return find("any-host", message, "name the hosts, or ask a person");
    }
    let beneath = |domain: &str| HostPattern::parse(&format!("*.{domain}")).ok();
    let named = |domain: &str| HostPattern::parse(domain).ok();
    let covers = |pattern: &HostPattern, domain: &str| {
        beneath(domain).is_some_and(|domain| pattern.covers(&domain))
    };
    if let Some((domain, what)) = SHARED.iter().find(|(domain, _)| covers(host, domain)) {
        let message = format!("`{text}` covers `*.{domain}`: {what}");
        return find("shared-host", message, "name the one host that is meant");
    }
    if PUBLIC.iter().any(|name| named(name).is_some_and(|name| name == *host)) {
        let message = format!("`{text}` takes what anybody sends with an account of their own");
        return find("shared-host", message, "ask a person, or add a credential for the host");
    }
    // With a credential the host is reached in no other way, and with no other key.
    let is_model = |name: &&str| named(name).is_some_and(|name| name == *host);
    if !has_credential && MODELS.iter().any(is_model) {
        let message = format!("`{text}` takes what is sent with anybody's key, also an attacker's");
        return find("shared-host", message, "let programs use a credential for the host instead");
    }
    let is_delivered = |domain: &&&str| {
        covers(host, domain)
            || beneath(domain).is_some_and(|domain| domain.covers(host))
            || named(domain).is_some_and(|domain| domain == *host)
    };
    if let Some(domain) = DELIVERY.iter().find(is_delivered) {
        let message = format!(
            "`{text}` is of `{domain}`, which delivers for many: inside the connection an agent \
             can ask for another of its customers"
        );
        find("shared-host", message, "name the service's own host, if it has one");
    }
}

/// True if everybody can get a name beneath the domain: `com`, `co.uk`.
fn is_registry(domain: &str) -> bool {
    match domain.split_once('.') {
        None => true,
        Some((label, country)) => country.len() == 2 && REGISTRIES.contains(&label),
    }
}

/// Finds a denial of `a.example` that leaves `*.a.example` open, and the reverse.
fn partly_denied(rule: &Rule, all: &[Rule], is_observing: bool, found: &mut Vec<Finding>) {
    for (host, span) in &rule.hosts {
        let (rest, what) = match host {
            HostPattern::Name(name) => (format!("*.{}", name.as_str()), "the names beneath it"),
            HostPattern::Beneath(name) if !is_registry(name.as_str()) => {
                (name.as_str().to_owned(), "that name itself")
            }
            HostPattern::Beneath(_) | HostPattern::Any | HostPattern::Network(_) => continue,
        };
        let Ok(pattern) = HostPattern::parse(&rest) else { continue };
        let is_denied = all.iter().any(|other| {
            other.effect == Effect::Deny && other.has_host(&pattern) && other.always_covers(rule)
        });
        let grants = || all.iter().filter(|other| other.effect != Effect::Deny);
        // Each file that has rules which allow must have one.
        let is_granted = grants().next().is_some()
            && grants().all(|one| {
                let mut same_file = grants().filter(|other| other.file == one.file);
                same_file.any(|other| other.has_host(&pattern) && other.meets(rule))
            });
        if is_denied || !(is_granted || is_observing) {
            continue;
        }
        found.push(Finding {
            id: "partly-denied-host",
            file: rule.file,
            span: span.clone(),
            message: format!("`{host}` leaves {what} open: `{rest}` is allowed"),
            suggestion: format!("deny `{rest}`, too"),
        });
    }
}

/// Finds a rule that another one covers.
fn useless(rule: &Rule, all: &[Rule], found: &mut Vec<Finding>) {
    let others = all.iter().filter(|other| {
        (other.file, other.span.start) != (rule.file, rule.span.start)
            && !other.is_conditional
            && other.covers(rule)
    });
    let earlier = |other: &Rule| {
        other.file == rule.file && (other.span.start < rule.span.start || !rule.covers(other))
    };
    for other in others {
        let (id, message) = match (rule.effect, other.effect) {
            (Effect::Allow | Effect::Ask, Effect::Deny) => (
                "unreachable-rule",
                format!("`{}` lets nothing through: `{}` denies all of it", rule.id, other.id),
            ),
            // `*` opens no address that is not globally routable, and the network that names it does.
            (Effect::Allow | Effect::Ask, _) if !other.names_addresses_of(rule) => continue,
            (Effect::Allow, Effect::Ask) if other.file == rule.file => (
                "shadowed-rule",
                format!("`{}` changes nothing: `{}` asks about all of it", rule.id, other.id),
            ),
            (ours, theirs) if ours == theirs && earlier(other) => (
                "shadowed-rule",
                format!("`{}` changes nothing: `{}` says the same", rule.id, other.id),
            ),
            _ => continue,
        };
        let suggestion = if id == "unreachable-rule" && is_only_bound(rule, all) {
            only_bound(&rule.id)
        } else {
            format!("remove `{}`, or change one of the two", rule.id)
        };
        let (file, span) = (rule.file, rule.span.clone());
        found.push(Finding { id, file, span, message, suggestion });
        return;
    }
}

/// True if no other rule of the file allows or asks: without it, the file would no longer close the
/// other hosts, neither those of a preset nor those of files that it extends or that extend it.
fn is_only_bound(rule: &Rule, all: &[Rule]) -> bool {
    !all.iter().any(|other| {
        other.effect != Effect::Deny
            && other.file == rule.file
            && other.span.start != rule.span.start
    })
}

impl Rule {
    /// True if the rule is about everything that `other` is about.
    fn covers(&self, other: &Self) -> bool {
        self.always_covers(other) && other.hosts.iter().all(|(host, _)| self.has_host(host))
    }

    /// True if the rule names every address that `other` names.
    fn names_addresses_of(&self, other: &Self) -> bool {
        other.hosts.iter().all(|(host, _)| {
            let HostPattern::Network(network) = host else { return true };
            let names = |pattern: &HostPattern| pattern.names_address(network.addr());
            !names(host) || self.hosts.iter().any(|(own, _)| own.covers(host) && names(own))
        })
    }

    fn has_host(&self, host: &HostPattern) -> bool {
        self.hosts.iter().any(|(own, _)| own.covers(host))
    }

    /// True if there is a port and an agent that both rules are about.
    fn meets(&self, other: &Self) -> bool {
        fn meet<T: PartialEq>(one: Option<&[T]>, other: Option<&[T]>) -> bool {
            let (Some(one), Some(other)) = (one, other) else { return true };
            one.iter().any(|item| other.contains(item))
        }
        meet(self.ports.as_deref(), other.ports.as_deref())
            && meet(self.agents.as_deref(), other.agents.as_deref())
    }

    /// True if the rule is about all ports and agents that `other` is about.
    fn always_covers(&self, other: &Self) -> bool {
        let has_ports = match (&self.ports, &other.ports) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(ports)) => ports.iter().all(|port| own.contains(port)),
        };
        let has_agents = match (&self.agents, &other.agents) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(agents)) => agents.iter().all(|agent| own.contains(agent)),
        };
        has_ports && has_agents
    }
}

fn rules(file: usize, text: &str) -> Vec<Rule> {
    let (root, _) = DeTable::parse_recoverable(text);
    let network = root.get_ref().get("network").and_then(|value| value.get_ref().as_table());
    let list = network.and_then(|network| network.get("rules")?.get_ref().as_array());
    let rules = list.into_iter().flat_map(|list| list.iter());
    rules.filter_map(|value| rule(file, value.get_ref().as_table()?)).collect()
}

fn rule(file: usize, table: &DeTable<'_>) -> Option<Rule> {
    let id = table.get("id")?;
    let word = table.get("effect")?.get_ref().as_str()?;
    let elements =
        |key| table.get(key).and_then(|value| value.get_ref().as_array()).map(|list| list.iter());
    let host = |value: &toml::Spanned<toml::de::DeValue<'_>>| {
        Some((HostPattern::parse(value.get_ref().as_str()?).ok()?, value.span()))
    };
    Some(Rule {
        file,
        id: id.get_ref().as_str()?.to_owned(),
        span: id.span(),
        effect: Effect::ALL.into_iter().find(|effect| effect.as_str() == word)?,
        hosts: elements("hosts")?.filter_map(host).collect(),
        ports: elements("ports").map(|list| {
            let port = |value: &toml::Spanned<toml::de::DeValue<'_>>| {
                let number = value.get_ref().as_integer()?;
                i64::from_str_radix(number.as_str(), number.radix()).ok()
            };
            list.filter_map(port).collect()
        }),
        agents: elements("agents").map(|list| {
            list.filter_map(|value| Some(value.get_ref().as_str()?.to_owned())).collect()
        }),
        is_conditional: table.contains_key("whenRead"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        outline::outline,
        policy::{PolicySource, compile},
    };

    fn found(text: &str) -> Vec<(&'static str, String)> {
        let source = PolicySource::from_text("p", &format!("schema = 1\n{text}"));
        let (policy, outline) = (compile(&source).unwrap(), outline(&source));
        let subject =
            Subject { policy: &policy, outline: &outline, tree: None, tests: None, tracked: None };
        let mut found = Vec::new();
        lint(subject, &mut found);
        let location =
            |finding: &Finding| outline[0].text.get(finding.span.clone()).unwrap().to_owned();
        found.iter().map(|finding| (finding.id, location(finding))).collect()
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
        assert_eq!(found(&format!("{other}{}", rule("b", "deny", name)))[1..], []);
        let observe = format!("[network]\nmode = \"observe\"\n{}", rule("b", "deny", name));
        assert_eq!(found(&observe), finding("paste.example"));
    }
}
