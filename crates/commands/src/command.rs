//! A command line, the facts of its record, and the exit of a command. Plain data.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use serde_json::{Map, Value, json};

use crate::gateway::CommandRequest;

/// The maximum of bytes of a command and its arguments in a record, and of the names of variables,
/// before their characters are escaped.
const MAX_RECORDED: usize = 4096;
/// The bytes of a word in a record besides its text: quotes and a comma.
const RECORDED_WORD: usize = 3;
/// The maximum of bytes of a command line with its variables, see [`CommandLine::size`].
const MAX_BYTES: usize = 64 * 1024;
/// The program and option that run a shell command line.
const SHELL: [&str; 2] = ["/bin/sh", "-c"];

/// A command line with its environment and working directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// The program.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Variables in addition to those of the agent.
    pub environment: Vec<(String, String)>,
    /// The working directory, absolute; `None` for that of the agent.
    pub directory: Option<PathBuf>,
    /// The id of the MCP request that started it.
    pub request: Option<Value>,
}

impl CommandLine {
    /// Returns a program with arguments. Without arguments the command is a shell command line, as
    /// agents expect of editors.
    pub fn new(command: String, arguments: Vec<String>) -> Self {
        let is_line = arguments.is_empty() && !command.is_empty();
        let (program, arguments) = match is_line {
            true => {
                let [shell, option] = SHELL.map(str::to_owned);
                (shell, vec![option, command])
            }
            false => (command, arguments),
        };
        Self { program, arguments, environment: Vec::new(), directory: None, request: None }
    }

    /// Returns about how many bytes of memory it takes with its variables. An empty argument takes
    /// some, too.
    pub fn size(&self) -> usize {
        self.texts().map(|text| size_of::<String>() + text.len()).sum()
    }

    fn texts(&self) -> impl Iterator<Item = &String> {
        let variables = self.environment.iter().flat_map(|(name, value)| [name, value]);
        std::iter::once(&self.program).chain(&self.arguments).chain(variables)
    }

    /// Checks that it can be executed.
    ///
    /// # Errors
    /// The reason, in words.
    pub fn check(&self) -> Result<(), &'static str> {
        let is_name =
            |name: &str| !(name.is_empty() || name.contains(|c: char| c == '=' || c.is_control()));
        if self.program.is_empty() {
            Err("the command is empty")
        } else if !self.environment.iter().all(|(name, _)| is_name(name)) {
            Err("a variable has no name, or one with `=` or a control character")
        } else if self.size() > MAX_BYTES {
            Err(
                "the command with its arguments and variables is longer than 64 KiB, of which each \
                 takes 24 bytes besides its text",
            )
        } else if self.texts().any(|text| text.contains('\0')) {
            Err("the command, an argument or a variable contains NUL")
        } else {
            Ok(())
        }
    }

    /// Returns the command for a decision.
    pub(crate) fn request(&self) -> CommandRequest<'_> {
        let arguments = self.arguments.iter().map(String::as_str);
        CommandRequest {
            words: std::iter::once(self.program.as_str()).chain(arguments).collect(),
            variables: &self.environment,
            directory: self.directory.as_deref(),
            facts: self.facts(),
        }
    }

    /// Returns the facts of its record.
    fn facts(&self) -> BTreeMap<String, Value> {
        let command = std::iter::once(&self.program).chain(&self.arguments).cloned();
        let mut facts = recorded_arguments(command);
        if let Some(directory) = &self.directory {
            facts.insert("directory".to_owned(), directory.to_string_lossy().into());
        }
        if !self.environment.is_empty() {
            let names = self.environment.iter().map(|(name, _)| name.clone());
            facts.extend(recorded(names, ["variables", "variablesLeftOut"]));
        }
        facts.extend(self.request.clone().map(|id| ("mcpRequest".to_owned(), id)));
        facts
    }
}

/// Returns the facts about a command and its arguments.
pub fn recorded_arguments(command: impl Iterator<Item = String>) -> BTreeMap<String, Value> {
    recorded(command, ["command", "argumentsLeftOut"])
}

