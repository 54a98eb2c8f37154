//! `portcullis audit key`: prints the public key, or creates a new one.

use std::process::ExitCode;

use portcullis_audit::{Draft, Kind, PublicKey};

use super::{checkpoint, location::LogLocation};
use crate::{
    app::{
        audit_log::opened,
        failure::{Context as _, Failure},
        session,
    },
    gateway::AuditLog,
};

/// The operation in the record of a new key.
const OP: &str = "audit.key";

/// Print the public key that checkpoints are signed with
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit key > log.vkey\n  \
    portcullis audit key --new\n\n\
    Keep the public key out of reach of those who can change this disk: `portcullis audit verify \
    --key`\ntakes it. The private key is in `keys/checkpoint.key` of the state directory, unless \
    a signer is\nconfigured.")]
pub(super) struct Args {
    #[command(flatten)]
    location: LogLocation,
    /// Sign with a new key from now on, or with that of the configured signer; former keys stay
    /// known
    #[arg(long)]
    new: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let key: PublicKey = if args.new {
        renew(args)?
    } else {
        let state = args.location.look()?;
        let published = AuditLog::published_keys(&state).or_fail("cannot read the public key")?;
        published.into_iter().next().ok_or_else(|| {
            Failure::new("the log names no key").help(
                "the first gateway that starts makes one; where checkpoints were signed before, \
                 `portcullis audit recover` puts it back",
            )
        })?
    };
    outln!("{key}");
    Ok(ExitCode::SUCCESS)
}

/// Gives the log another key, and records the user and the former key.
fn renew(args: &Args) -> Result<PublicKey, Failure> {
    let (_, state) = args.location.open()?;
    let audit = args.location.audit()?;
    // A log without a published key gets one as well.
    let former = AuditLog::published_keys(&state).unwrap_or_default().into_iter().next();
    let key = opened(AuditLog::renew_key(&state, audit.signer_key()), "cannot change the key")?;
    if former.as_ref() == Some(&key) {
        return Ok(key);
    }
    let keys = [("key", Some(&key)), ("formerKey", former.as_ref())];
    let facts =
        keys.into_iter().filter_map(|(name, key)| Some((name.to_owned(), key?.to_string().into())));
    let draft = Draft {
        op: Some(OP.to_owned()),
        user: Some(session::user()),
        reason: Some("an operator gave the log another key".to_owned()),
        facts: Some(facts.collect()),
        result: Some("ok".to_owned()),
        ..Draft::default()
    };
    let audit_log = checkpoint::open(&state, &audit)?;
    audit_log
        .note(Kind::Decision, draft, true)
        .and_then(|_receipt| audit_log.checkpoint())
        .and_then(|_made| audit_log.leave())
        .or_fail("the log has another key, and no record of that")?;
    Ok(key)
}
