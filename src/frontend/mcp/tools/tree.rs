//! Looking beneath a directory, one list of a directory after the other, so
//! that the policy decides about each.

use serde::Serialize;

use crate::{
    model::WorkspacePath,
    ops::{Entry, EntryKind},
    policy::Glob,
};

use super::super::{answer::Trouble, call::Call};

/// Most entries that are looked at.
const MOST_ENTRIES: usize = 100_000;
/// Deepest directory that is entered.
const DEEPEST: usize = 100;

/// What is left out.
pub(super) struct Excluded(Vec<Glob>);

impl Excluded {
    /// Patterns on paths relative to where the search begins. With `anywhere`,
    /// one without `*` names an entry at any depth.
    pub(super) fn parse(patterns: &[&str], anywhere: bool) -> Result<Self, Trouble> {
        let mut globs = Vec::new();
        for pattern in patterns {
            globs.push(glob(pattern)?);
            if anywhere && !pattern.contains('*') {
                globs.push(glob(&format!("**/{pattern}"))?);
            }
        }
        Ok(Self(globs))
    }

    fn has(&self, path: &str) -> bool {
        self.0.iter().any(|glob| glob.matches(path))
    }
}

fn glob(pattern: &str) -> Result<Glob, Trouble> {
    Glob::parse(pattern)
        .map_err(|error| Trouble::Arguments(format!("a pattern cannot be used: {error}")))
}

/// A file or directory in a tree; only a directory has children.
#[derive(Debug, Serialize)]
pub(super) struct Node {
    name: String,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<Vec<Node>>,
}

/// Everything beneath `path`.
pub(super) fn of(
    call: &Call<'_>,
    path: WorkspacePath,
    excluded: &Excluded,
) -> Result<Vec<Node>, Trouble> {
    let mut walk = Walk { call, top: path.clone(), excluded, left: MOST_ENTRIES };
    walk.tree(path, 0)
}

/// Everything beneath `path` that matches `pattern`.
pub(super) fn search(
    call: &Call<'_>,
    path: WorkspacePath,
    pattern: &str,
    excluded: &Excluded,
) -> Result<Vec<WorkspacePath>, Trouble> {
    let pattern = glob(pattern)?;
    let mut walk = Walk { call, top: path.clone(), excluded, left: MOST_ENTRIES };
    let mut found = Vec::new();
    walk.search(path, 0, &pattern, &mut found)?;
    Ok(found)
}

struct Walk<'a, 'c> {
    call: &'a Call<'c>,
    top: WorkspacePath,
    excluded: &'a Excluded,
    left: usize,
}

impl Walk<'_, '_> {
    fn tree(&mut self, path: WorkspacePath, depth: usize) -> Result<Vec<Node>, Trouble> {
        let mut nodes = Vec::new();
        for entry in self.list(path, depth)? {
            let name = entry.path.file_name().unwrap_or_default().to_owned();
            nodes.push(match entry.kind {
                EntryKind::Directory => {
                    let children = Some(self.tree(entry.path, depth + 1)?);
                    Node { name, r#type: "directory", children }
                }
                _ => Node { name, r#type: "file", children: None },
            });
        }
        Ok(nodes)
    }

    fn search(
        &mut self,
        path: WorkspacePath,
        depth: usize,
        pattern: &Glob,
        found: &mut Vec<WorkspacePath>,
    ) -> Result<(), Trouble> {
        for entry in self.list(path, depth)? {
            if pattern.matches(self.relative(&entry.path)) {
                found.push(entry.path.clone());
            }
            if entry.kind == EntryKind::Directory {
                self.search(entry.path, depth + 1, pattern, found)?;
            }
        }
        Ok(())
    }

    /// What is directly in a directory and not left out.
    fn list(&mut self, path: WorkspacePath, depth: usize) -> Result<Vec<Entry>, Trouble> {
        let too_much = |what: &str| {
            Err(Trouble::Said(format!("{what}; begin further down or leave something out")))
        };
        if depth > DEEPEST {
            return too_much("the directories are too deep");
        }
        let mut entries = self.call.list(path)?.entries;
        let Some(left) = self.left.checked_sub(entries.len()) else {
            return too_much("there are too many entries");
        };
        self.left = left;
        entries.retain(|entry| !self.excluded.has(self.relative(&entry.path)));
        Ok(entries)
    }

    fn relative<'p>(&self, path: &'p WorkspacePath) -> &'p str {
        let rest = path.as_str().strip_prefix(self.top.as_str()).unwrap_or(path.as_str());
        rest.trim_start_matches('/')
    }
}