/// Returns the facts about words, by the names of both. From the first word that does not fit on,
/// words are left out and counted, because the secret rules do not match a part of a token.
fn recorded(words: impl Iterator<Item = String>, names: [&str; 2]) -> BTreeMap<String, Value> {
    let (mut room, mut fits, mut left_out) = (MAX_RECORDED, Vec::new(), 0_u64);
    for word in words {
        match room.checked_sub(RECORDED_WORD + word.len()).filter(|_| left_out == 0) {
            Some(left) => {
                room = left;
                fits.push(word);
            }
            None => left_out += 1,
        }
    }
    let [all, rest] = names.map(str::to_owned);
    let mut facts = BTreeMap::from([(all, fits.into())]);
    if left_out > 0 {
        facts.insert(rest, left_out.into());
    }
    facts
}

/// The end of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// The command exited with this code.
    Code(i32),
    /// A signal of this name killed the command.
    Signal(String),
    /// The sandbox ended, or did not accept requests any more.
    Lost,
}

impl Exit {
    /// Returns the members `exitCode` or `signal`.
    pub fn members(&self) -> Map<String, Value> {
        let (name, value) = match self {
            Self::Code(code) => ("exitCode", json!(code)),
            Self::Signal(signal) => ("signal", json!(signal)),
            Self::Lost => ("signal", json!("SIGKILL")),
        };
        Map::from_iter([(name.to_owned(), value)])
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "ended by {signal}"),
            Self::Lost => f.write_str("ended with the sandbox"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_without_arguments_is_a_line_of_a_shell() {
        let line = CommandLine::new("make && ls".to_owned(), Vec::new());
        assert_eq!(
            (line.program.as_str(), line.arguments),
            ("/bin/sh", vec!["-c".to_owned(), "make && ls".to_owned()])
        );
        let direct = CommandLine::new("my tool".to_owned(), vec!["a b".to_owned()]);
        assert_eq!((direct.program.as_str(), direct.arguments.len()), ("my tool", 1));
    }

    #[test]
    fn what_no_program_can_be_given_is_refused() {
        let line = |argument: &str| CommandLine::new("a".to_owned(), vec![argument.to_owned()]);
        assert_eq!(line("b").check(), Ok(()));
        assert!(line("\0").check().is_err() && line(&"x".repeat(MAX_BYTES)).check().is_err());
        for name in ["", "A=B", "A\u{1b}[31m"] {
            let environment = vec![(name.to_owned(), "x".to_owned())];
            assert!(CommandLine { environment, ..line("b") }.check().is_err(), "{name}");
        }
    }

    /// A million of them passed every limit.
    #[test]
    fn empty_arguments_and_variables_counted_as_nothing() {
        let many = CommandLine::new("true".to_owned(), vec![String::new(); 3000]);
        assert!(many.check().is_err() && many.size() > MAX_BYTES, "{}", many.size());
        let variables = vec![("A".to_owned(), String::new()); 1400];
        let many =
            CommandLine { environment: variables, ..CommandLine::new("ls".to_owned(), Vec::new()) };
        assert!(many.check().is_err());
        let some = CommandLine::new("true".to_owned(), vec![String::new(); 2000]);
        assert_eq!(some.check(), Ok(()));
        let facts = some.facts();
        assert!(serde_json::to_string(&facts).unwrap().len() < MAX_RECORDED + 100, "{facts:?}");
        assert!(facts["argumentsLeftOut"].as_u64().unwrap() > 500, "{facts:?}");
    }

    #[test]
    fn arguments_that_do_not_fit_a_record_are_counted() {
        let long = "x".repeat(MAX_RECORDED);
        let facts = recorded_arguments(["ls".to_owned(), long, "b".to_owned()].into_iter());
        assert_eq!((&facts["command"], &facts["argumentsLeftOut"]), (&json!(["ls"]), &json!(2)));
    }

    /// All of them were recorded.
    #[test]
    fn names_of_variables_that_do_not_fit_a_record_are_counted() {
        let names = ["A".to_owned(), "x".repeat(MAX_RECORDED), "B".to_owned()];
        let environment = names.map(|name| (name, String::new())).into();
        let line = CommandLine { environment, ..CommandLine::new("ls".to_owned(), Vec::new()) };
        let facts = line.facts();
        assert_eq!((&facts["variables"], &facts["variablesLeftOut"]), (&json!(["A"]), &json!(2)));
    }
}
