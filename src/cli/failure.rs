//! How commands fail: a message for people and an exit code for programs.

use std::{fmt::Display, process::ExitCode};

/// Exit codes, the same for every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It failed.
    Failure = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// The policy denied it.
    Denied = 3,
    /// A policy does not load, or a test of it fails.
    Policy = 4,
    /// The audit log does not verify.
    Audit = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A command's failure: what to say on stderr, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    help: Option<String>,
}

impl Failure {
    /// An ordinary failure (exit code 1).
    pub(crate) fn new(message: impl Display) -> Self {
        Self { exit: Exit::Failure, message: message.to_string(), help: None }
    }

    /// A failure whose message was already printed, such as rendered
    /// diagnostics.
    pub(crate) fn silent(exit: Exit) -> Self {
        Self { exit, message: String::new(), help: None }
    }

    /// The same with another exit code.
    pub(crate) fn exit(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }

    /// The same with a line that says what to do next.
    pub(crate) fn help(self, help: impl Display) -> Self {
        Self { help: Some(help.to_string()), ..self }
    }

    /// The message.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The line that says what to do next.
    pub(crate) fn advice(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// Prints the message and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            errln!("portcullis: {}", self.message);
        }
        if let Some(help) = &self.help {
            errln!("  help: {help}");
        }
        self.exit.into()
    }
}

/// Adds to any error what was being done.
pub(crate) trait Context<T> {
    /// Fails with `doing: error`.
    fn or_fail(self, doing: impl Display) -> Result<T, Failure>;
}

impl<T, E: Display> Context<T> for Result<T, E> {
    fn or_fail(self, doing: impl Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(format_args!("{doing}: {error}")))
    }
}
