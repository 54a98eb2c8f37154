//! The summary of a command, read from the log.

mod connections;
mod line;
mod refusals;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write as _,
    path::PathBuf,
};

use serde_json::{Value, json};

use self::{
    connections::{Connections, connection, credential},
    line::Line,
    refusals::{Refusal, Refusals},
};
use crate::{
    app::{
        audit_log::read_log,
        connection_help::Help,
        failure::{Context as _, Failure},
        opened::Opened,
        output::lines,
    },
    cli::{
        gateway_options::GatewayOptions,
        rows::{stderr_width, wrapped},
    },
    model::{AgentName, Escaped, OperationKind, WorkspacePath, for_shell},
    review::{Event, Session, change::Change, visible_json},
};

/// Maximum of printed lines of each kind.
const MAX_LINES: usize = 20;
/// Maximum of denied connections on which help is printed.
const MAX_HELP: usize = 3;
/// Maximum of characters of a printed line, which may have several rows.
const MAX_CHARACTERS: usize = 400;
/// The blanks before a row that continues a line.
const CONTINUED: usize = 13;
/// Maximum of listed changes; the rest is counted.
const MAX_CHANGES: usize = 1_000;
/// Maximum of listed hosts; connections to others are counted.
const MAX_HOSTS: usize = 1_000;
/// Maximum of listed paths of files that were read; the rest is counted.
const MAX_READ_PATHS: usize = 1_000;

/// The summaries of a session in its workspaces, beginning with the one in which its command
/// began.
pub(super) struct Summaries(Vec<Summary>);

impl Summaries {
    /// Reads the records of `session` in each log, from its first record on. `import` returns
    /// the command that imports commits into a workspace's repository.
    pub(super) fn read<'a>(
        begun: impl Iterator<Item = (&'a Opened, u64)>,
        session: &str,
        (code, timed_out): (u8, bool),
        import: impl Fn(&Opened, u64) -> Option<String>,
        (agent, preset): (&AgentName, Option<&str>),
    ) -> Result<Self, Failure> {
        let read = |(opened, record)| {
            let summary = Summary::read(opened, session, record, code, timed_out)?;
            let explain = summary.options.explain(agent, preset).operator;
            Ok(Summary { import: import(opened, record), explain, ..summary })
        };
        begun.map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Returns them as text for people.
    pub(super) fn text(&self) -> String {
        match self.0.as_slice() {
            [only] => only.text(""),
            all => {
                let of = |one: &Summary| one.text(&format!("{}: ", for_shell(&one.workspace)));
                all.iter().map(of).collect()
            }
        }
    }

    /// Returns them as one line for programs.
    pub(super) fn json(&self) -> String {
        let mut all = self.0.iter();
        let mut object = all.next().map(Summary::object).unwrap_or_default();
        let further: Vec<_> = all
            .map(|one| with(one.object(), "workspace", one.workspace.to_string_lossy().into()))
            .collect();
        if !further.is_empty() {
            object = with(object, "furtherWorkspaces", further.into());
        }
        format!("{}\n", visible_json(&object.to_string()))
    }
}

/// Adds a member to an object.
fn with(mut object: Value, name: &str, value: Value) -> Value {
    object.as_object_mut().map(|members| members.insert(name.to_owned(), value));
    object
}

/// The summary of a session in a workspace.
#[derive(Default)]
struct Summary {
    session: String,
    workspace: PathBuf,
    options: GatewayOptions,
    /// The options with which `policy explain` explains its connections.
    explain: String,
    code: u8,
    timed_out: bool,
    changes: Vec<Change>,
    /// The number of changes that are not listed.
    more_changes: usize,
    /// True if a change was made.
    has_made: bool,
    denials: Refusals,
    /// Changes that were allowed and not made: programs often ignore the error of close(2).
    failures: Refusals,
    /// The network of the command: `none`, or its connections past the rules of hosts.
    agent_network: Option<Value>,
    /// True if programs had no network and no proxy.
    is_offline: bool,
    /// True if the policy or a preset has rules of hosts.
    has_rules_of_hosts: bool,
    /// Connections by host and port, and by the id of the credential.
    connections: BTreeMap<(String, Option<String>), Connections>,
    /// The number of connections to hosts that are not listed.
    more_connections: u64,
    reads: usize,
    /// The paths of the files that were read.
    read_paths: BTreeSet<String>,
    /// True if a part of the log could not be read.
    is_damaged: bool,
    /// The command that imports its commits.
    import: Option<String>,
}

impl Summary {
    /// Reads the records of `session`, whose first one has the number `record`.
    fn read(
        opened: &Opened,
        session: &str,
        record: u64,
        code: u8,
        timed_out: bool,
    ) -> Result<Self, Failure> {
        const DOING: &str = "cannot read what the command did";
        let log = read_log(&opened.state_path.join("audit"))?;
        let found = Session::find_from(&log, session, record).or_fail(DOING)?;
        let mut summary = Self {
            session: session.to_owned(),
            workspace: opened.workspace.root().to_owned(),
            options: GatewayOptions::of(opened),
            code,
            timed_out,
            is_damaged: found.scanned.damaged > 0,
            has_rules_of_hosts: opened.policy.network().needs_proxy(),
            ..Self::default()
        };
        for event in found.events {
            summary.take(event);
        }
        Ok(summary)
    }

