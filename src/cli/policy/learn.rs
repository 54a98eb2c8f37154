//! `portcullis policy learn`: proposes rules from recorded requests.

use std::{fmt::Write as _, process::ExitCode};

use serde_json::{Value, json};

use super::{history::LogArgs, progress::Bar};
use crate::{
    app::{
        audit_log::{damaged, note_unverified, unreadable},
        failure::{Exit, Failure},
        policy_loading::unusable,
    },
    cli::render::counted,
    config::{self, PolicyTexts},
    gateway::{CONTEXT, unified_diff},
    model::{Access, Escaped, distinct},
    policy::{Policy, PolicySource, compile},
    policy_tools::{
        Learned, LearnedHosts, NewHost, OutlineFile, Proposal, Replay, learn, learn_hosts, outline,
        replay,
    },
};

/// Propose what a policy would have to allow, from recorded requests
///
/// Looks at requests that only the default denied, or would have denied while
/// the policy observed. Nothing that an explicit denial, a secret name or
/// `baseline` refuses is ever proposed, nor a host that had a refused address.
/// Prints a diff against the policy; each new line has its count and an example
/// record, and says so if it allows more than was requested. Nothing is changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis policy learn --policy mine.toml\n  \
    portcullis policy learn --policy mine.toml --since 2d | patch mine.toml\n  \
    portcullis policy learn --policy mine.toml --json")]
