//! `portcullis audit key`: the public key, and a new one.

use std::process::ExitCode;

use portcullis_audit::PublicKey;

use super::location::Place;
use crate::{
    app::{
        audit_log::opened,
        failure::{Context as _, Failure},
    },
    gateway::AuditLog,
};

/// Print the public key that checkpoints are signed with
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit key > log.vkey\n  \
    portcullis audit key --new\n\n\
    Keep the public key where whoever holds this disk cannot reach it: `portcullis audit verify \
    --key`\ntakes it. The private key is in `keys/checkpoint.key` of the state directory, unless \
    a signer is\nconfigured.")]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// Sign with a new key from now on, or with that of the configured signer; former keys stay
    /// known
    #[arg(long)]
    new: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let key: PublicKey = if args.new {
        let (_, state) = args.place.open()?;
        let audit = args.place.audit()?;
        opened(AuditLog::renew_key(&state, audit.signer_key()), "cannot change the key")?
    } else {
        let state = args.place.look()?;
        let published = AuditLog::published_keys(&state).or_fail("cannot read the public key")?;
        published.into_iter().next().ok_or_else(|| {
            Failure::new("the log names no key").help(
                "the first gate that starts makes one; where checkpoints were signed before, \
                 `portcullis audit recover` puts it back",
            )
        })?
    };
    outln!("{key}");
    Ok(ExitCode::SUCCESS)
}
