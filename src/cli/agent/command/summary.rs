//! The summary of a command, read from the log.

mod refusals;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::{self, Write as _},
    path::PathBuf,
};

use serde_json::{Value, json};

use self::refusals::{Refusal, Refusals};
use crate::{
    app::{
        failure::{Context as _, Failure},
        opened::Opened,
        output::lines,
    },
    cli::{
        gateway_options::GatewayOptions,
        render::for_shell,
        rows::{stderr_width, wrapped},
    },
    model::{OperationKind, Quoted},
    review::{Event, Log, Session, change::Change, visible_json},
};

/// Maximum of printed lines of each kind.
const MAX_LINES: usize = 20;
/// Maximum of characters of a printed line, which may have several rows.
const MAX_CHARACTERS: usize = 400;
/// The blanks before a row that continues a line.
const CONTINUED: usize = 13;
/// Maximum of listed changes; the rest is counted.
const MAX_CHANGES: usize = 1_000;
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
        import: impl Fn(&Opened) -> Option<String>,
    ) -> Result<Self, Failure> {
        let read = |(opened, record)| {
            let summary = Summary::read(opened, session, record, code, timed_out)?;
            Ok(Summary { import: import(opened), ..summary })
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
    code: u8,
    timed_out: bool,
    changes: Vec<Change>,
    /// The number of changes that are not listed.
    more_changes: usize,
    /// True if a change was made.
    has_made: bool,
    denials: Refusals,
    /// Writes that were allowed and not stored: programs often ignore the error of close(2).
    failures: Refusals,
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
        let log = Log::open(&opened.state_path.join("audit")).or_fail(DOING)?;
        let found = Session::find_from(&log, session, record).or_fail(DOING)?;
        let mut summary = Self {
            session: session.to_owned(),
            workspace: opened.workspace.root().to_owned(),
            options: GatewayOptions::of(opened),
            code,
            timed_out,
            is_damaged: found.scanned.damaged > 0,
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
        if other.op.as_deref() == Some("repeats") {
            return self.take_repeats(&other.facts);
        }
        let (Some(operation), Some(path)) = (other.op, other.path) else { return };
        // Only the end of the session cancels a connection: nobody answered the question about it.
        let is_unanswered = operation == "connect" && other.result.as_deref() == Some("cancelled");
        let is_denied = other.decision.as_deref() == Some("deny") || is_unanswered;
        // A cancelled write is stored later, unless its program was killed.
        let is_failed = operation == "write"
            && !matches!(other.result.as_deref(), None | Some("ok" | "cancelled"));
        if is_denied || is_failed {
            let question = other.facts.get("question").and_then(Value::as_str).map(str::to_owned);
            let list = if is_denied { &mut self.denials } else { &mut self.failures };
            list.add(Refusal {
                record: other.answer.unwrap_or(other.seq),
                operation,
                path,
                to: other.to,
                rule: other.rule.filter(|_| is_denied),
                reason: other.reason.or(other.result.filter(|_| is_failed)),
                question,
                times: 1,
            });
        } else if operation == "read" && other.result.as_deref() == Some("ok") {
            self.reads += 1;
            self.read_paths.insert(path);
        }
    }

    /// Adds repeated denials from a summary record.
    fn take_repeats(&mut self, facts: &BTreeMap<String, Value>) {
        let paths = facts.get("paths").and_then(Value::as_array).into_iter().flatten();
        for repeat in paths {
            let same = |denial: &&mut Refusal| {
                denial.operation == "read"
                    && repeat.get("path") == Some(&denial.path.as_str().into())
            };
            let times = repeat.get("denials").and_then(Value::as_u64).unwrap_or(0);
            if let Some(denial) = self.denials.listed.iter_mut().rfind(same) {
                denial.times = denial.times.saturating_add(times);
            }
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
            times => count(times, "failed write", "failed writes") + ", ",
        };
        let reads = count(self.reads as u64, "version of a file read", "versions of files read");
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "portcullis: {place}{changes}, {denials}, {failures}{reads}");
        self.list(&mut text, self.runs().into_iter().map(Line::Changes), self.more_changes);
        for (word, refusals) in [("denied", &self.denials), ("failed", &self.failures)] {
            let lines = refusals.listed.iter().map(|refusal| Line::Refusal(word, refusal));
            self.list(&mut text, lines, refusals.more);
        }
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
                "path": change.path.to_string(),
                "to": change.to.as_ref().map(ToString::to_string),
                "result": change.result,
            })
        });
        let list =
            |refusals: &Refusals| refusals.listed.iter().map(Refusal::object).collect::<Value>();
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
            "reads": self.reads,
            "readPaths": self.read_paths.iter().take(MAX_READ_PATHS).collect::<Vec<_>>(),
            "moreReadPaths": self.read_paths.len().saturating_sub(MAX_READ_PATHS),
            "undo": self.undo(),
            "import": self.import,
        })
    }
}

