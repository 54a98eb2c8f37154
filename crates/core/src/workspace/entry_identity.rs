//! The identity of an entry, as records have it.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, StatxFlags, statx};
use serde_json::{Value, json};

use super::{Error, Stat};
use crate::policy::ObjectKind;

/// The identity of an entry at some moment, by which another entry that gets its name later is
/// distinguished from it. A name, owner or mode changes nothing in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryIdentity {
    /// The inode number.
    pub inode: String,
    /// The time at which the inode was made; inode numbers are used again. `None` on a file system
    /// without such times.
    pub born: Option<String>,
    /// The modification time.
    pub modified: String,
    /// The size; `None` for a directory.
    pub bytes: Option<u64>,
}

impl EntryIdentity {
    /// Returns the identity of the object behind `fd`.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn of(fd: impl AsFd) -> Result<Self, Error> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let raw = statx(&fd, "", AtFlags::EMPTY_PATH, wanted).ok();
        // A filter may forbid that call.
        let stat = match raw.as_ref().and_then(Stat::from_statx) {
            Some(stat) => stat,
            None => Stat::of(&fd)?,
        };
        let born = raw
            .filter(|raw| StatxFlags::from_bits_retain(raw.stx_mask).contains(StatxFlags::BTIME));
        Ok(Self {
            inode: stat.inode().to_string(),
            born: born.map(|raw| time((raw.stx_btime.tv_sec, raw.stx_btime.tv_nsec))),
            modified: time(stat.modified),
            bytes: (stat.kind != ObjectKind::Directory).then_some(stat.size),
        })
    }

    /// Returns the identity once the modification time is set to `modified`.
    #[must_use]
    pub fn with_modified(self, modified: Option<(i64, u32)>) -> Self {
        match modified {
            Some(modified) => Self { modified: time(modified), ..self },
            None => self,
        }
    }

    /// True if both are of one object. An overlay file system gives an object another birth time
    /// when it copies it, and keeps the modification time; so that decides where birth times differ,
    /// and where there are none.
    pub fn is_same_object(&self, other: &Self) -> bool {
        let is_born_with = match (&self.born, &other.born) {
            (Some(one), Some(other)) => one == other,
            // An inode number is used again.
            _ => false,
        };
        self.inode == other.inode && (is_born_with || self.modified == other.modified)
    }

    /// True if both are of one object, and of the same state of its content. The content of a
    /// directory is not compared.
    pub fn is_unchanged(&self, other: &Self) -> bool {
        let is_directory = self.bytes.is_none() && other.bytes.is_none();
        let has_content = self.bytes == other.bytes && self.modified == other.modified;
        self.is_same_object(other) && (is_directory || has_content)
    }

    /// Returns the form in records.
    pub(crate) fn to_value(&self) -> Value {
        let parts = [
            Some(("inode", json!(self.inode))),
            self.born.as_ref().map(|born| ("born", json!(born))),
            Some(("modified", json!(self.modified))),
            self.bytes.map(|bytes| ("bytes", json!(bytes))),
        ];
        parts.into_iter().flatten().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Parses the form in records; `None` if it is malformed.
    pub fn parse(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
        Some(Self {
            inode: text("inode")?,
            born: text("born"),
            modified: text("modified")?,
            bytes: value.get("bytes").and_then(Value::as_u64),
        })
    }
}

fn time((seconds, nanoseconds): (i64, u32)) -> String {
    format!("{seconds}.{nanoseconds:09}")
}