    fn take(&mut self, event: Event) {
        let other = match event {
            Event::Change(change) => {
                if change.is_nothing() {
                    return;
                }
                if change.is_failed() {
                    return self.failures.add(Refusal {
                        record: change.outcome.unwrap_or(change.seq),
                        operation: change.operation.to_string(),
                        path: change.path.relative().to_owned(),
                        to: change.to.as_ref().map(|to| to.relative().to_owned()),
                        request: None,
                        credential: None,
                        help: None,
                        rule: None,
                        reason: change.reason.or(change.result),
                        question: None,
                        times: 1,
                    });
                }
                self.has_made |= change.is_made();
                if self.changes.len() == MAX_CHANGES {
                    self.more_changes += 1;
                } else {
                    self.changes.push(*change);
                }
                return;
            }
            Event::Other(other) => other,
        };
        if let Some(network) = other.facts.get("agentNetwork") {
            self.agent_network = Some(network.clone());
            self.is_offline = network.is_string() && !other.facts.contains_key("proxy");
        }
        if other.op.as_deref() == Some("repeats") {
            return self.take_repeats(&other.facts);
        }
        if other.op.as_deref() == Some("unstored") {
            return self.take_unstored(other.seq, &other.facts);
        }
        // The request that asked has a record of its own.
        if other.kind == "approval" {
            return;
        }
        let (Some(operation), Some(path)) = (other.op, other.path) else { return };
        if operation == "connect" && other.kind == "intent" {
            self.take_connection(&path, &other.facts, &other.counts);
        }
        let is_denied = other.decision.as_deref() == Some("deny");
        // A cancelled write is stored later, unless its program was killed.
        let is_failed = operation == "write"
            && !matches!(other.result.as_deref(), None | Some("ok" | "cancelled"));
        if is_denied || is_failed {
            let question = other.facts.get("question").and_then(Value::as_str).map(str::to_owned);
            let list = if is_denied { &mut self.denials } else { &mut self.failures };
            let credential = credential(&other.facts);
            let (request, help) = match operation == "connect" && is_denied {
                true => connection(&path, other.rule.as_deref(), &other.facts),
                false => (None, None),
            };
            list.add(Refusal {
                record: other.outcome.unwrap_or(other.seq),
                operation,
                path,
                to: other.to,
                request,
                credential,
                help,
                rule: other.rule.filter(|_| is_denied),
                reason: other.reason.or(other.result.filter(|_| is_failed)),
                question,
                times: 1,
            });
        } else if operation == "read"
            && other.result.as_deref() == Some("ok")
            && !other.facts.contains_key("setup")
        {
            self.reads += 1;
            self.read_paths.insert(path);
        }
    }

    /// Adds a connection that was made, or tried.
    fn take_connection(
        &mut self,
        host: &str,
        facts: &BTreeMap<String, Value>,
        counts: &BTreeMap<String, u64>,
    ) {
        let key = (host.to_owned(), credential(facts));
        if self.connections.len() >= MAX_HOSTS && !self.connections.contains_key(&key) {
            self.more_connections += 1;
            return;
        }
        let sum = self.connections.entry(key).or_default();
        sum.number += 1;
        sum.traffic.add(Some(counts));
    }