/// A line for people.
enum Line<'a> {
    /// Versions of one path, or one change.
    Changes(Vec<&'a Change>),
    /// A refused request, after the word for how it was refused.
    Refusal(&'static str, &'a Refusal),
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changes(changes) => {
                let Some(change) = changes.first() else { return Ok(()) };
                let path = change.path.quoted();
                write!(f, "{:<8} {path}", change.operation.to_string())?;
                if let Some(to) = &change.to {
                    write!(f, " to {}", to.quoted())?;
                }
                if changes.len() > 1 {
                    write!(f, " ({} versions)", changes.len())?;
                }
                match change.result.as_deref() {
                    Some("ok") => Ok(()),
                    Some(result) => write!(f, ": {}", Quoted(result)),
                    None => write!(f, ": not finished"),
                }
            }
            Self::Refusal(word, refusal) => {
                let (operation, path) = (Quoted(&refusal.operation), Quoted(&refusal.path));
                write!(f, "{word:<8} {operation} {path}")?;
                if let Some(to) = &refusal.to {
                    write!(f, " to {}", Quoted(to))?;
                }
                if refusal.times > 1 {
                    write!(f, ", {} times", refusal.times)?;
                }
                match (&refusal.rule, &refusal.reason) {
                    (Some(rule), _) => write!(f, ": rule {}", Quoted(rule))?,
                    (None, Some(reason)) => write!(f, ": {}", Quoted(reason))?,
                    (None, None) => {}
                }
                match &refusal.question {
                    Some(question) => write!(f, ", question {}", Quoted(question)),
                    None => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::review::OtherRecord;

    /// The reason of the first one stood for all denials without a rule at one host, and the first
    /// line counted groups.
    #[test]
    fn denials_without_a_rule_are_grouped_by_their_reason() {
        let mut summary = Summary::default();
        let denials = [(None, "no method"), (None, "no path"), (None, "no path"), (Some("r"), "x")];
        for (rule, reason) in denials.into_iter().chain([(Some("r"), "y")]) {
            summary.take(Event::Other(Box::new(OtherRecord {
                op: Some("connect".to_owned()),
                path: Some("a.example:443".to_owned()),
                decision: Some("deny".to_owned()),
                rule: rule.map(str::to_owned),
                reason: Some(reason.to_owned()),
                ..OtherRecord::default()
            })));
        }
        let text = summary.text("");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "portcullis: no changes, 5 denials, no versions of files read",
                "  denied   connect a.example:443: \"no method\"",
                "  denied   connect a.example:443, 2 times: \"no path\"",
                "  denied   connect a.example:443, 2 times: rule r",
            ]
        );
    }

    /// A program that ignores the error of close(2), such as a shell, lost what it wrote without a
    /// word, and a denied rename did not say where to.
    #[test]
    fn failed_writes_are_told() {
        let mut summary = Summary::default();
        let allowed = |op: &str, result: &str| OtherRecord {
            op: Some(op.to_owned()),
            path: Some("a".to_owned()),
            decision: Some("allow".to_owned()),
            rule: Some("r".to_owned()),
            result: Some(result.to_owned()),
            ..OtherRecord::default()
        };
        let denied = OtherRecord {
            decision: Some("deny".to_owned()),
            to: Some("b".to_owned()),
            ..allowed("rename", "denied")
        };
        let others = [("write", "conflict"), ("write", "conflict"), ("write", "cancelled")];
        let others = others.map(|(op, result)| allowed(op, result));
        for other in others.into_iter().chain([denied, allowed("remove", "notEmpty")]) {
            summary.take(Event::Other(Box::new(other)));
        }
        let text = summary.text("");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "portcullis: no changes, 1 denial, 2 failed writes, no versions of files read",
                "  denied   rename a to b: rule r",
                "  failed   write a, 2 times: conflict",
            ]
        );
        let object = summary.object();
        assert_eq!(object["denials"][0]["to"], "b");
        assert_eq!(object["failures"][0]["times"], 2);
    }

    /// Programs learned how many versions were read, and of no file which.
    #[test]
    fn files_that_were_read_are_named_once() {
        let mut summary = Summary::default();
        for number in [0, 0].into_iter().chain((0..MAX_READ_PATHS + 2).rev()) {
            summary.take(Event::Other(Box::new(OtherRecord {
                op: Some("read".to_owned()),
                path: Some(format!("{number:04}")),
                decision: Some("allow".to_owned()),
                result: Some("ok".to_owned()),
                ..OtherRecord::default()
            })));
        }
        let object = summary.object();
        let paths = object["readPaths"].as_array().unwrap();
        assert_eq!((paths.len(), &paths[0], &paths[999]), (1_000, &json!("0000"), &json!("0999")));
        assert_eq!((&object["moreReadPaths"], &object["reads"]), (&json!(2), &json!(1_004)));
    }
}
