//! The locations of a mount's scratch directories: beneath the user's data directory, by workspace,
//! agent and policy. Content is not shared between agents or policies.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use etcetera::BaseStrategy as _;
use portcullis_audit::Hash;
use rustix::{
    fs::{Mode, OFlags, fstat, mkdirat, openat},
    io::Errno,
};
use serde_json::{Value, json};

use super::{
    failure::{Context as _, Failure},
    git::head::Head,
    opened::Opened,
    trusted_paths::scratch_below,
};
use crate::{
    model::{AgentName, for_shell},
    mount, operator_files,
    policy::Scratch,
};

const DOING: &str = "cannot open the place of the scratch directories";
const SETTLING: &str = "cannot remove or count what an ended session left in scratch directories";

/// The location for a mount.
#[derive(Debug)]
pub(crate) struct ScratchLocation {
    pub(crate) path: PathBuf,
    pub(crate) directory: OwnedFd,
    pub(crate) rules: Scratch,
    /// The operator's commit at which the programs begin, if they have a repository of their own.
    head: Option<Head>,
    /// The reason for which there is none, although they have one.
    refused: Option<Failure>,
}

/// Returns the directory that contains all scratch directories.
///
/// # Errors
/// When there is no home directory.
pub(super) fn base() -> Result<PathBuf, Failure> {
    let dirs = etcetera::base_strategy::Xdg::new()
        .or_fail("cannot find a place for scratch directories")?;
    Ok(scratch_below(&dirs.data_dir()))
}

impl ScratchLocation {
    /// Creates and opens it, if the policy has scratch directories. This process must not be
    /// confined yet.
    ///
    /// # Errors
    /// When it is a link, belongs to another user, is accessible to others, or lies in the state
    /// directory.
    pub(crate) fn open(opened: &Opened, agent: &AgentName) -> Result<Option<Self>, Failure> {
        let Some(rules) = opened.policy.scratch() else { return Ok(None) };
        let (path, directory) = directory_of(opened, agent)?;
        Ok(Some(Self { path, directory, rules: rules.clone(), head: None, refused: None }))
    }

    /// Looks for the operator's commit, if programs have a repository of their own. The agent may
    /// change the workspace, whose root is `root`, and `writable`.
    pub(crate) fn find_head(&mut self, root: &Path, writable: &[PathBuf]) {
        if !self.rules.repositories() {
            return;
        }
        match Head::of_workspace(root, writable) {
            Ok(head) => self.head = head,
            Err(failure) => self.refused = Some(failure),
        }
    }

    /// Returns the facts of the `start` record.
    pub(crate) fn facts(&self) -> BTreeMap<String, Value> {
        let scratch = json!({
            "paths": self.rules.paths().collect::<Vec<_>>(),
            "directory": self.path,
            "maxSize": self.rules.max_size(),
            "keep": self.rules.keep(),
            "repositories": self.rules.repositories(),
        });
        let git = self.head.as_ref().map(|head| {
            let Head { commit, branch } = head;
            let commit = commit.to_string();
            let fact =
                json!({ "commit": commit, "branch": branch, "history": self.rules.history() });
            ("git".to_owned(), fact)
        });
        BTreeMap::from_iter([("scratch".to_owned(), scratch)].into_iter().chain(git))
    }

    /// Returns true if programs get the history of the workspace's repository.
    pub(super) fn has_history(&self) -> bool {
        self.head.is_some() && self.rules.history()
    }

    /// Warns that programs get the history of a repository, or that their commits cannot be
    /// imported, and that operations in scratch directories are not recorded.
    pub(crate) fn warn(&self) {
        if let Some(failure) = &self.refused {
            let reason = failure.message();
            errln!("portcullis: warning: commits of this session cannot be imported: {reason}");
            if let Some(advice) = failure.advice() {
                errln!("  help: {advice}");
            }
        }
        if self.has_history() {
            errln!(
                "portcullis: warning: `[git] history = \"allow\"`: programs can read each version of \
                 each file that led to the commit that is checked out, past all rules and with all \
                 secrets; `portcullis policy lint` lists tracked files that rules hide"
            );
        }
        if self.rules.paths().next().is_none() {
            return;
        }
        let lists: Vec<_> = self.rules.paths().map(|paths| paths.join(", ")).collect();
        errln!(
            "portcullis: note: what is done in scratch directories ({}) is neither decided nor \
             recorded; they are in `{}`",
            lists.join(" and "),
            self.path.display()
        );
    }
}

/// Creates and opens the directory of an agent under a policy.
fn directory_of(opened: &Opened, agent: &AgentName) -> Result<(PathBuf, OwnedFd), Failure> {
    let base = base()?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&base)
        .or_fail(format_args!("cannot make `{}`", base.display()))?;
    let base = operator_files::canonicalize(&base).or_fail(DOING)?;
    let state = operator_files::canonicalize(&opened.state_path).or_fail(DOING)?;
    if base.starts_with(&state) || state.starts_with(&base) {
        return Err(Failure::new(format_args!(
            "the place of the scratch directories, `{}`, and the state directory `{}` lie in one \
             another",
            base.display(),
            state.display()
        ))
        .help("set XDG_DATA_HOME, or choose another state directory with `--state`"));
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits().cast_signed());
    let directory = operator_files::open_with(&base, &options).or_fail(DOING)?;
    let facts = fstat(&directory).or_fail(DOING)?;
    let is_own = facts.st_uid == rustix::process::geteuid().as_raw();
    if !is_own || facts.st_mode & 0o077 != 0 {
        return Err(Failure::new(format_args!(
            "`{}` belongs to another user, or lets others in",
            base.display()
        ))
        .help(format_args!("chmod 700 {}", for_shell(&base))));
    }
    let workspace = opened.agent_data_name();
    let key = format!("{agent}\0{}", opened.policy.sha256());
    let key = format!("{:.32}", Hash::of(key.as_bytes()));
    let above = child(&directory.into(), &workspace).or_fail(DOING)?;
    let directory = child(&above, &key).or_fail(DOING)?;
    let path = base.join(workspace).join(key);
    Ok((path, directory))
}

/// Removes what ended sessions of `agent` may not keep in scratch directories, and counts the rest.
/// That takes as long as it takes, so it comes before and after a gateway process, for which other
/// processes wait. A failure is a warning.
pub(crate) fn settle(opened: &Opened, agent: &AgentName) {
    let Some(rules) = opened.policy.scratch() else { return };
    let settled = directory_of(opened, agent)
        .and_then(|(_, directory)| mount::Scratch::settle(&directory, rules).or_fail(SETTLING));
    if let Err(failure) = settled {
        errln!("portcullis: warning: {}", failure.message());
        if let Some(advice) = failure.advice() {
            errln!("  help: {advice}");
        }
    }
}

/// Opens a directory within another one; creates it if it is missing.
fn child(directory: &OwnedFd, name: impl AsRef<Path>) -> Result<OwnedFd, Errno> {
    match mkdirat(directory, name.as_ref(), Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name.as_ref(), flags, Mode::empty())
}
