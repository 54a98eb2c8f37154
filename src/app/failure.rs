//! How commands fail: a message for people, an object for programs that gave
//! `--json`, and an exit code for both.

use std::{fmt::Display, process::ExitCode};

use serde_json::{Map, Value, json};

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

impl Exit {
    /// The kind of an error that the gate has no word for.
    fn kind(self) -> &'static str {
        match self {
            Self::Failure => "failed",
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

/// A command's failure: what to say, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    help: Option<String>,
    details: Option<Details>,
    /// It is about a result that was printed.
    beside: bool,
}

/// What a person reads above the message, and a program beside it.
#[derive(Debug)]
struct Details {
    text: String,
    fields: Map<String, Value>,
}

impl Failure {
    /// An ordinary failure (exit code 1).
    pub(crate) fn new(message: impl Display) -> Self {
        Self { message: message.to_string(), ..Self::silent(Exit::Failure) }
    }

    /// A failure whose message was already printed, such as rendered
    /// diagnostics.
    pub(crate) fn silent(exit: Exit) -> Self {
        Self { exit, message: String::new(), help: None, details: None, beside: false }
    }

    /// The same with another exit code.
    pub(crate) fn exit(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }

    /// The same with a line that says what to do next.
    pub(crate) fn help(self, help: impl Display) -> Self {
        Self { help: Some(help.to_string()), ..self }
    }

    /// The same with what a person reads above the message, such as rendered
    /// diagnostics, and a program finds as `name` beside it.
    pub(crate) fn details(self, text: String, name: &str, value: Value) -> Self {
        let fields = Map::from_iter([(name.to_owned(), value)]);
        Self { details: Some(Details { text, fields }), ..self }
    }

    /// The same, about a result that was printed: it goes to stderr whatever the
    /// form, so that the result stays one.
    pub(crate) fn beside_result(self) -> Self {
        Self { beside: true, ..self }
    }

    /// The message.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The line that says what to do next.
    pub(crate) fn advice(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// Says it to a program on stdout, if one asked for JSON, else to a person
    /// on stderr, and gives the exit code.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        if !json || self.beside {
            self.print();
        } else if !self.message.is_empty() {
            outjson!(self.object());
        }
        self.exit.into()
    }

    /// Prints what goes above the message, for whoever says that elsewhere.
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

    /// In the form of the gate's errors.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_has_the_form_of_the_gate_s_errors_and_the_details() {
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
