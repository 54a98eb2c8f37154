//! `portcullis audit verify`: verifies chain and signatures of the log.

use std::{path::Path, process::ExitCode};

use portcullis_audit::{DamageKind, Directory, KEYS, Report, Warning, WarningKind};
use serde_json::json;

use super::{
    attachments::{self, Attached},
    heads::{self, OTHER_KEY, StoredHead, keys},
    location::{LogSource, existing},
    select::ScanProgress,
};
use crate::{
    app::{
        audit_log::{NEWER, unreadable},
        failure::{Context as _, Exit, Failure},
    },
    cli::{render::counted, rows::prose},
    model::Escaped,
};

/// The line for a log without signatures.
const UNSIGNED: &str = "signed: nothing; no checkpoint covers these records";

/// Verify the log: chain, tree, signatures, segments, outcomes of intents
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit verify\n  \
    portcullis audit verify --key log.vkey --head checkpoint-of-last-week\n  \
    portcullis audit verify --dir /mnt/copy/audit --json\n\n\
    Exit codes: 0 the log is intact, 5 it is damaged, 1 it cannot be read.\n\n\
    Only a receipt or a checkpoint that was stored outside the log shows that the end of the log \
    was cut off, or that the log was written anew with its key. Give the public key, too: the one \
    in the log's directory may be a forger's, like the log:\n  \
    portcullis audit verify --key log.vkey --head 41:6f1c…")]
pub(super) struct Args {
    #[command(flatten)]
    log: LogSource,
    /// Public keys to trust instead of those in the log's directory: a file, or the text of one
    /// key
    #[arg(long, value_name = "FILE|KEY")]
    key: Vec<String>,
    /// Public keys of witnesses whose cosignatures are checked; warns where one is missing
    #[arg(long, value_name = "FILE|KEY")]
    witness: Vec<String>,
    /// A receipt or a checkpoint that the log must contain: JSON, SEQ:HASH, or a file
    #[arg(long, value_name = "SEQ:HASH|RECEIPT|FILE")]
    head: Vec<String>,
    /// Check that the text of every policy that records name is stored
    #[arg(long)]
    policies: bool,
    /// Check every backup against its hash and the records that name it
    #[arg(long)]
    backups: bool,
    /// Print the report as one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let directory = args.log.directory()?;
    let source = existing(&directory)?;
    let mut report = verify(args, &source, &directory)?;
    warn_of_witnesses(args, &mut report)?;
    let attached = attached(args, &source, &report)?;
    let valid = report.is_valid() && attached.as_ref().is_none_or(|found| found.faults.is_empty());
    if args.json {
        let mut json = json!(report);
        if let Some(members) = json.as_object_mut() {
            members.insert("valid".to_owned(), valid.into());
            if let Some(found) = &attached {
                members.insert("attached".to_owned(), json!(found));
            }
        }
        outjson!(json);
    } else {
        let more = attached.iter().flat_map(Attached::lines);
        for line in lines(&report, valid).into_iter().chain(more) {
            outln!("{}", prose(&line, 4));
        }
    }
    if valid {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(help) = help(&report, !args.head.is_empty()) {
        errln!("  help: {help}");
    }
    Err(Failure::silent(Exit::Audit))
}

fn verify(args: &Args, source: &Directory, directory: &Path) -> Result<Report, Failure> {
    let trusted = keys(&args.key)?;
    let mut bar = None;
    let (verifier, warning) =
        heads::verifier(&args.log, source, trusted.clone(), keys(&args.witness)?)?;
    let mut verifier = verifier.progress(|at| {
        let bar = bar.get_or_insert_with(|| ScanProgress::new("verifying", at.total));
        bar.set_position(at.bytes);
    });
    for text in &args.head {
        verifier = match StoredHead::read(text, &trusted, directory)? {
            StoredHead::Record { seq, leaf } => verifier.expect(seq, leaf),
            StoredHead::Checkpoint(checkpoint) => verifier.expect_checkpoint(checkpoint),
        };
    }
    let mut report = verifier.run().map_err(|error| unreadable(directory, &error))?;
    report.warnings.extend(warning);
    Ok(report)
}

/// Warns of witnesses on the command line that lack cosignatures.
fn warn_of_witnesses(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let records = report.signed.records;
    for witness in keys(&args.witness)? {
        let detail = match report.signed.cosigned.get(&witness.to_string()) {
            Some(size) if *size == records => continue,
            Some(size) => format!("cosigned the first {size} of the {records} records signed"),
            None => "cosigned no checkpoint of the log".to_owned(),
        };
        let detail = format!("{} {detail}", witness.name());
        report.warnings.push(Warning {
            kind: WarningKind::MissingWitness,
            count: 1,
            seq: None,
            detail,
        });
    }
    Ok(())
}

/// Checks the policies and backups that the log names, if requested.
fn attached(args: &Args, source: &Directory, report: &Report) -> Result<Option<Attached>, Failure> {
    if !args.policies && !args.backups {
        return Ok(None);
    }
    let state = args.log.state()?;
    let mut found = Attached::default();
    if args.policies {
        attachments::policies(&state, report, &mut found).or_fail("cannot read the policies")?;
    }
    if args.backups {
        attachments::backups(&state, source, report, &mut found)?;
    }
    Ok(Some(found))
}

/// Formats the report for people. `valid` is false if anything that was checked is damaged.
fn lines(report: &Report, valid: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let newer = report.newer();
    if let Some(damage) = newer {
        lines.push(format!(
            "newer: a newer portcullis wrote {} from record {} on: {}",
            Escaped(&damage.segment),
            damage.seq.unwrap_or_default(),
            Escaped(&damage.detail)
        ));
    }
    for damage in report.damages.iter().filter(|_| newer.is_none()) {
        let mut location = Escaped(&damage.segment).to_string();
        if let Some(seq) = damage.seq {
            location += &format!(", record {seq}");
        }
        if let Some(line) = damage.line {
            location += &format!(", line {line}");
        }
        lines.push(format!("damaged: {} in {location}", damage.kind));
        lines.push(format!("  {}", Escaped(&damage.detail)));
    }
    if report.stopped {
        lines.push(format!("stopped after {} damages", Report::MAX_DAMAGES));
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
            let intact = counted(report.intact.records, "record");
            lines.push(match newer {
                Some(_) => format!("verified: the {intact} before it"),
                None => format!("not intact: the chain breaks after {intact}"),
            });
        }
        None if valid => lines.push("intact: no records yet".to_owned()),
        None => lines.push("the log has no records".to_owned()),
        Some(head) => {
            // There may be other damage, such as a receipt of another log or a changed backup.
            let word = if valid { "intact" } else { "the links are intact" };
            lines.push(format!("{word}: {records} in {segments}{span}"));
            lines.push(format!("head: {}:{}", head.seq, head.leaf));
        }
    }
    if report.pruned > 0 {
        lines.push(format!(
            "pruned: the first {}; their roots are stored",
            counted(report.pruned, "record")
        ));
    }
    lines.extend(signed(report));
    lines
}

