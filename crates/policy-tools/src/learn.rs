//! `policy learn`: the allowances that recorded requests need.
//!
//! Only requests that the default denied are considered. Nothing that an explicit denial or
//! `baseline` denies is ever proposed, and every proposal is checked against the policy before it
//! is made. Paths become globs where the requests show that an entire directory is meant.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use super::{
    history::{Count, Recorded, read_history},
    learn_guard::Guard,
    literal::escaped,
    progress::ProgressObserver,
    replay::OtherPathDenials,
};
use crate::{
    model::{Access, OperationKind, WorkspacePath},
    outline::{OutlineFile, PathPattern, StatementKind},
    policy::{Policy, Query, is_extension, path_accesses},
    review::Log,
};

/// Number of different names in one directory from which a glob is proposed.
const MIN_NAMES_FOR_GLOB: usize = 3;

/// Proposals, and the numbers of other requests.
#[derive(Debug, Clone, Default)]
pub struct Learned {
    /// Numbers of the records that were read.
    pub count: Count,
    /// Patterns to allow.
    pub proposals: Vec<Proposal>,
    /// Extensions to allow, where the policy lists them.
    pub extensions: Vec<NewExtension>,
    /// Numbers of the requests that stay denied, by the rule that denies them.
    pub kept: BTreeMap<String, u64>,
    /// Number of requests that were denied for their names and that the policy allows now.
    pub allowed: u64,
}

/// A pattern to allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// The list of `[allowedPaths]`.
    pub access: Access,
    /// The pattern.
    pub pattern: String,
    /// Number of requests that it would have allowed.
    pub requests: u64,
    /// Number of different paths in them.
    pub paths: u64,
    /// True if it allows further paths, too.
    pub wider: bool,
    /// The index of the first record.
    pub example: u64,
    /// The agents that sent the requests.
    pub agents: BTreeSet<String>,
}

/// An extension to allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewExtension {
    /// The list of `[extensions] allow`.
    pub access: Access,
    /// The extension, without a dot.
    pub extension: String,
    /// Number of requests for paths with it.
    pub requests: u64,
    /// The index of the first record.
    pub example: u64,
}

/// Requests for one path or pattern.
#[derive(Debug, Clone, Default)]
struct RequestCounts {
    requests: u64,
    /// The number of different paths.
    paths: u64,
    wider: bool,
    example: u64,
    agents: BTreeSet<String>,
}

