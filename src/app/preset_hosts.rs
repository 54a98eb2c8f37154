//! The hosts that a preset names, as rules of the session: `preset:NAME:` and what names the host
//! there.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::{
    failure::{Context as _, Failure},
    presets::Preset,
};
use crate::{
    model::Connect,
    policy::{HostPattern, SessionHosts},
};

/// The port of an entry that names none.
const DEFAULT_PORT: u16 = 443;

/// The hosts of a session, on their way to the gateway process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct PresetHosts {
    hosts: Vec<PresetHost>,
    /// The policy adds none.
    bound: bool,
    /// The path of the file that the preset came from.
    file: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct PresetHost {
    rule: String,
    host: String,
    port: u16,
}

impl PresetHosts {
    /// Returns the hosts of a preset, whose agent has the environment. If `bound`, the session
    /// reaches no others.
    ///
    /// # Errors
    /// Which entry names no host, and why.
    pub(crate) fn of(
        preset: &Preset,
        environment: &BTreeMap<OsString, OsString>,
        bound: bool,
    ) -> Result<Self, String> {
        let mut all = Self { hosts: Vec::new(), bound, file: None };
        for entry in &preset.hosts {
            let (host, port) = parse(entry)?;
            all.add(preset, entry, host.to_string(), port);
        }
        for name in &preset.hosts_from {
            let Some(url) = environment.get(OsStr::new(name)).filter(|url| !url.is_empty()) else {
                continue;
            };
            let Connect { host, port } = url
                .to_str()
                .and_then(origin)
                .ok_or_else(|| format!("the variable `{name}` has no URL that names a host"))?;
            all.add(preset, name, host.to_string(), port);
        }
        Ok(all)
    }

    /// Returns them as those of a preset in this file.
    pub(crate) fn of_file(self, file: &Path) -> Self {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        Self { file: Some(file.to_string_lossy().into_owned()), ..self }
    }

    /// Returns the value of `--preset` that names the preset, if it has hosts: its name, or its file,
    /// which has a `/` in its path.
    pub(crate) fn preset(&self) -> Option<&str> {
        let name = self.hosts.first()?.rule.split(':').nth(1);
        self.file.as_deref().or(name)
    }

    /// True if the session reaches no host at all.
    pub(crate) fn are_none(&self) -> bool {
        self.bound && self.hosts.is_empty()
    }

    fn add(&mut self, preset: &Preset, entry: &str, host: String, port: u16) {
        let rule = format!("preset:{}:{entry}", preset.name);
        self.hosts.push(PresetHost { rule, host, port });
    }

    /// The rules.
    ///
    /// # Errors
    /// When a host is none.
    pub(crate) fn rules(&self) -> Result<SessionHosts, Failure> {
        let mut rules = SessionHosts::new(self.bound);
        for PresetHost { rule, host, port } in &self.hosts {
            let host = HostPattern::parse(host).or_fail("a preset names no host")?;
            rules.add(rule.clone(), host, *port);
        }
        Ok(rules)
    }

    /// Returns each rule's id, with its host and port as people write them.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (&str, String)> {
        self.hosts.iter().map(|PresetHost { rule, host, port }| {
            // An address or a network of IPv6.
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            (rule.as_str(), format!("{host}:{port}"))
        })
    }
}

/// Parses `HOST` or `HOST:PORT`, where HOST is one of a policy's rules; an IPv6 address with a port
/// stands in brackets.
pub(super) fn parse(entry: &str) -> Result<(HostPattern, u16), String> {
    let wrong = |reason: String| format!("`{entry}` names no host: {reason}");
    let is_port = |(host, _): &(&str, &str)| !host.contains(':') || host.ends_with(']');
    let (host, port) = match entry.rsplit_once(':').filter(is_port) {
        Some((host, port)) => {
            let digits = Some(port).filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
            let port = digits.and_then(|port| port.parse().ok()).filter(|port| *port > 0);
            let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            (inner.unwrap_or(host), port.ok_or_else(|| wrong("its port is not valid".to_owned()))?)
        }
        None => (entry, DEFAULT_PORT),
    };
    Ok((HostPattern::parse(host).map_err(|reason| wrong(reason.to_string()))?, port))
}

/// Returns the host and port of an HTTP URL.
fn origin(url: &str) -> Option<Connect> {
    let (scheme, rest) = url.split_once("://")?;
    let port = match scheme.to_ascii_lowercase().as_str() {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    Connect::parse(authority).or_else(|_| Connect::parse(&format!("{authority}:{port}"))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_a_port_of_its_own_or_that_of_https() {
        let parsed = |entry| parse(entry).map(|(host, port)| format!("{host} {port}")).ok();
        for (entry, expected) in [
            ("api.example.com", Some("api.example.com 443")),
            ("api.example.com:8443", Some("api.example.com 8443")),
            ("*.example.com", Some("*.example.com 443")),
            ("10.0.0.0/8:80", Some("10.0.0.0/8 80")),
            ("2001:db8::1", Some("2001:db8::1 443")),
            ("[2001:db8::1]:80", Some("2001:db8::1 80")),
            ("https://example.com", None),
            ("example.com:0", None),
            ("example.com:+1", None),
            ("example.com:", None),
            ("[2001:db8::1]", None),
            ("", None),
        ] {
            assert_eq!(parsed(entry).as_deref(), expected, "{entry}");
        }
    }

    #[test]
    fn a_network_of_ipv6_is_shown_in_brackets() {
        let shown = |host: &str| {
            let (rule, host) = ("r".to_owned(), host.to_owned());
            let hosts = vec![PresetHost { rule, host, port: 80 }];
            let hosts = PresetHosts { hosts, bound: false, file: None };
            hosts.shown().next().map(|(_, shown)| shown).unwrap()
        };
        assert_eq!(shown("2001:db8::/32"), "[2001:db8::/32]:80");
        assert_eq!(shown("2001:db8::1"), "[2001:db8::1]:80");
        assert_eq!(shown("10.0.0.0/8"), "10.0.0.0/8:80");
    }

    #[test]
    fn a_url_names_its_host_and_port() {
        let origin = |url| super::origin(url).map(|connect| connect.to_string());
        for (url, expected) in [
            ("https://api.example.com/v1", Some("api.example.com:443")),
            ("HTTP://Api.example.com", Some("api.example.com:80")),
            ("http://10.0.0.5:8000/v1?x#y", Some("10.0.0.5:8000")),
            ("https://[2001:db8::1]/", Some("[2001:db8::1]:443")),
            ("https://user:word@example.com/", None),
            ("ftp://example.com/", None),
            ("example.com", None),
        ] {
            assert_eq!(origin(url).as_deref(), expected, "{url}");
        }
    }
}
