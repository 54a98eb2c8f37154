//! Private stand-in, dropped when the real module lands.
#![expect(missing_docs, reason = "stand-in")]
use std::{
    collections::BTreeMap,
    io::ErrorKind as Io,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use cap_std::{ambient_authority, fs::Dir};
use portcullis_audit::{Hash, Receipt};

use crate::{
    model::{Operation, PathError, Session, WorkspacePath},
    ops::Buffers,
};

pub struct Gateway {
    dir: Dir,
    seq: AtomicU64,
    pub log: Mutex<Vec<String>>,
}
#[derive(Clone, Copy)]
pub enum Source<'a> {
    Disk,
    Auto(&'a dyn Buffers),
    Editor(&'a dyn Buffers),
}
#[derive(Debug)]
pub struct Attempt<'a> {
    pub kind: &'a str,
    pub path: Option<&'a str>,
    pub refusal: Refusal,
}
#[derive(Debug)]
pub enum Refusal {
    Outside,
    Path(PathError),
    Parameters(String),
    Method,
    Unavailable(String),
    Cancelled,
}
pub struct Reply {
    pub receipt: Receipt,
    pub output: Output,
}
pub enum Output {
    Content { bytes: Vec<u8>, text: bool },
    Changed,
}
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    Denied,
    NotFound,
    InvalidInput,
    Unavailable,
    Cancelled,
    Io,
}
impl ErrorKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::NotFound => "notFound",
            Self::InvalidInput => "invalidInput",
            Self::Unavailable => "unavailable",
            Self::Cancelled => "cancelled",
            Self::Io => "io",
        }
    }
}
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    receipt: Receipt,
}
impl Error {
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
    pub fn rule(&self) -> Option<&str> {
        (self.kind == ErrorKind::Denied).then_some("stand-in")
    }
    pub fn reason(&self) -> Option<&str> {
        None
    }
    pub fn receipt(&self) -> Option<&Receipt> {
        Some(&self.receipt)
    }
}
impl Gateway {
    #[expect(clippy::disallowed_methods, reason = "stand-in")]
    pub fn new(root: &Path) -> std::io::Result<Self> {
        let dir = Dir::open_ambient_dir(root, ambient_authority())?;
        Ok(Self { dir, seq: AtomicU64::new(0), log: Mutex::default() })
    }
    fn receipt(&self, text: String) -> Receipt {
        let leaf = Hash::of(text.as_bytes());
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        Receipt { seq: self.seq.fetch_add(1, Ordering::Relaxed), leaf, durable: true }
    }
    fn error(&self, kind: ErrorKind, message: &str, text: String) -> Error {
        Error { kind, message: message.into(), receipt: self.receipt(text) }
    }
    fn load(&self, path: &WorkspacePath, source: Source<'_>) -> Result<Vec<u8>, Error> {
        if let Source::Auto(buffers) | Source::Editor(buffers) = source {
            match buffers.read(path) {
                Ok(Some(bytes)) => return Ok(bytes),
                Ok(None) if matches!(source, Source::Auto(_)) => {}
                Ok(None) => return Err(self.error(ErrorKind::NotFound, "not found", "e".into())),
                Err(e) => {
                    return Err(self.error(ErrorKind::Unavailable, &e.to_string(), "e".into()));
                }
            }
        }
        self.dir.read(path.as_str()).map_err(|e| match e.kind() {
            Io::NotFound => self.error(ErrorKind::NotFound, "no such file", format!("nf {path}")),
            _ => self.error(ErrorKind::Io, "failed", format!("io {path}")),
        })
    }
    pub fn handle(
        &self,
        session: &Session,
        operation: Operation,
        source: Source<'_>,
    ) -> Result<Reply, Error> {
        let path = operation.path().clone();
        let record = format!("{} {} {path}", session.id, operation.kind());
        if path.as_str().starts_with("secret") {
            return Err(self.error(ErrorKind::Denied, "denied by policy", record));
        }
        let output = match operation {
            Operation::Read { range, .. } => {
                let bytes = range.slice(&self.load(&path, source)?).to_vec();
                Output::Content { text: std::str::from_utf8(&bytes).is_ok(), bytes }
            }
            Operation::Write { content, .. } => {
                if let Source::Editor(buffers) = source {
                    buffers.write(&path, &content).map_err(|e| {
                        self.error(ErrorKind::Unavailable, &e.to_string(), "e".into())
                    })?;
                } else if let Err(e) = self.dir.write(path.as_str(), content) {
                    return Err(self.error(ErrorKind::Io, &e.kind().to_string(), record));
                }
                Output::Changed
            }
            _ => return Err(self.error(ErrorKind::Io, "stand-in", record)),
        };
        Ok(Reply { receipt: self.receipt(record), output })
    }
    pub fn refuse(&self, session: &Session, attempt: Attempt<'_>) -> Error {
        let text = format!("{} refused {attempt:?}", session.id);
        let (kind, message) = match attempt.refusal {
            Refusal::Outside => (ErrorKind::Denied, "outside the workspace".to_owned()),
            Refusal::Path(e) => (ErrorKind::InvalidInput, e.to_string()),
            Refusal::Parameters(text) => (ErrorKind::InvalidInput, text),
            Refusal::Method => (ErrorKind::InvalidInput, "method not found".into()),
            Refusal::Unavailable(text) => (ErrorKind::Unavailable, text),
            Refusal::Cancelled => (ErrorKind::Cancelled, "cancelled".into()),
        };
        self.error(kind, &message, text)
    }
    pub fn report(&self, _: &Session, event: &str, facts: BTreeMap<String, serde_json::Value>) {
        self.receipt(format!("{event} {facts:?}"));
    }
}
