//! Policies by file or name, with all that they extend, from the operator's
//! disk.
//!
//! Everything is opened here, before anything of the agent's is looked at.
//! Refuses what is no regular file, without blocking on it, and what is larger
//! than a policy may be.
#![expect(clippy::disallowed_methods, reason = "these are the operator's files, opened by name")]

pub mod audit;

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;

use crate::policy::{
    Diagnostics, Loaded, Loader, MAX_FILE, Policy, PolicySource, compile, is_name, unknown_name,
};

/// Why there is no policy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing has this name.
    #[error("cannot load the policy `{name}`: {why}")]
    NotFound {
        /// What was asked for.
        name: String,
        /// What is wrong, and what there is.
        why: String,
    },
    /// The file could not be opened or read.
    #[error("cannot read the policy file `{path}`: {why}")]
    Unreadable {
        /// The file as it was named.
        path: String,
        /// What the system says.
        why: String,
    },
    /// The policy was read and is not one.
    #[error("the policy `{name}` does not load\n{diagnostics}")]
    Invalid {
        /// What was asked for.
        name: String,
        /// Everything that is wrong.
        diagnostics: Diagnostics,
    },
}

/// A policy and where it came from.
#[derive(Debug)]
pub struct LoadedPolicy {
    /// The policy.
    pub policy: Policy,
    /// The canonical paths of the files it is made of; none for an embedded
    /// one.
    pub files: Vec<PathBuf>,
}

/// Loads and compiles the policy `reference`: the name of an embedded one, or
/// a file, which needs a `/` or ends in `.toml`.
///
/// # Errors
/// When there is no such policy or it does not compile.
pub fn load_policy(reference: &str) -> Result<LoadedPolicy, Error> {
    let (source, files) = load_source(reference)?;
    let policy = compile(&source)
        .map_err(|diagnostics| Error::Invalid { name: reference.to_owned(), diagnostics })?;
    Ok(LoadedPolicy { policy, files })
}

fn load_source(reference: &str) -> Result<(PolicySource, Vec<PathBuf>), Error> {
    if is_name(reference) {
        return PolicySource::embedded(reference).map(|source| (source, Vec::new())).ok_or_else(
            || Error::NotFound { name: reference.to_owned(), why: unknown_name(reference) },
        );
    }
    let mut files = Files::default();
    let entry = files
        .open(Path::new(reference), reference)
        .map_err(|why| Error::Unreadable { path: reference.to_owned(), why })?;
    let source = PolicySource::load(entry, &mut files);
    Ok((source, files.opened))
}

/// Opens policy files and remembers which.
#[derive(Default)]
struct Files {
    opened: Vec<PathBuf>,
}

impl Files {
    fn open(&mut self, path: &Path, name: &str) -> Result<Loaded, String> {
        let canonical = path.canonicalize().map_err(|error| why(&error))?;
        let id = canonical
            .to_str()
            .ok_or_else(|| "the path of a policy file must be UTF-8".to_owned())?
            .to_owned();
        let bytes = read(&canonical).map_err(|error| why(&error))?;
        if !self.opened.contains(&canonical) {
            self.opened.push(canonical);
        }
        Ok(Loaded { id, name: name.to_owned(), bytes })
    }
}

impl Loader for Files {
    fn load(&mut self, from: &str, reference: &str) -> Result<Loaded, String> {
        let directory = Path::new(from)
            .parent()
            .filter(|directory| directory.is_absolute())
            .ok_or_else(|| "an embedded policy extends embedded ones only".to_owned())?;
        self.open(&directory.join(reference), reference)
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The system's words without the number.
fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}
