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
    except: Vec<HostPattern>,
    /// The ports; `None` for all of them.
    ports: Option<Vec<i64>>,
    agents: Option<Vec<String>>,
    /// The labels of which one must have been read; `None` if the rule always applies.
    when_read: Option<Vec<String>>,
}

pub(super) fn lint(subject: Subject<'_>, found: &mut Vec<Finding>) {
    let files = subject.outline.iter().enumerate();
    let all: Vec<_> = files.flat_map(|(number, file)| rules(number, &file.text)).collect();
    let linted: Vec<_> = subject.linted().collect();
    for rule in all.iter().filter(|rule| linted.contains(&rule.file)) {
        if rule.grants() {
            let has_credential = !subject.policy.network().credentials().is_empty();
            rule.hosts
                .iter()
                .for_each(|(host, span)| shared(rule, host, span, has_credential, found));
        } else {
            unspecified(rule, found);
            let is_observing = subject.policy.network().mode() == Mode::Observe;
            partly_denied(rule, &all, is_observing, found);
        }
        if !denies_nothing(rule, &all, found) {
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
    let advice = |of_allow, of_ask| if rule.effect == Effect::Ask { of_ask } else { of_allow };
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
        return find(
            "any-host",
            message,
            advice("name the hosts, or ask a person", "name the hosts"),
        );
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
        let suggestion = advice(
            "ask a person, or add a credential for the host",
            "add a credential for the host",
        );
        return find("shared-host", message, suggestion);
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

/// Finds a denial of `0.0.0.0` or `::`, which stand for all addresses where programs listen. Beside
/// an address of this machine, they mean this machine.
fn unspecified(rule: &Rule, found: &mut Vec<Finding>) {
    let is_local = |host: &HostPattern| host.address().is_some_and(|own| own.is_loopback());
    if rule.hosts.iter().any(|(host, _)| is_local(host)) {
        return;
    }
    for (host, span) in &rule.hosts {
        let is_covered = || rule.hosts.iter().any(|(other, _)| other != host && other.covers(host));
        if host.address().is_some_and(|address| address.is_unspecified()) && !is_covered() {
            found.push(Finding {
                id: "word-as-wildcard",
                file: rule.file,
                span: span.clone(),
                message: format!("`{host}` is one address, and does not stand for all hosts"),
                suggestion: "write `*` for all of them".to_owned(),
            });
        }
    }
}

/// Finds a denial of `a.example`, or a question about it once something was read, that leaves
/// `*.a.example` open, and the reverse; and one of all addresses of IPv4 that leaves those of IPv6
/// open, and the reverse.
fn partly_denied(rule: &Rule, all: &[Rule], is_observing: bool, found: &mut Vec<Finding>) {
    for (host, span) in &rule.hosts {
        let (rest, what) = match host {
            HostPattern::Name(name) => (format!("*.{}", name.as_str()), "the names beneath it"),
            HostPattern::Beneath(name) if !is_registry(name.as_str()) => {
                (name.as_str().to_owned(), "that name itself")
            }
            HostPattern::Network(network) if network.prefix_len() == 0 => {
                match network.addr().is_ipv4() {
                    true => ("::/0".to_owned(), "addresses of IPv6"),
                    false => ("0.0.0.0/0".to_owned(), "addresses of IPv4"),
                }
            }
            HostPattern::Beneath(_) | HostPattern::Any | HostPattern::Network(_) => continue,
        };
        let Ok(pattern) = HostPattern::parse(&rest) else { continue };
        let is_closed = all.iter().any(|other| {
            let is_as_strict = other.effect == Effect::Deny || other.effect == rule.effect;
            is_as_strict && other.has_host(&pattern) && other.always_covers(rule)
        });
        let grants = || all.iter().filter(|other| other.grants());
        // Each file that has rules which allow must have one.
        let is_granted = grants().next().is_some()
            && grants().all(|one| {
                let mut same_file = grants().filter(|other| other.file == one.file);
                same_file.any(|other| other.opens(&pattern) && other.meets(rule))
            });
        if is_closed || !(is_granted || is_observing) {
            continue;
        }
        found.push(Finding {
            id: "partly-denied-host",
            file: rule.file,
            span: span.clone(),
            message: format!("`{host}` leaves {what} open: nothing closes `{rest}`"),
            suggestion: match rule.effect {
                Effect::Ask => format!("ask about `{rest}`, too"),
                Effect::Deny | Effect::Allow => format!("deny `{rest}`, too"),
            },
        });
    }
}

/// Finds a denial, or a question once something was read, that is about no host, or about hosts that
/// are allowed at other ports or for other agents only. Returns true if the rule is one.
fn denies_nothing(rule: &Rule, all: &[Rule], found: &mut Vec<Finding>) -> bool {
    if rule.grants() {
        return false;
    }
    let is_exempt = |host: &HostPattern| rule.except.iter().any(|exempt| exempt.covers(host));
    let about = rule.hosts.iter().map(|(host, _)| host).filter(|host| !is_exempt(host));
    let about: Vec<_> = about.collect();
    let is_allowed = |other: &&Rule| {
        let overlaps =
            |host: &HostPattern| about.iter().any(|own| own.covers(host) || host.covers(own));
        other.grants() && other.hosts.iter().any(|(host, _)| overlaps(host))
    };
    let (message, suggestion) = if about.is_empty() {
        let message = format!("`{}` is about no host: its exceptions cover all", rule.id);
        (message, "remove the exception, or the rule")
    } else if all.iter().any(|other| is_allowed(&other))
        && !all.iter().filter(is_allowed).any(|other| other.meets(rule))
    {
        let message = format!(
            "`{}` denies nothing that is allowed: its hosts are allowed at other ports or for other \
             agents only",
            rule.id
        );
        (message, "leave `ports` and `agents` out of a denial")
    } else {
        return false;
    };
    let (file, span, suggestion) = (rule.file, rule.span.clone(), suggestion.to_owned());
    found.push(Finding { id: "denies-nothing", file, span, message, suggestion });
    true
}

/// Finds a rule that another one covers.
fn useless(rule: &Rule, all: &[Rule], found: &mut Vec<Finding>) {
    let others = all.iter().filter(|other| {
        (other.file, other.span.start) != (rule.file, rule.span.start) && other.covers(rule)
    });
    let earlier = |other: &Rule| {
        other.file == rule.file && (other.span.start < rule.span.start || !rule.covers(other))
    };
    for other in others {
        let (id, message) = match (rule.effect, other.effect) {
            (Effect::Ask, Effect::Deny) if !rule.grants() => (
                "shadowed-rule",
                format!("`{}` changes nothing: `{}` denies all of it", rule.id, other.id),
            ),
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
            // An approval from before a read does not cover what is asked after it.
            (Effect::Ask, Effect::Ask) if rule.grants() != other.grants() => continue,
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
        other.grants() && other.file == rule.file && other.span.start != rule.span.start
    })
}

impl Rule {
    /// True if the rule allows anything, possibly after an approval.
    fn grants(&self) -> bool {
        self.effect != Effect::Deny && self.when_read.is_none()
    }

    /// True if the rule is about everything that `other` is about.
    fn covers(&self, other: &Self) -> bool {
        let is_exempt_there =
            |host: &HostPattern| other.except.iter().any(|exempt| exempt.covers(host));
        self.always_covers(other)
            && other.hosts.iter().all(|(host, _)| self.has_host(host))
            && self.except.iter().all(is_exempt_there)
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

    /// True if the rule is about the host, or about a part of a network: names may have any address.
    fn opens(&self, host: &HostPattern) -> bool {
        let is_network = |host: &HostPattern| matches!(host, HostPattern::Network(_));
        let is_part = |own: &HostPattern| !is_network(own) || host.covers(own);
        self.has_host(host) || (is_network(host) && self.hosts.iter().any(|(own, _)| is_part(own)))
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

    /// True if the rule is about all ports and agents that `other` is about, and applies whenever
    /// that does.
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
        let applies = match (&self.when_read, &other.when_read) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(labels)) => labels.iter().all(|label| own.contains(label)),
        };
        has_ports && has_agents && applies
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
    let texts = |key| {
        elements(key).map(|list| {
            list.filter_map(|value| Some(value.get_ref().as_str()?.to_owned())).collect()
        })
    };
    Some(Rule {
        file,
        id: id.get_ref().as_str()?.to_owned(),
        span: id.span(),
        effect: Effect::ALL.into_iter().find(|effect| effect.as_str() == word)?,
        hosts: elements("hosts")?.filter_map(host).collect(),
        except: elements("except")
            .map(|list| list.filter_map(host).map(|(host, _)| host).collect())
            .unwrap_or_default(),
        ports: elements("ports").map(|list| {
            let port = |value: &toml::Spanned<toml::de::DeValue<'_>>| {
                let number = value.get_ref().as_integer()?;
                i64::from_str_radix(number.as_str(), number.radix()).ok()
            };
            list.filter_map(port).collect()
        }),
        agents: texts("agents"),
        when_read: texts("whenRead"),
    })
}

#[cfg(test)]
mod tests;