pub(super) struct Args {
    /// The policy in force: a file, or the name of an embedded policy
    #[arg(long, value_name = "FILE|NAME", value_hint = clap::ValueHint::FilePath)]
    #[arg(default_value = "default", env = "PORTCULLIS_POLICY")]
    policy: String,
    #[command(flatten)]
    log: LogArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    // Proposals change a file, so the policy must be one.
    let texts = PolicyTexts::load(&args.policy);
    let texts = texts.map_err(|error| unusable(&args.policy, &error))?;
    let policy = texts.compile().map_err(|error| unusable(&args.policy, &error))?.enforcing();
    let outline = outline(texts.source());
    let (path, log) = args.log.open()?;
    let mut learned = learn(&policy, &outline, &log, args.log.since(), &Bar::default())
        .map_err(|error| unreadable(&path, &error))?;
    let hosts = learn_hosts(&policy, &log, args.log.since(), &mut learned)
        .map_err(|error| unreadable(&path, &error))?;
    note_unverified(&path);
    if args.json {
        outjson!(report_json(&learned, &hosts.hosts));
    } else {
        propose(args, &outline, &learned, &hosts, |checked| {
            replay(checked, &outline, &log, args.log.since(), &Bar::default())
                .map_err(|error| unreadable(&path, &error))
        })?;
    }
    damaged(&learned.count.scanned)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the proposals as a diff, once `replay_under` has decided the requests again under them.
fn propose(
    args: &Args,
    outline: &[OutlineFile],
    learned: &Learned,
    LearnedHosts { hosts, refused }: &LearnedHosts,
    replay_under: impl FnOnce(&Policy) -> Result<Replay, Failure>,
) -> Result<(), Failure> {
    errln!(
        "{} read; {} and {} to allow",
        counted(learned.count.requests, "request"),
        counted(learned.proposals.len() as u64, "pattern"),
        counted(learned.extensions.len() as u64, "extension")
    );
    if !hosts.is_empty() {
        errln!("  {} to allow", counted(hosts.len() as u64, "host"));
    }
    if hosts.iter().any(|new| new.is_of_preset) {
        errln!(
            "  the used hosts of a preset are among them: a preset adds no host to a policy with rules of \
             hosts that allow or ask"
        );
    }
    for (host, rule) in refused {
        let NewHost { host, port, example, .. } = host;
        errln!(
            "  `{}:{port}` is left out (record {example}): `{}` denies an address that it had",
            Escaped(host),
            Escaped(rule)
        );
    }
    if learned.allowed > 0 {
        errln!("  {} are allowed by now", learned.allowed);
    }
    for (rule, number) in &learned.kept {
        errln!("  with the proposal, `{}` denies {number}", Escaped(rule));
    }
    let Some(own) = outline.first() else { return Ok(()) };
    let proposed = write_hosts(&write_in(&own.text, learned), hosts);
    if proposed == own.text {
        errln!("nothing to propose");
        return Ok(());
    }
    let checked = check(&own.name, &proposed, &args.policy)?.enforcing();
    let again = replay_under(&checked)?;
    let allowed: u64 =
        again.changes.iter().filter(|change| change.opens()).map(|change| change.records).sum();
    // Requests that are allowed anyway are counted above.
    let allowed = allowed.saturating_sub(learned.allowed);
    errln!("with the proposal, {allowed} more of the recorded requests are allowed");
    print_wider(learned);
    let name = distinct(&own.name, &[]);
    let names = (name.as_str(), &*format!("{name} (learned)"));
    out!("{}", unified_diff(&own.text, &proposed, names, CONTEXT));
    Ok(())
}

/// Prints what the proposals allow beyond the recorded requests.
fn print_wider(learned: &Learned) {
    for proposal in learned.proposals.iter().filter(|proposal| proposal.wider) {
        errln!(
            "  `{}` allows `{}` for more than the {} requested",
            Escaped(&proposal.pattern),
            proposal.access,
            counted(proposal.paths, "path")
        );
    }
    for new in &learned.extensions {
        errln!(
            "  the extension `{}` is allowed wherever `allowedPaths.{}` is, not only for the \
             requested paths",
            Escaped(&new.extension),
            new.access
        );
    }
    errln!("  what is listed is allowed to every agent, not only to the one that requested it");
}

/// Checks that the proposal loads.
fn check(name: &str, text: &str, reference: &str) -> Result<Policy, Failure> {
    let source =
        config::with_text(reference, text).unwrap_or_else(|_| PolicySource::from_text(name, text));
    compile(&source).map_err(|diagnostics| {
        err!("{diagnostics}");
        Failure::new("the proposal does not load, most likely because a test expects a denial")
            .exit(Exit::Policy)
            .help("`--json` has the proposals; change the test or add what you mean by hand")
    })
}

/// Returns the text with the proposals added to its lists.
fn write_in(text: &str, learned: &Learned) -> String {
    let mut text = text.to_owned();
    for access in Access::ALL {
        let lines: Vec<String> = learned
            .proposals
            .iter()
            .filter(|proposal| proposal.access == access)
            .map(|proposal| format!("    {}, # {}\n", quoted(&proposal.pattern), origin(proposal)))
            .collect();
        text = add(&text, "allowedPaths", None, access.as_str(), &lines.concat());
        let lines: Vec<String> = learned
            .extensions
            .iter()
            .filter(|new| new.access == access)
            .map(|new| {
                let (requests, example) = (new.requests, new.example);
                format!("    {}, # {requests}x, record {example}\n", quoted(&new.extension))
            })
            .collect();
        text = add(&text, "extensions", Some("allow"), access.as_str(), &lines.concat());
    }
    text
}

/// Returns the text with a rule for each port of the hosts.
fn write_hosts(text: &str, hosts: &[NewHost]) -> String {
    let mut text = text.to_owned();
    for of_port in hosts.chunk_by(|one, other| one.port == other.port) {
        let Some(NewHost { port, .. }) = of_port.first() else { continue };
        let ids = (1..).map(|n| {
            if n == 1 { format!("learned-{port}") } else { format!("learned-{port}-{n}") }
        });
        let is_new = |id: &String| !text.contains(&quoted(id));
        let Some(id) = ids.into_iter().find(is_new) else { continue };
        let line = |host: &NewHost| {
            let agents: Vec<_> = host.agents.iter().map(String::as_str).collect();
            let NewHost { host, requests, example, .. } = host;
            format!(
                "    {}, # {requests}x, record {example}, agent {}\n",
                quoted(host),
                agents.join(", ")
            )
        };
        let lines: String = of_port.iter().map(line).collect();
        let _ = write!(
            text,
            "\n[[network.rules]]\nid = {}\neffect = \"allow\"\nhosts = [\n{lines}]\nports = [{port}]\n",
            quoted(&id)
        );
    }
    text
}

/// Describes the origin: `12x, record 34, agent bot`; for a pattern wider than its
/// paths `12x, 5 paths, …`
fn origin(proposal: &Proposal) -> String {
    let agents: Vec<_> = proposal.agents.iter().map(String::as_str).collect();
    let Proposal { requests, example, paths, .. } = proposal;
    let paths = if proposal.wider { format!(", {paths} paths") } else { String::new() };
    format!("{requests}x{paths}, record {example}, agent {}", agents.join(", "))
}

/// Returns a TOML string.
fn quoted(text: &str) -> String {
    if text.contains(['\'', '\n', '\r']) || text.chars().any(char::is_control) {
        return Value::from(text).to_string();
    }
    if text.contains(['\\', '"']) { format!("'{text}'") } else { format!("\"{text}\"") }
}

/// Adds lines to the list `key` of a section; creates list and section if they are
/// missing.
fn add(text: &str, section: &str, sub: Option<&str>, key: &str, lines: &str) -> String {
    if lines.is_empty() {
        return text.to_owned();
    }
    let (root, _) = toml::de::DeTable::parse_recoverable(text);
    let table = root.get_ref().get(section).and_then(|value| value.get_ref().as_table());
    let inner = match sub {
        Some(sub) => {
            table.and_then(|table| table.get(sub)).and_then(|value| value.get_ref().as_table())
        }
        None => table,
    };
    if let Some(list) = inner.and_then(|table| table.get(key)) {
        let span = list.span();
        let (Some(before), Some(after)) = (text.get(..span.end - 1), text.get(span.end - 1..))
        else {
            return text.to_owned();
        };
        // The last element may lack its comma, and a comment may follow it.
        let body = before.get(span.start..).unwrap_or_default();
        let elements = list.get_ref().as_array();
        let last = elements.and_then(|list| list.iter().last()).map(|last| last.span().end);
        let comma = last.is_some_and(|last| {
            !before
                .get(last..)
                .unwrap_or_default()
                .lines()
                .any(|line| line.split('#').next().unwrap_or_default().contains(','))
        });
        let mut changed = match (comma, last) {
            (true, Some(last)) => {
                let (start, rest) = before.split_at(last);
                format!("{start},{rest}")
            }
            _ => before.to_owned(),
        };
        if !body.ends_with('\n') {
            changed.truncate(changed.trim_end_matches(' ').len());
            changed.push('\n');
        }
        return format!("{changed}{lines}{after}");
    }
    let list = format!("{key} = [\n{lines}]\n");
    match (sub, table) {
        (Some(_), _) => {
            // The list that denied the extension is in an extended file, which is
            // not changed.
            text.to_owned()
        }
        (None, Some(_)) => {
            let header = format!("[{section}]");
            let at = text.split_inclusive('\n').scan(0, |end, line| {
                *end += line.len();
                Some((*end, line))
            });
            let found = at.into_iter().find(|(_, line)| line.trim_start().starts_with(&header));
            match found.map(|(end, _)| end) {
                Some(end) if text.is_char_boundary(end) => {
                    let (before, after) = text.split_at(end);
                    format!("{before}{list}{after}")
                }
                _ => text.to_owned(),
            }
        }
        (None, None) => {
            let mut changed = text.to_owned();
            let _ = write!(changed, "\n[{section}]\n{list}");
            changed
        }
    }
}

fn report_json(learned: &Learned, hosts: &[NewHost]) -> Value {
    let proposals: Vec<_> = learned
        .proposals
        .iter()
        .map(|proposal| {
            json!({
                "access": proposal.access.as_str(),
                "pattern": proposal.pattern,
                "requests": proposal.requests,
                "paths": proposal.paths,
                "wider": proposal.wider,
                "example": proposal.example,
                "agents": proposal.agents,
            })
        })
        .collect();
    let extensions: Vec<_> = learned
        .extensions
        .iter()
        .map(|new| {
            json!({
                "access": new.access.as_str(),
                "extension": new.extension,
                "requests": new.requests,
                "example": new.example,
            })
        })
        .collect();
    json!({
        "records": learned.count.records,
        "requests": learned.count.requests,
        "allowedPaths": proposals,
        "extensions": extensions,
        "hosts": hosts.iter().map(host_json).collect::<Vec<_>>(),
        "allowedNow": learned.allowed,
        "stillDenied": learned.kept,
    })
}

fn host_json(new: &NewHost) -> Value {
    json!({
        "host": new.host,
        "port": new.port,
        "requests": new.requests,
        "example": new.example,
        "agents": new.agents,
        "ofPreset": new.is_of_preset,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_any_form_take_more() {
        for (before, after) in [
            ("[allowedPaths]\nread = []\n", "[allowedPaths]\nread = [\n    \"x\",\n]\n"),
            (
                "[allowedPaths]\nread = [\"a\"]\nlist = []\n",
                "[allowedPaths]\nread = [\"a\",\n    \"x\",\n]\nlist = []\n",
            ),
            (
                "[allowedPaths]\nread = [\n    \"a\", # one, two\n    \"b\" # three\n]\n",
                "[allowedPaths]\nread = [\n    \"a\", # one, two\n    \"b\", # three\n    \"x\",\n]\n",
            ),
            ("[allowedPaths]\nlist = []\n", "[allowedPaths]\nread = [\n    \"x\",\n]\nlist = []\n"),
            (
                "[allowedPaths]\r\nlist = []\r\n",
                "[allowedPaths]\r\nread = [\n    \"x\",\n]\nlist = []\r\n",
            ),
            ("schema = 1\n", "schema = 1\n\n[allowedPaths]\nread = [\n    \"x\",\n]\n"),
        ] {
            assert_eq!(add(before, "allowedPaths", None, "read", "    \"x\",\n"), after);
        }
    }
}
