//! Failures of commands: a message for people, an object for programs with `--json`,
//! and an exit code for both.

use std::{fmt::Display, process::ExitCode};

use serde_json::{Map, Value, json};

/// Exit codes, the same for every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command failed.
    Failure = 1,
    /// Usage error.
    Usage = 2,
    /// The policy denied the request.
    Denied = 3,
    /// A policy does not load, or one of its tests fails.
    Policy = 4,
    /// The audit log does not verify.
    Audit = 5,
    /// A program cannot be executed, as of a shell.
    NotExecutable = 126,
    /// A program was not found, as of a shell.
    ProgramNotFound = 127,
}

impl Exit {
    /// Returns the kind of an error that has none from the gateway.
    fn kind(self) -> &'static str {
        match self {
            Self::Failure | Self::NotExecutable | Self::ProgramNotFound => "failed",
            Self::Usage => "usage",
            Self::Denied => "denied",
            Self::Policy => "policy",
            Self::Audit => "audit",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A command's failure: message and exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    help: Option<String>,
    details: Option<Details>,
    /// True if it concerns a result that was printed.
    beside: bool,
}

/// Details, which people read above the message and programs find as fields.
#[derive(Debug)]
struct Details {
    text: String,
    fields: Map<String, Value>,
}

impl Failure {
    /// Returns an ordinary failure (exit code 1).
    pub(crate) fn new(message: impl Display) -> Self {
        Self { message: message.to_string(), ..Self::silent(Exit::Failure) }
    }

    /// Returns a failure whose message was already printed, such as rendered
    /// diagnostics.
    pub(crate) fn silent(exit: Exit) -> Self {
        Self { exit, message: String::new(), help: None, details: None, beside: false }
    }

    /// Sets the exit code.
    pub(crate) fn exit(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }

    /// Sets the line that says what to do next.
    pub(crate) fn help(self, help: impl Display) -> Self {
        Self { help: Some(help.to_string()), ..self }
    }

    /// Adds details: `text` for people, such as rendered diagnostics, and `value`
    /// for programs under `name`.
    pub(crate) fn details(self, text: String, name: &str, value: Value) -> Self {
        let fields = Map::from_iter([(name.to_owned(), value)]);
        Self { details: Some(Details { text, fields }), ..self }
    }

    /// Marks the failure as one about a printed result: it goes to stderr in any
    /// format, so that the result stays one object.
    pub(crate) fn beside_result(self) -> Self {
        Self { beside: true, ..self }
    }

    /// Returns the message.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the line that says what to do next.
    pub(crate) fn advice(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// Prints the failure, to stdout as JSON with `--json`, otherwise to stderr;
    /// returns the exit code.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        if !json || self.beside {
            self.print();
        } else if !self.message.is_empty() {
            outjson!(self.object());
        }
        self.exit.into()
    }

    /// Prints the details, for a caller that prints the message elsewhere.
    pub(crate) fn print_details(&self) {
        if let Some(details) = &self.details {
            err!("{}", details.text);
        }
    }

    fn print(&self) {
        self.print_details();
        if !self.message.is_empty() {
            errln!("portcullis: {}", self.message);
        }
        if let Some(help) = &self.help {
            errln!("  help: {help}");
        }
    }

    /// Returns the failure in the format of the gateway's errors.
    fn object(&self) -> Value {
        let mut object = json!({
            "ok": false,
            "error": {
                "kind": self.exit.kind(),
                "message": self.message,
                "help": self.help,
            },
        });
        if let (Value::Object(object), Some(details)) = (&mut object, &self.details) {
            object.extend(details.fields.clone());
        }
        object
    }
}

/// Adds the failed action to an error.
pub(crate) trait Context<T> {
    /// Fails with `doing: error`.
    fn or_fail(self, doing: impl Display) -> Result<T, Failure>;
}

impl<T, E: Display> Context<T> for Result<T, E> {
    fn or_fail(self, doing: impl Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(format_args!("{doing}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_has_the_form_of_the_gateway_s_errors_and_the_details() {
        let failure = Failure::new("no").help("say yes").exit(Exit::Policy);
        let detailed = failure.details("for people\n".to_owned(), "policies", json!([1]));
        assert_eq!(
            detailed.object(),
            json!({
                "ok": false,
                "error": { "kind": "policy", "message": "no", "help": "say yes" },
                "policies": [1],
            })
        );
    }
}