/// Proposes the allowances that `policy` needs for the requests of the log. The
/// files of the policy are `outline`.
///
/// # Errors
/// If the log cannot be read.
pub fn learn(
    policy: &Policy,
    outline: &[OutlineFile],
    log: &Log,
    since: Option<&str>,
    watch: &dyn ProgressObserver,
) -> io::Result<Learned> {
    let mut learned = Learned::default();
    let mut wanted: BTreeMap<(Access, WorkspacePath), RequestCounts> = BTreeMap::new();
    let mut extensions: BTreeMap<(Access, String), RequestCounts> = BTreeMap::new();
    let (guard, beside) = (Guard::new(policy), OtherPathDenials::new(policy, outline));
    let Some((own, above)) = outline.split_first() else { return Ok(learned) };
    let count = read_history(log, since, watch, |request| {
        let is_denied = request.effect() == "deny";
        if request.is_setup || !(is_denied || request.is_of_mount) {
            return;
        }
        let asked = needed(request, is_denied);
        let mut keep = |rule| {
            if is_denied {
                *learned.kept.entry(rule).or_default() += 1;
            }
        };
        // A request is proposed only if all of its accesses can be.
        let refused = asked.iter().find_map(|(operation, access, path)| {
            guard.refuses(&request.agent, *operation, *access, path)
        });
        // No pattern can name a path that is too long, for example.
        let unnamed = |(_, _, path): &(OperationKind, Access, &WorkspacePath)| {
            PathPattern::allowing(&literal(path)).is_err()
        };
        let refused =
            refused.or_else(|| asked.iter().any(unnamed).then(|| request.rule.to_owned()));
        if let Some(rule) = refused {
            return keep(rule);
        }
        // A file that extends another one only narrows it: it cannot allow what that one does not.
        let bounded = asked.iter().find_map(|(_, access, path)| {
            let file = above.iter().find(|file| bounds(file, *access, path))?;
            Some(format!("{} ({})", request.rule, file.name))
        });
        if let Some(rule) = bounded {
            return keep(rule);
        }
        let mut new = false;
        for (operation, access, path) in asked {
            let query = Query { agent: &request.agent, operation, access, path };
            let decision = policy.evaluate(&query);
            if decision.is_allow() {
                continue;
            }
            new = true;
            let note = |wanted: &mut RequestCounts| {
                if wanted.requests == 0 {
                    wanted.example = request.seq;
                }
                wanted.requests += 1;
                wanted.agents.insert(request.agent.to_string());
            };
            let extension = path.file_name().and_then(|name| name.rsplit_once('.'));
            let extension = extension.filter(|(_, extension)| is_extension(extension));
            if let (true, Some((_, extension))) =
                (decision.rule().starts_with("extensions.allow"), extension)
            {
                note(extensions.entry((access, extension.to_owned())).or_default());
            }
            if !listed(own, access, path) {
                note(wanted.entry((access, path.clone())).or_default());
            }
        }
        if new || !is_denied {
            return;
        }
        // Denials by content, limits and the like would occur again.
        let is_allowed = request.by_name() && request.decide(policy).is_allow();
        if is_allowed && !beside.denied(request) {
            learned.allowed += 1;
        } else {
            keep(request.rule.to_owned());
        }
    })?;
    learned.count = count;
    for access in Access::ALL {
        let here: BTreeMap<WorkspacePath, RequestCounts> = wanted
            .iter()
            .filter(|((found, _), _)| *found == access)
            .map(|((_, path), wanted)| (path.clone(), wanted.clone()))
            .collect();
        learned.proposals.extend(generalise(access, here, &guard));
    }
    learned.extensions = extensions
        .into_iter()
        .map(|((access, extension), wanted)| NewExtension {
            access,
            extension,
            requests: wanted.requests,
            example: wanted.example,
        })
        .collect();
    Ok(learned)
}

/// Returns the accesses that must be allowed for a request: those of its operation if it was denied,
/// and listing its names if it came by way of a mount, where a name that may not be listed is
/// missing. Observe mode shows such a name, and no record says so.
fn needed<'r>(
    request: &'r Recorded<'_>,
    is_denied: bool,
) -> Vec<(OperationKind, Access, &'r WorkspacePath)> {
    let resolved = request.resolved.as_ref().filter(|_| request.to.is_none());
    let paths = || std::iter::once(&request.path).chain(resolved);
    let accesses = paths().filter(|_| is_denied).flat_map(|path| {
        let accesses = path_accesses(request.operation, path, request.to.as_ref());
        accesses.into_iter().map(|(access, path)| (request.operation, access, path))
    });
    let is_lookup = is_denied && request.operation == OperationKind::List;
    let is_named = request.is_of_mount && !is_lookup;
    let names = paths().chain(&request.to).filter(|path| is_named && !path.is_root());
    accesses.chain(names.map(|path| (OperationKind::List, Access::List, path))).collect()
}

/// True if `[allowedPaths]` of the file allows the path.
fn listed(file: &OutlineFile, access: Access, path: &WorkspacePath) -> bool {
    let mut lists = file
        .statements
        .iter()
        .filter(|statement| statement.kind == StatementKind::AllowedPaths(access));
    lists.any(|list| list.patterns.iter().any(|pattern| pattern.matches(path)))
}

/// True if the file has lists for the access and none of them allows the path.
fn bounds(file: &OutlineFile, access: Access, path: &WorkspacePath) -> bool {
    let has = |kind| file.statements.iter().any(|statement| statement.kind == kind);
    if has(StatementKind::AllowedPaths(access)) && !listed(file, access, path) {
        return true;
    }
    let extension = path.file_name().and_then(|name| name.rsplit_once('.')).map(|(_, end)| end);
    let mut lists = file
        .statements
        .iter()
        .filter(|statement| statement.kind == StatementKind::AllowedExtensions(access));
    extension.is_some_and(|extension| {
        lists.any(|list| list.extensions.iter().all(|(known, _)| known != extension))
    })
}

