//! Queries of searches.

use super::WorkspacePath;

/// The page of a search's results that one reply contains, in the order of their paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The result after which it begins; the default is the beginning.
    pub after: Option<Position>,
    /// Maximum number of results.
    pub results: u64,
    /// Maximum number of bytes of all results together.
    pub bytes: usize,
}

/// The position of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The entry, or the file of the line.
    pub path: WorkspacePath,
    /// The number of the line, 0 for an entry.
    pub line: u64,
}

/// The query of a search by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GlobQuery {
    /// A pattern in the language of policies, relative to the searched directory.
    pub pattern: String,
    /// Maximum number of entries to disclose; the default and the upper bound are the gateway's.
    pub max_results: Option<u64>,
    /// True if `.git`, and entries that the workspace's `.gitignore` files ignore, are found, too.
    pub ignored: bool,
    /// The page of results to disclose; the default is as many as fit.
    pub page: Option<Box<Page>>,
}

/// The query of a search in content.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GrepQuery {
    /// A regular expression, matched against each line without its end (LF or CR LF); a byte order
    /// mark is not part of the first line.
    pub pattern: String,
    /// True if case is ignored.
    pub ignore_case: bool,
    /// The files to search: a pattern relative to the searched directory, or, without a `/`, one
    /// for their names. The default is all.
    pub include: Option<String>,
    /// Maximum number of matching lines to disclose; the default and the upper bound are the
    /// gateway's.
    pub max_results: Option<u64>,
    /// Number of lines to disclose before each match; the gateway bounds it.
    pub before: u64,
    /// Number of lines to disclose after each match; the gateway bounds it.
    pub after: u64,
    /// True if only the files are wanted: one match in each suffices, counts as one line, and no
    /// line is disclosed.
    pub files_only: bool,
    /// True if `.git`, and entries that the workspace's `.gitignore` files ignore, are found, too.
    pub ignored: bool,
    /// The page of results to disclose; the default is as many as fit.
    pub page: Option<Box<Page>>,
}
