//! The `[audit]` section of the operator's configuration file: durability of records,
//! signer and interval of checkpoints, targets of copies.
//!
//! The file is separate from policy: it is never read from the workspace, and it grants
//! an agent nothing.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use portcullis_audit::{PublicKey, parse_keys};
use serde::{Deserialize, Serialize};

use super::{
    file::{NO_FORM, read, reason},
    keys::keys_except,
    operator::configuration,
};
use crate::{
    gateway::Signing,
    policy::{Diagnostics, Document},
};

mod fields;

use fields::FIELDS;

/// The section.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Audit {
    /// The durability that reads wait for.
    pub durability: Durability,
    /// The interval of checkpoints.
    pub checkpoints: Cadence,
    /// The command that signs checkpoints instead of the log's own key: it gets the
    /// note's text on its standard input and prints signature lines.
    pub signer: Vec<String>,
    /// The command's public key, or a file that contains it.
    pub public_key: Option<String>,
    /// Public keys of witnesses whose cosignatures are checked.
    pub witnesses: Vec<String>,
    /// The targets of copies of the log.
    pub ship: Vec<Target>,
    /// The compression of old segments by gateways.
    pub compress: Compress,
    /// The records of a search in content.
    pub search: SearchRecords,
    /// The records of opens of files in a mount.
    pub mount: MountRecords,
    /// The file of the section.
    #[serde(skip)]
    pub file: Option<PathBuf>,
    /// The file of `public_key`.
    #[serde(skip)]
    pub key_file: Option<PathBuf>,
}

/// The durability of a read's record before content is disclosed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Durability {
    /// The record is written: it survives the gateway.
    #[default]
    Written,
    /// The record is on stable storage: it survives a crash of the machine.
    Synced,
}

/// The records of a search in content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SearchRecords {
    /// A record of the search, and one of each file of which lines are disclosed.
    #[default]
    Files,
    /// A record of the search only.
    Summary,
}

/// The records of opens of files in a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MountRecords {
    /// A record of the first open of a version, and the number of its repetitions.
    #[default]
    Versions,
    /// A record of each open.
    Opens,
}

/// The interval of checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Cadence {
    /// Maximum of records between checkpoints.
    pub records: u64,
    /// Maximum of seconds between checkpoints.
    pub seconds: u64,
}

impl Default for Cadence {
    fn default() -> Self {
        Self { records: Signing::DEFAULT_RECORDS, seconds: Signing::DEFAULT_INTERVAL.as_secs() }
    }
}

/// The compression of old segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Compress {
    /// True if segments are compressed.
    pub enabled: bool,
    /// Days since the last write to a segment.
    pub after_days: u32,
}

impl Default for Compress {
    fn default() -> Self {
        Self { enabled: true, after_days: 30 }
    }
}

impl Compress {
    /// Returns the minimum age of a segment; `None` if none is compressed.
    pub fn age(&self) -> Option<Duration> {
        self.enabled.then(|| Duration::from_secs(u64::from(self.after_days) * 24 * 60 * 60))
    }
}

/// A target of copies.
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

/// Options of `s3://` that name files of tokens, without the `aws_` that they may begin with.
const TOKEN_FILES: [&str; 2] = ["web_identity_token_file", "container_authorization_token_file"];

impl Target {
    /// Returns the address without credentials.
    pub fn shown(&self) -> String {
        shown(&self.to)
    }

    /// Returns the files of tokens that are read to send to `s3://`: those of `options`, and of the
    /// variables `AWS_…` of the environment.
    pub fn token_files(&self) -> Vec<PathBuf> {
        if !self.to.starts_with("s3://") {
            return Vec::new();
        }
        let names_file = |name: &str| TOKEN_FILES.contains(&name);
        let options = self
            .options
            .iter()
            .filter(|(name, _)| names_file(name.strip_prefix("aws_").unwrap_or(name)));
        // The client takes the name after `AWS_` in any case.
        let variables = std::env::vars_os().filter(|(name, _)| {
            let name = name.to_str().and_then(|name| name.strip_prefix("AWS_"));
            name.is_some_and(|name| names_file(&name.to_ascii_lowercase()))
        });
        let options = options.map(|(_, path)| PathBuf::from(path));
        let files = options.chain(variables.map(|(_, path)| PathBuf::from(path)));
        files.filter(|path| !path.as_os_str().is_empty()).collect()
    }
}

