//! A resolved path of the comparison.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{self, FileType, access, stat},
    io::Errno,
    process::geteuid,
};

use super::TrustError;
use crate::{
    file_locations::{FileLocation, FileLocator},
    resolve::{Resolved, resolve_missing},
};

/// A path with its role, resolved.
pub(super) struct Entry<'a> {
    pub(super) role: &'a dyn fmt::Display,
    pub(super) path: &'a Path,
    pub(super) target: PathBuf,
    pub(super) location: FileLocation,
    pub(super) names: Vec<PathBuf>,
}

impl<'a> Entry<'a> {
    pub(super) fn new(
        around: &FileLocator,
        role: &'a dyn fmt::Display,
        path: &'a Path,
        target: Option<&Path>,
    ) -> Result<Self, TrustError> {
        let found = resolve_missing(path).and_then(|found| {
            let targets = [Some(found.target.as_path()), target];
            let location = around.location(targets.into_iter().flatten())?;
            Ok((location, found))
        });
        match found {
            Ok((location, Resolved { target, names, .. })) => {
                Ok(Self { role, path, target, location, names })
            }
            Err(error) => {
                let (role, path) = (role.to_string(), path.to_owned());
                Err(TrustError::Lookup { role, path, error })
            }
        }
    }

    pub(super) fn exists(&self) -> bool {
        stat(&self.target).is_ok()
    }

    /// True if the file has several names, and this user may write it. A file
    /// of a package belongs to another user.
    pub(super) fn has_other_names(&self) -> Result<bool, TrustError> {
        match stat(&self.target) {
            Ok(facts) => Ok(FileType::from_raw_mode(facts.st_mode).is_file()
                && facts.st_nlink > 1
                && (facts.st_uid == geteuid().as_raw()
                    || access(&self.target, fs::Access::WRITE_OK).is_ok())),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => Ok(false),
            Err(error) => Err(self.lookup(error.into())),
        }
    }

    pub(super) fn lookup(&self, error: io::Error) -> TrustError {
        TrustError::Lookup { role: self.role.to_string(), path: self.path.to_owned(), error }
    }

    pub(super) fn overlap(&self, other: &Self, advice: &'static str) -> TrustError {
        TrustError::Overlap {
            one: self.role.to_string(),
            one_path: self.path.to_owned(),
            other: other.role.to_string(),
            other_path: other.path.to_owned(),
            advice,
        }
    }
}
