//! The operator's configuration file, `portcullis.toml`: settings that apply to every
//! policy and are not part of one.
//!
//! It is separate from policy and has defaults for everything. A named file must exist; an
//! unknown key, or an invalid value, refuses the whole file.

use std::path::{Path, PathBuf};

use etcetera::BaseStrategy as _;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    approvals::{self, Notifications},
    credentials::{self, Credential},
    file::{read, reason},
    keys::{KEYS, SECTIONS},
    policy_texts::PolicyTexts,
    signature::{self, PolicyKey, TrustError, signature_path},
};

use crate::{operator_files, policy::nearest};

/// Sections without which `portcullis serve` has nothing to do.
const SERVICE: [&str; 3] = ["serve", "workspaces", "agents"];

/// The configuration in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Operator {
    /// The canonical path of the file; `None` without one, with all defaults.
    pub path: Option<PathBuf>,
    /// Its path as given, made absolute: that may lead to another file later.
    pub named: Option<PathBuf>,
    /// True if only signed policies are enforced.
    pub require_signature: bool,
    /// The accepted keys.
    pub policy_keys: Vec<PolicyKey>,
    /// Keys that programs in a sandbox use and never have.
    pub credentials: Vec<Credential>,
    /// Notifications of requests that wait for an approval.
    pub notifications: Notifications,
    /// True if the file has sections of `portcullis serve`.
    pub has_service: bool,
}

impl Operator {
    /// Returns the environment variables with keys of credentials.
    pub fn key_variables(&self) -> impl Iterator<Item = &str> {
        self.credentials.iter().filter_map(|credential| credential.from.variable())
    }
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
    /// The file has errors.
    #[error("the configuration cannot be used\n{}", .0.join("\n"))]
    Wrong(
        /// All errors: file, line, error and advice.
        Vec<String>,
    ),
}

/// Returns the file to which a configuration's path leads now.
///
/// # Errors
/// When it leads to no file.
pub fn canonical(named: &Path) -> Result<PathBuf, Error> {
    operator_files::canonicalize(named).map_err(|error| Error::Unreadable {
        path: named.display().to_string(),
        reason: reason(&error),
    })
}

/// Returns the default path of the file, beneath `$XDG_CONFIG_HOME`.
pub fn file_below(base: &Path) -> PathBuf {
    base.join("portcullis/portcullis.toml")
}

/// Returns the default path of the file for this user; without a home directory there is none.
pub fn default_file() -> Option<PathBuf> {
    Some(file_below(&etcetera::base_strategy::Xdg::new().ok()?.config_dir()))
}

/// Returns the named configuration, otherwise
/// `$XDG_CONFIG_HOME/portcullis/portcullis.toml` if it exists.
pub(super) fn configuration(named: Option<&Path>) -> Option<PathBuf> {
    if let Some(path) = named {
        return Some(path.to_owned());
    }
    let path = default_file()?;
    let missing = |error: std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    (!operator_files::symlink_metadata(&path).is_err_and(missing)).then_some(path)
}

impl Operator {
    /// Reads the named file, otherwise `$XDG_CONFIG_HOME/portcullis/portcullis.toml` if it
    /// exists.
    ///
    /// # Errors
    /// When a named file is missing, or a file is invalid.
    pub fn load(named: Option<&Path>) -> Result<Self, Error> {
        let Some(path) = configuration(named) else { return Ok(Self::default()) };
        let shown = path.display().to_string();
        let unreadable = |error: std::io::Error| Error::Unreadable {
            path: shown.clone(),
            reason: reason(&error),
        };
        let named = std::path::absolute(&path).map_err(unreadable)?;
        let canonical = canonical(&path)?;
        let bytes = read(&canonical).map_err(unreadable)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| Error::Wrong(vec![format!("{shown}: it is not UTF-8")]))?;
        let operator = Self::parse(&text, &shown).map_err(Error::Wrong)?;
        let base = named.parent().unwrap_or(Path::new("/"));
        let credentials = credentials::parse(&text, &shown, base)
            .map_err(|wrong| Error::Wrong(vec![wrong.to_string()]))?;
        let notifications = approvals::parse(&text, &shown)
            .map_err(|wrong| Error::Wrong(vec![wrong.to_string()]))?;
        let (path, named) = (Some(canonical), Some(named));
        Ok(Self { path, named, credentials, notifications, ..operator })
    }

    /// Returns the path by which another process finds the file, as given if that is known.
    pub fn shown_path(&self) -> Option<&Path> {
        self.named.as_deref().or(self.path.as_deref())
    }

    /// Checks the signature of a policy, if one is required; returns its key.
    ///
    /// # Errors
    /// When the policy must not be enforced.
    pub fn trust(&self, texts: &PolicyTexts) -> Result<Option<PolicyKey>, TrustError> {
        if !self.require_signature {
            return Ok(None);
        }
        let Some(policy) = texts.entry_path() else {
            return Err(TrustError::Embedded(texts.reference().to_owned()));
        };
        let path = signature_path(policy);
        let shown = path.display().to_string();
        let bytes = read(&path).map_err(|error| TrustError::Unsigned {
            path: shown.clone(),
            reason: reason(&error),
        })?;
        let text = str::from_utf8(&bytes).map_err(|_| TrustError::Malformed(shown.clone()))?;
        let sha256 = texts.sha256();
        signature::verify(&self.policy_keys, text, &sha256, shown).map(Some)
    }

    fn parse(text: &str, file: &str) -> Result<Self, Vec<String>> {
        let place = |at: usize| {
            let line = text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
            format!("{file}:{line}")
        };
        let (root, errors) = DeTable::parse_recoverable(text);
        let mut wrong: Vec<String> = errors
            .iter()
            .map(|error| {
                let at = error.span().map_or(0, |span| span.start);
                format!("{}: not valid TOML: {}", place(at), error.message())
            })
            .collect();
        let mut operator = Self::default();
        let mut keys_at = None;
        for (key, value) in root.get_ref() {
            let name: &str = key.get_ref();
            let found = match name {
                "requireSignature" => {
                    keys_at = Some(value.span().start);
                    flag(value).map(|flag| operator.require_signature = flag)
                }
                "policyKeys" => keys(value).map(|keys| operator.policy_keys = keys),
                _ if SECTIONS.contains(&name) => {
                    operator.has_service |= SERVICE.contains(&name);
                    Ok(())
                }
                _ => Err((key.span().start, unknown(name))),
            };
            if let Err((at, what)) = found {
                wrong.push(format!("{}: {what}", place(at)));
            }
        }
        if let (true, true, Some(at)) =
            (operator.require_signature, operator.policy_keys.is_empty(), keys_at)
            && wrong.is_empty()
        {
            wrong.push(format!(
                "{}: `requireSignature` without `policyKeys` would let no policy load\n  help: \
                 make a key with `portcullis policy keygen` and add its public half",
                place(at)
            ));
        }
        if wrong.is_empty() { Ok(operator) } else { Err(wrong) }
    }
}

