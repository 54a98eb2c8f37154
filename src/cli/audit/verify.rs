//! `portcullis audit verify`: is the log one unbroken chain?

use std::{io::IsTerminal as _, path::PathBuf, process::ExitCode, str::FromStr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use portcullis_audit::{DamageKind, Directory, Hash, Receipt, Report, Verifier};
use serde_json::json;

use super::{Place, print, unreadable};
use crate::{
    cli::failure::{Exit, Failure},
    model::Escaped,
};

/// A log of so many bytes takes a moment: show progress.
const LARGE: u64 = 64 << 20;

/// Check the whole log: links, sequence, segments, answers to intents
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit verify\n  \
    portcullis audit verify --dir /mnt/copy/audit --json\n\n\
    Exit codes: 0 the log is whole, 5 it is damaged, 1 it cannot be read.\n\n\
    Only a receipt that was kept outside the log shows that its end was cut off or rewritten:\n  \
    portcullis audit verify --head 41:6f1c…")]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// Verify the log in this directory instead, such as a copy
    #[arg(long, value_name = "DIR", conflicts_with_all = ["workspace", "state"])]
    dir: Option<PathBuf>,
    /// Also demand this record: a receipt, as JSON or as SEQ:HASH
    #[arg(long, value_name = "RECEIPT")]
    head: Vec<Head>,
    /// Print the report as one JSON object
    #[arg(long)]
    json: bool,
}

/// What a receipt proves.
#[derive(Debug, Clone)]
struct Head {
    seq: u64,
    leaf: Hash,
}

impl FromStr for Head {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(Receipt { seq, leaf, .. }) = serde_json::from_str(text) {
            return Ok(Self { seq, leaf });
        }
        text.split_once(':')
            .and_then(|(seq, leaf)| Some(Self { seq: seq.parse().ok()?, leaf: leaf.parse().ok()? }))
            .ok_or("expected a receipt as JSON, or SEQ:HASH with 64 hexadecimal digits")
    }
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    let directory = match args.dir {
        Some(directory) => directory,
        None => args.place.log()?,
    };
    let source = Directory::new(&directory);
    let mut bar = None;
    let verifier = args
        .head
        .iter()
        .fold(Verifier::new(&source), |verifier, head| verifier.expect(head.seq, head.leaf))
        .progress(|at| {
            if at.total >= LARGE && std::io::stderr().is_terminal() {
                bar.get_or_insert_with(|| progress_bar(at.total)).set_position(at.bytes);
            }
        });
    let report = verifier.run();
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let report = report.map_err(|error| unreadable(&directory, &error))?;
    if args.json {
        let valid = report.is_valid();
        let mut json = json!(report);
        if let Some(members) = json.as_object_mut() {
            members.insert("valid".to_owned(), valid.into());
        }
        print(&json.to_string())?;
    } else {
        for line in lines(&report) {
            if !print(&line)? {
                break;
            }
        }
    }
    if report.is_valid() {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(help) = help(&report) {
        eprintln!("  help: {help}");
    }
    Err(Failure::silent(Exit::Audit))
}

fn progress_bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    match ProgressStyle::with_template("verifying {wide_bar} {bytes}/{total_bytes} {eta}") {
        Ok(style) => bar.with_style(style),
        Err(_template) => bar,
    }
}

/// The report for people.
fn lines(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    for damage in &report.damages {
        let mut place = Escaped(&damage.segment).to_string();
        if let Some(seq) = damage.seq {
            place += &format!(", record {seq}");
        }
        if let Some(line) = damage.line {
            place += &format!(", line {line}");
        }
        lines.push(format!("damaged: {} in {place}", damage.kind));
        lines.push(format!("  {}", Escaped(&damage.detail)));
    }
    if report.stopped {
        lines.push(format!("stopped after {} damages", Report::MOST_DAMAGES));
    }
    for warning in &report.warnings {
        lines.push(format!("warning: {}", Escaped(&warning.to_string())));
    }
    let span = match (&report.first, &report.last) {
        (Some(first), Some(last)) => format!(", {first} to {last}"),
        _ => String::new(),
    };
    let (records, segments) =
        (counted(report.records, "record"), counted(report.segments, "segment"));
    match &report.head {
        _ if !report.complete => {
            let whole = counted(report.whole.records, "record");
            lines.push(format!("not whole: the chain breaks after {whole}"));
        }
        None => lines.push("whole: no records yet".to_owned()),
        Some(head) => {
            // With damage all the same, such as a receipt of another log.
            let word = if report.is_valid() { "whole" } else { "the links are whole" };
            lines.push(format!("{word}: {records} in {segments}{span}"));
            lines.push(format!("head: {}:{}", head.seq, head.leaf));
        }
    }
    lines
}

fn counted(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// What to do next.
fn help(report: &Report) -> Option<&'static str> {
    let kind = report.damages.first()?.kind;
    Some(match kind {
        DamageKind::TornTail => {
            "a gate or the machine died while it wrote; the next gate that starts sets the torn \
             line aside and records that"
        }
        DamageKind::MissingHead | DamageKind::WrongHead => {
            "the log is not the one that gave the receipt, or was rewritten since: compare it with \
             a copy; a repair cannot bring records back"
        }
        DamageKind::UnsupportedVersion => {
            "a newer portcullis wrote the log: verify it with that one"
        }
        _ => {
            "keep a copy of the state directory and find out who changed it; `portcullis audit \
             recover` sets everything from the first damage on aside, so that gates can start again"
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_receipts() {
        let hash = Hash::of(b"x");
        let head: Head = format!("7:{hash}").parse().unwrap();
        assert_eq!((head.seq, head.leaf), (7, hash));
        let receipt = Receipt { seq: 7, leaf: hash, durable: true };
        let head: Head = serde_json::to_string(&receipt).unwrap().parse().unwrap();
        assert_eq!((head.seq, head.leaf), (7, hash));
        for wrong in ["", "7", "7:", "x:00", "{}", "7:00"] {
            assert!(wrong.parse::<Head>().is_err(), "{wrong}");
        }
    }
}
