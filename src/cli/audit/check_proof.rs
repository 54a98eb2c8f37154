//! `portcullis audit check-proof`: verifies a proof without the log.

use std::{io::Read as _, path::Path, path::PathBuf, process::ExitCode};

use portcullis_audit::{Claim, Hash, MAX_PROOF, NoteError, Proof, Signed};
use serde_json::json;

use super::heads;
use crate::{
    app::failure::{Context as _, Exit, Failure},
    cli::render::counted,
    model::Escaped,
    operator_files,
};

/// Check a proof with nothing but the public key
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit check-proof record.tlog-proof --key log.vkey\n  \
    portcullis audit check-proof growth.tlog-proof --key log.vkey --old checkpoint-of-last-week\n\n\
    Exit codes: 0 the proof is valid, 5 it is not.")]
pub(super) struct Args {
    /// The proof
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The log's public key, and former ones where it was changed: a file, or the text of one
    #[arg(long, value_name = "FILE|KEY", required = true)]
    key: Vec<String>,
    /// Public keys of witnesses that must have cosigned
    #[arg(long, value_name = "FILE|KEY")]
    witness: Vec<String>,
    /// The older checkpoint, which was stored, if the proof is one of growth
    #[arg(long, value_name = "FILE")]
    old: Option<PathBuf>,
    /// The record's leaf hash, if the proof does not contain its line
    #[arg(long, value_name = "HASH")]
    leaf: Option<Hash>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let shown = args.file.display();
    let mut bytes = Vec::new();
    operator_files::open(&args.file)
        .and_then(|file| file.take(MAX_PROOF as u64 + 1).read_to_end(&mut bytes))
        .or_fail(format_args!("cannot read the proof `{shown}`"))?;
    let failed = |failure: Failure| failure.exit(Exit::Audit);
    let wrong = "the proof is not valid";
    let proof = Proof::parse(&bytes).or_fail(wrong).map_err(failed)?;
    let keys = heads::keys(&args.key)?;
    let witnesses = heads::keys(&args.witness)?;
    let all: Vec<_> = keys.iter().chain(&witnesses).cloned().collect();
    let signed = proof.note.verify(&all).and_then(Signed::without_wrong).map_err(|error| {
        let failure = failed(Failure::new(format_args!("{wrong}: {error}")));
        match error {
            NoteError::Unsigned => failure.help(heads::OTHER_KEY),
            _ => failure,
        }
    })?;
    let checkpoint = proof.checkpoint().or_fail(wrong).map_err(failed)?;
    if !keys.contains(&signed.by) || checkpoint.origin != signed.by.name() {
        return Err(Failure::new("the proof is not valid: its checkpoint is of another log")
            .exit(Exit::Audit));
    }
    if let Some(missing) =
        witnesses.iter().find(|key| !signed.witnesses.iter().any(|(by, _)| by == *key))
    {
        let name = missing.name();
        return Err(Failure::new(format_args!("the proof is not valid: {name} did not cosign"))
            .exit(Exit::Audit));
    }
    let other = match proof.claim {
        Claim::Inclusion { .. } => args.old.as_ref().map(|_| "of a record, not of growth (--old)"),
        Claim::Consistency { .. } => args.leaf.map(|_| "of growth, not of a record (--leaf)"),
    };
    if let Some(other) = other {
        return Err(failed(Failure::new(format_args!("{wrong}: it is {other}"))));
    }
    let size = checkpoint.size;
    let (text, answer) = match &proof.claim {
        Claim::Inclusion { index, line } => {
            let of_line = line.as_deref().map(Hash::leaf);
            let leaf = match (args.leaf, of_line) {
                (Some(given), Some(found)) if given != found => {
                    return Err(Failure::new("the proof is not valid: it is of another record")
                        .exit(Exit::Audit));
                }
                (given, found) => given.or(found).ok_or_else(|| {
                    Failure::new("the proof has no record")
                        .help("give the record's leaf hash with --leaf")
                        .exit(Exit::Usage)
                })?,
            };
            proof.check_inclusion(leaf).or_fail(wrong).map_err(failed)?;
            let line = line.as_deref().map(String::from_utf8_lossy);
            let mut text =
                format!("valid: record {index} is in the log of {}", counted(size, "record"));
            if let Some(line) = &line {
                text += &format!("\n{}", Escaped(line));
            }
            (text, json!({ "seq": index, "leaf": leaf, "line": line }))
        }
        Claim::Consistency { old } => {
            let path = args.old.as_deref().ok_or_else(|| {
                Failure::new("a proof of growth needs the older checkpoint")
                    .help("give the one that you stored with --old FILE")
                    .exit(Exit::Usage)
            })?;
            let note =
                heads::small(path).or_fail(format_args!("cannot read `{}`", path.display()))?;
            let older = heads::checkpoint(&note, &keys, Path::new("."))?;
            proof.check_consistency(&older).or_fail(wrong).map_err(failed)?;
            let text =
                format!("valid: the log of {} begins that of {size}", counted(*old, "record"));
            (text, json!({ "from": old }))
        }
    };
    if args.json {
        let mut answer = answer;
        if let Some(members) = answer.as_object_mut() {
            members.insert("valid".to_owned(), true.into());
            members.insert("size".to_owned(), size.into());
            members.insert("origin".to_owned(), checkpoint.origin.into());
            let names: Vec<_> = signed.witnesses.iter().map(|(key, _)| key.name()).collect();
            members.insert("witnesses".to_owned(), json!(names));
        }
        outjson!(answer);
    } else {
        outln!("{text}");
        outln!("signed by {}", Escaped(signed.by.name()));
    }
    Ok(ExitCode::SUCCESS)
}
