//! The texts of a policy and of all that it extends, read and not judged.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    file::{read, why},
    piped,
    signature::TrustError,
};
use crate::{
    operator_files,
    policy::{Diagnostics, Loaded, Loader, Policy, PolicySource, compile, is_name, unknown_name},
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
    /// The operator's configuration does not let it be enforced.
    #[error(transparent)]
    Untrusted(#[from] TrustError),
    /// The policy was read and is not one.
    #[error("the policy `{name}` does not load\n{diagnostics}")]
    Invalid {
        /// What was asked for.
        name: String,
        /// Everything that is wrong.
        diagnostics: Diagnostics,
    },
}

/// The policy `reference` as it would be if its own file had this text.
///
/// # Errors
/// When the file that it is does not exist.
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

/// The texts of a policy and of all that it extends, read but not judged, so
/// that another process can judge them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PolicyTexts {
    reference: String,
    source: PolicySource,
    /// The canonical paths of the files; none for an embedded policy.
    pub files: Vec<PathBuf>,
    /// The paths by which they were looked up: whatever becomes of these makes
    /// another policy.
    pub looked_up: Vec<PathBuf>,
    is_piped: bool,
}

impl PolicyTexts {
    /// Reads the policy `reference` and what it extends, for its author: the name of an
    /// embedded one, a file, which needs a `/` or ends in `.toml`, a pipe, or `-` for
    /// standard input.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn draft(reference: &str) -> Result<Self, Error> {
        let unreadable = |why| Error::Unreadable { path: reference.to_owned(), why };
        match piped::entry(reference).map_err(unreadable)? {
            Some(entry) => {
                Ok(Self { is_piped: true, ..Self::new(reference, entry, OpenedTexts::default()) })
            }
            None => Self::load(reference),
        }
    }

    /// Reads the policy `reference` and what it extends. It is to be enforced, and read
    /// again when it changes, so it cannot come from a pipe.
    ///
    /// # Errors
    /// When the policy itself cannot be read. What it extends and cannot be
    /// read is a fault of the policy and shows when it is compiled.
    pub fn load(reference: &str) -> Result<Self, Error> {
        let not_found = |why| Error::NotFound { name: reference.to_owned(), why };
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

    /// The policy's name or path, as it was given.
    pub fn reference(&self) -> &str {
        &self.reference
    }

    /// The first file that a policy from a pipe extends or names, if any: it lies in the
    /// current directory, and need not be the one that the policy was written beside.
    pub fn file_beside_pipe(&self) -> Option<&Path> {
        self.looked_up.first().filter(|_| self.is_piped).map(PathBuf::as_path)
    }

    /// The path of the policy itself, as it was looked up; `None` for an
    /// embedded one.
    pub fn entry_path(&self) -> Option<&Path> {
        self.looked_up.first().map(PathBuf::as_path)
    }

    /// SHA-256 of the texts.
    pub fn sha256(&self) -> String {
        self.source.sha256()
    }

    /// The texts, for tools that read them statement by statement.
    pub fn source(&self) -> &PolicySource {
        &self.source
    }

    /// The policy.
    ///
    /// # Errors
    /// When it does not compile.
    pub fn compile(&self) -> Result<Policy, Error> {
        compile(&self.source)
            .map_err(|diagnostics| Error::Invalid { name: self.reference.clone(), diagnostics })
    }
}

/// The files of a policy that were opened so far.
#[derive(Default)]
struct OpenedTexts {
    files: Vec<PathBuf>,
    looked_up: Vec<PathBuf>,
}

impl OpenedTexts {
    /// The policy's own file.
    fn entry(&mut self, reference: &str) -> Result<Loaded, Error> {
        let unreadable = |why| Error::Unreadable { path: reference.to_owned(), why };
        self.open(Path::new(reference), reference).map_err(unreadable)
    }

    fn open(&mut self, path: &Path, name: &str) -> Result<Loaded, String> {
        if piped::is_pipe(path) {
            return Err(piped::NOT_HERE.to_owned());
        }
        let looked_up = std::path::absolute(path).map_err(|error| why(&error))?;
        if !self.looked_up.contains(&looked_up) {
            self.looked_up.push(looked_up);
        }
        let canonical = operator_files::canonicalize(path).map_err(|error| why(&error))?;
        let id = canonical
            .to_str()
            .ok_or_else(|| "the path of a policy file must be UTF-8".to_owned())?
            .to_owned();
        let bytes = read(&canonical).map_err(|error| why(&error))?;
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
