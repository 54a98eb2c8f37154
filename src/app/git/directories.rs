//! The directories of a workspace's repository.
//!
//! In a linked work tree and in a submodule `.git` is a file that names them. An agent may have
//! written that file, so the repository must lie where no agent can change it, and must name the
//! workspace itself. Otherwise an agent could have the operator's git objects of another repository
//! copied into its own, or its commits written there.

use std::{
    fmt::Display,
    fs::{File, Metadata},
    io::{self, Read as _},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2},
    io::Errno,
};

use crate::{
    app::{
        failure::{Context as _, Failure},
        trusted_paths,
    },
    model::Escaped,
    operator_files,
    sandbox::{Trusted, TrustedPath},
};

/// The maximum of bytes of a file that names a path, and of a configuration.
const MAX_LINK: u64 = 8192;
const MAX_CONFIG: u64 = 1 << 20;

/// The directories of a repository, which are the same except in a linked work tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directories {
    /// The directory with HEAD and index (`GIT_DIR`).
    pub(crate) git: PathBuf,
    /// The directory with objects and refs (`GIT_COMMON_DIR`).
    pub(crate) common: PathBuf,
}

impl Directories {
    /// Finds those of the workspace whose canonical root is `root`. Agents may change the workspace
    /// and `writable`. `None` if `.git` is neither the directory of a repository nor a file.
    ///
    /// # Errors
    /// When `.git` is a file, and the repository that it names is not accepted; when `.git` cannot be
    /// looked at.
    pub(crate) fn of(root: &Path, writable: &[PathBuf]) -> Result<Option<Self>, Failure> {
        let link = root.join(".git");
        match kind(operator_files::symlink_metadata(&link), &link)? {
            Some(FileType::RegularFile) => {}
            Some(FileType::Directory) => {
                let objects = link.join("objects");
                let objects = kind(operator_files::symlink_metadata(&objects), &objects)?;
                let is_repository = objects == Some(FileType::Directory);
                return Ok(is_repository.then(|| Self { git: link.clone(), common: link }));
            }
            _ => return Ok(None),
        }
        let found = Self::named(root).and_then(|found| {
            found.check(root, writable)?;
            Ok(found)
        });
        found.map(Some).map_err(|failure| {
            let file = Escaped(&link.to_string_lossy()).to_string();
            let reason = failure.message();
            Failure::new(format_args!("the file `{file}` names no repository to use: {reason}"))
                .help(
                    "an agent may have written it; if the workspace is a linked work tree of \
                     yours, `git -C MAIN worktree repair WORKSPACE` writes it anew, and `git \
                     submodule absorbgitdirs` if it is a submodule; if you made it with `git init \
                     --separate-git-dir`, `git -C WORKSPACE config core.worktree WORKSPACE` names it",
                )
        })
    }

    /// Returns the directories that `.git` names and that name the workspace.
    fn named(root: &Path) -> Result<Self, Failure> {
        let workspace = open(root).or_fail("cannot open the workspace")?;
        let text = line(&workspace, ".git")?;
        let target = text.strip_prefix("gitdir: ").filter(|target| !target.is_empty());
        let target = target.ok_or_else(|| Failure::new("it does not begin with `gitdir: `"))?;
        let git = absolute(root, target);
        let directory = open(&git).map_err(|error| {
            let reason = match error {
                Errno::LOOP => "the way to it leads through a link".to_owned(),
                error => error.to_string(),
            };
            Failure::new(format_args!("cannot open `{}`: {reason}", shown(&git)))
        })?;
        match read(&directory, "commondir", MAX_LINK) {
            Err(Errno::NOENT) => Self::of_submodule(root, &directory, git),
            _ => Self::of_work_tree(root, &directory, &git),
        }
    }

    /// Checks that this is the directory of a linked work tree at the workspace. Only a writer of
    /// the repository can make a directory in its `worktrees`.
    fn of_work_tree(root: &Path, directory: &OwnedFd, git: &Path) -> Result<Self, Failure> {
        let common = absolute(git, &line(directory, "commondir")?);
        if git.parent() != Some(&common.join("worktrees")) {
            return Err(Failure::new(format_args!(
                "`{}` does not lie in `worktrees` of the repository that its `commondir` names, `{}`",
                shown(git),
                shown(&common)
            )));
        }
        let back = absolute(git, &line(directory, "gitdir")?);
        if back != root.join(".git") {
            return Err(points_elsewhere("gitdir", git, &back));
        }
        Ok(Self { git: git.to_owned(), common })
    }

    /// Checks that this is the repository of a submodule at the workspace.
    fn of_submodule(root: &Path, directory: &OwnedFd, git: PathBuf) -> Result<Self, Failure> {
        let config = read(directory, "config", MAX_CONFIG).map_err(|error| {
            Failure::new(format_args!(
                "`{}` has no readable `commondir`, as that of a linked work tree, nor `config`, as \
                 that of a submodule: {error}",
                shown(&git)
            ))
        })?;
        let back = work_tree(&config).ok_or_else(|| {
            Failure::new(format_args!(
                "`{}` is neither of a linked work tree nor of a submodule: its `config` has no plain \
                 `core.worktree`",
                shown(&git)
            ))
        })?;
        let back = absolute(&git, back);
        if back != root {
            return Err(points_elsewhere("core.worktree", &git, &back));
        }
        Ok(Self { git: git.clone(), common: git })
    }

