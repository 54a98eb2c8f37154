//! Entries beneath a directory, found by one search that the policy filters.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    gateway::{EntryKind, SearchResult, Summary},
    model::{GlobQuery, Page, Position, WorkspacePath, request},
    policy::GlobPattern,
};

use super::{
    super::{call::Call, tool_result::ToolError},
    searching::{MAX_PAGE_BYTES, bytes_in_reply},
};

/// Maximum of entries; a note says if more are missing.
const MAX_ENTRIES: u64 = 100_000;

/// Bytes of JSON of an entry of a tree besides its name.
const ENTRY_OVERHEAD: usize = 46;

/// Maximum of exclude patterns: each is compared with every entry.
const MAX_PATTERNS: usize = 100;

/// Patterns of excluded entries; an excluded directory excludes its content.
pub(super) struct Excluded(Vec<GlobPattern>);

impl Excluded {
    /// Parses patterns on paths relative to the search's directory. With `anywhere`, a
    /// pattern without `*` matches an entry at any depth.
    pub(super) fn parse(patterns: &[&str], anywhere: bool) -> Result<Self, ToolError> {
        if patterns.len() > MAX_PATTERNS {
            let reason = format!("`excludePatterns` must have at most {MAX_PATTERNS} patterns");
            return Err(ToolError::Arguments(reason));
        }
        let glob = |pattern: &str| {
            GlobPattern::parse(pattern)
                .map_err(|error| ToolError::Arguments(format!("a pattern cannot be used: {error}")))
        };
        let mut globs = Vec::new();
        for pattern in patterns {
            let pattern = spelled(pattern)?;
            globs.push(glob(pattern)?);
            if anywhere && !pattern.contains('*') {
                globs.push(glob(&format!("**/{pattern}"))?);
            }
        }
        Ok(Self(globs))
    }

    /// Returns true if an entry or a directory above it is excluded.
    fn has(&self, relative: &str) -> bool {
        let ends = relative.match_indices('/').map(|(at, _)| at).chain([relative.len()]);
        let mut above = ends.filter_map(|end| relative.get(..end));
        !self.0.is_empty() && above.any(|path| self.0.iter().any(|glob| glob.matches(path)))
    }
}

/// Normalizes a pattern of a client of the reference server. Syntax that only that
/// server supports is refused, because it would match nothing here.
fn spelled(pattern: &str) -> Result<&str, ToolError> {
    const EXTENDED: [&str; 6] = ["@(", "+(", "?(", "*(", "!(", "[:"];
    if pattern.starts_with('!') || EXTENDED.iter().any(|one| pattern.contains(one)) {
        let reason =
            "a pattern cannot be used: `!`, `@(…)` and the like, and `[:…:]` are not supported";
        return Err(ToolError::Arguments(reason.to_owned()));
    }
    let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
    Ok(pattern.strip_suffix('/').unwrap_or(pattern))
}

/// A file or directory in a tree; only a directory has children.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Node {
    name: String,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<Vec<Node>>,
}

/// The options of a search.
pub(super) struct Search {
    /// The entry after which the results begin, ordered by path.
    pub(super) after: Option<WorkspacePath>,
    /// True if files ignored by `.gitignore` are included.
    pub(super) ignored: bool,
}

/// Returns as many entries beneath `path` as fit on a page, and the path after which
/// the next page begins.
pub(super) fn of(
    call: &Call<'_>,
    path: &WorkspacePath,
    excluded: &Excluded,
    search: &Search,
) -> Result<(Vec<Node>, Option<String>, Summary), ToolError> {
    let SearchResult { entries, summary, base } = look(call, path, "**", excluded, search)?;
    let base = base.as_ref().unwrap_or(path);
    let (mut top, mut room, mut last) = (Branch::default(), MAX_PAGE_BYTES, None);
    for entry in &entries {
        let name = entry.path.file_name().unwrap_or_default();
        let Some(left) = room.checked_sub(bytes_in_reply(name) + ENTRY_OVERHEAD) else {
            return Ok((top.nodes(), last, summary));
        };
        (room, last) = (left, Some(entry.path.as_str().to_owned()));
        top.add(relative(base, &entry.path), entry.kind == EntryKind::Directory);
    }
    Ok((top.nodes(), None, summary))
}

