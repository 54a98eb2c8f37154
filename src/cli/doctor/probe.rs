//! Probes of the kernel that need a process that is thrown away afterwards.

use std::process::{Command, ExitCode, Stdio};

use serde_json::{Value, json};

use crate::sandbox::{landlock_abi, namespaces, system_call_filter};

/// The hidden word on the command line that makes this process a probe.
const COMMAND: &str = "doctor-probe";

/// The kernel feature that is tried.
#[derive(Debug, Clone, Copy)]
pub(super) enum Probe {
    /// Restrict files.
    Landlock,
    /// Make namespaces and mount in them.
    Namespaces,
    /// Filter system calls.
    Filter,
}

impl Probe {
    fn word(self) -> &'static str {
        match self {
            Self::Landlock => "landlock",
            Self::Namespaces => "namespaces",
            Self::Filter => "filter",
        }
    }
}

/// Tries it in a process of its own.
pub(super) fn try_apart(probe: Probe) -> Result<Value, String> {
    let output = Command::new("/proc/self/exe")
        .args([COMMAND, probe.word()])
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("start a process: {error}"))?;
    let answer: Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| format!("the process that tried it ended with {}", output.status))?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => Err(error.to_owned()),
        None => Ok(answer.get("found").cloned().unwrap_or_default()),
    }
}

/// Runs a probe, if this process was started as one.
pub(crate) fn run_if_probe() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next()? != COMMAND {
        return None;
    }
    let found = match arguments.next().as_deref() {
        Some("landlock") => landlock_abi().map(Value::from),
        Some("namespaces") => namespaces().map(|()| true.into()),
        Some("filter") => system_call_filter().map(|()| true.into()),
        _ => return Some(ExitCode::from(2)),
    };
    match found {
        Ok(found) => outln!("{}", json!({ "found": found })),
        Err(error) => outln!("{}", json!({ "error": error })),
    }
    Some(ExitCode::SUCCESS)
}
