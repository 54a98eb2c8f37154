//! The filters of the commands for reviewers, and opening of the log.

use std::{
    collections::BTreeSet,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::{fs::lstat, io::Errno};

use super::{
    filter::{decisions, kinds, parse_op, transports},
    location::LogSource,
    path::{self, PathArgument},
};
use crate::{
    app::{
        audit_log::{note_unverified, read_log, unreadable},
        failure::Failure,
        pager,
        record_time::{RecordTime, period},
        state_directory,
    },
    gateway::BackupStore,
    model::{Escaped, Host, OperationKind},
    policy::nearest,
    review::{Field, Filter, Log, PathFilter, Stats, similar_session},
};

/// The size of a log, in bytes, from which on progress is shown.
const MIN_PROGRESS_BYTES: u64 = 64 << 20;

/// The log, and the use of its index.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Indexed {
    #[command(flatten)]
    pub(super) at: LogSource,
    /// Read the log itself, without its index
    #[arg(long)]
    pub(super) no_index: bool,
}

impl Indexed {
    /// Opens the log for reading without verification, with its index unless it is a copy: nothing
    /// is written beside evidence.
    pub(super) fn open(&self) -> Result<(Log, ScanProgress), Failure> {
        let directory = self.at.directory()?;
        let (log, bar) = open_log(&directory)?;
        note_unverified(&directory);
        let state = directory.parent().filter(|_| self.at.dir.is_none() && !self.no_index);
        Ok(match state {
            Some(state) => (log.with_index(index(state)), bar),
            None => (log, bar),
        })
    }

    /// Returns the failure of a log that cannot be read.
    pub(super) fn unreadable(&self, error: &io::Error) -> Failure {
        unreadable_at(&self.at, error)
    }
}

/// The log, for output that is shown to somebody else: a process that can write an index could
/// hide records with it, so the log itself is read.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct UnindexedLog {
    #[command(flatten)]
    pub(super) at: LogSource,
}

impl UnindexedLog {
    /// Opens the log.
    pub(super) fn open(&self) -> Result<(Log, ScanProgress), Failure> {
        open_log(&self.at.directory()?)
    }

    /// Returns the failure of a log that cannot be read.
    pub(super) fn unreadable(&self, error: &io::Error) -> Failure {
        unreadable_at(&self.at, error)
    }
}

fn open_log(directory: &Path) -> Result<(Log, ScanProgress), Failure> {
    let log = read_log(directory)?;
    let progress = ScanProgress::new("reading", log.bytes());
    let bar = progress.0.clone();
    Ok((log.with_progress(move |bytes| bar.inc(bytes)), progress))
}

fn unreadable_at(at: &LogSource, error: &io::Error) -> Failure {
    match at.directory() {
        Ok(directory) => unreadable(&directory, error),
        Err(failure) => failure,
    }
}

/// Returns the path of the log's index in the state directory `state`.
pub(super) fn index(state: &Path) -> PathBuf {
    state.join("index")
}

/// A progress bar on the terminal for a large log, removed when dropped.
pub(super) struct ScanProgress(ProgressBar);

impl ScanProgress {
    /// Starts a bar for `total` bytes; `verb` says what is done with them.
    pub(super) fn new(verb: &str, total: u64) -> Self {
        if total < MIN_PROGRESS_BYTES || !io::stderr().is_terminal() || pager::is_wanted() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let style = format!("{verb} {{wide_bar}} {{bytes}}/{{total_bytes}} {{eta}}");
        Self(match ProgressStyle::with_template(&style) {
            Ok(style) => bar.with_style(style),
            Err(_template) => bar,
        })
    }

    /// Adds bytes that were read.
    pub(super) fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// Sets the number of bytes that were read.
    pub(super) fn set_position(&self, bytes: u64) {
        self.0.set_position(bytes);
    }

    /// Starts again for another read.
    pub(super) fn restart(&self) {
        self.0.reset();
    }

    /// Removes the bar for now.
    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }

    /// Hides the bar while `print` runs.
    pub(super) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }
}

