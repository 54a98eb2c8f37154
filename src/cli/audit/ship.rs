//! `portcullis audit ship`: copies the log now.

use std::process::ExitCode;

use super::location::LogLocation;
use crate::{
    app::{
        failure::{Exit, Failure},
        ship,
    },
    cli::render::counted,
    model::Escaped,
};

/// Send copies of the log to the configured targets now
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit ship\n  \
    portcullis audit ship --status\n\n\
    Targets are in `portcullis.toml`:\n  \
    [audit]\n  \
    ship = [{ to = \"/mnt/elsewhere/log\" }, { to = \"s3://bucket/prefix\" }]\n\n\
    Each log has a copy of its own beneath a target, `TARGET/TIME-ID`, which is a log again.\n\n\
    `portcullis run` sends while it serves: the records that a checkpoint covers, in order.\n\
    HTTP and S3 need a build with `--features full`.")]
pub(super) struct Args {
    #[command(flatten)]
    location: LogLocation,
    /// Send nothing, and report how far each target is
    #[arg(long)]
    status: bool,
    /// Print one JSON object for each target; needs `--status`
    #[arg(long, requires = "status")]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let targets = args.location.audit()?.ship;
    if targets.is_empty() {
        return Err(Failure::new("no target is configured")
            .help(
                "`ship = [{ to = \"/a/directory\" }]` in the `[audit]` section of portcullis.toml",
            )
            .exit(Exit::Usage));
    }
    let mut failed = false;
    let (state, _) = args.location.open()?;
    if args.status {
        for lag in ship::lag(&state, &targets) {
            if args.json {
                outjson!(serde_json::json!(lag));
                continue;
            }
            let behind = match lag.seconds {
                Some(seconds) => format!(", {} behind for {seconds} s", lag.behind),
                None => String::new(),
            };
            outln!("{}: {}{behind}", Escaped(lag.place()), counted(lag.records, "record"));
            if let Some(error) = &lag.error {
                outln!("  last attempt: {}", Escaped(error));
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    for (to, sent) in ship::once(&state, &targets) {
        match sent {
            Ok(records) => outln!("{}: {}", Escaped(&to), counted(records, "record")),
            Err(error) => {
                failed = true;
                errln!("portcullis: {}: {}", Escaped(&to), Escaped(&error));
            }
        };
    }
    if failed { Err(Failure::silent(Exit::Failure)) } else { Ok(ExitCode::SUCCESS) }
}
