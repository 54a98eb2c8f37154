//! A report about a period, gathered in one pass over the log.
//!
//! It repeats the log and the verifier's findings. It judges nothing, contains no content of files,
//! and says what it left out.

mod attempts;
mod bounded_list;
mod chart;
pub(super) mod digest;
mod gaps;
mod html;
mod items;
mod markup;

pub use bounded_list::{Denials, Listed, MAX_LISTED};
pub use html::page;
pub use items::{
    Activity, Agent, Approval, Connected, Decided, Denied, FileChange, Finding, GatewayStart,
    LabelUse, Operation, PolicyChange, SetAside,
};

use std::{collections::BTreeMap, io, path::Path};

use portcullis_audit::{Hash, KEYS, MAX_NOTE};
use serde::Serialize;

use super::{Filter, Log, LogStart, MAX_POLICY, Scanned, is_foreign, read_regular};
use digest::Digest;

/// The content of a report. All texts are untrusted.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Version of this structure: 1.
    pub version: u32,
    /// The time at which it was made, RFC 3339 in UTC.
    pub created: String,
    /// The program's version.
    pub program: &'static str,
    /// The workspaces that gateways served.
    pub workspaces: Vec<String>,
    /// The requested period.
    pub period: Period,
    /// The verifier's report on the entire log.
    pub chain: portcullis_audit::Report,
    /// True if the log is valid.
    pub valid: bool,
    /// The public keys beside the log, as written there.
    pub keys: Vec<String>,
    /// Number of records in the period.
    pub records: u64,
    /// Number of records of each kind in the period.
    pub kinds: BTreeMap<String, u64>,
    /// Decisions over time.
    pub activity: Vec<Activity>,
    /// The time span of an item of `activity`: `hour`, `day` or `month`.
    pub activity_unit: &'static str,
    /// Agents.
    pub agents: Vec<Agent>,
    /// Decisions by rule.
    pub rules: Vec<Decided>,
    /// Decisions by operation.
    pub operations: Vec<Operation>,
    /// Connections by host, those with the most bytes sent first.
    pub hosts: Vec<Connected>,
    /// Labels of content that was read.
    pub labels: Vec<LabelUse>,
    /// Denied attempts.
    pub denied: Denials,
    /// Requests that the policy denies and that observe mode allowed. `allowed` includes them.
    pub observed: Denials,
    /// Secrets that were found and redacted or denied.
    pub secrets: Listed<Finding>,
    /// Files changed.
    pub files: Listed<FileChange>,
    /// Policies in force.
    pub policies: Vec<PolicyInForce>,
    /// Policies that running gateways loaded or refused.
    pub policy_changes: Listed<PolicyChange>,
    /// Approvals.
    pub approvals: Listed<Approval>,
    /// Starts of gateways.
    pub gateways: Listed<GatewayStart>,
    /// Changes without a known outcome.
    pub missing_outcomes: Vec<u64>,
    /// Damaged bytes that recoveries set aside.
    pub set_aside: Vec<SetAside>,
    /// Parts of the log that could not be read.
    pub unreadable: Vec<String>,
    /// Number of such parts.
    pub unreadable_count: u64,
    /// The options that lead commands to the log.
    #[serde(skip)]
    pub options: String,
}

/// A period.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Period {
    /// The earliest time, inclusive, if given.
    pub since: Option<String>,
    /// The latest time, exclusive, if given.
    pub until: Option<String>,
    /// The time of the first record.
    pub first: Option<String>,
    /// The time of the last record.
    pub last: Option<String>,
    /// The time before which nothing is known: older records were pruned, and may belong to the
    /// period.
    pub pruned_before: Option<String>,
}

/// A policy that decided in the period.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyInForce {
    /// The hash in records.
    pub sha256: String,
    /// Its name in records of gateways' starts.
    pub name: Option<String>,
    /// Its version.
    pub version: Option<u64>,
    /// Number of records under it.
    pub records: u64,
    /// The time of the first record.
    pub first: String,
    /// The time of the last record.
    pub last: String,
    /// Its text with all files that it extends; `None` if it was not stored or not asked for.
    pub text: Option<String>,
    /// True if there is a text.
    pub text_is_stored: bool,
    /// True if the text has the hash.
    pub text_is_genuine: bool,
}

/// The scope of a report.
#[derive(Debug, Clone)]
pub struct Scope<'a> {
    /// The log's directory.
    pub log: &'a Path,
    /// The options that lead commands to the log.
    pub options: &'a str,
    /// The directory of policies that were in force; `None` if it does not exist.
    pub policies: Option<&'a Path>,
    /// The earliest time, inclusive, in the form of `t`.
    pub since: Option<String>,
    /// The latest time, exclusive.
    pub until: Option<String>,
    /// The current time, RFC 3339 in UTC.
    pub now: String,
    /// True if the texts of policies are part of the report.
    pub with_policies: bool,
}