/// Describes the signatures.
fn signed(report: &Report) -> Vec<String> {
    let signed = &report.signed;
    if signed.keys.is_empty() {
        let unsigned = report.head.is_some().then_some(UNSIGNED);
        return unsigned.into_iter().map(str::to_owned).collect();
    }
    let names: Vec<_> = signed.keys.iter().filter_map(|key| key.split('+').next()).collect();
    let mut line = format!(
        "signed: {} by {}, the newest covers {}",
        counted(signed.checkpoints, "checkpoint"),
        Escaped(&names.join(", ")),
        counted(signed.records, "record")
    );
    if !signed.witnesses.is_empty() {
        line += &format!(", cosigned by {}", Escaped(&signed.witnesses.join(", ")));
    }
    let mut lines = vec![line];
    if !signed.given {
        let key = signed.keys.join(", ");
        lines
            .push(format!(
                "key: {}, found beside the log, where anyone who changes the log can change it; give your \
                 own copy with --key",
                Escaped(&key)
            ));
    }
    lines
}

/// Returns advice; `given` is true if heads were given.
fn help(report: &Report, given: bool) -> Option<&'static str> {
    let first = report.damages.first()?;
    let wrong_key = || report.damages.iter().any(|damage| damage.kind == DamageKind::WrongKey);
    let bad_segment = || report.damages.iter().any(|damage| damage.kind == DamageKind::BadSegment);
    Some(match first.kind {
        DamageKind::BadCheckpoint if first.segment == KEYS => {
            "the log's public keys cannot be read, so its checkpoints are not checked: put \
             `key.vkey` back from a copy, or `portcullis audit recover` restores the keys that the \
             log names"
        }
        // A checkpoint of such a key has no known signer.
        DamageKind::WrongKey | DamageKind::BadCheckpoint if wrong_key() && report.signed.given => {
            OTHER_KEY
        }
        DamageKind::WrongKey | DamageKind::BadCheckpoint if wrong_key() => {
            "`key.vkey` lacks a key that the log names, or was replaced: put it back from a copy; \
             `portcullis audit recover` restores a key that signed a checkpoint of the log"
        }
        DamageKind::TornTail => {
            "a gateway or the machine died while it wrote; the next gateway that starts sets the torn \
             line aside and records that"
        }
        // `recover` refuses each, also behind other damage.
        _ if bad_segment() => {
            "put the segment back from a copy: nothing can be read of the rest of it. If there is \
             none, move it out of the log's directory, and go on with `portcullis audit recover`, \
             which sets the segments after it aside unless it was the first"
        }
        DamageKind::MissingHead | DamageKind::WrongHead if !given => {
            "the log is not the one that was signed, or its end was cut off: compare it with a \
             copy; `portcullis audit recover` moves signatures that do not match the log \
             to quarantine, so that gateways can start again"
        }
        DamageKind::MissingHead | DamageKind::WrongHead => {
            "the log is not the one that gave the receipt, or was rewritten since: compare it with \
             a copy; a repair cannot bring records back"
        }
        DamageKind::MissingKey => {
            "put the file back from a copy, or name the key with --key; `portcullis audit recover` \
             restores it if the log names it"
        }
        DamageKind::MissingCheckpoint if !report.signed.given => {
            "compare the log with a copy, or with a receipt or a checkpoint that was stored \
             elsewhere (--head): nothing here shows that its end was not cut off; where nobody \
             removed \
             anything, `portcullis audit checkpoint` signs what is there"
        }
        DamageKind::MissingCheckpoint => {
            "somebody else may have written the log: compare it with a copy; where a gateway died \
             before its first checkpoint, the next gateway makes one"
        }
        DamageKind::BadCheckpoint | DamageKind::WrongRoot => {
            "the log is not the one that was signed, or the checkpoint was changed: compare both \
             with a copy; `portcullis audit recover` sets such a checkpoint aside"
        }
        DamageKind::UnsupportedVersion if report.newer().is_some() => NEWER,
        _ => {
            "keep a copy of the state directory and find out who changed it; `portcullis audit \
             recover` sets everything from the first damage on aside, so that gateways can start again"
        }
    })
}
