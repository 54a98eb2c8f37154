//! Help on denied connections: how the operator can allow them, by the kind of the rule.

use crate::{
    egress::{DeniedConnection, RuleKind},
    policy::HostPattern,
};

/// Kinds of addresses at which the operator's own services are.
const OF_A_NETWORK: [&str; 3] = ["private", "shared by customers of a provider", "site-local"];

/// Help on a denied connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Help {
    /// The way to allow it.
    pub(crate) advice: String,
    /// The arguments of `portcullis` that explain the denial, without the options of the session;
    /// `None` where these explain nothing.
    pub(crate) explain: Option<String>,
}

/// Returns the help.
pub(crate) fn help(denied: &DeniedConnection<'_>) -> Help {
    let rule = denied.rule;
    let (advice, is_explained) = match (rule, rule.rsplit_once('.')) {
        ("network.address", _) => (of_address(denied), true),
        ("network.credentials", _) => (of_credential(denied).to_owned(), false),
        ("network.host", _) => {
            ("no rule can allow it: name the host that is connected to".to_owned(), false)
        }
        (_, Some((table @ ("network.limits" | "mount" | "limits"), key))) => {
            (format!("the operator can raise `{key}` in `[{table}]`"), false)
        }
        ("default", _) => ("the operator can allow it in `[[network.rules]]`".to_owned(), true),
        _ => (of_stated_rule(denied), true),
    };
    Help { advice, explain: is_explained.then(|| explain(denied)) }
}

/// Returns the advice on an address that is not globally routable.
fn of_address(denied: &DeniedConnection<'_>) -> String {
    let (host, address) = (host(denied.to), denied.address.unwrap_or("ADDRESS"));
    let pattern = HostPattern::parse(address).ok();
    match pattern.as_ref().and_then(HostPattern::special) {
        Some(kind) if OF_A_NETWORK.contains(&kind) => format!(
            "the operator can name the address in a rule with the host and port: \
             `hosts = [\"{host}\", \"{address}\"]`"
        ),
        // A rule with the address would open it to programs under every name.
        kind => format!(
            "no rule should allow it: `{host}` leads to {address}, which is {}, by a mistake or an \
             attack of the name's owner",
            kind.unwrap_or("of this machine")
        ),
    }
}

/// Returns the advice on what concerns a credential.
fn of_credential(denied: &DeniedConnection<'_>) -> &'static str {
    match (denied.status, denied.has_credential, denied.address) {
        (Some(400), ..) => {
            "no setting allows a malformed request: the reason says what the program has to mend"
        }
        (Some(401), ..) => {
            "no setting allows it: the program has to send the value that the environment of \
             this session has, not one of an earlier session or of its own"
        }
        (Some(405), ..) => "no setting allows this method: the program has to use another one",
        (Some(_), ..) => {
            "the operator can add the method or path to `methods` or `paths` of \
             `[[credentials]]` in the configuration"
        }
        // Before an address is looked up, that is the only reason.
        (None, true, None) => "the operator can name the credential in `[network] credentials`",
        (None, true, Some(_)) => {
            "the reason says why: a reply with the key is never passed on, and the policy has to name \
             the credential in `[network] credentials`"
        }
        (None, false, _) => "no rule can allow it: send requests to the credential's URL",
    }
}

/// Returns the advice for a rule that a policy has.
fn of_stated_rule(denied: &DeniedConnection<'_>) -> String {
    let rule = denied.rule;
    match denied.kind {
        RuleKind::Deny => {
            format!("no other rule can allow it: the operator can change the rule `{rule}`")
        }
        RuleKind::Ask => format!(
            "the rule `{rule}` asks about each connection, and the operator can allow it by \
             `portcullis approve`"
        ),
        RuleKind::WhenRead(_) => format!(
            "the label ends with the sandbox: the operator can start a new one, whose git \
             repository must not carry it, or exempt the host by `except` in the rule `{rule}`"
        ),
    }
}

fn explain(denied: &DeniedConnection<'_>) -> String {
    let mut explain = format!("policy explain connect {}", denied.to);
    if let Some(address) = denied.address.filter(|address| *address != host(denied.to)) {
        explain += &format!(" --address {address}");
    }
    if let RuleKind::WhenRead(path) = denied.kind {
        // An agent may have named the file, and the operator may paste the command.
        let is_plain = |path: &&str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
            !path.is_empty() && !path.starts_with('-') && path.bytes().all(plain)
        };
        explain += &format!(" --read {}", path.filter(is_plain).unwrap_or("PATH"));
    }
    explain
}