/// Finds the fewest readable patterns for the paths: the path itself, `DIR/*` or `DIR/*.EXT` where
/// several names of a directory were requested, `DIR/**` where that occurs in several directories
/// beneath one. The root is never opened as a whole.
fn generalise(
    access: Access,
    paths: BTreeMap<WorkspacePath, RequestCounts>,
    guard: &Guard<'_>,
) -> Vec<Proposal> {
    let neighbours = Neighbours::of(paths.keys());
    let mut sound: BTreeMap<String, bool> = BTreeMap::new();
    let mut groups: BTreeMap<String, RequestCounts> = BTreeMap::new();
    for (path, wanted) in paths {
        let general = neighbours.pattern(&path).filter(|(text, location)| {
            let Ok(pattern) = PathPattern::allowing(text) else { return false };
            pattern.matches(&path)
                && *sound
                    .entry(text.clone())
                    .or_insert_with(|| !guard.opens(access, &pattern, location))
        });
        let exact = literal(&path);
        let pattern = general.map_or_else(|| exact.clone(), |(text, _)| text);
        let wanted = RequestCounts { paths: 1, wider: pattern != exact, ..wanted };
        match groups.get_mut(&pattern) {
            Some(sum) => sum.add(&wanted),
            None => {
                groups.insert(pattern, wanted);
            }
        }
    }
    without_covered(groups)
        .into_iter()
        .map(|(pattern, wanted)| Proposal {
            access,
            pattern,
            requests: wanted.requests,
            paths: wanted.paths,
            wider: wanted.wider,
            example: wanted.example,
            agents: wanted.agents,
        })
        .collect()
}

impl RequestCounts {
    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.paths += other.paths;
        self.wider |= other.wider;
        self.example = self.example.min(other.example);
        self.agents.extend(other.agents.iter().cloned());
    }
}

/// Requested paths in the neighbourhood of a path.
#[derive(Default)]
struct Neighbours {
    /// The extensions of the requested paths in each directory.
    names: BTreeMap<WorkspacePath, Vec<Option<String>>>,
    /// The directories beneath each directory that contain requested paths, and the number of such
    /// paths.
    beneath: BTreeMap<WorkspacePath, (BTreeSet<WorkspacePath>, usize)>,
}

impl Neighbours {
    fn of<'p>(paths: impl Iterator<Item = &'p WorkspacePath>) -> Self {
        let mut neighbours = Self::default();
        for path in paths {
            let Some(parent) = path.parent() else { continue };
            for ancestor in path.ancestors() {
                let (directories, count) = neighbours.beneath.entry(ancestor).or_default();
                directories.insert(parent.clone());
                *count += 1;
            }
            neighbours.names.entry(parent).or_default().push(extension(path));
        }
        neighbours
    }

    /// Returns the pattern that the neighbours of a path suggest, and the directory that it is
    /// about.
    fn pattern(&self, path: &WorkspacePath) -> Option<(String, WorkspacePath)> {
        // The outermost directory with several subdirectories in use.
        let outermost =
            path.ancestors().into_iter().filter(|ancestor| !ancestor.is_root()).find(|ancestor| {
                self.beneath.get(ancestor).is_some_and(|(directories, count)| {
                    directories.len() >= 2 && *count >= MIN_NAMES_FOR_GLOB
                })
            });
        if let Some(ancestor) = outermost {
            return Some((format!("{}/**", literal(&ancestor)), ancestor));
        }
        let parent = path.parent()?;
        let names = self.names.get(&parent).filter(|names| names.len() >= MIN_NAMES_FOR_GLOB)?;
        let ours = extension(path);
        let same = names.iter().all(|other| *other == ours);
        let text = match (parent.is_root(), ours.filter(|_| same)) {
            (false, Some(ending)) => format!("{}/*.{}", literal(&parent), escaped(&ending)),
            (false, None) => format!("{}/**", literal(&parent)),
            (true, Some(ending)) => format!("*.{}", escaped(&ending)),
            (true, None) => return None,
        };
        Some((text, parent))
    }
}

