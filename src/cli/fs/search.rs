//! `portcullis fs glob` and `fs grep`: their options, and the output of results.

use clap::{builder::RangedU64ValueParser, value_parser};

use crate::{
    gateway::{EntryKind, Line, Matches, SearchResult, Stopped, Summary},
    model::{Escaped, GlobQuery, GrepQuery},
};

/// Find entries by their paths
#[derive(Debug, clap::Args)]
#[command(after_help = "Patterns are those of policies: `*` and `?` within a name, `**` for any \
    number of directories, `[a-z]`, `{a,b}`. They are relative to PATH: `*.rs` finds what is \
    directly in it, `**/*.rs` what is at any depth.\n\nExit code 1: nothing was found; 2: the \
    pattern cannot be used.\n\nExamples:\n  \
    portcullis fs glob '**/*.rs'\n  \
    portcullis fs glob '*.{md,txt}' docs --json")]
pub(super) struct GlobArgs {
    /// The pattern
    pattern: String,
    /// The directory to search
    #[arg(default_value = ".")]
    pub(super) path: String,
    /// Maximum number of entries to print, at most 100000 [default: 10000]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=SearchResult::MAX_ENTRIES))]
    max_results: Option<u64>,
    /// Search entries that .gitignore files ignore, and .git, too
    #[arg(long)]
    no_ignore: bool,
}

/// Find lines by a regular expression
#[derive(Debug, clap::Args)]
#[command(after_help = "The expression is matched against each line, in the syntax of Rust's \
    `regex`;\n`$` is before LF and CR LF.\nLinks are not followed. Exit code 1: nothing was \
    found; 2: the expression cannot be used.\n\nExamples:\n  \
    portcullis fs grep 'fn main' --include '*.rs'\n  \
    portcullis fs grep -i -C 2 todo src\n  \
    portcullis fs grep -F 'a.b(' -l --json")]
pub(super) struct GrepArgs {
    /// The expression
    pattern: String,
    /// The directory or the file to search
    #[arg(default_value = ".")]
    pub(super) path: String,
    /// Ignore case
    #[arg(short, long)]
    ignore_case: bool,
    /// Search for the pattern literally, not as an expression
    #[arg(short = 'F', long)]
    fixed_strings: bool,
    /// Search only files whose name matches, or, with a `/`, whose path below PATH matches; a file
    /// that PATH names is always searched
    #[arg(long, value_name = "PATTERN", visible_alias = "glob")]
    include: Option<String>,
    /// Print N lines before and after each match, at most 100 [default: 0]
    #[arg(short = 'C', long, value_name = "N", value_parser = context_lines())]
    context: Option<u64>,
    /// Print N lines before each match, at most 100 [default: 0]
    #[arg(short = 'B', long, value_name = "N", value_parser = context_lines())]
    before_context: Option<u64>,
    /// Print N lines after each match, at most 100 [default: 0]
    #[arg(short = 'A', long, value_name = "N", value_parser = context_lines())]
    after_context: Option<u64>,
    /// Print the names of files only
    #[arg(short = 'l', long)]
    files_with_matches: bool,
    /// Maximum number of matching lines to print, or of files with -l, at most 10000 [default:
    /// 1000]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=Matches::MAX_LINES))]
    max_results: Option<u64>,
    /// Search entries that .gitignore files ignore, and .git, too
    #[arg(long)]
    no_ignore: bool,
}

fn context_lines() -> RangedU64ValueParser {
    value_parser!(u64).range(..=Line::MAX_CONTEXT)
}

impl GlobArgs {
    pub(super) fn query(&self) -> GlobQuery {
        GlobQuery {
            pattern: self.pattern.clone(),
            max_results: self.max_results,
            ignored: self.no_ignore,
            page: None,
        }
    }

    /// Notes on stderr what is missing from the result.
    pub(super) fn print_summary(&self, summary: &Summary) {
        print_summary(summary, self.max_results == Some(SearchResult::MAX_ENTRIES));
    }
}

impl GrepArgs {
    /// Notes on stderr what is missing from the result.
    pub(super) fn print_summary(&self, summary: &Summary) {
        print_summary(summary, self.max_results == Some(Matches::MAX_LINES));
    }

    pub(super) fn query(&self) -> GrepQuery {
        let pattern = match self.fixed_strings {
            true => regex_syntax::escape(&self.pattern),
            false => self.pattern.clone(),
        };
        GrepQuery {
            pattern,
            ignore_case: self.ignore_case,
            include: self.include.clone(),
            max_results: self.max_results,
            before: self.before_context.or(self.context).unwrap_or(0),
            after: self.after_context.or(self.context).unwrap_or(0),
            files_only: self.files_with_matches,
            ignored: self.no_ignore,
            page: None,
        }
    }

    /// Prints the matches, or the names of the files only.
    pub(super) fn print(&self, matches: &Matches) {
        let mut first = true;
        for file in &matches.files {
            if self.files_with_matches {
                outln!("{}", file.path);
                continue;
            }
            let mut last = None;
            for line in &file.lines {
                let gap = last.is_none_or(|last| line.number > last + 1);
                if gap && !first && self.query().before + self.query().after > 0 {
                    outln!("--");
                }
                (first, last) = (false, Some(line.number));
                print_line(&file.path.to_string(), line);
            }
        }
    }
}

fn print_line(path: &str, line: &Line) {
    let mark = if line.matches { ':' } else { '-' };
    let text: Vec<_> = line.text.split('\t').map(|part| Escaped(part).to_string()).collect();
    let cut = if line.cut { " […]" } else { "" };
    outln!("{path}{mark}{}{mark}{}{cut}", line.number, text.join("\t"));
}

/// Prints the results of a search by name.
pub(super) fn print_found(found: &crate::gateway::SearchResult) {
    for entry in &found.entries {
        let slash = if entry.kind == EntryKind::Directory { "/" } else { "" };
        outln!("{}{slash}", entry.path);
    }
}

/// Notes on stderr what is missing; `most` is true if the limit cannot be raised.
fn print_summary(summary: &Summary, most: bool) {
    if !summary.skipped.is_empty() {
        let reasons: Vec<_> = summary
            .skipped
            .iter()
            .map(|(reason, count)| format!("{count} {}", reason.as_str()))
            .collect();
        errln!("portcullis: skipped: {}", reasons.join(", "));
    }
    if let Some(stopped) = summary.stopped {
        let reason = match stopped {
            Stopped::Results if most => "there is more; narrow the search",
            Stopped::Results => "there is more; narrow the search or raise --max-results",
            Stopped::Time => "the search took too long and is incomplete; narrow it",
            Stopped::Size => "the result would become too large; narrow the search",
            Stopped::Cancelled => "the search was stopped before it was complete",
        };
        errln!("portcullis: {reason}");
    }
}