/// Returns the host of `HOST:PORT`.
fn host(to: &str) -> &str {
    let host = to.rsplit_once(':').map_or(to, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_on_a_credential_depends_on_what_was_denied() {
        let advice = |address, has_credential, status| {
            let (to, rule, kind) = ("a.example:443", "network.credentials", RuleKind::Deny);
            help(&DeniedConnection { to, address, rule, kind, has_credential, status }).advice
        };
        // The policy does not name it.
        assert!(advice(None, true, None).contains("`[network] credentials`"));
        for (status, words) in [
            (400, "malformed"),
            (401, "the environment of this session"),
            (403, "`[[credentials]]`"),
            (405, "this method"),
        ] {
            let advice = advice(None, true, Some(status));
            assert!(advice.contains(words), "{status}: {advice}");
        }
        // A reply had the key in it, or a reload took the credential away.
        assert!(advice(Some("192.0.2.1"), true, None).contains("the reason says why"));
        // A connection to its host without it.
        assert!(advice(None, false, None).contains("the credential's URL"));
    }

    /// A rule with the address lets programs connect to it without the name.
    #[test]
    fn nobody_is_told_to_open_an_address_that_a_name_must_not_lead_to() {
        for (address, kind) in [
            ("127.0.0.1", "a loopback address"),
            ("169.254.169.254", "a metadata address"),
            ("::1", "a loopback address"),
            ("93.184.216.34", "of this machine"),
        ] {
            let denied = DeniedConnection {
                to: "a.example:443",
                address: Some(address),
                rule: "network.address",
                kind: RuleKind::Deny,
                has_credential: false,
                status: None,
            };
            let Help { advice, .. } = help(&denied);
            let words = format!("`a.example` leads to {address}, which is {kind}");
            assert!(advice.contains(&words) && !advice.contains("hosts ="), "{advice}");
        }
    }

    #[test]
    fn each_kind_of_rule_has_its_help() {
        let denied = |rule, kind, address| {
            let to = "[2001:db8::1]:443";
            let denied =
                DeniedConnection { to, address, rule, kind, has_credential: false, status: None };
            let Help { advice, explain } = help(&denied);
            (advice, explain.unwrap_or_default())
        };
        for (rule, kind, advice, explain) in [
            ("default", RuleKind::Deny, "`[[network.rules]]`", "connect [2001:db8::1]:443"),
            (
                "network.address",
                RuleKind::Deny,
                "[\"2001:db8::1\", \"10.0.0.1\"]",
                " --address 10.0.0.1",
            ),
            ("network.credentials", RuleKind::Deny, "no rule can allow it", ""),
            ("network.host", RuleKind::Deny, "no rule can allow it", ""),
            ("network.limits.bytesOut", RuleKind::Deny, "`bytesOut` in `[network.limits]`", ""),
            ("mount.denials", RuleKind::Deny, "`denials` in `[mount]`", ""),
            ("mine", RuleKind::Deny, "change the rule `mine`", "connect"),
            ("mine", RuleKind::Ask, "`portcullis approve`", "connect"),
            (
                "mine",
                RuleKind::WhenRead(Some("a/b.csv")),
                "`except` in the rule `mine`",
                "--read a/b.csv",
            ),
            ("mine", RuleKind::WhenRead(Some("$(x)")), "ends with the sandbox", "--read PATH"),
        ] {
            let (advised, explained) = denied(rule, kind, Some("10.0.0.1"));
            assert!(advised.contains(advice), "{rule}: {advised}");
            assert!(
                explained.contains(explain) && explained.is_empty() == explain.is_empty(),
                "{rule}: {explained}"
            );
        }
    }
}