impl Drop for ScanProgress {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The filters, which must all match; one that is given several times matches
/// any of its values.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Filters")]
pub(super) struct Select {
    /// Start of the period: `2026-11-21`, `2026-11-21T08:00:00Z`, `2d`, `1 hour ago`, `yesterday`
    /// [default: the first record]
    #[arg(long, value_name = "TIME")]
    since: Option<RecordTime>,
    /// End of the period, in the same forms, which does not include this time [default: the last
    /// record]
    #[arg(long, value_name = "TIME")]
    until: Option<RecordTime>,
    /// Only records of this session: its identifier, or the beginning of that
    #[arg(long, value_name = "ID")]
    session: Vec<String>,
    /// Only records of this agent
    #[arg(long, value_name = "NAME")]
    agent: Vec<String>,
    /// Only records of this user of the system
    #[arg(long, value_name = "NAME")]
    user: Vec<String>,
    /// Only records of requests by this transport
    #[arg(long, value_name = "TRANSPORT", value_parser = transports())]
    transport: Vec<String>,
    /// Only records of this operation, such as `write`
    #[arg(long, value_name = "OPERATION", value_parser = parse_op)]
    op: Vec<String>,
    /// Only records of this path and all beneath it, or of a pattern such as `src/**/*.rs`; it may
    /// be the requested, the canonical or the new path
    #[arg(long, value_name = "PATH|GLOB")]
    path: Vec<PathArgument>,
    /// Only records of connections to this host, a name or an address, at any port
    #[arg(long, value_name = "HOST", value_parser = parse_host, conflicts_with = "path")]
    host: Vec<String>,
    /// Only records with this decision
    #[arg(long, value_name = "DECISION", value_parser = decisions())]
    decision: Vec<String>,
    /// Only records of this rule, or of a section of a policy, such as `secrets`
    #[arg(long, value_name = "RULE")]
    rule: Vec<String>,
    /// Only records with this result: `ok`, `denied`, `notFound`, …
    #[arg(long, value_name = "RESULT")]
    result: Vec<String>,
    /// Only records of a content, before or after, whose SHA-256 begins so
    #[arg(long, value_name = "HEX")]
    hash: Vec<HashPrefix>,
    /// Only records of this kind
    #[arg(long, value_name = "KIND", value_parser = kinds())]
    kind: Vec<String>,
}

/// The beginning of a hash.
#[derive(Debug, Clone)]
struct HashPrefix(String);

impl std::str::FromStr for HashPrefix {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.to_ascii_lowercase();
        if (4..=64).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            Ok(Self(digits))
        } else {
            Err("expected 4 to 64 hexadecimal digits")
        }
    }
}

/// Parses a host as records show it.
fn parse_host(text: &str) -> Result<String, String> {
    let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let host = Host::parse(inner.unwrap_or(text)).map_err(|why| why.to_string())?.to_string();
    Ok(if host.contains(':') { format!("[{host}]") } else { host })
}

impl Select {
    /// Returns the filter, for the log `at`.
    pub(super) fn filter(&self, at: &LogSource) -> Result<Filter, Failure> {
        let (since, until) = period(self.since.as_ref(), self.until.as_ref())?;
        let hosts = self.host.iter().map(|host| PathFilter::Host(host.clone()));
        // A file may have such a name.
        let ops = match (self.host.is_empty(), self.op.as_slice()) {
            (false, []) => vec![OperationKind::Connect.to_string()],
            (_, ops) => ops.to_vec(),
        };
        Ok(Filter {
            since,
            until,
            records: None,
            kinds: self.kind.clone(),
            sessions: self.session.clone(),
            agents: self.agent.clone(),
            users: self.user.clone(),
            transports: self.transport.clone(),
            ops,
            paths: path::filters(&self.path, at)?.into_iter().chain(hosts).collect(),
            decisions: self.decision.clone(),
            rules: self.rule.clone(),
            results: self.result.clone(),
            hashes: self.hash.iter().map(|hash| hash.0.clone()).collect(),
        })
    }
}

/// Opens the backups beside the log `at` for reading; `None` if there are none.
pub(super) fn backup_store(at: &LogSource) -> Result<Option<BackupStore>, Failure> {
    let state = at.state()?;
    // Beside a copy of a log there may be none, and other files.
    if at.dir.is_some() && matches!(lstat(state.join("backups")), Err(Errno::NOENT)) {
        return Ok(None);
    }
    state_directory::backup_store(&state)
}

