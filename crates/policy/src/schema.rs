//! The schema of a policy file: every key and its type.
//!
//! This table is the only definition. [`check`](super::check) compares a file with it, the sections
//! are read in [`statements`](super::statements), and a test compares `docs/policy.md` with it.

use super::{
    agent_limits::{PROCESSES, PROCESSORS},
    string_format::{self, StringFormat},
};

/// The value that a key takes.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// Any string.
    Text,
    /// A string of this form.
    Formed(StringFormat),
    /// A string such as `"10MiB"`.
    Size,
    /// A string such as `"2m"`.
    Duration,
    /// An integer between the two, both included.
    Integer(u64, u64),
    /// A number that is not negative.
    Number,
    /// `true` or `false`.
    Boolean,
    /// One of these strings.
    Word(&'static [&'static str]),
    /// A list of values of one shape.
    List(&'static Shape),
    /// A list of values of one shape, with at least one.
    Filled(&'static Shape),
    /// A table with these keys.
    Table(&'static [Field]),
    /// A list of tables with these keys, written `[[key]]`.
    Tables(&'static [Field]),
    /// A table of strings, whatever their keys.
    Texts,
}

impl Shape {
    /// Returns the description of a valid value.
    pub(super) fn expected(self) -> String {
        match self {
            Self::Text | Self::Formed(_) => "a string".to_owned(),
            Self::Duration => "a time such as \"2m\"".to_owned(),
            Self::Size => "a size such as \"10MiB\"".to_owned(),
            Self::Integer(low, high) if high == i64::MAX.cast_unsigned() => {
                format!("a whole number from {low} to 2^63 - 1")
            }
            Self::Integer(low, high) if low == high => format!("the number {low}"),
            Self::Integer(low, high) => format!("a whole number from {low} to {high}"),
            Self::Number => "a number".to_owned(),
            Self::Boolean => "`true` or `false`".to_owned(),
            Self::Word(words) => quoted(words),
            Self::List(Self::Text | Self::Formed(_)) | Self::Filled(Self::Formed(_)) => {
                "a list of strings".to_owned()
            }
            Self::List(Self::Integer(low, high)) => {
                format!("a list of whole numbers from {low} to {high}")
            }
            Self::List(_) | Self::Filled(_) => "a list".to_owned(),
            Self::Table(_) => "a table".to_owned(),
            Self::Texts => "a table of strings".to_owned(),
            Self::Tables(_) => "tables written with double brackets, as in `[[rules]]`".to_owned(),
        }
    }
}

fn quoted(words: &[&str]) -> String {
    let words: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
    if words.len() > 2 { format!("one of {}", words.join(", ")) } else { words.join(" or ") }
}

/// Presence of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The key may be absent.
    Optional,
    /// The key must be present.
    Required,
}

/// One key.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its name.
    pub key: &'static str,
    /// Its value.
    pub shape: Shape,
    /// Its presence: optional or required.
    pub status: Status,
}

/// Makes a key that may be absent.
#[must_use]
pub const fn optional(key: &'static str, shape: Shape) -> Field {
    Field { key, shape, status: Status::Optional }
}

/// Makes a key that must be present.
#[must_use]
pub const fn required(key: &'static str, shape: Shape) -> Field {
    Field { key, shape, status: Status::Required }
}

const PATTERNS: Shape = Shape::List(&Shape::Formed(string_format::PATTERN));
const EXTENSIONS: Shape = Shape::List(&Shape::Formed(string_format::EXTENSION));
const HOST_PATHS: Shape = Shape::List(&Shape::Formed(string_format::HOST_PATH));
const ALLOW_DENY: Shape = Shape::Word(&["allow", "deny"]);
const EFFECT: Shape = Shape::Word(&["allow", "ask", "deny"]);
const OPERATIONS: &[&str] = &[
    "read", "list", "write", "remove", "rename", "append", "edit", "stat", "glob", "grep", "watch",
    "mkdir", "setattr", "symlink", "restore",
];

/// The operations of tests.
const TESTED: &[&str] = &[
    "read", "list", "write", "remove", "rename", "append", "edit", "stat", "glob", "grep", "watch",
    "mkdir", "setattr", "symlink", "restore", "connect",
];

/// The keys of a policy file.
pub const POLICY: &[Field] = &[
    required("schema", Shape::Integer(1, 1)),
    optional("name", Shape::Formed(string_format::TITLE)),
    optional("version", Shape::Integer(0, i64::MAX.cast_unsigned())),
    optional("mode", Shape::Word(&["enforce", "observe"])),
    optional("extends", Shape::List(&Shape::Text)),
    optional("allowedPaths", Shape::Table(ACCESSES)),
    optional(
        "extensions",
        Shape::Table(&[
            optional("allow", Shape::Table(EXTENSION_ACCESSES)),
            optional("deny", EXTENSIONS),
        ]),
    ),
    optional("secrets", Shape::Table(SECRETS)),
    optional("files", Shape::Table(FILES)),
    optional(
        "backups",
        Shape::Table(&[optional(
            "keep",
            Shape::Table(&[
                optional("versions", Shape::Integer(1, 1_000_000)),
                optional("days", Shape::Integer(1, 36_500)),
                optional("size", Shape::Size),
            ]),
        )]),
    ),
    optional("limits", Shape::Table(LIMITS)),
    optional("mount", Shape::Table(MOUNT)),
    optional("scratch", Shape::Table(SCRATCH)),
    optional(
        "git",
        Shape::Table(&[
            optional("repository", Shape::Word(&["private", "workspace"])),
            optional("history", ALLOW_DENY),
        ]),
    ),
    optional("agent", Shape::Table(AGENT)),
    optional("network", Shape::Table(NETWORK)),
    optional("labels", Shape::Tables(LABEL)),
    optional("rules", Shape::Tables(RULE)),
    optional("tests", Shape::Tables(TEST)),
];

/// Keys of earlier versions, with their replacements.
pub(super) const RETIRED: &[(&str, &str)] = &[(
    "agent.network",
    "name hosts and ports in `[[network.rules]]`; `--agent-network PORT` still opens a port of any host",
)];

const ACCESSES: &[Field] = &accesses(PATTERNS);
const EXTENSION_ACCESSES: &[Field] = &accesses(EXTENSIONS);

const fn accesses(shape: Shape) -> [Field; 4] {
    [
        optional("read", shape),
        optional("list", shape),
        optional("write", shape),
        optional("remove", shape),
    ]
}

const SECRETS: &[Field] = &[
    optional("names", PATTERNS),
    optional("except", PATTERNS),
    optional("onRead", Shape::Word(&["deny", "redact", "warn"])),
    optional("onWrite", Shape::Word(&["deny", "warn"])),
    optional("maxScanTime", Shape::Duration),
    optional("honorAllowlists", Shape::Boolean),
    optional("rulesets", Shape::List(&Shape::Table(RULESET))),
    optional("rules", Shape::Tables(SECRET_RULE)),
];

const RULESET: &[Field] = &[
    required("file", Shape::Text),
    required("format", Shape::Word(&["gitleaks"])),
    optional("sha256", Shape::Formed(string_format::DIGEST)),
];

const SECRET_RULE: &[Field] = &[
    required("id", Shape::Formed(string_format::ID)),
    required("regex", Shape::Text),
    optional("keywords", Shape::List(&Shape::Formed(string_format::KEYWORD))),
    optional("entropy", Shape::Number),
    optional("group", Shape::Integer(0, 100)),
    optional("warnOnly", Shape::Boolean),
    optional("description", Shape::Formed(string_format::DESCRIPTION)),
    optional("match", Shape::List(&Shape::Text)),
    optional("notMatch", Shape::List(&Shape::Text)),
];

const FILES: &[Field] = &[
    optional("maxReadSize", Shape::Size),
    optional("maxWriteSize", Shape::Size),
    optional(
        "binary",
        Shape::Table(&[
            optional("read", Shape::Word(&["deny", "base64"])),
            optional("write", Shape::Word(&["deny", "base64"])),
        ]),
    ),
    optional("symlinks", Shape::Word(&["beneath", "deny"])),
    optional(
        "hardlinks",
        Shape::Table(&[optional("read", ALLOW_DENY), optional("write", ALLOW_DENY)]),
    ),
    optional("invisible", Shape::Table(INVISIBLE)),
];

const INVISIBLE: &[Field] =
    &[required("paths", PATTERNS), optional("onRead", Shape::Word(&["deny", "redact", "warn"]))];

const LIMITS: &[Field] = &[
    optional("operationsPerSecond", Shape::Integer(1, 1_000_000)),
    optional("bytesWritten", Shape::Size),
    optional("filesRemoved", Shape::Integer(0, 1_000_000_000)),
    optional("denials", Shape::Integer(1, 1_000_000_000)),
    optional("approvalTimeout", Shape::Duration),
];

const MOUNT: &[Field] = &[
    optional("maxReadSize", Shape::Size),
    optional("maxWriteSize", Shape::Size),
    optional(
        "binary",
        Shape::Table(&[optional("read", ALLOW_DENY), optional("write", ALLOW_DENY)]),
    ),
    optional("operationsPerSecond", Shape::Integer(1, 1_000_000)),
    optional("bytesWritten", Shape::Size),
    optional("filesRemoved", Shape::Integer(0, 1_000_000_000)),
    optional("denials", Shape::Integer(1, 1_000_000_000)),
];

const SCRATCH: &[Field] = &[
    optional("paths", PATTERNS),
    optional("maxSize", Shape::Size),
    optional("keep", Shape::Boolean),
];

const AGENT: &[Field] = &[
    optional("env", Shape::List(&Shape::Formed(string_format::VARIABLE))),
    optional("read", HOST_PATHS),
    optional("write", HOST_PATHS),
    optional("terminal", EFFECT),
    optional(
        "limits",
        Shape::Table(&[
            optional("memory", Shape::Size),
            optional("processes", Shape::Integer(PROCESSES.0, PROCESSES.1)),
            optional("cpu", Shape::Integer(PROCESSORS.0, PROCESSORS.1)),
        ]),
    ),
];

const NETWORK: &[Field] = &[
    optional("mode", Shape::Word(&["enforce", "observe"])),
    optional("rules", Shape::Tables(NETWORK_RULE)),
    optional(
        "limits",
        Shape::Table(&[
            optional("bytesOut", Shape::Size),
            optional("connections", Shape::Integer(1, 100_000)),
        ]),
    ),
    optional("credentials", Shape::List(&Shape::Formed(string_format::ID))),
];

const LABEL: &[Field] = &[
    required("id", Shape::Formed(string_format::ID)),
    required("paths", Shape::Filled(&Shape::Formed(string_format::PATTERN))),
];

/// Labels that were read.
const LABEL_IDS: Shape = Shape::Filled(&Shape::Formed(string_format::ID));

const NETWORK_RULE: &[Field] = &[
    required("id", Shape::Formed(string_format::RULE_ID)),
    required("effect", EFFECT),
    required("hosts", Shape::Filled(&Shape::Formed(string_format::HOSTS))),
    optional("except", Shape::Filled(&Shape::Formed(string_format::HOSTS))),
    optional("whenRead", LABEL_IDS),
    optional("ports", Shape::Filled(&Shape::Integer(1, 65_535))),
    optional("agents", Shape::Filled(&Shape::Formed(string_format::NAME_PATTERN))),
    optional("reason", Shape::Formed(string_format::REASON)),
];

const RULE: &[Field] = &[
    required("id", Shape::Formed(string_format::RULE_ID)),
    required("effect", EFFECT),
    optional("operations", Shape::Filled(&Shape::Word(OPERATIONS))),
    required("paths", Shape::Filled(&Shape::Formed(string_format::PATTERN))),
    optional("scope", Shape::Word(&["tree", "entry"])),
    optional("agents", Shape::Filled(&Shape::Formed(string_format::NAME_PATTERN))),
    optional("reason", Shape::Formed(string_format::REASON)),
];

const TEST: &[Field] = &[
    required("operation", Shape::Word(TESTED)),
    optional("path", Shape::Formed(string_format::PATH)),
    optional("to", Shape::Formed(string_format::PATH)),
    optional("host", Shape::Formed(string_format::HOST)),
    optional("port", Shape::Integer(1, 65_535)),
    optional("address", Shape::Formed(string_format::HOST)),
    optional("whenRead", LABEL_IDS),
    optional("agent", Shape::Formed(string_format::AGENT)),
    required("expect", Shape::Table(&[required("effect", EFFECT), optional("rule", Shape::Text)])),
];
