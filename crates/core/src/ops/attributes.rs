//! The operation `setattr`: permission bits and times are set. No content is replaced, so there is
//! no backup; the record has the values before.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, fchmod, fstat, fsync, utimensat,
};
use serde_json::{Value, json};

use super::{Change, Committed, Context, Error, Facts, SealedChange};
use crate::{
    backup::{DIRECTORY_BITS, Origin, Saved},
    policy::ObjectKind,
    workspace::{self, EntryIdentity, Permit, Stat, TempName},
};

/// The bits that a mode may have: no set-id and no sticky bits. A directory keeps its own.
const MODE_BITS: u32 = 0o777;

/// Attributes that a request sets, or their values before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SomeAttributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub modified: Option<(i64, u32)>,
}

struct PreparedAttributes<'a> {
    context: Context<'a>,
    permit: Permit,
    before: SomeAttributes,
    after: SomeAttributes,
}

/// Checks that the object can have these attributes.
///
/// # Errors
/// When the object is missing or cannot have them.
pub(crate) fn prepare<'a>(
    context: &Context<'a>,
    permit: Permit,
    after: SomeAttributes,
) -> Result<SealedChange<'a>, Error> {
    let stat = permit.stat().ok_or(Error::Workspace(workspace::Error::NotFound))?;
    if permit.path().is_root() {
        return Err(Error::Invalid("the attributes of the workspace itself are never changed"));
    }
    after.check(stat.kind)?;
    if stat.kind == ObjectKind::Symlink && after.mode.is_some() {
        return Err(Error::Invalid("a symbolic link has no permission bits"));
    }
    let before = after.of(stat);
    let entry = EntryIdentity::of(permit.handle()?)?.with_modified(after.modified);
    let facts = Facts {
        attributes: Some(after),
        attributes_before: Some(before),
        entry: Some(entry),
        ..Facts::default()
    };
    let change: Box<dyn Change + 'a> =
        Box::new(PreparedAttributes { context: *context, permit, before, after });
    Ok(SealedChange::new(change, facts))
}

impl Change for PreparedAttributes<'_> {
    fn permit(&self) -> &Permit {
        &self.permit
    }

    fn origins(&self) -> Vec<Origin<'_>> {
        Vec::new()
    }

    fn commit(self: Box<Self>, _: Option<&TempName>, _: &[Saved]) -> Result<Committed, Error> {
        let workspace = self.context.workspace;
        self.permit.confirm(workspace).map_err(Error::unbegun)?;
        if self.after.of(&Stat::of(self.permit.handle()?)?) != self.before {
            return Err(Error::Conflict);
        }
        if self.after == self.before {
            return Ok(Committed::Unchanged);
        }
        let open = |_| self.permit.open(workspace, OFlags::RDONLY).map_err(Error::unbegun);
        let opened = self.after.mode.map(open).transpose()?;
        self.set(opened.as_ref(), &self.after).inspect_err(|_| {
            // The outcome is recorded only after a check of the attributes.
            let _is_back = self.set(opened.as_ref(), &self.before);
        })?;
        Ok(Committed::Stored(None))
    }
}

impl PreparedAttributes<'_> {
    /// Sets attributes of the object, which is `opened` if its mode is among them.
    fn set(&self, opened: Option<&OwnedFd>, attributes: &SomeAttributes) -> Result<(), Error> {
        if let (Some(object), Some(mode)) = (opened, attributes.mode) {
            let kept = match self.permit.object().kind {
                ObjectKind::Directory => {
                    let now = fstat(object).map_err(workspace::Error::os("look at the mode"))?;
                    now.st_mode & DIRECTORY_BITS
                }
                _ => 0,
            };
            fchmod(object, Mode::from_raw_mode(mode | kept))
                .map_err(workspace::Error::os("set the mode"))?;
            fsync(object).map_err(workspace::Error::os("sync the file"))?;
        }
        attributes.modified.map_or(Ok(()), |time| set_modified(self.permit.handle()?, time))
    }
}

/// Sets the modification time of an open object.
pub(super) fn set_modified(object: impl AsFd, time: (i64, u32)) -> Result<(), Error> {
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: time.0, tv_nsec: time.1.into() },
    };
    utimensat(object, "", &times, AtFlags::EMPTY_PATH)
        .map_err(|errno| workspace::Error::os("set the time")(errno).into())
}

impl SomeAttributes {
    /// Refuses attributes that no object may get.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the reason.
    pub(super) fn check(&self, kind: ObjectKind) -> Result<(), Error> {
        // The gateway need not be root, and must be able to back the object up and to restore it.
        let needed = if kind == ObjectKind::Directory { 0o500 } else { 0o400 };
        if self.mode.is_some_and(|mode| mode & needed != needed) {
            return Err(Error::Invalid(
                "a mode must let the owner read a file, and read and search a directory",
            ));
        }
        if self.mode.is_some_and(|mode| mode & !MODE_BITS != 0) {
            return Err(Error::Invalid("set-id and sticky bits are never set"));
        }
        if self.modified.is_some_and(|(_, nanoseconds)| nanoseconds > 999_999_999) {
            return Err(Error::Invalid("a second has no more than 999,999,999 nanoseconds"));
        }
        Ok(())
    }

    /// Returns the object's values of the attributes that are set here.
    pub fn of(&self, stat: &Stat) -> Self {
        Self { mode: self.mode.map(|_| stat.mode), modified: self.modified.map(|_| stat.modified) }
    }

    /// Returns these attributes, and those of `other` that are not set here.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { mode: self.mode.or(other.mode), modified: self.modified.or(other.modified) }
    }

    /// Returns the form in records.
    pub(crate) fn to_value(self) -> Value {
        let mode = self.mode.map(|mode| ("mode", json!(format!("{mode:04o}"))));
        let time = self.modified.map(|(seconds, nanoseconds)| {
            [("modified", json!(seconds)), ("modifiedNanoseconds", json!(nanoseconds))]
        });
        let pairs = mode.into_iter().chain(time.into_iter().flatten());
        pairs.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Parses the form in records; `None` if it is malformed.
    pub fn parse(value: &Value) -> Option<Self> {
        let mode = match value.get("mode") {
            Some(mode) => Some(u32::from_str_radix(mode.as_str()?, 8).ok()?),
            None => None,
        };
        let modified = match value.get("modified") {
            Some(seconds) => {
                let nanoseconds = value.get("modifiedNanoseconds")?.as_u64()?;
                Some((seconds.as_i64()?, u32::try_from(nanoseconds).ok()?))
            }
            None => None,
        };
        Some(Self { mode, modified })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_what_was_set() {
        for one in [
            SomeAttributes::default(),
            SomeAttributes { mode: Some(0o755), modified: Some((-1, 999_999_999)) },
            SomeAttributes { mode: Some(0o400), modified: None },
        ] {
            assert_eq!(SomeAttributes::parse(&one.to_value()), Some(one));
            assert!(one.check(ObjectKind::File).is_ok());
        }
        let refused =
            |mode, modified| SomeAttributes { mode, modified }.check(ObjectKind::File).is_err();
        assert!(refused(Some(0o200), None));
        let directory = |mode| SomeAttributes { mode: Some(mode), modified: None };
        assert!(directory(0o600).check(ObjectKind::Directory).is_err());
        assert!(directory(0o511).check(ObjectKind::Directory).is_ok());
        assert!(refused(Some(0o4755), None) && refused(Some(0o1777), None));
        assert!(refused(None, Some((0, 1_000_000_000))));
    }
}