/// Returns all entries beneath `path` that match `pattern`.
pub(super) fn search(
    call: &Call<'_>,
    path: &WorkspacePath,
    pattern: &str,
    excluded: &Excluded,
    search: &Search,
) -> Result<(Vec<WorkspacePath>, Summary), ToolError> {
    let found = look(call, path, spelled(pattern)?, excluded, search)?;
    Ok((found.entries.into_iter().map(|entry| entry.path).collect(), found.summary))
}

/// Searches all entries: exclusion comes after the search, so the page cannot be cut by
/// the search.
fn look(
    call: &Call<'_>,
    path: &WorkspacePath,
    pattern: &str,
    excluded: &Excluded,
    search: &Search,
) -> Result<SearchResult, ToolError> {
    let after = search.after.clone().map(|path| Position { path, line: 0 });
    let query = GlobQuery {
        pattern: pattern.to_owned(),
        max_results: Some(MAX_ENTRIES),
        ignored: search.ignored,
        page: Some(Box::new(Page { after, results: MAX_ENTRIES, bytes: usize::MAX })),
    };
    let mut found = call.put(&request::Glob { path: path.clone(), query })?;
    // The path may lead to its base through links.
    let base = found.base.as_ref().unwrap_or(path);
    found.entries.retain(|entry| {
        entry.kind != EntryKind::Other
            && entry.path != *base
            && !excluded.has(relative(base, &entry.path))
    });
    Ok(found)
}

fn relative<'p>(top: &WorkspacePath, path: &'p WorkspacePath) -> &'p str {
    let rest = path.as_str().strip_prefix(top.as_str()).unwrap_or(path.as_str());
    rest.trim_start_matches('/')
}

/// A directory in the making.
#[derive(Default)]
struct Branch {
    below: BTreeMap<String, Branch>,
    directory: bool,
}

impl Branch {
    fn add(&mut self, relative: &str, directory: bool) {
        let mut location = self;
        for name in relative.split('/') {
            location.directory = true;
            location = location.below.entry(name.to_owned()).or_default();
        }
        location.directory |= directory;
    }

    fn nodes(self) -> Vec<Node> {
        let node = |(name, branch): (String, Self)| match branch.directory {
            true => Node { name, r#type: "directory", children: Some(branch.nodes()) },
            false => Node { name, r#type: "file", children: None },
        };
        self.below.into_iter().map(node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_left_out_with_all_in_it() {
        let excluded = Excluded::parse(&["./node_modules/", "*.log"], true).unwrap();
        for out in ["node_modules", "a/node_modules/b/c", "node_modules/x", "x.log"] {
            assert!(excluded.has(out), "{out}");
        }
        for stays in ["a", "a/x.log", "node_modules2"] {
            assert!(!excluded.has(stays), "{stays}");
        }
        let plain = Excluded::parse(&["node_modules"], false).unwrap();
        assert!(plain.has("node_modules/a") && !plain.has("a/node_modules"));
        assert!(Excluded::parse(&["["], true).is_err());
    }

    /// Such patterns used to find nothing, without an error.
    #[test]
    fn patterns_that_mean_something_only_elsewhere_are_refused() {
        for pattern in ["!*.txt", "@(a|b).txt", "+(a)", "a?(b)", "*(x)", "a!(b)", "[[:alpha:]].txt"]
        {
            assert!(matches!(spelled(pattern), Err(ToolError::Arguments(_))), "{pattern}");
        }
        for (pattern, meant) in
            [("./src", "src"), ("dist/", "dist"), ("a!b", "a!b"), ("[!a]", "[!a]")]
        {
            assert!(matches!(spelled(pattern), Ok(text) if text == meant), "{pattern}");
        }
    }

    #[test]
    fn patterns_without_number_are_refused() {
        assert!(Excluded::parse(&["a"; 100], true).is_ok());
        let Err(ToolError::Arguments(reason)) = Excluded::parse(&["a"; 101], true) else {
            panic!()
        };
        assert!(reason.contains("at most 100"), "{reason}");
    }

    #[test]
    fn a_tree_has_children_where_there_are_directories() {
        let mut top = Branch::default();
        top.add("b/c.txt", false);
        top.add("b", true);
        top.add("a", true);
        let tree = serde_json::to_string(&top.nodes()).unwrap();
        assert_eq!(
            tree,
            r#"[{"name":"a","type":"directory","children":[]},{"name":"b","type":"directory","children":[{"name":"c.txt","type":"file"}]}]"#
        );
    }
}
