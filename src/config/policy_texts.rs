//! The texts of a policy and of all policies that it extends, read but not compiled.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    file::{read, reason},
    piped,
    signature::TrustError,
};
use crate::{
    model::Escaped,
    operator_files,
    policy::{
        Diagnostics, Loaded, Loader, Policy, PolicySource, compile, is_name, nearest, unknown_name,
    },
};

/// Maximum number of files beside a missing policy that are compared with it.
const MAX_SIMILAR: usize = 1000;

/// The reason why there is no policy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No policy has this name.
    #[error("cannot load the policy `{name}`: {reason}")]
    NotFound {
        /// The reference.
        name: String,
        /// The reason, with the existing names.
        reason: String,
    },
    /// The file could not be opened or read.
    #[error("cannot read the policy file `{path}`: {reason}")]
    Unreadable {
        /// The file's path, as given.
        path: String,
        /// The error of the system.
        reason: String,
    },
    /// The operator's configuration forbids to enforce it.
    #[error(transparent)]
    Untrusted(#[from] TrustError),
    /// The policy has errors.
    #[error("the policy `{name}` does not load\n{diagnostics}")]
    Invalid {
        /// The reference.
        name: String,
        /// All errors.
        diagnostics: Diagnostics,
    },
}

/// Returns a question that names the policy file beside a missing one whose name is similar; empty if
/// there is none.
fn similar(path: &Path) -> String {
    let Some(name) =
        path.file_name().and_then(OsStr::to_str).filter(|_| !operator_files::exists(path))
    else {
        return String::new();
    };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let entries = operator_files::read_dir(directory.unwrap_or(Path::new(".")));
    let entries = entries.into_iter().flatten().take(MAX_SIMILAR).flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let names: Vec<_> = names.filter(|name| name.ends_with(".toml")).collect();
    let near = nearest(name, names.iter().map(String::as_str));
    near.map_or_else(String::new, |near| {
        format!("; did you mean `{}`?", Escaped(&path.with_file_name(near).display().to_string()))
    })
}

/// Returns the policy `reference` as it would be if its own file had this text.
///
/// # Errors
/// When the file does not exist.
pub fn with_text(reference: &str, text: &str) -> Result<PolicySource, Error> {
    let mut opened = OpenedTexts::default();
    let bytes = text.as_bytes().to_vec();
    let entry = if is_name(reference) {
        Loaded { id: reference.to_owned(), name: reference.to_owned(), bytes }
    } else {
        Loaded { bytes, ..opened.entry(reference)? }
    };
    Ok(PolicySource::load(entry, &mut opened))
}

/// The texts of a policy and of all policies that it extends, read but not compiled, so
/// that another process can compile them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PolicyTexts {
    reference: String,
    source: PolicySource,
    /// The canonical paths of the files; empty for an embedded policy.
    pub files: Vec<PathBuf>,
    /// The paths by which they were looked up: a change of one of these changes the
    /// policy.
    pub looked_up: Vec<PathBuf>,
    is_piped: bool,
}