impl Report {
    /// Gathers the records of the period; `chain` is the verifier's report on the log.
    ///
    /// # Errors
    /// If the log cannot be read. Damage is part of the report.
    pub fn gather(
        log: &Log,
        chain: portcullis_audit::Report,
        scope: &Scope<'_>,
    ) -> io::Result<Self> {
        let filter =
            Filter { since: scope.since.clone(), until: scope.until.clone(), ..Filter::default() };
        let mut all = Digest::default();
        let mut scanned = log.fold(&filter, Digest::add, |part| all.merge(part))?;
        if all.left_out > 0 {
            let count = all.left_out;
            scanned.damage(|| {
                format!("the period has more names than a report has room for: {count} records were left out")
            });
        }
        let mut report = Self::of(all, chain, scanned, log.begins(), scope);
        report.keys = keys(scope.log)?;
        for policy in &mut report.policies {
            policy.look_up(scope.policies)?;
            policy.text = policy.text.take().filter(|_| scope.with_policies);
        }
        Ok(report)
    }

    /// Returns the number of allowed requests.
    fn allowed(&self) -> u64 {
        self.agents.iter().map(|agent| agent.allowed).sum()
    }

    /// Returns the command of `portcullis audit` with the period of the report.
    fn command(&self, words: &str) -> String {
        let Period { since, until, .. } = &self.period;
        let option = |name, time: &Option<String>| {
            time.as_ref().map(|time| format!(" --{name} {time}")).unwrap_or_default()
        };
        let period = option("since", since) + &option("until", until);
        format!("portcullis audit {words}{period} {}", self.options)
    }

    /// Returns the command that writes the report as JSON, with longer lists.
    fn to_json(&self) -> String {
        self.command("report -o report.json")
    }

    fn of(
        digest: Digest,
        chain: portcullis_audit::Report,
        scanned: Scanned,
        begins: Option<LogStart>,
        scope: &Scope<'_>,
    ) -> Self {
        let (activity, activity_unit) = digest.hours.activity();
        let missing_outcomes = digest.missing_outcomes();
        Self {
            version: 1,
            options: scope.options.to_owned(),
            created: scope.now.clone(),
            program: env!("CARGO_PKG_VERSION"),
            workspaces: digest.workspaces.into_iter().collect(),
            period: Period {
                since: scope.since.clone(),
                until: scope.until.clone(),
                first: digest.first,
                last: digest.last,
                pruned_before: begins
                    .filter(|first| first.is_after(scope.since.as_deref()))
                    .map(|first| first.t.unwrap_or_default()),
            },
            valid: chain.is_valid(),
            chain,
            keys: Vec::new(),
            records: digest.records,
            kinds: digest.kinds,
            activity,
            activity_unit,
            agents: digest.agents.into_values().collect(),
            rules: most_first(digest.rules.into_values(), |rule| rule.records),
            operations: most_first(digest.operations.into_values(), |op| op.allowed + op.denied),
            hosts: most_first(digest.hosts.into_values(), |host| host.bytes_out),
            labels: digest.label_uses.into_values().collect(),
            denied: digest.denied.into(),
            observed: digest.observed.into(),
            secrets: digest.secrets.into(),
            files: Listed {
                total: digest.files.len() as u64,
                listed: digest.files.into_values().take(MAX_LISTED).collect(),
            },
            policies: digest.policies.into_values().collect(),
            policy_changes: digest.policy_changes.into(),
            approvals: digest.approvals.into(),
            gateways: digest.gateways.into(),
            missing_outcomes,
            set_aside: digest.set_aside,
            unreadable: scanned.damages,
            unreadable_count: scanned.damaged,
        }
    }
}

fn most_first<T>(items: impl Iterator<Item = T>, count: impl Fn(&T) -> u64) -> Vec<T> {
    let mut items = Vec::from_iter(items);
    items.sort_by_key(|item| std::cmp::Reverse(count(item)));
    items
}

/// Reads the public keys beside the log.
fn keys(log: &Path) -> io::Result<Vec<String>> {
    match read_regular(&log.join(KEYS), MAX_NOTE as u64) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            Ok(text.lines().map(str::to_owned).filter(|line| !line.is_empty()).collect())
        }
        // An irregular file contains no keys; the verifier reports it.
        Err(error) if error.kind() == io::ErrorKind::NotFound || is_foreign(&error) => {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

impl PolicyInForce {
    /// Reads the text, and checks that it is the one that decided.
    fn look_up(&mut self, policies: Option<&Path>) -> io::Result<()> {
        let Some(directory) = policies else { return Ok(()) };
        // Only a valid hash from the log becomes part of a file name.
        let Ok(hash) = self.sha256.parse::<Hash>() else { return Ok(()) };
        match read_regular(&directory.join(format!("{hash}.toml")), MAX_POLICY) {
            Ok(bytes) => {
                self.text_is_stored = true;
                self.text_is_genuine = Hash::of(&bytes) == hash;
                self.text = Some(String::from_utf8_lossy(&bytes).into_owned());
                Ok(())
            }
            // A file that no gateway wrote counts as missing.
            Err(error) if error.kind() == io::ErrorKind::NotFound || is_foreign(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
