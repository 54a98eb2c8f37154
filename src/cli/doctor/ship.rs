//! Copies of the log elsewhere: how far they are behind.

use std::path::Path;

use serde_json::json;

use super::check::{Check, Status};
use crate::{
    app::ship::{Lag, lag},
    cli::render::counted,
    config::audit::Target,
};

/// Seconds within which a running gateway normally makes a checkpoint and its broker sends it.
const MAX_LAG_SECONDS: u64 = 120;

/// Checks how far the copies of the log at the targets are behind.
pub(super) fn copies(state: &Path, targets: &[Target]) -> Check {
    let lags = lag(state, targets);
    let late = |lag: &Lag| lag.error.is_some() || lag.seconds.is_some_and(|s| s > MAX_LAG_SECONDS);
    let status = if lags.iter().any(late) { Status::Warning } else { Status::Ok };
    let behind = lags.iter().map(|lag| lag.behind).max().unwrap_or(0);
    let found = match (lags.iter().filter(|lag| late(lag)).count(), behind) {
        (0, 0) => "up to date".to_owned(),
        (0, behind) => format!("{} behind", counted(behind, "record")),
        (late, behind) => {
            format!("{late} of {} late, {} behind", lags.len(), counted(behind, "record"))
        }
    };
    let means = "what a checkpoint covers is sent in order; no request waits for it";
    let check =
        Check::new("copies of the log", status, found, means).facts(json!({ "targets": &lags }));
    let check = match status {
        Status::Ok => check,
        _ => check.help("`portcullis audit ship` sends now, and says what is in the way"),
    };
    lags.iter().fold(check, |check, lag| {
        let status = if late(lag) { Status::Warning } else { Status::Ok };
        let check = check.detail(status, line(lag));
        match &lag.error {
            Some(error) => check.detail(status, format!("last attempt: {error}")),
            None => check,
        }
    })
}

fn line(lag: &Lag) -> String {
    match lag.seconds {
        Some(seconds) => format!(
            "{}: {} behind for {seconds} s; has {}",
            lag.place(),
            counted(lag.behind, "record"),
            lag.records
        ),
        None => format!("{}: has all {} records", lag.place(), lag.records),
    }
}
