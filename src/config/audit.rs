//! The `[audit]` section of the operator's configuration file: how durable
//! records are, who signs checkpoints and how often, where copies go.
//!
//! The file is apart from policy: it is never taken from the workspace, and it
//! grants an agent nothing.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use portcullis_audit::{PublicKey, parse_keys};
use serde::{Deserialize, Serialize};

use super::{
    file::{read, why},
    operator::configuration,
};
use crate::{
    gateway::Signing,
    policy::{Diagnostics, Document},
};

mod fields;

use fields::{ELSEWHERE, FIELDS};

/// The section.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Audit {
    /// What reads wait for.
    pub durability: Durability,
    /// How often checkpoints are made.
    pub checkpoints: Cadence,
    /// The command that signs checkpoints instead of the log's own key: it
    /// gets the note's text on its standard input and prints signature lines.
    pub signer: Vec<String>,
    /// That command's public key, or a file that holds it.
    pub public_key: Option<String>,
    /// Public keys of witnesses whose cosignatures are checked.
    pub witnesses: Vec<String>,
    /// Where copies of the log go.
    pub ship: Vec<Target>,
    /// When gates compress old segments.
    pub compress: Compress,
    /// What a search in content leaves in the log.
    pub search: SearchRecords,
    /// What opens of files in a mount leave in the log.
    pub mount: MountRecords,
    /// The file that it was read from.
    #[serde(skip)]
    pub file: Option<PathBuf>,
    /// The file that `public_key` was read from.
    #[serde(skip)]
    pub key_file: Option<PathBuf>,
}

/// What a read waits for before its content leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Durability {
    /// Its record is written: it survives the gate.
    #[default]
    Written,
    /// Its record is on stable storage: it survives the machine.
    Synced,
}

/// What a search in content leaves in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SearchRecords {
    /// A record of the search, and one of each file of which it discloses
    /// lines.
    #[default]
    Files,
    /// A record of the search.
    Summary,
}

/// What opens of files in a mount leave in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MountRecords {
    /// A record of the first open of a version, and how often it was opened again.
    #[default]
    Versions,
    /// A record of each open.
    Opens,
}

/// How often checkpoints are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Cadence {
    /// After so many records.
    pub records: u64,
    /// After so many seconds.
    pub seconds: u64,
}

impl Default for Cadence {
    fn default() -> Self {
        Self { records: Signing::RECORDS, seconds: Signing::INTERVAL.as_secs() }
    }
}

/// When gates compress old segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Compress {
    /// Whether they do at all.
    pub enabled: bool,
    /// So many days after a segment was last written.
    pub after_days: u32,
}

impl Default for Compress {
    fn default() -> Self {
        Self { enabled: true, after_days: 30 }
    }
}

impl Compress {
    /// How old a segment must be; nothing when none is compressed.
    pub fn age(&self) -> Option<Duration> {
        self.enabled.then(|| Duration::from_secs(u64::from(self.after_days) * 24 * 60 * 60))
    }
}

/// Where copies go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Target {
    /// A directory's absolute path, `http://…`, `https://…` or `s3://BUCKET/PREFIX`.
    pub to: String,
    /// Headers of HTTP requests, such as `authorization`.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Settings of the store, such as `endpoint`.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
}

impl Target {
    /// Where it is, without what lets anybody in.
    pub fn shown(&self) -> String {
        shown(&self.to)
    }
}

/// A place without user, password, query and fragment, where it is an address.
pub(crate) fn shown(place: &str) -> String {
    let Some((scheme, rest)) = place.split_once("://") else { return place.to_owned() };
    let rest = rest.split(['?', '#']).next().unwrap_or(rest);
    let (authority, path) = match rest.find('/').and_then(|at| rest.split_at_checked(at)) {
        Some(parts) => parts,
        None => (rest, ""),
    };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    // A password with a `/` in it ends the host of no address.
    let is_host = host
        .rsplit_once(':')
        .is_none_or(|(_, port)| port.ends_with(']') || port.chars().all(|c| c.is_ascii_digit()));
    if is_host { format!("{scheme}://{host}{path}") } else { format!("{scheme}://…") }
}

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("cannot read the configuration `{path}`: {why}")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system says.
        why: String,
    },
    /// It is no text.
    #[error("the configuration `{0}` is not UTF-8")]
    NotUtf8(
        /// The file.
        String,
    ),
    /// It is not what it must be.
    #[error("the configuration `{path}` cannot be used\n{diagnostics}")]
    Wrong {
        /// The file.
        path: String,
        /// Everything that is wrong with it.
        diagnostics: Diagnostics,
    },
}

