//! Policies by file or name, with all that they extend, from the operator's
//! disk.
//!
//! Everything is opened here, before anything of the agent's is looked at.
//! Refuses what is no regular file, without blocking on it, and what is larger
//! than a policy may be.
#![expect(clippy::disallowed_methods, reason = "these are the operator's files, opened by name")]

pub mod audit;
mod beside;
pub mod operator;
mod piped;
pub mod serve;
pub mod signature;

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::policy::{
    Diagnostics, Loaded, Loader, MAX_FILE, Policy, PolicySource, compile, embedded, is_name,
    unknown_name,
};

pub use beside::{TestFile, tests_beside};
pub use operator::Operator;
use signature::{PolicyKey, TrustError};

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

/// A policy and where it came from.
#[derive(Debug)]
pub struct LoadedPolicy {
    /// The policy.
    pub policy: Policy,
    /// Whose signature was checked, where one is required.
    pub signed_by: Option<PolicyKey>,
    /// The canonical paths of the files it is made of; none for an embedded
    /// one.
    pub files: Vec<PathBuf>,
    /// The paths by which they were looked up.
    pub looked_up: Vec<PathBuf>,
}

/// Loads and compiles the policy `reference` for its author: the name of an
/// embedded one, a file, which needs a `/` or ends in `.toml`, a pipe, or `-` for
/// standard input.
///
/// # Errors
/// When there is no such policy or it does not compile.
pub fn load_policy(reference: &str) -> Result<LoadedPolicy, Error> {
    Gathered::draft(reference)?.compile(None)
}

/// The same for a policy that is to be enforced: no pipe, and with a signature,
/// if the operator requires one.
///
/// # Errors
/// As [`load_policy`], and when it is not signed as it must be.
pub fn load_trusted(reference: &str, operator: &Operator) -> Result<LoadedPolicy, Error> {
    let gathered = Gathered::load(reference)?;
    let signed_by = operator.trust(&gathered)?;
    gathered.compile(signed_by)
}

/// Loads the texts of the policy `reference` with all that it extends, for its
/// author as [`load_policy`].
///
/// # Errors
/// When there is no such policy, or its own file cannot be read.
pub fn load_source(reference: &str) -> Result<PolicySource, Error> {
    Ok(Gathered::draft(reference)?.source())
}

/// The policy `reference` as it would be if its own file had this text.
///
/// # Errors
/// When the file that it is does not exist.
pub fn with_text(reference: &str, text: &str) -> Result<PolicySource, Error> {
    let mut gathered = Gathered::new(reference);
    let bytes = text.as_bytes().to_vec();
    let entry = if is_name(reference) {
        Loaded { id: reference.to_owned(), name: reference.to_owned(), bytes }
    } else {
        let entry = gathered
            .open(Path::new(reference), reference)
            .map_err(|why| Error::Unreadable { path: reference.to_owned(), why })?;
        Loaded { bytes, ..entry }
    };
    Ok(PolicySource::load(entry, &mut gathered))
}

/// The texts of a policy and of all that it extends, read but not judged, so
/// that another process can judge them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Gathered {
    reference: String,
    /// The file itself; `None` for an embedded policy.
    entry: Option<Text>,
    /// What each `extends` led to.
    extended: Vec<(String, String, Result<Text, String>)>,
    /// The canonical paths of the files.
    pub files: Vec<PathBuf>,
    /// The paths by which they were looked up: whatever becomes of these makes
    /// another policy.
    pub looked_up: Vec<PathBuf>,
}

/// [`Loaded`] on its way between processes.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Text {
    id: String,
    name: String,
    base64: String,
}

impl Gathered {
    fn new(reference: &str) -> Self {
        Self {
            reference: reference.to_owned(),
            entry: None,
            extended: Vec::new(),
            files: Vec::new(),
            looked_up: Vec::new(),
        }
    }