/// Removes user, password, query and fragment of an address; returns a path unchanged.
pub(crate) fn shown(place: &str) -> String {
    let Some((scheme, rest)) = place.split_once("://") else { return place.to_owned() };
    let rest = rest.split(['?', '#']).next().unwrap_or(rest);
    let (authority, path) = match rest.find('/').and_then(|at| rest.split_at_checked(at)) {
        Some(parts) => parts,
        None => (rest, ""),
    };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    // A password with a `/` in it leaves no valid host.
    let is_host = host
        .rsplit_once(':')
        .is_none_or(|(_, port)| port.ends_with(']') || port.chars().all(|c| c.is_ascii_digit()));
    if is_host { format!("{scheme}://{host}{path}") } else { format!("{scheme}://…") }
}

/// The reason why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read the configuration `{path}`: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// The error of the system.
        reason: String,
    },
    /// The file is not UTF-8.
    #[error("the configuration `{0}` is not UTF-8")]
    NotUtf8(
        /// The file.
        String,
    ),
    /// The file has errors.
    #[error("the configuration `{path}` cannot be used\n{diagnostics}")]
    Wrong {
        /// The file.
        path: String,
        /// All errors.
        diagnostics: Diagnostics,
    },
}

impl Audit {
    /// Reads the section of the configuration; without a file returns the defaults.
    ///
    /// # Errors
    ///
    /// When a `named` file is missing, or a file is invalid.
    pub fn load(named: Option<&Path>) -> Result<Self, Error> {
        configuration(named).map_or_else(|| Ok(Self::default()), |path| Self::read(&path))
    }

    fn read(path: &Path) -> Result<Self, Error> {
        let shown = path.display().to_string();
        let text = read(path)
            .map_err(|error| Error::Unreadable { path: shown.clone(), reason: reason(&error) })?;
        let text = String::from_utf8(text).map_err(|_utf8| Error::NotUtf8(shown.clone()))?;
        let base = path.parent().unwrap_or(Path::new("/"));
        let audit = Self::parse(&text, &shown, base)
            .map_err(|diagnostics| Error::Wrong { path: shown, diagnostics })?;
        Ok(Self { file: Some(path.to_owned()), ..audit })
    }

    /// Parses `text` of `file`; relative paths begin at `base`.
    fn parse(text: &str, file: &str, base: &Path) -> Result<Self, Diagnostics> {
        #[derive(Deserialize)]
        struct AuditFile {
            #[serde(default)]
            audit: Audit,
        }
        let mut document = Document::check(file, text, FIELDS, &keys_except(&["audit"]));
        if !document.is_good() {
            return Err(document.finish().err().unwrap_or_default());
        }
        let wrong = match toml::from_str::<AuditFile>(text) {
            Ok(file) => match file.audit.check(base) {
                Ok(audit) => return Ok(audit),
                Err((key, reason)) => (fields::place(text, key), reason),
            },
            Err(error) => (error.span().unwrap_or(0..0), NO_FORM.to_owned()),
        };
        document.wrong(wrong.0, wrong.1, "");
        Err(document.finish().err().unwrap_or_default())
    }

