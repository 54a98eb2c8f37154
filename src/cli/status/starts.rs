//! The starts of a log: the last one, and those of the gateways that run.

use std::{collections::BTreeMap, io, ops::ControlFlow};

use portcullis_audit::{Kind, RecordView, Segment};
use serde_json::Value;

use crate::review::{Filter, Log, ScanOrder};

/// Facts of a start, with those of its sandbox and of the policy that was loaded last.
pub(super) type Facts = BTreeMap<String, Value>;

/// The starts of a log.
#[derive(Debug, Default)]
pub(super) struct Starts {
    /// The last start.
    pub(super) last: Facts,
    /// The starts of the gateways that run, each as far as it is in the log.
    pub(super) running: Vec<Facts>,
}

/// A record of a start, or of what changed its facts.
struct FoundStart {
    seq: u64,
    boot: String,
    facts: Facts,
}

/// Reads the starts in the log; `running` are the gateways that run.
pub(super) fn read(log: &Log, running: &[String]) -> io::Result<Starts> {
    let filter = Filter { kinds: vec![Kind::Start.as_str().to_owned()], ..Filter::default() };
    let mut last: Option<(u64, String)> = None;
    let mut starts: BTreeMap<String, FoundStart> = BTreeMap::new();
    let start = |record: &RecordView<'_>, _: &[u8]| found(record, record.facts.clone()?);
    log.scan(&filter, ScanOrder::NewestSegment, start, |start| {
        let segment = |seq| Segment::of(seq);
        let is_older = last.as_ref().is_some_and(|(seq, _)| segment(*seq) != segment(start.seq));
        if is_older && running.iter().all(|boot| starts.contains_key(boot)) {
            return ControlFlow::Break(());
        }
        // The newest record of a segment is its last.
        if !is_older {
            if let Some((_, before)) = last.replace((start.seq, start.boot.clone()))
                && !running.contains(&before)
            {
                starts.remove(&before);
            }
            starts.insert(start.boot.clone(), start);
        } else if running.contains(&start.boot) {
            starts.insert(start.boot.clone(), start);
        }
        ControlFlow::Continue(())
    })?;
    let Some(first) = starts.values().map(|start| start.seq).min() else {
        return Ok(Starts::default());
    };
    let later = Filter {
        ops: vec!["sandbox".to_owned(), "reload".to_owned()],
        records: Some(first..=u64::MAX),
        ..Filter::default()
    };
    log.scan(&later, ScanOrder::Oldest, changed, |later| {
        if let Some(start) = starts.get_mut(&later.boot) {
            start.facts.extend(later.facts);
        }
        ControlFlow::Continue(())
    })?;
    let facts = |boot: &String| starts.get(boot).map(|start| start.facts.clone());
    Ok(Starts {
        last: last.and_then(|(_, boot)| facts(&boot)).unwrap_or_default(),
        running: running.iter().filter_map(facts).collect(),
    })
}

fn found(record: &RecordView<'_>, facts: Facts) -> Option<FoundStart> {
    Some(FoundStart { seq: record.seq, boot: record.boot()?.to_owned(), facts })
}

/// Returns the facts of a start that a later record replaces.
fn changed(record: &RecordView<'_>, _: &[u8]) -> Option<FoundStart> {
    let names: &[(&str, &str)] = match (record.kind, record.result()) {
        (Kind::Policy, Some("ok")) => &[
            ("name", "policyName"),
            ("version", "policyVersion"),
            ("mode", "mode"),
            ("networkMode", "networkMode"),
        ],
        (Kind::Decision, _) => &[("enforcement", "enforcement"), ("agentNetwork", "agentNetwork")],
        _ => return None,
    };
    let facts = record.facts.as_ref()?;
    let renamed = names
        .iter()
        .filter_map(|(name, of_start)| Some(((*of_start).to_owned(), facts.get(*name)?.clone())));
    found(record, renamed.collect())
}