    /// Adds repeated denials from a summary record.
    fn take_repeats(&mut self, facts: &BTreeMap<String, Value>) {
        let count = |object: Option<&Value>| object.and_then(Value::as_u64).unwrap_or(0);
        let mut others = count(facts.get("denials"));
        let paths = facts.get("paths").and_then(Value::as_array).into_iter().flatten();
        for repeat in paths {
            let same = |denial: &&mut Refusal| {
                // The first of lookups may be recorded as any of these.
                matches!(denial.operation.as_str(), "read" | "stat" | "list")
                    && repeat.get("path") == Some(&denial.path.as_str().into())
            };
            if let Some(denial) = self.denials.listed.iter_mut().rfind(same) {
                let times = count(repeat.get("denials"));
                denial.times = denial.times.saturating_add(times);
                others = others.saturating_sub(times);
            }
        }
        let others = usize::try_from(others).unwrap_or(usize::MAX);
        self.denials.more = self.denials.more.saturating_add(others);
    }

    /// Adds the writes that were not stored when the mount ended.
    fn take_unstored(&mut self, record: u64, facts: &BTreeMap<String, Value>) {
        const REASON: &str = "the session ended before it was stored";
        let paths = facts.get("paths").and_then(Value::as_array).into_iter().flatten();
        let paths: Vec<_> = paths.filter_map(Value::as_str).collect();
        let writes = facts.get("writes").and_then(Value::as_u64).unwrap_or(0);
        let others = usize::try_from(writes).unwrap_or(usize::MAX).saturating_sub(paths.len());
        self.failures.more = self.failures.more.saturating_add(others);
        for path in paths {
            self.failures.add(Refusal {
                record,
                operation: OperationKind::Write.to_string(),
                path: path.to_owned(),
                to: None,
                request: None,
                credential: None,
                help: None,
                rule: None,
                reason: Some(REASON.to_owned()),
                question: None,
                times: 1,
            });
        }
    }

    /// Returns the command that undoes the changes, if there are any.
    fn undo(&self) -> Option<String> {
        self.has_made.then(|| self.options.command(format_args!("undo --session {}", self.session)))
    }

    /// Returns the changes; those that stored versions of one path are grouped.
    fn runs(&self) -> Vec<Vec<&Change>> {
        let (mut runs, mut known) = (Vec::<Vec<&Change>>::new(), HashMap::new());
        for change in &self.changes {
            // A move or removal may concern a directory above the paths of others.
            if change.operation != OperationKind::Write {
                known.clear();
                runs.push(vec![change]);
                continue;
            }
            let at = *known.entry((&change.path, &change.result)).or_insert(runs.len());
            match runs.get_mut(at) {
                Some(run) => run.push(change),
                None => runs.push(vec![change]),
            }
        }
        runs
    }

