//! `[[credentials]]` of the operator's configuration: keys that programs in a sandbox use and never
//! have.
//!
//! A policy says by their ids which of them programs may use. What is here says to which host a key
//! goes and where the key is; the key itself is read when a sandbox is started.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use toml::Spanned;

use super::{
    file::NO_FORM,
    keys::keys_except,
    preset_credentials::{self, PresetCredential},
};
use crate::{
    model::{Connect, Host},
    policy::{Diagnostics, Document, Field, Shape, optional, required},
};

/// The most credentials. Each that is used has a process and a port.
const MAX_CREDENTIALS: usize = 8;
/// The most methods or paths of one.
const MAX_LISTED: usize = 100;

const TEXTS: Shape = Shape::Filled(&Shape::Text);

/// The key of the file that this module reads.
const FIELDS: &[Field] = &[optional(
    "credentials",
    Shape::Tables(&[
        required("id", Shape::Text),
        optional("preset", Shape::Text),
        optional("host", Shape::Text),
        optional("port", Shape::Integer(1, 65_535)),
        optional("header", Shape::Text),
        optional("prefix", Shape::Text),
        required("from", Shape::Text),
        optional("env", Shape::Text),
        optional("baseUrl", Shape::Text),
        optional("basePath", Shape::Text),
        optional("methods", TEXTS),
        optional("paths", TEXTS),
        optional("ca", Shape::Text),
    ]),
)];

/// Headers that are not for a key.
const OTHER_HEADERS: [&str; 14] = [
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Variables that are not for a key or a URL: what programs are started by.
const OTHER_VARIABLES: [&str; 6] = ["HOME", "PATH", "SHELL", "TERM", "TMPDIR", "USER"];

/// One of `[[credentials]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// Its name in policies, records and messages.
    pub id: String,
    /// The host and port that the key is for.
    pub to: Connect,
    /// The header that has the key.
    pub header: String,
    /// The text in front of the key in the header.
    pub prefix: String,
    /// The source of the key.
    pub from: KeySource,
    /// The variable in which programs find what they send in the key's place.
    pub env: String,
    /// The variable in which they find where to.
    pub base_url: String,
    /// The path with which that URL ends.
    pub base_path: String,
    /// The methods that are passed on.
    pub methods: Vec<String>,
    /// The paths that are passed on; one that ends with `/*` is any path beneath.
    pub paths: Vec<String>,
    /// Certificates that are trusted in place of the system's.
    pub ca: Option<PathBuf>,
}

/// The place of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// A variable of the environment of the process that starts the sandbox.
    Environment(String),
    /// A file, absolute.
    File(PathBuf),
}