fn extension(path: &WorkspacePath) -> Option<String> {
    path.file_name().and_then(|name| name.rsplit_once('.')).map(|(_, end)| end.to_owned())
}

/// Writes the path as a pattern that matches it literally.
fn literal(path: &WorkspacePath) -> String {
    if path.is_root() {
        return ".".to_owned();
    }
    escaped(path.as_str())
}

/// Removes patterns that a wider one covers, and adds their numbers to it.
fn without_covered(groups: BTreeMap<String, RequestCounts>) -> BTreeMap<String, RequestCounts> {
    let wide: Vec<(String, PathPattern)> = groups
        .keys()
        .filter(|text| text.ends_with("/**"))
        .filter_map(|text| Some((text.clone(), PathPattern::allowing(text).ok()?)))
        .collect();
    let mut kept: BTreeMap<String, RequestCounts> = BTreeMap::new();
    for (text, wanted) in groups {
        let cover = PathPattern::allowing(&text).ok().and_then(|ours| {
            let mut wider = wide.iter().filter(|(other, _)| *other != text);
            wider.find(|(_, other)| other.covers(&ours)).map(|(other, _)| other.clone())
        });
        match kept.get_mut(cover.as_ref().unwrap_or(&text)) {
            Some(sum) => sum.add(&wanted),
            None => {
                kept.insert(cover.unwrap_or(text), wanted);
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{PolicySource, compile};

    fn patterns(texts: &[&str]) -> Vec<String> {
        let source = PolicySource::from_text("p", "schema = 1\nextends = [\"baseline\"]\n");
        let policy = compile(&source).unwrap();
        let paths = texts
            .iter()
            .map(|text| {
                let wanted = RequestCounts { requests: 1, ..RequestCounts::default() };
                (WorkspacePath::parse(text).unwrap(), wanted)
            })
            .collect();
        let found = generalise(Access::Write, paths, &Guard::new(&policy));
        found.into_iter().map(|proposal| proposal.pattern).collect()
    }

    #[test]
    fn neighbours_make_a_pattern() {
        assert_eq!(patterns(&["src/a.rs"]), ["src/a.rs"]);
        assert_eq!(patterns(&["src/a.rs", "src/b.rs"]), ["src/a.rs", "src/b.rs"]);
        assert_eq!(patterns(&["src/a.rs", "src/b.rs", "src/c.rs"]), ["src/*.rs"]);
        assert_eq!(patterns(&["src/a.rs", "src/b.md", "src/c.rs"]), ["src/**"]);
        assert_eq!(
            patterns(&["src/a/x.rs", "src/b/y.rs", "src/z.rs", "doc/a"]),
            ["doc/a", "src/**"]
        );
    }

    #[test]
    fn the_root_is_never_opened_as_a_whole() {
        assert_eq!(patterns(&["a", "b", "c"]), ["a", "b", "c"]);
        assert_eq!(patterns(&["a.md", "b.md", "c.md"]), ["*.md"]);
        assert_eq!(patterns(&["a/x", "b/y", "c/z"]), ["a/x", "b/y", "c/z"]);
    }

    /// `src/**` would allow `src/.env` if the policy does not deny what `baseline` denies.
    #[test]
    fn no_glob_opens_what_baseline_denies() {
        let paths = || {
            ["src/a.rs", "src/b.md", "src/c.rs"].map(|text| {
                let wanted = RequestCounts { requests: 1, ..RequestCounts::default() };
                (WorkspacePath::parse(text).unwrap(), wanted)
            })
        };
        let policy = compile(&PolicySource::from_text("p", "schema = 1\n")).unwrap();
        let found = generalise(Access::Read, paths().into(), &Guard::new(&policy));
        let patterns: Vec<_> = found.iter().map(|proposal| proposal.pattern.as_str()).collect();
        assert_eq!(patterns, ["src/a.rs", "src/b.md", "src/c.rs"]);
    }

    #[test]
    fn wildcards_in_names_are_no_wildcards() {
        assert_eq!(patterns(&["app/[id]/{x}*.ts"]), ["app/[[]id[]]/[{]x[}][*].ts"]);
    }
}
