//! Scratch directories of a mount: `[scratch]`. They are not part of the workspace, and operations
//! in them are not recorded, so a directory is scratch only if all files with a list agree.

use super::{
    layered::{Layered, least},
    pattern::{Name, Pattern, Segment},
};
use crate::model::WorkspacePath;

/// The name by which git finds a repository: its directory, or a file that names its location.
const REPOSITORY: &str = ".git";
/// Default maximum of bytes in scratch directories.
const DEFAULT_SIZE: u64 = 20 << 30;

/// The git repository that the programs of a mount have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repository {
    /// A private one: the history of the workspace's repository is not shown.
    Private,
    /// The workspace's, whose files are decided on like all others.
    Workspace,
}

/// The commits with which a private repository begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum History {
    /// One commit, of the files that the policy shows.
    Deny,
    /// All commits that led to the one that is checked out, including files that the policy hides.
    Allow,
}

/// The scratch directories as the files of a policy state them.
#[derive(Debug, Clone, Default)]
pub(super) struct StatedScratch {
    /// One list for each file that has one.
    pub(super) lists: Vec<PathList>,
    pub(super) max_size: Option<Layered<u64>>,
    pub(super) keep: Option<bool>,
}

/// The patterns of one file.
#[derive(Debug, Clone)]
pub(super) struct PathList {
    /// The patterns as written.
    pub(super) texts: Vec<String>,
    /// The patterns at any depth.
    pub(super) patterns: Vec<Pattern>,
}

impl StatedScratch {
    /// Returns the settings as stated by the file of layer `layer`.
    pub(super) fn in_layer(mut self, layer: usize) -> Self {
        self.max_size = self.max_size.map(|layered| layered.in_layer(layer));
        self
    }

    /// Returns the stricter of both.
    pub(super) fn and(mut self, other: &Self) -> Self {
        self.lists.extend(other.lists.iter().cloned());
        self.max_size = least(self.max_size, other.max_size);
        self.keep = match (self.keep, other.keep) {
            (Some(ours), Some(theirs)) => Some(ours && theirs),
            (ours, theirs) => ours.or(theirs),
        };
        self
    }

    /// Fills in the defaults; returns `None` if nothing can be scratch.
    pub(super) fn complete(self, repository: Repository, history: History) -> Option<Scratch> {
        let Self { mut lists, max_size, keep } = self;
        let repositories = repository == Repository::Private;
        if lists.iter().any(|list| list.texts.is_empty()) {
            lists.clear();
        }
        if lists.is_empty() && !repositories {
            return None;
        }
        let max_size = max_size.map_or(DEFAULT_SIZE, |layered| layered.value);
        let history = repositories && history == History::Allow;
        Some(Scratch { lists, repositories, history, max_size, keep: keep.unwrap_or(true) })
    }
}

/// The scratch directories of a mount, which are not part of the workspace and not recorded.
#[derive(Debug, Clone)]
pub struct Scratch {
    lists: Vec<PathList>,
    repositories: bool,
    history: bool,
    max_size: u64,
    keep: bool,
}

impl Scratch {
    /// True if the entry at this path is scratch: each file of the policy that lists scratch
    /// directories has a pattern that matches it, or it is a git repository.
    pub fn matches(&self, path: &WorkspacePath) -> bool {
        if self.repositories && path.file_name().is_some_and(is_repository) {
            return true;
        }
        let names: Vec<_> = path.components().collect();
        let is_matched =
            |list: &PathList| list.patterns.iter().any(|p| p.matches(names.iter().copied()));
        !path.is_root() && !self.lists.is_empty() && self.lists.iter().all(is_matched)
    }

    /// True if a path with this last component may match; `false` is certain.
    pub fn may_match_name(&self, name: &str) -> bool {
        if self.repositories && is_repository(name) {
            return true;
        }
        let ends = |pattern: &Pattern| match pattern.segments().last() {
            Some(Segment::Name(last)) => last.matches(name),
            Some(Segment::AnyDepth) | None => true,
        };
        !self.lists.is_empty() && self.lists.iter().all(|list| list.patterns.iter().any(ends))
    }

    /// True if git repositories (`.git`, at any depth) are scratch.
    pub fn repositories(&self) -> bool {
        self.repositories
    }

    /// True if such a repository has the history of the workspace's, including files that rules
    /// hide.
    pub fn history(&self) -> bool {
        self.history
    }

    /// Returns the patterns of each file that has any, as written.
    pub fn paths(&self) -> impl Iterator<Item = &[String]> {
        self.lists.iter().map(|list| &*list.texts)
    }

    /// Returns the maximum number of bytes in all of them together.
    pub fn max_size(&self) -> u64 {
        self.max_size
    }

    /// True if they outlast the session.
    pub fn keep(&self) -> bool {
        self.keep
    }
}

