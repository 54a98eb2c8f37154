//! `portcullis audit compress`: compresses old segments with Zstandard.

use std::{process::ExitCode, time::Duration};

use super::location::LogLocation;
use crate::{
    app::{audit_log::opened, failure::Failure},
    cli::render::counted,
    gateway::AuditLog,
};

/// Compress old segments; every command reads them as before
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit compress\n  \
    portcullis audit compress --days 30\n\n\
    Compresses full segments (65,536 records) that a checkpoint covers, except the newest. \
    `portcullis run` does so when they are 30 days old, unless `compress` in the `[audit]` section \
    of portcullis.toml says otherwise.")]
pub(super) struct Args {
    #[command(flatten)]
    location: LogLocation,
    /// Compress the segments that have been full for this many days
    #[arg(long, value_name = "DAYS", default_value_t = 0)]
    days: u32,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (_, state) = args.location.open()?;
    let age = Duration::from_secs(u64::from(args.days) * 24 * 60 * 60);
    let (segments, saved) =
        opened(AuditLog::compress_segments(&state, age), "cannot compress the audit log")?;
    let (segments, saved) = (counted(segments, "segment"), counted(saved, "byte"));
    outln!("compressed {segments}, which saved {saved}");
    Ok(ExitCode::SUCCESS)
}