impl Audit {
    /// Reads the section of the configuration, where a missing file means that everything
    /// is as usual.
    ///
    /// # Errors
    ///
    /// When a file that was `named` is missing, or one is not to be understood.
    pub fn load(named: Option<&Path>) -> Result<Self, Error> {
        configuration(named).map_or_else(|| Ok(Self::default()), |path| Self::read(&path))
    }

    fn read(path: &Path) -> Result<Self, Error> {
        let shown = path.display().to_string();
        let text = read(path)
            .map_err(|error| Error::Unreadable { path: shown.clone(), why: why(&error) })?;
        let text = String::from_utf8(text).map_err(|_utf8| Error::NotUtf8(shown.clone()))?;
        let base = path.parent().unwrap_or(Path::new("/"));
        let audit = Self::parse(&text, &shown, base)
            .map_err(|diagnostics| Error::Wrong { path: shown, diagnostics })?;
        Ok(Self { file: Some(path.to_owned()), ..audit })
    }

    /// Reads `text`, which `file` names; relative names begin at `base`.
    fn parse(text: &str, file: &str, base: &Path) -> Result<Self, Diagnostics> {
        #[derive(Deserialize)]
        struct File {
            #[serde(default)]
            audit: Audit,
        }
        let mut document = Document::check(file, text, FIELDS, ELSEWHERE);
        if !document.is_good() {
            return Err(document.finish().err().unwrap_or_default());
        }
        let wrong = match toml::from_str::<File>(text) {
            Ok(file) => match file.audit.check(base) {
                Ok(audit) => return Ok(audit),
                Err((key, why)) => (fields::place(text, key), why),
            },
            Err(error) => (error.span().unwrap_or(0..0), error.message().to_owned()),
        };
        document.wrong(wrong.0, wrong.1, "");
        Err(document.finish().err().unwrap_or_default())
    }

    /// Everything in it makes sense, or else which key does not. A key's file is
    /// replaced by the key; `base` is where relative names begin.
    fn check(mut self, base: &Path) -> Result<Self, (&'static str, String)> {
        const KEY: &str = "publicKey";
        if let Some(named) = &self.public_key {
            let text = if named.parse::<PublicKey>().is_ok() {
                named.clone()
            } else {
                let file = base.join(named);
                let bytes = read(&file).map_err(|error| {
                    (KEY, format!("cannot read `publicKey` {named:?}: {}", why(&error)))
                })?;
                self.key_file = Some(file);
                String::from_utf8_lossy(&bytes).into_owned()
            };
            let keys = parse_keys(&text).map_err(|error| (KEY, format!("`publicKey`: {error}")))?;
            self.public_key = keys.first().map(ToString::to_string);
        }
        if self.signer.is_empty() == self.public_key.is_some() {
            let key = if self.signer.is_empty() { KEY } else { "signer" };
            return Err((key, "`signer` and `publicKey` belong together".to_owned()));
        }
        if self.signer.first().is_some_and(|program| !program.starts_with('/')) {
            let why = "`signer` begins with the absolute path of a program";
            return Err(("signer", why.to_owned()));
        }
        self.witness_keys().map_err(|why| ("witnesses", why))?;
        for target in &self.ship {
            let known = ["/", "http://", "https://", "s3://"];
            if !known.iter().any(|begin| target.to.starts_with(begin)) {
                let why = format!(
                    "`ship` needs an absolute directory, `http://`, `https://` or `s3://`, not {:?}",
                    target.shown()
                );
                return Err(("ship", why));
            }
            if !target.to.starts_with('/') && target.to.contains(['?', '#']) {
                let why = format!(
                    "the names of files are added to an address of `ship`, which has no `?` or \
                     `#` then: {:?}; `headers` and `options` are for what lets it in",
                    target.shown()
                );
                return Err(("ship", why));
            }
        }
        Ok(self)
    }