    /// Checks that the files which git opens on its own are regular ones: opening a pipe would wait
    /// for its other end. The objects that are no packs are too many to look at.
    ///
    /// # Errors
    /// When one is another kind of file, or it or the packs cannot be looked at.
    pub(super) fn check_files(&self) -> Result<(), Failure> {
        let directory = self.common.join("objects/pack");
        let packs = match operator_files::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            entries => entries.and_then(|entries| {
                entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()
            }),
        };
        let packs =
            packs.or_fail(format_args!("cannot list the packs in `{}`", shown(&directory)))?;
        let named = ["packed-refs", "objects/info/alternates"].map(|name| self.common.join(name));
        for path in named.into_iter().chain(packs) {
            // What a link leads to counts; what is not there is opened by nobody.
            let kind = kind(operator_files::metadata(&path), &path)?;
            if kind.is_some_and(|kind| kind != FileType::RegularFile) {
                return Err(Failure::new(format_args!("`{}` is no regular file", shown(&path)))
                    .help("an agent may have made it; look at it, and remove it"));
            }
        }
        Ok(())
    }

    /// Checks that no agent can change the repository, and that no links lead to it.
    fn check(&self, root: &Path, writable: &[PathBuf]) -> Result<(), Failure> {
        open(&self.common.join("objects")).or_fail("cannot open the repository's objects")?;
        // A work tree may lie in the directory of a bare repository, beside these.
        let parts = ["objects", "refs", "packed-refs"].map(|part| self.common.join(part));
        let parts = parts.into_iter().chain([self.git.clone()]);
        let parts = parts.map(|path| TrustedPath { role: Trusted::Repository, path });
        let mut paths = trusted_paths::of_agents(root, writable)?;
        paths.trusted.extend(parts);
        paths.check_trusted().map_err(Failure::new)
    }
}

/// Returns the kind of the file at `path`, of which `facts` is what was found; `None` if there is
/// none.
fn kind(facts: io::Result<Metadata>, path: &Path) -> Result<Option<FileType>, Failure> {
    match facts {
        Ok(facts) => Ok(Some(FileType::from_raw_mode(facts.mode()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::new(format_args!("cannot look at `{}`: {error}", shown(path)))),
    }
}

/// Opens a directory to which no link leads.
pub(super) fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(CWD, path, flags, Mode::empty(), resolve)
}

/// Reads a regular file beneath a directory, without following links.
pub(super) fn read(directory: impl AsFd, name: &str, most: u64) -> Result<String, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = openat2(directory, name, flags, Mode::empty(), resolve)?;
    let facts = fstat(&file)?;
    if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile {
        return Err(Errno::NOENT);
    }
    let mut text = String::new();
    let read = File::from(file).take(most + 1).read_to_string(&mut text);
    match read.map(|read| u64::try_from(read).is_ok_and(|read| read <= most)) {
        Ok(true) => Ok(text),
        Ok(false) => Err(Errno::FBIG),
        Err(error) => Err(errno(&error)),
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Reads a file of one line, which git ends with any number of line ends.
fn line(directory: &OwnedFd, name: &str) -> Result<String, Failure> {
    let text = read(directory, name, MAX_LINK).or_fail(format_args!("cannot read `{name}`"))?;
    let text = text.trim_end_matches(['\n', '\r']);
    if text.is_empty() || text.contains(char::is_control) {
        return Err(Failure::new(format_args!("`{name}` is not one line with a path")));
    }
    Ok(text.to_owned())
}

/// Returns a path that a file in `base` names, without `.` and `..`. Links on the way are not
/// followed, as an agent may have made them.
fn absolute(base: &Path, named: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in base.join(named).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                path.pop();
            }
            part => path.push(part),
        }
    }
    path
}

/// Returns `core.worktree` of a configuration, if its value is not quoted and has no comment.
fn work_tree(config: &str) -> Option<&str> {
    let (mut is_core, mut found) = (false, None);
    for line in config.lines().map(str::trim) {
        if line.starts_with('[') {
            is_core = line.eq_ignore_ascii_case("[core]");
        } else if is_core && let Some((key, value)) = line.split_once('=') {
            let is_named = key.trim_end().eq_ignore_ascii_case("worktree");
            found = if is_named { Some(value.trim_start()) } else { found };
        }
    }
    found.filter(|value| !value.is_empty() && !value.contains(['"', '\\', '#', ';']))
}

fn points_elsewhere(what: &str, git: &Path, back: &Path) -> Failure {
    Failure::new(format_args!(
        "`{what}` of `{}` names `{}`, which is not this workspace",
        shown(git),
        shown(back)
    ))
}

fn shown(path: &Path) -> impl Display {
    Escaped(&path.to_string_lossy()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_value_of_the_core_section_is_a_work_tree() {
        for (config, expected) in [
            ("[core]\n\tbare = false\n\tworktree = ../../../sub\n", Some("../../../sub")),
            ("[CORE]\nWorkTree=/a b\r\n[x]\nworktree = /c\n", Some("/a b")),
            ("[core]\nworktree = /a\nworktree = /b\n", Some("/b")),
            ("[core]\nworktree = \"/a\"\n", None),
            ("[core]\nworktree = /a # no\n", None),
            ("[core \"x\"]\nworktree = /a\n", None),
            ("[core] worktree = /a\n", None),
            ("worktree = /a\n", None),
            ("", None),
        ] {
            assert_eq!(work_tree(config), expected, "{config}");
        }
    }

    #[test]
    fn paths_are_made_absolute_by_their_names_alone() {
        let named = |path| absolute(Path::new("/a/b"), path);
        assert_eq!(named("../.git/x"), Path::new("/a/.git/x"));
        assert_eq!(named("/c/./d/../e"), Path::new("/c/e"));
        assert_eq!(named("../../../.."), Path::new("/"));
    }
}
