//! `portcullis policy schema`: the JSON Schema of policy files.

use std::process::ExitCode;

use crate::{
    app::failure::{Context as _, Failure},
    policy_tools::json_schema,
};

/// Print the JSON Schema of policy files, for editors
///
/// A policy that begins with the line `#:schema ./policy.schema.json` is
/// completed and checked by editors with a TOML language server.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis policy schema > policy.schema.json\n  \
    taplo lint mine.toml")]
pub(super) struct Args {}

pub(super) fn run(_: &Args) -> Result<ExitCode, Failure> {
    let text = serde_json::to_string_pretty(&json_schema()).or_fail("cannot print the schema")?;
    outln!("{text}");
    Ok(ExitCode::SUCCESS)
}
