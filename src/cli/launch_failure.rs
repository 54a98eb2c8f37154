//! Agents and programs that do not start: exit codes as of a shell, and advice.

use std::{io, path::PathBuf};

use crate::{
    app::{
        agent_sandbox::HOME_OUT_OF_REACH,
        failure::{Exit, Failure},
    },
    model::for_shell,
    sandbox::{LaunchError, ProgramError},
};

/// The exit code of a program that was not found or could not load a library, as of a shell and of
/// the dynamic linker.
pub(super) const NOT_STARTED: u8 = 127;
/// Advice about it.
pub(super) const LIBRARY_MISSING: &str = "exit code 127 says that a program or a shared library was not found; the message before it \
     names the file. If it exists, the sandbox does not show it: add `--agent-read DIR` with the \
     directory of the file";

/// Advice about a program of rustup: it starts a toolchain, which lies in another directory.
const RUSTUP: &str = "; rustup also needs `--agent-read ~/.cargo/bin --agent-read ~/.rustup \
     --agent-env RUSTUP_HOME=$HOME/.rustup`; crates that were downloaded are found with \
     `--agent-read ~/.cargo/registry --agent-env CARGO_HOME=$HOME/.cargo`";

/// Adds advice, and the exit code of a shell for a program that does not start.
pub(super) fn explain(error: LaunchError) -> Failure {
    let failure = Failure::new(&error).exit(exit(&error));
    match error {
        LaunchError::NotExecuted(_) => failure.help(
            "an interpreter or library may be out of reach: name its directory with --agent-read",
        ),
        LaunchError::SelfTest(surprises) if surprises.contains("home directory") => {
            failure.help(HOME_OUT_OF_REACH)
        }
        LaunchError::Unreachable(needed) => {
            let options = needed.iter().map(|path| format!("--agent-read {}", for_shell(path)));
            let options = options.collect::<Vec<_>>().join(" ");
            let is_of_cargo =
                |path: &PathBuf| path.parent().is_some_and(|p| p.ends_with(".cargo/bin"));
            let rustup = needed.iter().any(is_of_cargo).then_some(RUSTUP);
            failure.help(format_args!(
                "if you trust it with that, add `{options}`{}",
                rustup.unwrap_or_default()
            ))
        }
        _ => failure,
    }
}

fn exit(error: &LaunchError) -> Exit {
    let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    match error {
        LaunchError::Program(ProgramError::NotInPath(_)) => Exit::ProgramNotFound,
        LaunchError::Program(ProgramError::NotExecutable(_, error))
        | LaunchError::NotExecuted(error)
            if is_missing(error) =>
        {
            Exit::ProgramNotFound
        }
        LaunchError::Program(_)
        | LaunchError::NotExecuted(_)
        | LaunchError::Unreachable(_)
        | LaunchError::InWorkspace(_) => Exit::NotExecutable,
        _ => Exit::Failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: only `doctor` gave this advice for a root home that is not accessible.
    #[test]
    fn a_home_out_of_reach_is_explained() {
        let surprises = "write to the home directory (before: ok, after: EACCES)".to_owned();
        let failure = explain(LaunchError::SelfTest(surprises));
        assert_eq!(failure.advice(), Some(HOME_OUT_OF_REACH));
    }

    /// Regression: a toolchain of rustup did not start with the directory that was advised.
    #[test]
    fn what_a_program_of_rustup_needs_is_explained() {
        let failure = explain(LaunchError::Unreachable(vec!["/home/me/.cargo/bin/rustup".into()]));
        assert!(failure.advice().unwrap().ends_with(RUSTUP));
        let failure = explain(LaunchError::Unreachable(vec!["/home/me/.py env".into()]));
        let advice = "if you trust it with that, add `--agent-read '/home/me/.py env'`";
        assert_eq!(failure.advice(), Some(advice));
    }
}