type Value<'i> = Spanned<DeValue<'i>>;
type InvalidValue = (usize, String);

fn flag(value: &Value<'_>) -> Result<bool, InvalidValue> {
    value.get_ref().as_bool().ok_or_else(|| {
        (value.span().start, "`requireSignature` must be `true` or `false`".to_owned())
    })
}

fn keys(value: &Value<'_>) -> Result<Vec<PolicyKey>, InvalidValue> {
    let list = value.get_ref().as_array().ok_or_else(|| {
        (value.span().start, "`policyKeys` must be a list of public keys".to_owned())
    })?;
    list.iter()
        .map(|key| {
            let text = key.get_ref().as_str().unwrap_or_default();
            text.parse().map_err(|error| {
                let help = "\n  help: `portcullis policy keygen` prints one";
                (key.span().start, format!("a bad key in `policyKeys`: {error}{help}"))
            })
        })
        .collect()
}

fn unknown(name: &str) -> String {
    let shown: String = name.chars().take(60).collect();
    let known = KEYS.iter().chain(&SECTIONS).copied();
    let help = match nearest(name, known.clone()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known keys: {}", known.collect::<Vec<_>>().join(", ")),
    };
    format!("unknown key `{}`\n  help: {help}", crate::model::Escaped(&shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::signature::SigningKey;

    #[test]
    fn everything_has_a_default() {
        assert_eq!(Operator::parse("", "f").unwrap(), Operator::default());
        let key = SigningKey::generate().unwrap().public();
        let text = format!("requireSignature = true\npolicyKeys = [\"{key}\"]\n");
        let operator = Operator::parse(&text, "f").unwrap();
        assert!(operator.require_signature && operator.policy_keys == [key]);
    }

    #[test]
    fn everything_that_is_wrong_is_said_with_its_line() {
        let text = "requireSignatures = true\npolicyKeys = [\"ed25519:x\"]\n[gateways]\n";
        let wrong = Operator::parse(text, "f").unwrap_err().join("\n");
        for word in [
            "f:1: unknown key `requireSignatures`\n  help: did you mean `requireSignature`?",
            "f:2: a bad key in `policyKeys`: expected `ed25519:`",
            "f:3: unknown key `gateways`\n  help: known keys: requireSignature, policyKeys, approvals, audit, credentials, serve",
        ] {
            assert!(wrong.contains(word), "{word}\n{wrong}");
        }
        for (text, word) in [
            ("requireSignature = true", "f:1: `requireSignature` without `policyKeys`"),
            ("requireSignature = 1", "f:1: `requireSignature` must be"),
            ("policyKeys = 1", "f:1: `policyKeys` must be a list"),
            ("\npolicyKeys = [1]", "f:2: a bad key"),
            ("requireSignature = true\nrequireSignature = false\n", "f:2: not valid TOML"),
            ("[", "f:1: not valid TOML"),
        ] {
            let wrong = Operator::parse(text, "f").unwrap_err().join("\n");
            assert!(wrong.contains(word), "{text}: {wrong}");
        }
    }
}
