//! Access to the operator's own files by path: configuration, policies, keys, the
//! state directory, and files named on the command line.
//!
//! These are functions of `std::fs` under the same names. This package may call those
//! only here. A path that an agent or a client names must not be passed to them: it
//! goes through a [`Workspace`](crate::gateway::Workspace).
#![expect(clippy::disallowed_methods, reason = "the operator's files are opened by their paths")]

use std::{
    fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions, ReadDir},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use cap_std::fs::Dir;

pub(crate) fn canonicalize(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    fs::canonicalize(path)
}

pub(crate) fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    fs::copy(from, to)
}

pub(crate) fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    fs::create_dir_all(path)
}

/// Creates directories that only the operator may use.
pub(crate) fn create_private_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

pub(crate) fn exists(path: impl AsRef<Path>) -> bool {
    path.as_ref().exists()
}

pub(crate) fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    fs::metadata(path)
}

pub(crate) fn open(path: impl AsRef<Path>) -> io::Result<File> {
    File::open(path)
}

pub(crate) fn open_dir(path: impl AsRef<Path>) -> io::Result<Dir> {
    Dir::open_ambient_dir(path, cap_std::ambient_authority())
}

pub(crate) fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> io::Result<File> {
    options.open(path)
}

pub(crate) fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    fs::read_dir(path)
}

pub(crate) fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    fs::read_to_string(path)
}

pub(crate) fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
    fs::remove_dir(path)
}

pub(crate) fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    fs::remove_dir_all(path)
}

pub(crate) fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    fs::remove_file(path)
}

pub(crate) fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> io::Result<()> {
    fs::set_permissions(path, permissions)
}

pub(crate) fn symlink_metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    fs::symlink_metadata(path)
}

pub(crate) fn write(path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
    fs::write(path, content)
}
