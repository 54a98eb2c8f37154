//! `portcullis completions` and `portcullis man`: texts generated from the
//! definition of the command line, so that they cannot differ from it.
//!
//! The stages of a sandbox, the gateway process and other internal processes are
//! started with words that are not in the definition; they do not appear here.

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};

use super::Cli;
use crate::app::{
    failure::{Context as _, Failure},
    fresh::{Destination, Fresh},
    output,
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
pub(crate) fn completions(args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "portcullis", &mut script);
    Ok(print(&script))
}

/// Runs `man`.
pub(crate) fn man(args: &ManArgs) -> Result<ExitCode, Failure> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let Some(directory) = &args.output else {
        let page = page(&root).or_fail("cannot make the manual page")?;
        // A terminal shows the page's markup; `man` shows the page.
        if io::stdout().is_terminal()
            && let Ok(code) = show(&page)
        {
            return Ok(code);
        }
        return Ok(print(&page));
    };
    Destination::open(directory)?.make_directory()?;
    write_pages(&root, directory)?;
    Ok(ExitCode::SUCCESS)
}

/// Has `man` show a page.
fn show(page: &[u8]) -> io::Result<ExitCode> {
    let mut man = Command::new("man").args(["-l", "-"]).stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = man.stdin.take() {
        // A reader that leaves early has seen enough.
        let _ = input.write_all(page);
    }
    Ok(if man.wait()?.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the page of `command` and those of its subcommands.
fn write_pages(command: &clap::Command, directory: &Path) -> Result<(), Failure> {
    let path = directory.join(format!("{}.1", name(command)));
    let page = page(command).or_fail("cannot make a manual page")?;
    let fresh = Fresh::create(&path)?;
    let written = fresh.file().write_all(&page).and_then(|()| fresh.keep());
    written.or_fail(format_args!("cannot write `{}`", path.display()))?;
    command
        .get_subcommands()
        .filter(|subcommand| !subcommand.is_hide_set())
        .try_for_each(|subcommand| write_pages(subcommand, directory))
}

/// Returns a name that is unique among all commands: `portcullis-fs-read`.
fn name(command: &clap::Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// Renders a page. The library's own rendering would join the examples into one
/// paragraph.
fn page(command: &clap::Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone()).source(format!("portcullis {}", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|subcommand| !subcommand.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_help() {
        let mut roff = Roff::default();
        roff.control("SH", ["NOTES AND EXAMPLES"]);
        roff.control("nf", []);
        for line in text.to_string().lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
        roff.to_writer(&mut page)?;
    }
    Ok(page)
}

fn print(bytes: &[u8]) -> ExitCode {
    output::raw(bytes);
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

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