impl KeySource {
    /// Returns the name of the variable that has the key, if one has.
    pub(crate) fn variable(&self) -> Option<&str> {
        match self {
            Self::Environment(name) => Some(name),
            Self::File(_) => None,
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

type PlacedText = Spanned<String>;

#[derive(Deserialize)]
struct CredentialsFile {
    #[serde(default)]
    credentials: Vec<RawCredential>,
}

/// The port of a credential that names none.
const HTTPS: u16 = 443;

/// One of `[[credentials]]` as it is written: a preset may have what it leaves out.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawCredential {
    id: PlacedText,
    preset: Option<PlacedText>,
    host: Option<PlacedText>,
    port: Option<u16>,
    header: Option<PlacedText>,
    prefix: Option<PlacedText>,
    from: PlacedText,
    env: Option<PlacedText>,
    base_url: Option<PlacedText>,
    base_path: Option<PlacedText>,
    methods: Option<Vec<PlacedText>>,
    paths: Option<Vec<PlacedText>>,
    ca: Option<PlacedText>,
}

/// Reads `text`, which `file` names; relative paths begin at `base`.
pub(super) fn parse(text: &str, file: &str, base: &Path) -> Result<Vec<Credential>, Diagnostics> {
    let mut document = Document::check(file, text, FIELDS, &keys_except(&["credentials"]));
    let mut credentials: Vec<Credential> = Vec::new();
    if document.is_good() {
        match toml::from_str::<CredentialsFile>(text) {
            Ok(file) => {
                for raw in file.credentials {
                    let id = raw.id.clone();
                    let filled = raw.filled(&mut document);
                    let Some(read) = filled.and_then(|raw| raw.read(base, &mut document)) else {
                        continue;
                    };
                    let (span, shown) = (id.span(), &read.id);
                    if credentials.iter().any(|other| other.id == read.id) {
                        let problem = format!("the credential `{shown}` is there twice");
                        document.wrong(span, problem, "give each an `id` of its own");
                    } else if credentials.len() == MAX_CREDENTIALS {
                        let problem = format!("there are more than {MAX_CREDENTIALS} credentials");
                        let help = "take some out, or write them into the configuration of another workspace";
                        document.wrong(span, problem, help);
                    } else {
                        credentials.push(read);
                    }
                }
            }
            Err(error) => document.wrong(error.span().unwrap_or(0..0), NO_FORM, ""),
        }
    }
    document.finish().map(|()| credentials)
}

impl RawCredential {
    /// Takes what is not written from the preset, if one is named; `None` if that is none.
    fn filled(mut self, document: &mut Document) -> Option<Self> {
        let Some(name) = &self.preset else { return Some(self) };
        let span = name.span();
        let Some(preset) = preset_credentials::of(name.get_ref()) else {
            let known: Vec<_> = preset_credentials::names().collect();
            let problem = format!("no preset `{}` has a credential", name.get_ref());
            let help = format!("write one of {}, or leave `preset` out", known.join(", "));
            document.wrong(span, problem, &help);
            return None;
        };
        let placed = |text: String| PlacedText::new(span.clone(), text);
        let list = |texts: Vec<String>| Some(texts.into_iter().map(placed).collect());
        let PresetCredential { host, header, prefix, env, base_url, base_path, methods, paths } =
            preset;
        self.host = self.host.or_else(|| Some(placed(host)));
        self.header = self.header.or_else(|| Some(placed(header)));
        self.prefix = self.prefix.or_else(|| Some(placed(prefix)));
        self.env = self.env.or_else(|| Some(placed(env)));
        self.base_url = self.base_url.or_else(|| Some(placed(base_url)));
        self.base_path = self.base_path.or_else(|| base_path.map(placed));
        self.methods = self.methods.or_else(|| list(methods));
        self.paths = self.paths.or_else(|| list(paths));
        Some(self)
    }

    /// Returns the credential, if everything in it is valid.
    fn read(self, base: &Path, document: &mut Document) -> Option<Credential> {
        for (key, is_missing) in [
            ("host", self.host.is_none()),
            ("header", self.header.is_none()),
            ("env", self.env.is_none()),
            ("baseUrl", self.base_url.is_none()),
            ("methods", self.methods.is_none()),
            ("paths", self.paths.is_none()),
        ] {
            if is_missing {
                let help = "add it, or a `preset` that has it";
                document.wrong(self.id.span(), format!("the key `{key}` is missing"), help);
            }
        }
        let (host, header) = (self.host?, self.header?);
        let (env, base_url) = (self.env?, self.base_url?);
        let (methods, paths) = (self.methods?, self.paths?);
        let mut checked = |text: &PlacedText, is_good: bool, problem: &str, help: &str| {
            if !is_good {
                document.wrong(text.span(), problem, help);
            }
            is_good
        };
        let id = self.id.get_ref();
        let is_id = id.starts_with(|c: char| c.is_ascii_alphanumeric())
            && id.len() <= 64
            && id.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
        let help = "write up to 64 letters, digits, `.`, `_` or `-`";
        let mut is_good = checked(&self.id, is_id, "`id` is no id", help);
        let parsed = Host::parse(host.get_ref());
        let help = "write a name or an address, without a port";
        is_good &= checked(&host, parsed.is_ok(), "`host` is no host", help);
        let name = header.get_ref().to_ascii_lowercase();
        let is_header = is_token(&name) && !OTHER_HEADERS.contains(&&*name);
        let help = "write the header that has the key, such as \"x-api-key\" or \"authorization\"";
        is_good &= checked(&header, is_header, "`header` is no header for a key", help);
        if let Some(prefix) = &self.prefix {
            let is_text = prefix.get_ref().len() <= 100
                && prefix.get_ref().bytes().all(|byte| matches!(byte, b' '..=b'~'));
            let help = "write what stands before the key, such as \"Bearer \"";
            is_good &= checked(prefix, is_text, "`prefix` is no text of a header", help);
        }
        let from = source(self.from.get_ref(), base);
        let help = "write \"env:NAME\" or \"file:PATH\"";
        is_good &= checked(&self.from, from.is_some(), "`from` names no place of a key", help);
        for (key, variable) in [("env", &env), ("baseUrl", &base_url)] {
            let problem = format!("`{key}` is no variable for it");
            let help = "write a name such as \"ANTHROPIC_API_KEY\"";
            is_good &= checked(variable, is_variable(variable.get_ref()), &problem, help);
        }
        let help =
            "write the variable in which programs find the URL, such as \"ANTHROPIC_BASE_URL\"";
        let is_other = env.get_ref() != base_url.get_ref();
        is_good &= checked(&base_url, is_other, "`env` and `baseUrl` are the same variable", help);
        if let Some(path) = &self.base_path {
            let is_path = is_path(path.get_ref()) && !path.get_ref().contains('*');
            let help = "write a path such as \"/v1\"";
            is_good &= checked(path, is_path, "`basePath` is no path", help);
        }
        for method in &methods {
            let word = method.get_ref();
            let is_method = is_token(word)
                && *word == word.to_ascii_uppercase()
                && !["CONNECT", "TRACE"].contains(&&**word);
            let help = "write methods such as \"POST\"";
            is_good &= checked(method, is_method, "that method is never passed on", help);
        }
        for path in &paths {
            let help =
                "write paths such as \"/v1/messages\", or \"/v1/messages/*\" for those beneath";
            is_good &= checked(path, is_path(path.get_ref()), "`paths` has what is no path", help);
        }
        for (key, list) in [("methods", &methods), ("paths", &paths)] {
            let problem = format!("`{key}` is empty, so nothing would be passed on");
            let help = "write those that programs need";
            is_good &= checked(&self.id, !list.is_empty(), &problem, help);
            if let Some(last) = list.get(MAX_LISTED) {
                let help =
                    format!("write {MAX_LISTED} at most; `/*` at the end stands for all beneath");
                is_good &= checked(last, false, "the list is too long", &help);
            }
        }
        if !is_good {
            return None;
        }
        let texts = |list: Vec<PlacedText>| list.into_iter().map(PlacedText::into_inner).collect();
        Some(Credential {
            id: self.id.into_inner(),
            to: Connect { host: parsed.ok()?, port: self.port.unwrap_or(HTTPS) },
            header: name,
            prefix: self.prefix.map(PlacedText::into_inner).unwrap_or_default(),
            from: from?,
            env: env.into_inner(),
            base_url: base_url.into_inner(),
            base_path: self.base_path.map(PlacedText::into_inner).unwrap_or_default(),
            methods: texts(methods),
            paths: texts(paths),
            ca: self.ca.map(|ca| base.join(ca.into_inner())),
        })
    }
}

fn source(text: &str, base: &Path) -> Option<KeySource> {
    match text.split_once(':')? {
        ("env", name) => is_name(name).then(|| KeySource::Environment(name.to_owned())),
        ("file", path) => (!path.is_empty()).then(|| KeySource::File(base.join(path))),
        _ => None,
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.len() <= 128
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// True if programs may find something there that the operator did not write.
fn is_variable(text: &str) -> bool {
    let upper = text.to_ascii_uppercase();
    is_name(text)
        && !OTHER_VARIABLES.contains(&&*upper)
        && !upper.starts_with("LD_")
        && !upper.ends_with("_PROXY")
}

pub(super) fn is_token(text: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.len() <= 100 && text.bytes().all(is_good)
}

/// True for a path that a request can have, with a `*` in place of its last part or without.
fn is_path(text: &str) -> bool {
    let is_part = |part: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:@!$&'()+,=".contains(&byte);
        !part.is_empty() && part != "." && part != ".." && part.bytes().all(plain)
    };
    let parts = text.strip_suffix("/*").unwrap_or(text);
    text == "/"
        || text == "/*"
        || parts.strip_prefix('/').is_some_and(|parts| parts.split('/').all(is_part))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[[credentials]]\nid = \"anthropic\"\nhost = \"api.anthropic.com\"\nheader = \"X-Api-Key\"\n\
        from = \"env:ANTHROPIC_API_KEY\"\nenv = \"ANTHROPIC_API_KEY\"\nbaseUrl = \"ANTHROPIC_BASE_URL\"\n\
        methods = [\"POST\"]\npaths = [\"/v1/messages\", \"/v1/messages/*\"]\n";

    fn read(text: &str) -> Result<Vec<Credential>, String> {
        parse(text, "f", Path::new("/etc/p")).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn a_credential_is_read_with_its_defaults() {
        assert_eq!(read("").unwrap(), []);
        let credential = read(GOOD).unwrap().remove(0);
        assert_eq!(credential.to.to_string(), "api.anthropic.com:443");
        assert_eq!((&*credential.header, &*credential.prefix), ("x-api-key", ""));
        assert_eq!(credential.from.to_string(), "env:ANTHROPIC_API_KEY");
        let file = read(&GOOD.replace("env:ANTHROPIC_API_KEY", "file:keys/a")).unwrap().remove(0);
        assert_eq!(file.from, KeySource::File("/etc/p/keys/a".into()));
    }

    #[test]
    fn a_preset_has_what_a_credential_leaves_out() {
        let short = |preset: &str, more: &str| {
            read(&format!(
                "[[credentials]]\nid = \"model\"\nfrom = \"env:KEY\"\npreset = \"{preset}\"\n{more}"
            ))
        };
        for name in preset_credentials::names() {
            assert_eq!(short(name, "").unwrap().len(), 1, "{name}");
        }
        let credential = short("codex", "").unwrap().remove(0);
        assert_eq!(credential.to.to_string(), "api.openai.com:443");
        assert_eq!((&*credential.header, &*credential.prefix), ("authorization", "Bearer "));
        let own = short("codex", "host = \"a.example\"\nport = 8443\n").unwrap().remove(0);
        assert_eq!(own.to.to_string(), "a.example:8443");
        assert_eq!(own.paths, credential.paths);
        let wrong = short("nobody", "").unwrap_err();
        assert!(wrong.contains("f:4") && wrong.contains("aider, claude-code, codex"), "{wrong}");
        let wrong = short("codex", "baseUrl = \"CODEX_API_KEY\"\n").unwrap_err();
        assert!(wrong.contains("the same variable"), "{wrong}");
        let missing = read(&GOOD.replace("header =", "# header =")).unwrap_err();
        assert!(missing.contains("`header` is missing"), "{missing}");
    }

    #[test]
    fn what_makes_no_sense_is_said_with_its_line() {
        for (from, to, words) in [
            ("anthropic\"\nhost", "a b\"\nhost", "f:2"),
            ("api.anthropic.com", "api.anthropic.com:443", "`host` is no host"),
            ("X-Api-Key", "Host", "`header` is no header for a key"),
            ("env:ANTHROPIC_API_KEY", "sk-ant-secret", "`from` names no place"),
            ("env = \"ANTHROPIC_API_KEY\"", "env = \"PATH\"", "`env` is no variable"),
            ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "the same variable"),
            ("POST", "TRACE", "never passed on"),
            ("POST", "post", "never passed on"),
            ("/v1/messages\"", "/v1/../x\"", "no path"),
            ("/v1/messages\"", "/v1/*/x\"", "no path"),
            ("/v1/messages\"", "v1\"", "no path"),
            ("methods = [\"POST\"]", "methods = []", "methods"),
            ("methods", "method", "unknown key"),
        ] {
            let text = GOOD.replacen(from, to, 1);
            let wrong = read(&text).unwrap_err();
            assert!(wrong.contains(words), "{from} {to}\n{wrong}");
            assert!(!wrong.contains("sk-ant-secret"), "{wrong}");
        }
        assert!(read(&format!("{GOOD}{GOOD}")).unwrap_err().contains("is there twice"));
    }
}
