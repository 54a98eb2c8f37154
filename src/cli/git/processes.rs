//! The git processes of an import. They are started before this process confines itself, because
//! it can start none afterwards, and wait for their input.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{ChildStdin, ChildStdout},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat},
    io::Errno,
};

use crate::{
    app::{
        failure::{Context as _, Failure},
        git::{
            Git, Repository, Running, TemporaryGitDirectories,
            directories::Directories,
            head::Head,
            private,
            session::{GitSession, imported},
            workspace,
        },
        opened::Opened,
    },
    git::{ObjectId, Objects},
    model::for_shell,
    operator_files,
};

/// The maximum of imported branches, and of those with which a session began.
pub(super) const MAX_BRANCHES: usize = 1000;
/// The maximum of commits.
pub(super) const MAX_COMMITS: usize = 10_000;
/// The maximum of processes that read a repository's objects, one after the other, since git
/// fails at a damaged object.
const MAX_READERS: usize = 8;
/// The prefix of the refs of imports.
pub(super) const NAMESPACE: &str = "refs/portcullis";

/// The objects of a repository.
pub(super) type Reading = Objects<ChildStdin, ChildStdout>;

/// Starts the processes that read objects.
fn reading(repository: &Repository, most: usize) -> Result<Reading, Failure> {
    let start = |_| {
        let process = repository.start(&["cat-file", "--batch-command"], &[])?;
        Ok((process.input, process.output))
    };
    Ok(Objects::new((0..most).map(start).collect::<Result<_, Failure>>()?))
}

/// The processes that read a private repository.
#[derive(Debug)]
pub(super) struct PrivateReaders {
    /// Lists the current branches.
    pub(super) branches: Running,
    /// Lists the branches with which the session began.
    pub(super) starts: Running,
    /// List the commits between given refs.
    pub(super) commits: [Running; 2],
    pub(super) objects: Reading,
}

/// The processes for the operator's repository.
#[derive(Debug)]
pub(super) struct OperatorReaders {
    pub(super) objects: Reading,
    /// Lists the refs of earlier imports of the session.
    pub(super) refs: Running,
    /// The writing processes, unless it is a dry run.
    pub(super) writing: Option<Writing>,
    /// The commit that is checked out.
    pub(super) head: Option<Head>,
}

/// The processes that write in the operator's repository.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) unpack: Running,
    pub(super) update: Running,
    /// Reads the written objects: the import may have used up the other readers.
    pub(super) written: Reading,
    refs: RefsDirectory,
}

impl Writing {
    /// Returns the processes; the directory of the refs is removed on drop if it is empty.
    pub(super) fn parts(self) -> (Running, Running, Reading, RefsDirectory) {
        (self.unpack, self.update, self.written, self.refs)
    }
}

/// All git processes of an import.
#[derive(Debug)]
pub(super) struct Processes {
    pub(super) theirs: Vec<PrivateReaders>,
    pub(super) ours: OperatorReaders,
    /// The names that earlier imports gave to commits of private repositories.
    pub(super) known: HashMap<ObjectId, ObjectId>,
    pub(super) workshop: TemporaryGitDirectories,
}

impl Processes {
    pub(super) fn start(
        opened: &Opened,
        begun: &GitSession,
        writes: bool,
    ) -> Result<Self, Failure> {
        let root = opened.workspace.root();
        let git = Git::find(root)?;
        let workshop = TemporaryGitDirectories::make(&opened.state_path)?;
        let mut writable = begun.writable(opened)?;
        writable.extend(opened.policy.agent().write.iter().map(PathBuf::from));
        let directories = Directories::of(root, &writable)?;
        let directories = directories.ok_or_else(|| {
            Failure::new("the workspace has no git repository: `.git` is neither one nor its file")
        })?;
        let ours = OperatorReaders::start(&directories, begun, &git, &workshop, writes)?;
        let mut theirs = Vec::new();
        for repository in private::find(&begun.place, &git, &workshop)? {
            if private::may_be_of(&repository, &begun.session)? {
                theirs.push(PrivateReaders::start(&repository, begun)?);
            }
        }
        Ok(Self { theirs, ours, known: imported(opened)?, workshop })
    }
}

impl PrivateReaders {
    fn start(repository: &Repository, begun: &GitSession) -> Result<Self, Failure> {
        let most = |number: usize| (number + 1).to_string();
        let count = format!("--count={}", most(MAX_BRANCHES));
        let format = "--format=%(objectname) %(refname)";
        let refs =
            |beneath: &str| repository.start(&["for-each-ref", &count, format, beneath], &[]);
        let count = format!("--max-count={}", most(MAX_COMMITS));
        let list = ["rev-list", "--topo-order", "--reverse", &count, "--stdin"];
        Ok(Self {
            branches: refs("refs/heads")?,
            starts: refs(&private::starts(&begun.session))?,
            commits: [repository.start(&list, &[])?, repository.start(&list, &[])?],
            objects: reading(repository, MAX_READERS)?,
        })
    }
}