/// True if a file system that ignores case finds a git repository by this name.
fn is_repository(name: &str) -> bool {
    name.eq_ignore_ascii_case(REPOSITORY)
}

/// True if a pattern is one name. With more components, a rename of a directory above would turn
/// entries of the workspace into scratch or the other way round; a pattern for any name would turn
/// everything into scratch.
pub(super) fn is_one_name(pattern: &Pattern) -> bool {
    match pattern.segments() {
        [Segment::Name(name)] | [Segment::AnyDepth, Segment::Name(name)] => *name != Name::Any,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::{Policy, PolicySource, compile, model::WorkspacePath};

    fn policy(text: &str) -> Policy {
        compile(&PolicySource::from_text("p", &format!("schema = 1\n{text}"))).unwrap()
    }

    fn matches(policy: &Policy, path: &str) -> bool {
        policy.scratch().is_some_and(|it| it.matches(&WorkspacePath::parse(path).unwrap()))
    }

    #[test]
    fn a_name_stands_at_any_depth_and_means_the_directory_itself() {
        let policy =
            policy("[scratch]\npaths = [\"target\", \"{dist,out}\", \"**/.v*\"]\nkeep = false");
        for path in ["target", "a/b/target", "dist", "x/web/out", ".venv", "target/target"] {
            assert!(matches(&policy, path), "{path}");
        }
        for path in [".", "Target", "targets", "web", "target/x", "dist/a"] {
            assert!(!matches(&policy, path), "{path}");
        }
        let scratch = policy.scratch().unwrap();
        assert!(scratch.may_match_name("dist") && !scratch.may_match_name("web"));
        assert_eq!((scratch.max_size(), scratch.keep()), (20 << 30, false));
    }

    #[test]
    fn without_paths_repositories_alone_are_scratch() {
        for text in ["", "[scratch]\nmaxSize = \"1GiB\"", "[scratch]\npaths = []"] {
            let private = policy(text);
            for (path, is) in
                [(".git", true), ("a/.git", true), (".GIT", true), ("a", false), (".git/a", false)]
            {
                assert_eq!(matches(&private, path), is, "{text} {path}");
            }
            let workspace = policy(&format!("{text}\n[git]\nrepository = \"workspace\""));
            assert!(workspace.scratch().is_none(), "{text}");
        }
    }

    #[test]
    fn a_private_repository_cannot_be_taken_back() {
        let private = "[git]\nrepository = \"private\"\n[scratch]\npaths = [\"target\"]";
        let policy = policy(private);
        let scratch = policy.scratch().unwrap();
        assert!(scratch.repositories() && scratch.may_match_name(".git"));
        assert!(matches(&policy, "a/.git") && matches(&policy, "target"));
    }

    #[test]
    fn history_is_allowed_by_word_and_taken_back_by_any_file() {
        let history = |text: &str| policy(text).scratch().is_some_and(super::Scratch::history);
        assert!(!history("") && !history("[git]\nhistory = \"deny\""));
        assert!(history("[git]\nhistory = \"allow\""));
        assert!(!history("[git]\nrepository = \"workspace\"\nhistory = \"allow\""));
        let least = crate::layered::least(
            Some(crate::layered::Layered { value: super::History::Allow, location: None }),
            Some(crate::layered::Layered { value: super::History::Deny, location: None }),
        );
        assert_eq!(least.unwrap().value, super::History::Deny);
    }

    #[test]
    fn what_is_not_one_name_is_refused() {
        for pattern in ["**", "*", ".", "a/**", "a/*", "{target,*}", "web/dist", "{a,b/c}"] {
            let text = format!("schema = 1\n[scratch]\npaths = [\"{pattern}\"]");
            assert!(compile(&PolicySource::from_text("p", &text)).is_err(), "{pattern}");
        }
    }

    #[test]
    fn files_have_to_agree() {
        let section = |text: &str| policy(text).settings.scratch;
        let stated = |text: &str| {
            let scratch = section(text).unwrap();
            super::StatedScratch {
                lists: scratch.lists,
                max_size: Some(crate::layered::Layered { value: scratch.max_size, location: None }),
                keep: Some(scratch.keep),
            }
        };
        let ours = stated("[scratch]\npaths = [\"target\", \"dist\"]\nmaxSize = \"2B\"");
        let theirs = stated("[scratch]\npaths = [\"target\", \"out\"]\nkeep = false");
        let both = ours.and(&theirs);
        let both = both.complete(super::Repository::Workspace, super::History::Allow).unwrap();
        assert!(!both.history());
        let is = |path: &str| both.matches(&WorkspacePath::parse(path).unwrap());
        assert!(is("a/target") && !is("dist") && !is("out"));
        assert!(both.may_match_name("target") && !both.may_match_name("dist"));
        assert_eq!((both.max_size(), both.keep()), (2, false));
    }
}