/// Warns if pruned records may belong to the period from `since` on.
pub(super) fn warn_of_pruned(log: &Log, since: Option<&str>) {
    let Some(first) = log.begins().filter(|first| first.is_after(since)) else { return };
    let t = first.t.as_ref().map(|t| format!(" of {}", Escaped(t))).unwrap_or_default();
    let reason = first.reason();
    errln!(
        "portcullis: warning: records before record {}{t} {reason}: this result may lack earlier ones",
        first.seq
    );
}

/// Reports that no record matched, and which values of the filter no record has.
pub(super) fn print_nothing_matched(log: &Log, filter: &Filter) {
    if io::stderr().is_terminal() {
        errln!("no record matches");
    }
    warn_of_unknown(log, Field::Agent, filter.agents.iter().map(String::as_str));
    warn_of_unknown(log, Field::User, filter.users.iter().map(String::as_str));
    warn_of_unknown(log, Field::Session, filter.sessions.iter().map(String::as_str));
    let hosts = filter.paths.iter().filter_map(|path| match path {
        PathFilter::Host(host) => Some(host.as_str()),
        _ => None,
    });
    let hosts: Vec<_> = hosts.collect();
    // A host stands for connections, without `--op`.
    let ops = filter.ops.iter().filter(|_| hosts.is_empty());
    warn_of_unknown(log, Field::Op, ops.map(String::as_str));
    warn_of_unknown_hosts(log, &hosts);
    warn_of_unknown(log, Field::Rule, filter.rules.iter().map(String::as_str));
    warn_of_unknown(log, Field::Result, filter.results.iter().map(String::as_str));
    let paths = filter.paths.iter().filter_map(|path| match path {
        PathFilter::Below(path) => Some(path.as_str()),
        PathFilter::Related(_) | PathFilter::Glob(..) | PathFilter::Host(_) => None,
    });
    warn_of_unknown(log, Field::Path, paths.filter(|path| !path.is_empty()));
}

/// Warns of values of a field that no record has, with a similar one that a record has.
pub(super) fn warn_of_unknown<'a>(log: &Log, field: Field, values: impl Iterator<Item = &'a str>) {
    let mut values = values.peekable();
    if values.peek().is_none() {
        return;
    }
    // A log that cannot be read was reported already.
    let Ok(known) = Stats::of(log, &Filter::default(), &[field]) else { return };
    let known = known.groups.iter().filter_map(|group| group.values.first()?.as_deref());
    let known: BTreeSet<&str> = match field {
        Field::Path => known.flat_map(|path| above(path).chain([path])).collect(),
        _ => known.collect(),
    };
    let is_known = |value: &str| match field {
        Field::Session => known.iter().any(|known| known.starts_with(value)),
        // A section of a policy stands for the rules in it.
        Field::Rule => known.iter().any(|known| {
            let rest = known.strip_prefix(value);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        }),
        _ => known.contains(value),
    };
    for value in values.filter(|value| !is_known(value)) {
        let near = match field {
            Field::Session => similar_session(log, value).ok().flatten(),
            _ => nearest(value, known.iter().copied()).map(str::to_owned),
        };
        let help = match near {
            None if field == Field::Session => "; `portcullis audit session` lists them".to_owned(),
            Some(near) => format!("; did you mean `{}`?", Escaped(&near)),
            None => String::new(),
        };
        errln!("portcullis: warning: no record has the {field} `{}`{help}", Escaped(value));
    }
}

/// Warns of hosts to which no connection is on record.
fn warn_of_unknown_hosts(log: &Log, hosts: &[&str]) {
    if hosts.is_empty() {
        return;
    }
    let connections = Filter { ops: vec![OperationKind::Connect.to_string()], ..Filter::default() };
    let Ok(known) = Stats::of(log, &connections, &[Field::Path]) else { return };
    let known = known.groups.iter().filter_map(|group| group.values.first()?.as_deref());
    let known: BTreeSet<&str> =
        known.filter_map(|path| path.rsplit_once(':')).map(|(host, _)| host).collect();
    for host in hosts.iter().filter(|host| !known.contains(**host)) {
        let near = nearest(host, known.iter().copied());
        let help = near.map(|near| format!("; did you mean `{}`?", Escaped(near)));
        errln!(
            "portcullis: warning: no record has the host `{}`{}",
            Escaped(host),
            help.unwrap_or_default()
        );
    }
}

/// Returns the directories above a path.
fn above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').filter_map(|(at, _)| path.get(..at))
}