impl PolicyTexts {
    /// Reads the policy `reference` and the policies that it extends, for its author:
    /// the name of an embedded one, a file, which needs a `/` or ends in `.toml`, a
    /// pipe, or `-` for standard input.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn draft(reference: &str) -> Result<Self, Error> {
        let unreadable = |reason| Error::Unreadable { path: reference.to_owned(), reason };
        match piped::entry(reference).map_err(unreadable)? {
            Some(entry) => {
                Ok(Self { is_piped: true, ..Self::new(reference, entry, OpenedTexts::default()) })
            }
            None => Self::load(reference),
        }
    }

    /// Reads the policy `reference` and the policies that it extends. It is to be
    /// enforced, and read again when it changes, so it cannot come from a pipe.
    ///
    /// # Errors
    /// When the policy itself cannot be read. An extended policy that cannot be read is
    /// an error of the policy, reported by [`compile`](Self::compile).
    pub fn load(reference: &str) -> Result<Self, Error> {
        let not_found = |reason| Error::NotFound { name: reference.to_owned(), reason };
        if reference == piped::STDIN {
            return Err(not_found(piped::NOT_HERE.to_owned()));
        }
        if is_name(reference) {
            let source = PolicySource::embedded(reference)
                .ok_or_else(|| not_found(unknown_name(reference)))?;
            let (files, looked_up) = (Vec::new(), Vec::new());
            let reference = reference.to_owned();
            return Ok(Self { reference, source, files, looked_up, is_piped: false });
        }
        let mut opened = OpenedTexts::default();
        let entry = opened.entry(reference)?;
        Ok(Self::new(reference, entry, opened))
    }

    fn new(reference: &str, entry: Loaded, mut opened: OpenedTexts) -> Self {
        let source = PolicySource::load(entry, &mut opened);
        let OpenedTexts { files, looked_up } = opened;
        Self { reference: reference.to_owned(), source, files, looked_up, is_piped: false }
    }

    /// Returns the policy's name or path, as given.
    pub fn reference(&self) -> &str {
        &self.reference
    }

    /// Returns the first file that a policy from a pipe extends or names, if any: it
    /// lies in the current directory, and may differ from the one that the author means.
    pub fn file_beside_pipe(&self) -> Option<&Path> {
        self.looked_up.first().filter(|_| self.is_piped).map(PathBuf::as_path)
    }

    /// Returns the path of the policy itself, as it was looked up; `None` for an
    /// embedded one.
    pub fn entry_path(&self) -> Option<&Path> {
        self.looked_up.first().map(PathBuf::as_path)
    }

    /// Returns the SHA-256 of the texts.
    pub fn sha256(&self) -> String {
        self.source.sha256()
    }

    /// Returns the texts, for tools that read them statement by statement.
    pub fn source(&self) -> &PolicySource {
        &self.source
    }

    /// Compiles the policy.
    ///
    /// # Errors
    /// When it does not compile.
    pub fn compile(&self) -> Result<Policy, Error> {
        compile(&self.source)
            .map_err(|diagnostics| Error::Invalid { name: self.reference.clone(), diagnostics })
    }
}

/// The files of a policy opened so far.
#[derive(Default)]
struct OpenedTexts {
    files: Vec<PathBuf>,
    looked_up: Vec<PathBuf>,
}

impl OpenedTexts {
    /// Opens the policy's own file.
    fn entry(&mut self, reference: &str) -> Result<Loaded, Error> {
        let unreadable = |reason| Error::Unreadable { path: reference.to_owned(), reason };
        self.open(Path::new(reference), reference)
            .map_err(|reason| reason + &similar(Path::new(reference)))
            .map_err(unreadable)
    }

    fn open(&mut self, path: &Path, name: &str) -> Result<Loaded, String> {
        if piped::is_pipe(path) {
            return Err(piped::NOT_HERE.to_owned());
        }
        let looked_up = std::path::absolute(path).map_err(|error| reason(&error))?;
        if !self.looked_up.contains(&looked_up) {
            self.looked_up.push(looked_up);
        }
        let canonical = operator_files::canonicalize(path).map_err(|error| reason(&error))?;
        let id = canonical
            .to_str()
            .ok_or_else(|| "the path of a policy file must be UTF-8".to_owned())?
            .to_owned();
        let bytes = read(&canonical).map_err(|error| reason(&error))?;
        if !self.files.contains(&canonical) {
            self.files.push(canonical);
        }
        Ok(Loaded { id, name: name.to_owned(), bytes })
    }
}

impl Loader for OpenedTexts {
    fn load(&mut self, from: &str, reference: &str) -> Result<Loaded, String> {
        let directory = Path::new(from).parent().filter(|directory| directory.is_absolute());
        match directory {
            Some(directory) => self.open(&directory.join(reference), reference),
            None => Err("an embedded policy extends embedded ones only".to_owned()),
        }
    }
}
