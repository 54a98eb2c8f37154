//! `portcullis completions` and `portcullis man`.

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use clap_complete::Shell;

use super::generated;
use crate::app::{
    failure::{Context as _, Failure},
    new_file::Destination,
    output,
    trusted_paths::operators_program,
};

/// Print a script that makes a shell complete this command
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis completions bash > ~/.local/share/bash-completion/completions/portcullis\n  \
    portcullis completions zsh > ~/.zfunc/_portcullis\n  \
    portcullis completions fish > ~/.config/fish/completions/portcullis.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Print the manual page, or write the pages of all commands to a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis man\n  \
    portcullis man -o ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Write a page for every command to this directory, made when missing
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// Runs `completions`.
pub(crate) fn completions(
    args: &CompletionsArgs,
    command: clap::Command,
) -> Result<ExitCode, Failure> {
    Ok(print(&generated::script(args.shell, command)))
}

/// Runs `man`.
pub(crate) fn man(args: &ManArgs, command: clap::Command) -> Result<ExitCode, Failure> {
    let Some(directory) = &args.output else {
        let page = generated::root_page(command).or_fail("cannot make the manual page")?;
        // A terminal shows the page's markup; `man` shows the page.
        if io::stdout().is_terminal()
            && let Ok(Some(code)) = show(&page)
        {
            return Ok(code);
        }
        return Ok(print(&page));
    };
    Destination::open(directory)?.make_directory()?;
    generated::write_pages(command, directory)?;
    Ok(ExitCode::SUCCESS)
}

/// Has `man` show a page; `None` if there is none.
fn show(page: &[u8]) -> Result<Option<ExitCode>, Failure> {
    const DOING: &str = "cannot start `man`";
    let Some(man) = operators_program("man".as_ref(), Path::new("."))? else { return Ok(None) };
    let mut man =
        Command::new(man).args(["-l", "-"]).stdin(Stdio::piped()).spawn().or_fail(DOING)?;
    if let Some(mut input) = man.stdin.take() {
        // A reader that leaves early has seen enough.
        let _ = input.write_all(page);
    }
    let ended = man.wait().or_fail(DOING)?;
    Ok(Some(if ended.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

fn print(bytes: &[u8]) -> ExitCode {
    output::raw(bytes);
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use crate::cli::Cli;

    /// Collects the visible commands, each with the words that call it.
    fn commands(command: &clap::Command, words: &str, found: &mut Vec<(String, String)>) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        found.push((words.to_owned(), help));
        for subcommand in command.get_subcommands() {
            if !subcommand.is_hide_set() && subcommand.get_name() != "help" {
                commands(subcommand, &format!("{words} {}", subcommand.get_name()), found);
            }
        }
    }

    #[test]
    fn every_command_has_examples_of_itself() {
        let mut found = Vec::new();
        commands(&Cli::command(), "portcullis", &mut found);
        assert!(found.len() > 25, "{found:?}");
        let without: Vec<_> = found
            .iter()
            .filter(|(words, help)| !help.contains("Examples:") || !help.contains(words.as_str()))
            .map(|(words, _)| words)
            .collect();
        assert!(without.is_empty(), "without examples: {without:?}");
    }

    /// A paragraph with line breaks of its own was wrapped besides, after a word or two of a line.
    #[test]
    fn no_line_of_a_paragraph_is_wrapped() {
        let mut found = Vec::new();
        commands(&Cli::command(), "portcullis", &mut found);
        for (words, help) in found {
            for paragraph in help.split("\n\n") {
                // An example is indented.
                let lines = || paragraph.lines().filter(|line| !line.starts_with(' '));
                let wide = lines().find(|line| line.chars().count() > 100);
                assert!(lines().count() == 1 || wide.is_none(), "{words}: {wide:?}");
            }
        }
    }

    /// `undo -y` was known, and `approve -y` an error.
    #[test]
    fn each_yes_has_the_same_short_form() {
        fn without(command: &clap::Command, found: &mut Vec<String>) {
            let yes = command.get_arguments().filter(|arg| arg.get_long() == Some("yes"));
            found.extend(
                yes.filter(|arg| arg.get_short() != Some('y'))
                    .map(|arg| format!("{} {arg}", command.get_name())),
            );
            command.get_subcommands().for_each(|subcommand| without(subcommand, found));
        }
        let mut found = Vec::new();
        without(&Cli::command(), &mut found);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn every_argument_says_what_it_is() {
        fn without(command: &clap::Command, words: &str, found: &mut Vec<String>) {
            let silent = |arg: &&clap::Arg| arg.get_help().is_none() && !arg.is_hide_set();
            found
                .extend(command.get_arguments().filter(silent).map(|arg| format!("{words} {arg}")));
            for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
                without(subcommand, &format!("{words} {}", subcommand.get_name()), found);
            }
        }
        let mut found = Vec::new();
        without(&Cli::command(), "portcullis", &mut found);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn examples_are_command_lines_that_parse() {
        let mut found = Vec::new();
        commands(&Cli::command(), "portcullis", &mut found);
        for (_, help) in found {
            let help = help.replace("\\\n    ", "");
            for line in help.lines().filter_map(|line| line.strip_prefix("  ")) {
                let Some((_, line)) = line.split_once("portcullis ") else { continue };
                if line.contains('…') {
                    continue;
                }
                // A shell would pass the words up to here; a comment may follow.
                let line = line.split([';', '|', '>', '<']).next().unwrap();
                let line = format!("portcullis {}", line.split("   ").next().unwrap());
                let words = words(&line);
                if let Err(error) = <Cli as clap::Parser>::try_parse_from(&words) {
                    panic!("`{line}`: {error}");
                }
            }
        }
    }

    /// Splits at blanks, except in single quotes.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quoted = false;
        for c in line.trim().chars() {
            match c {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.push(String::new()),
                c => words.last_mut().unwrap().push(c),
            }
        }
        words
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
