//! Runs the stage that the command line names.

use std::process::ExitCode;

use super::{enter, init, launcher, relay, stage::Stage, terminal};

impl Stage {
    /// Runs the stage in this process, which does nothing else. `parent` is the
    /// process that started it. Errors go to the broker, so nothing is printed.
    pub fn run(self, parent: u32) -> ExitCode {
        let result = match self {
            Self::Launch => launcher::run(parent),
            Self::Init => init::run(),
            Self::Enter => enter::run(parent),
            Self::Relay => relay::run(parent),
            Self::Terminal => terminal::process::run(),
        };
        match result {
            Ok(code) => ExitCode::from(code),
            Err(_) => ExitCode::FAILURE,
        }
    }
}