    /// Reads the policy `reference`, which may come from a pipe, and what it
    /// extends.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn draft(reference: &str) -> Result<Self, Error> {
        let unreadable = |why| Error::Unreadable { path: reference.to_owned(), why };
        match piped::entry(reference).map_err(unreadable)? {
            Some(entry) => Ok(Self::new(reference).with_entry(entry)),
            None => Self::load(reference),
        }
    }

    /// Reads the policy `reference` and what it extends. It is to be read again
    /// when it changes, so it cannot come from a pipe.
    ///
    /// # Errors
    /// When the policy itself cannot be read. What it extends and cannot be
    /// read is a fault of the policy and shows when it is compiled.
    pub fn load(reference: &str) -> Result<Self, Error> {
        let mut gathered = Self::new(reference);
        if reference == piped::STDIN {
            let why = piped::NOT_HERE.to_owned();
            return Err(Error::NotFound { name: reference.to_owned(), why });
        }
        if is_name(reference) {
            return match embedded(reference) {
                Some(_) => Ok(gathered),
                None => Err(Error::NotFound {
                    name: reference.to_owned(),
                    why: unknown_name(reference),
                }),
            };
        }
        let entry = gathered
            .open(Path::new(reference), reference)
            .map_err(|why| Error::Unreadable { path: reference.to_owned(), why })?;
        Ok(gathered.with_entry(entry))
    }

    fn with_entry(mut self, entry: Loaded) -> Self {
        self.entry = Some(Text::from(&entry));
        // Only to find out what is needed.
        let _ = PolicySource::load(entry, &mut self);
        self
    }

    /// What was asked for.
    pub fn reference(&self) -> &str {
        &self.reference
    }

    /// The path of the policy itself, as it was looked up; `None` for an
    /// embedded one.
    pub fn entry_path(&self) -> Option<PathBuf> {
        self.entry.as_ref().and(self.looked_up.first().cloned())
    }

    /// The texts, to be compiled.
    pub fn source(&self) -> PolicySource {
        match &self.entry {
            Some(entry) => PolicySource::load(entry.clone().into(), &mut Replay(self)),
            // It was there when it was gathered, and is built in.
            None => PolicySource::embedded(&self.reference)
                .unwrap_or_else(|| PolicySource::from_text(&self.reference, "")),
        }
    }

    /// The policy; `signed_by` is whose signature was checked.
    ///
    /// # Errors
    /// When it does not compile.
    pub fn compile(self, signed_by: Option<PolicyKey>) -> Result<LoadedPolicy, Error> {
        let policy = compile(&self.source())
            .map_err(|diagnostics| Error::Invalid { name: self.reference.clone(), diagnostics })?;
        Ok(LoadedPolicy { policy, signed_by, files: self.files, looked_up: self.looked_up })
    }

    fn open(&mut self, path: &Path, name: &str) -> Result<Loaded, String> {
        if piped::is_pipe(path) {
            return Err(piped::NOT_HERE.to_owned());
        }
        let looked_up = std::path::absolute(path).map_err(|error| why(&error))?;
        if !self.looked_up.contains(&looked_up) {
            self.looked_up.push(looked_up);
        }
        let canonical = path.canonicalize().map_err(|error| why(&error))?;
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

impl Loader for Gathered {
    fn load(&mut self, from: &str, reference: &str) -> Result<Loaded, String> {
        let directory = Path::new(from).parent().filter(|directory| directory.is_absolute());
        let loaded = match directory {
            Some(directory) => self.open(&directory.join(reference), reference),
            None => Err("an embedded policy extends embedded ones only".to_owned()),
        };
        let text = loaded.as_ref().map(Text::from).map_err(Clone::clone);
        self.extended.push((from.to_owned(), reference.to_owned(), text));
        loaded
    }
}

/// Gives what was gathered.
struct Replay<'a>(&'a Gathered);

impl Loader for Replay<'_> {
    fn load(&mut self, from: &str, reference: &str) -> Result<Loaded, String> {
        let known = |(by, what, _): &&(String, String, _)| by == from && what == reference;
        match self.0.extended.iter().find(known) {
            Some((_, _, text)) => text.clone().map(Loaded::from),
            None => Err("it was not read with the policy".to_owned()),
        }
    }
}

impl From<&Loaded> for Text {
    fn from(loaded: &Loaded) -> Self {
        let (id, name) = (loaded.id.clone(), loaded.name.clone());
        Self { id, name, base64: STANDARD.encode(&loaded.bytes) }
    }
}

impl From<Text> for Loaded {
    fn from(text: Text) -> Self {
        // A byte that is no UTF-8 makes a text that is refused.
        let bytes = STANDARD.decode(&text.base64).unwrap_or_else(|_| vec![0xff]);
        Self { id: text.id, name: text.name, bytes }
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
