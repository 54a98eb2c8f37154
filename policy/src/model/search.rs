//! What a search looks for.

/// What a search by name looks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GlobQuery {
    /// A pattern as policies have them, relative to the directory that is
    /// searched.
    pub pattern: String,
    /// Most entries to disclose; default and upper bound are the gate's.
    pub max_results: Option<u64>,
    /// Whether what the workspace's `.gitignore` files ignore is left out.
    pub gitignore: bool,
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
    /// Whether what the workspace's `.gitignore` files ignore is left out.
    pub gitignore: bool,
}