    /// Formats it as text for people, with `place` before the counts.
    fn text(&self, place: &str) -> String {
        let mut text = String::new();
        let count = |n: u64, one: &str, more: &str| match n {
            0 => format!("no {more}"),
            1 => format!("1 {one}"),
            n => format!("{n} {more}"),
        };
        let changes = count((self.changes.len() + self.more_changes) as u64, "change", "changes");
        let denials = count(self.denials.count(), "denial", "denials");
        let failures = match self.failures.count() {
            0 => String::new(),
            times => count(times, "failed change", "failed changes") + ", ",
        };
        let reads = count(self.reads as u64, "version of a file read", "versions of files read");
        let number = self.connections.values().map(|host| host.number).sum::<u64>();
        let connections = match number.saturating_add(self.more_connections) {
            0 => String::new(),
            number => format!(", {}", count(number, "connection", "connections")),
        };
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            text,
            "portcullis: {place}{changes}, {denials}, {failures}{reads}{connections}"
        );
        self.list(&mut text, self.runs().into_iter().map(Line::Changes), self.more_changes);
        for (word, refusals) in [("denied", &self.denials), ("failed", &self.failures)] {
            let lines = refusals.listed.iter().map(|refusal| Line::Refusal(word, refusal));
            self.list(&mut text, lines, refusals.more);
        }
        for (host, Help { advice, explain }) in self.denials.help().into_iter().take(MAX_HELP) {
            let explain = explain.as_ref();
            let more = explain
                .map(|explain| format!("; `portcullis {explain}{}` says more", self.explain));
            let _ =
                writeln!(text, "  help: {}: {advice}{}", Escaped(host), more.unwrap_or_default());
        }
        if self.agent_network.as_ref().is_some_and(Value::is_object) {
            text += "  network  the host's (`--agent-network`): its connections were neither decided \
                     nor recorded\n";
        }
        if self.is_offline && self.code != 0 {
            text += "  network  programs reach no host, and their attempts are not recorded: ";
            text += match self.has_rules_of_hosts {
                true => "there is no proxy (`--agent-network none`, or no network namespace)\n",
                false => {
                    "a table `[network]` in the policy has them recorded, and its rules allow \
                          hosts\n"
                }
            };
        }
        let more = usize::try_from(self.more_connections).unwrap_or(usize::MAX);
        let hosts = self.connections.iter();
        let hosts = hosts.map(|((host, id), sum)| Line::Connections(host, id.as_deref(), sum));
        self.list(&mut text, hosts, more);
        if self.is_damaged {
            let verify = self.options.log_command("audit verify");
            let _ = writeln!(text, "  some records could not be read: `{verify}` says more");
        }
        if let Some(undo) = self.undo() {
            let _ = writeln!(text, "  undo: {undo}");
        }
        if let Some(import) = &self.import {
            let _ = writeln!(text, "  commits: {import}");
        }
        lines(&text)
    }

    /// Adds the first of `lines`, and the number of the rest, which includes `others`.
    fn list<'a>(
        &self,
        text: &mut String,
        lines: impl ExactSizeIterator<Item = Line<'a>>,
        others: usize,
    ) {
        let more = lines.len().saturating_sub(MAX_LINES).saturating_add(others);
        let width = stderr_width();
        for line in lines.take(MAX_LINES) {
            let mut line = line.to_string();
            let end = line.char_indices().nth(MAX_CHARACTERS).map(|(at, _)| at);
            if let Some(end) = end {
                line.truncate(end);
                line.push('…');
            }
            let line = wrapped(&line, 2, CONTINUED, width);
            let _ = writeln!(text, "{line}");
        }
        if more > 0 {
            let session = format_args!("audit session {}", self.session);
            let session = self.options.log_command(session);
            let _ = writeln!(text, "  … and {more} more: `{session}`");
        }
    }

    fn object(&self) -> Value {
        let changes = self.changes.iter().map(|change| {
            json!({
                "record": change.seq,
                "operation": change.operation.to_string(),
                "path": change.path.relative(),
                "to": change.to.as_ref().map(WorkspacePath::relative),
                "result": change.result,
            })
        });
        let list =
            |refusals: &Refusals| refusals.listed.iter().map(Refusal::object).collect::<Value>();
        let connections = self.connections.iter().map(|((host, credential), sum)| {
            json!({
                "host": host, "credential": credential, "connections": sum.number,
                "uncounted": sum.traffic.uncounted(sum.number),
                "bytesOut": sum.traffic.bytes_out, "bytesIn": sum.traffic.bytes_in,
            })
        });
        json!({
            "session": self.session,
            "exitCode": self.code,
            "timedOut": self.timed_out,
            "complete": !self.is_damaged,
            "changes": changes.collect::<Vec<_>>(),
            "moreChanges": self.more_changes,
            "denials": list(&self.denials),
            "moreDenials": self.denials.more,
            "failures": list(&self.failures),
            "moreFailures": self.failures.more,
            "agentNetwork": self.agent_network,
            "connections": connections.collect::<Vec<_>>(),
            "moreConnections": self.more_connections,
            "reads": self.reads,
            "readPaths": self.read_paths.iter().take(MAX_READ_PATHS).collect::<Vec<_>>(),
            "moreReadPaths": self.read_paths.len().saturating_sub(MAX_READ_PATHS),
            "undo": self.undo(),
            "import": self.import,
        })
    }
}

#[cfg(test)]
mod tests;