impl OperatorReaders {
    fn start(
        directories: &Directories,
        begun: &GitSession,
        git: &Git,
        workshop: &TemporaryGitDirectories,
        writes: bool,
    ) -> Result<Self, Failure> {
        let place = &directories.common;
        let head = Head::of(directories)?;
        let borrows = place.join("objects/info/alternates");
        if operator_files::symlink_metadata(&borrows).is_ok_and(|facts| facts.len() > 0) {
            let borrows = for_shell(&borrows);
            return Err(Failure::new(format_args!(
                "the workspace's repository borrows objects from another one ({borrows}), which an \
                 import does not read"
            ))
            .help(format_args!("`git repack -a -d && rm {borrows}` gives it copies of them")));
        }
        let repository = workspace::objects(directories, begun.commit.format(), git, workshop)?;
        let reading = reading(&repository, MAX_READERS)?;
        let refs = existing(place, begun, &repository, workshop)?;
        let writing = match writes {
            true => Some(Writing::start(place, begun, repository, workshop)?),
            false => None,
        };
        Ok(Self { objects: reading, refs, writing, head })
    }

    /// Returns the directory of the refs of all imports, unless it is a dry run.
    pub(super) fn refs_directory(&self) -> std::io::Result<Option<OwnedFd>> {
        self.writing.as_ref().map(|writing| writing.refs.above.try_clone()).transpose()
    }
}

/// Starts the process that lists the refs of earlier imports of the session.
fn existing(
    place: &Path,
    begun: &GitSession,
    repository: &Repository,
    workshop: &TemporaryGitDirectories,
) -> Result<Running, Failure> {
    let links = ["refs", "packed-refs"].map(|part| (part, place.join(part)));
    let there = |path: &Path| operator_files::symlink_metadata(path).is_ok();
    let links: Vec<_> = links.into_iter().filter(|(_, path)| there(path)).collect();
    let directory = workshop.git_directory("existing", begun.commit.format(), &links)?;
    let repository = Repository { directory, read: vec![place.to_owned()], ..repository.clone() };
    let beneath = format!("{NAMESPACE}/{}", begun.session);
    repository.start(&["for-each-ref", "--format=%(objectname) %(refname)", &beneath], &[])
}

impl Writing {
    fn start(
        place: &Path,
        begun: &GitSession,
        repository: Repository,
        workshop: &TemporaryGitDirectories,
    ) -> Result<Self, Failure> {
        let refs = RefsDirectory::make(place, &begun.session)?;
        let objects = std::slice::from_ref(&repository.objects);
        let unpack = repository.start(&["unpack-objects", "-q", "--strict"], objects)?;
        let written = reading(&repository, 1)?;
        let links = [("refs", place.join("refs"))];
        let directory = workshop.git_directory("refs", begun.commit.format(), &links)?;
        let read = vec![place.join("refs")];
        let repository = Repository { directory, read, ..repository };
        let update = ["update-ref", "--no-deref", "--stdin"];
        let update = repository.start(&update, std::slice::from_ref(&refs.path))?;
        Ok(Self { unpack, update, written, refs })
    }
}

/// The directory of a session's refs, the only one in which refs are written. It is removed on
/// drop if it is empty.
#[derive(Debug)]
pub(super) struct RefsDirectory {
    path: PathBuf,
    /// The directory in which it lies.
    above: OwnedFd,
}

impl RefsDirectory {
    /// Creates it, following no links.
    fn make(place: &Path, session: &str) -> Result<Self, Failure> {
        const DOING: &str = "cannot make the directory of the session's refs";
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut directory = rustix::fs::open(place, flags, Mode::empty()).or_fail(DOING)?;
        let child = |directory: &OwnedFd, name: &str| match mkdirat(
            directory,
            name,
            Mode::from_raw_mode(0o777),
        ) {
            Ok(()) | Err(Errno::EXIST) => openat(directory, name, flags, Mode::empty()),
            Err(error) => Err(error),
        };
        for name in NAMESPACE.split('/') {
            directory = child(&directory, name).or_fail(DOING)?;
        }
        child(&directory, session).or_fail(DOING)?;
        Ok(Self { path: place.join(NAMESPACE).join(session), above: directory })
    }
}

impl Drop for RefsDirectory {
    fn drop(&mut self) {
        // A directory that is not empty stays.
        if let (Some(session), Some(above)) = (self.path.file_name(), self.path.parent()) {
            let _ = unlinkat(&self.above, session, AtFlags::REMOVEDIR);
            let _ = unlinkat(rustix::fs::CWD, above, AtFlags::REMOVEDIR);
        }
    }
}