    /// Checks all values, or returns the invalid key. A key's file is replaced by the
    /// key; relative paths begin at `base`.
    fn check(mut self, base: &Path) -> Result<Self, (&'static str, String)> {
        const KEY: &str = "publicKey";
        if let Some(named) = &self.public_key {
            let text = if named.parse::<PublicKey>().is_ok() {
                named.clone()
            } else {
                let file = base.join(named);
                let bytes = read(&file).map_err(|error| {
                    (
                        KEY,
                        format!("cannot read the file that `publicKey` names: {}", reason(&error)),
                    )
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
            let reason = "`signer` begins with the absolute path of a program";
            return Err(("signer", reason.to_owned()));
        }
        self.witness_keys().map_err(|reason| ("witnesses", reason))?;
        for (number, target) in self.ship.iter().enumerate() {
            let known = ["/", "http://", "https://", "s3://"];
            if !known.iter().any(|begin| target.to.starts_with(begin)) {
                let reason = format!(
                    "`ship[{number}].to` needs an absolute directory, `http://`, `https://` or \
                     `s3://`"
                );
                return Err(("ship", reason));
            }
            if !target.to.starts_with('/') && target.to.contains(['?', '#']) {
                let reason = format!(
                    "the names of files are added to the address `ship[{number}].to`, which must \
                     have no `?` or `#` then; put credentials into `headers` or `options`"
                );
                return Err(("ship", reason));
            }
            // Also where a service adds a name to each.
            let place = |target: &Target| target.to.trim_end_matches('/').to_owned();
            if self.ship.iter().take(number).any(|other| place(other) == place(target)) {
                let reason = format!(
                    "`ship[{number}].to` is that of another target, whatever its options: give \
                     each target a directory or prefix of its own"
                );
                return Err(("ship", reason));
            }
        }
        Ok(self)
    }

    /// Returns the witnesses' keys.
    ///
    /// # Errors
    ///
    /// When one is invalid.
    pub fn witness_keys(&self) -> Result<Vec<PublicKey>, String> {
        let key = |(number, text): (usize, &String)| match text.parse::<PublicKey>() {
            Ok(key) if key.is_witness() => Ok(key),
            Ok(_log) => Err(format!("`witnesses[{number}]` is a log's key, not a witness's")),
            Err(error) => Err(format!("`witnesses[{number}]`: {error}")),
        };
        self.witnesses.iter().enumerate().map(key).collect()
    }

    /// Returns the signer's public key, if there is a signer.
    pub fn signer_key(&self) -> Option<PublicKey> {
        self.public_key.as_ref()?.parse().ok()
    }

    /// Returns the section without credentials, for a process that neither signs nor
    /// copies.
    pub fn without_credentials(&self) -> Self {
        let mut audit = Self { signer: Vec::new(), ..self.clone() };
        audit.ship.retain(|target| target.to.starts_with('/'));
        for target in &mut audit.ship {
            target.headers.clear();
            target.options.clear();
        }
        audit
    }

    /// Returns the time between two checkpoints.
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
            (
                "[audit]\nship = [{ to = 's3://b/p', options = { endpoint = 'http://x' } }, { to = \
                 's3://b/p/', options = { endpoint = 'http://y' } }]",
                "of its own",
            ),
            ("[audit", "unclosed"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
            // The error contains the location.
            assert!(error.contains("--> f:"), "{text}: {error}");
        }
    }

    /// The error used to contain the whole line, with the password of an address or a
    /// header.
    #[test]
    fn shows_no_value_of_a_file_that_cannot_be_used() {
        for text in [
            "[audit]\nship = [{ to = 'https://me:hunter2@x/', option = {} }]",
            "[audit]\nship = [{ to = 'me:hunter2@x' }]",
            "[audit]\nship = [{ to = 'ftp://me:hunter2@x' }]",
            "[audit]\nship = [{ to = 'https://x/put?token=hunter2' }]",
            "[audit]\nship = [{ to = '/x', headers = { a = 'hunter2', b = 1 } }]",
            "[audit]\nship = [{ to = '/x', headers = { a = 'hunter2 } }]",
            "[audit]\nship = [{ to = '/x', headers = { a = hunter2 } }]",
            "[audit]\nship = [{ to = '/x', headers = { a = 'x' 'hunter2' } }]",
            "[audit]\nship = [{ to = '/x', headers = { authorization: 'hunter2' } }]",
            "[audit]\nship = [{ to = '/x', headers = { a = 'hunter2', a = 'hunter2' } }]",
            "[audit]\nwitnesses = ['hunter2']",
            "[audit]\nsigner = ['/bin/sign']\npublicKey = 'hunter2'",
            "[audit]\nsigner = ['hunter2']\npublicKey = '/hunter2'",
        ] {
            let error = parse(text).unwrap_err();
            assert!(!error.contains("hunter2") && error.contains("--> f:"), "{text}: {error}");
        }
    }
}
