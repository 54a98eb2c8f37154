//! `portcullis audit checkpoint`: signs a checkpoint now, and adds cosignatures of witnesses.

use std::{path::PathBuf, process::ExitCode};

use portcullis_audit::Note;

use super::{heads, location::LogLocation};
use crate::{
    app::{
        audit_log::{AUDIT_LOG, open_audit_log, own_key},
        failure::{Context as _, Failure},
        signer::Program,
    },
    cli::render::counted,
    config::audit::Audit,
    gateway::{AuditLog, Signing},
};

/// Sign a checkpoint of all records now, and print it
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit checkpoint > checkpoint-of-today\n  \
    portcullis audit checkpoint --cosigned from-the-witness --witness witness.vkey\n\n\
    Store checkpoints where nobody who can change this disk reaches them: \
    `portcullis audit verify --head` takes one and shows whether the log continues it.")]
pub(super) struct Args {
    #[command(flatten)]
    location: LogLocation,
    /// Sign nothing; add the cosignatures of this file, a copy of the stored checkpoint, to that
    /// checkpoint
    #[arg(long, value_name = "FILE")]
    cosigned: Option<PathBuf>,
    /// Public keys of witnesses besides those that are configured: only their signatures are
    /// added
    #[arg(long, value_name = "FILE|KEY", requires = "cosigned")]
    witness: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (path, state) = args.location.open()?;
    let audit = args.location.audit()?;
    if let Some(file) = &args.cosigned {
        let shown = file.display();
        let note = heads::small(file).or_fail(format_args!("cannot read `{shown}`"))?;
        let note = Note::parse(&note).or_fail(format_args!("`{shown}`"))?;
        let mut witnesses = audit.witness_keys().map_err(Failure::new)?;
        witnesses.extend(heads::keys(&args.witness)?);
        if note.cosigners(&witnesses).or_fail(format_args!("`{shown}`"))?.is_empty() {
            return Err(Failure::new(format_args!(
                "nothing was added: no known witness signed `{shown}`"
            ))
            .help(
                "give the witness's public key with --witness, or configure it in `witnesses` of \
                 `[audit]`",
            ));
        }
        let added = AuditLog::cosign(&state, &note, &witnesses)
            .or_fail("cannot keep the signatures")?
            .ok_or_else(|| {
                Failure::new(format_args!("`{shown}` is not a checkpoint in the log's history"))
            })?;
        if added == 0 {
            return Err(Failure::new(format_args!(
                "nothing was added: `{shown}` has no signature that is not stored already"
            ))
            .help("the file must be the checkpoint as the witness cosigned it"));
        }
        outln!("added {}", counted(added as u64, "signature"));
        return Ok(ExitCode::SUCCESS);
    }
    let audit_log = open(&state, &audit)?;
    audit_log
        .checkpoint()
        .and_then(|_made| audit_log.leave())
        .or_fail("cannot make a checkpoint")?;
    let note = heads::newest(&path.join("audit"))?
        .ok_or_else(|| Failure::new("the newest checkpoint is missing"))?;
    outln!("{}", String::from_utf8_lossy(&note).trim_end_matches('\n'));
    Ok(ExitCode::SUCCESS)
}

/// Opens the log with the operator's signer, for a command that serves no client.
pub(super) fn open(state: &cap_std::fs::Dir, audit: &Audit) -> Result<AuditLog, Failure> {
    let signing = match audit.signer_key() {
        Some(public) => Signing::by(Box::new(Program::new(audit, public, Vec::new())?)),
        None => own_key(state, AUDIT_LOG)?,
    };
    open_audit_log(state, Some(signing), AUDIT_LOG)
}
