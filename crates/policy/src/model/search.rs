//! What a search looks for.

use super::WorkspacePath;

/// The part of a search's results that one reply gives, in the order of their paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The result after which it begins; default is the beginning.
    pub after: Option<Position>,
    /// Most results.
    pub results: u64,
    /// Most bytes of all results together.
    pub bytes: usize,
}

/// Where a result is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The entry, or the file of the line.
    pub path: WorkspacePath,
    /// The number of the line, 0 for an entry.
    pub line: u64,
}

/// What a search by name looks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GlobQuery {
    /// A pattern as policies have them, relative to the directory that is
    /// searched.
    pub pattern: String,
    /// Most entries to disclose; default and upper bound are the gate's.
    pub max_results: Option<u64>,
    /// Whether what the workspace's `.gitignore` files ignore is found too, and `.git`.
    pub ignored: bool,
    /// Which of the results are disclosed; default is as many as there is room for.
    pub page: Option<Box<Page>>,
}

/// What a search in content looks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GrepQuery {
    /// A regular expression, matched against each line without its end (LF or CR LF);
    /// a byte order mark is no part of the first.
    pub pattern: String,
    /// Whether case makes no difference.
    pub ignore_case: bool,
    /// Files to search: a pattern relative to the directory that is searched,
    /// or, without a `/`, one for their names. Default all.
    pub include: Option<String>,
    /// Most matching lines to disclose; default and upper bound are the gate's.
    pub max_results: Option<u64>,
    /// Lines to disclose before each match; the gate bounds them.
    pub before: u64,
    /// Lines to disclose after each match; the gate bounds them.
    pub after: u64,
    /// Whether only the files are asked for: one match in each is enough, counts as one
    /// line, and no line is disclosed.
    pub files_only: bool,
    /// Whether what the workspace's `.gitignore` files ignore is found too, and `.git`.
    pub ignored: bool,
    /// Which of the results are disclosed; default is as many as there is room for.
    pub page: Option<Box<Page>>,
}