    /// The witnesses' keys.
    ///
    /// # Errors
    ///
    /// When one is none.
    pub fn witness_keys(&self) -> Result<Vec<PublicKey>, String> {
        let key = |text: &String| match text.parse::<PublicKey>() {
            Ok(key) if key.is_witness() => Ok(key),
            Ok(_log) => Err(format!("`witnesses`: {text:?} is a log's key, not a witness's")),
            Err(error) => Err(format!("`witnesses`: {text:?}: {error}")),
        };
        self.witnesses.iter().map(key).collect()
    }

    /// The signer's public key, when there is a signer.
    pub fn signer_key(&self) -> Option<PublicKey> {
        self.public_key.as_ref()?.parse().ok()
    }

    /// The same without what lets anybody in elsewhere: who signs and who copies
    /// is another process.
    pub fn without_credentials(&self) -> Self {
        let mut audit = Self { signer: Vec::new(), ..self.clone() };
        audit.ship.retain(|target| target.to.starts_with('/'));
        for target in &mut audit.ship {
            target.headers.clear();
            target.options.clear();
        }
        audit
    }

    /// The time between two checkpoints.
    pub fn interval(&self) -> Duration {
        Duration::from_secs(self.checkpoints.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "example.com/log-1+8b4c54b3+AYqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c";

    fn parse(text: &str) -> Result<Audit, String> {
        Audit::parse(text, "f", Path::new("/")).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn everything_has_a_default() {
        let audit = parse("requireSignature = false\n[serve]\nport = 1\n").unwrap();
        assert_eq!((audit.checkpoints.records, audit.checkpoints.seconds), (1024, 60));
        assert_eq!(audit, parse("").unwrap());
    }

    #[test]
    fn shows_no_password_of_a_target() {
        let shown = |to: &str| {
            let text = format!("[audit]\nship = [{{ to = {to:?} }}]");
            parse(&text).unwrap().ship[0].shown()
        };
        assert_eq!(shown("https://me:secret@logs.example/a@b"), "https://logs.example/a@b");
        assert_eq!(shown("s3://bucket/prefix"), "s3://bucket/prefix");
        assert_eq!(shown("/mnt/a@b?c"), "/mnt/a@b?c");
        assert_eq!(shown("http://me:sec/ret@logs.example/a"), "http://…");
        assert_eq!(shown("http://me:secret@[::1]:80"), "http://[::1]:80");
        assert_eq!(shown("http://[::1]/a"), "http://[::1]/a");
        assert_eq!(super::shown("http://x?token=secret@y/z"), "http://x");
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, word) in [
            ("[audit]\nsinger = []", "did you mean `signer`?"),
            ("[audit]\ndurability = 'often'", "expected \"written\" or \"synced\""),
            ("[audit]\nsearch = 'file'", "did you mean \"files\"?"),
            ("[audit]\nmount = 'version'", "did you mean \"versions\"?"),
            ("[audit]\nsigner = ['/bin/sign']", "belong together"),
            (&format!("[audit]\nsigner = ['sign']\npublicKey = {KEY:?}"), "absolute path"),
            ("[audit]\nwitnesses = ['x']", "expected a public key"),
            ("[audit]\ncheckpoints = { records = 0 }", "from 1 to"),
            ("[audit]\ncompress = { afterdays = 1 }", "did you mean `afterDays`?"),
            ("[audit]\nship = [{ to = '/x', headers = { a = 1 } }]", "a string"),
            ("[audit]\nship = [{ to = '/x', option = {} }]", "did you mean `options`?"),
            ("[audit]\nship = [{ to = 'relative' }]", "absolute directory"),
            ("[audit]\nship = [{ to = 'https://x/put?token=a' }]", "no `?`"),
            ("[audit", "unclosed"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
            // With the line and a marker.
            assert!(error.contains(" --> f:") && error.contains("^"), "{text}: {error}");
        }
    }
}
