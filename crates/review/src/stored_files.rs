//! Files of a state directory, which may be an untrusted copy: any of them may be a pipe, a link to
//! a device, or a file without end.
#![expect(clippy::disallowed_methods, reason = "reads the state that the operator names")]

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use cap_std::fs::{Dir, OpenOptionsExt as _};
use rustix::{fs::OFlags, io::Errno};

/// Maximum size in bytes of a policy's text with all files that it extends. Each file has at most 1
/// MiB, and few policies consist of ten.
pub const MAX_POLICY: u64 = 256 << 20;

/// Opens the regular file at `path` for reading, without blocking.
///
/// # Errors
/// If it cannot be opened; [`io::ErrorKind::InvalidInput`] if it is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    regular(File::options().read(true).custom_flags(FLAGS).open(path))
}

/// Opens a file like [`open_regular`], beneath an open directory.
///
/// # Errors
/// As [`open_regular`].
pub fn open_regular_in(directory: &Dir, path: &str) -> io::Result<File> {
    let mut options = cap_std::fs::OpenOptions::new();
    options.read(true).custom_flags(FLAGS);
    regular(directory.open_with(path, &options).map(cap_std::fs::File::into_std))
}

const FLAGS: i32 =
    OFlags::NONBLOCK.union(OFlags::NOFOLLOW).union(OFlags::NOCTTY).bits().cast_signed();

fn regular(opened: io::Result<File>) -> io::Result<File> {
    let irregular = || io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file");
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP | Errno::NXIO | Errno::NODEV) => irregular(),
        _ => error,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(irregular()) }
}

/// Reads such a file of at most `most` bytes.
///
/// # Errors
/// As [`open_regular`]; [`io::ErrorKind::FileTooLarge`] if it is larger.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too large"));
    }
    Ok(bytes)
}

/// True if the error means that the file is not one that a gateway wrote.
pub fn is_foreign(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_of_the_size_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("file"), "1234").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), 0o600.into()).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("zero")).unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        assert_eq!(read_regular(&at("file"), 4).unwrap(), b"1234");
        let kind = |name: &str, most| read_regular(&at(name), most).unwrap_err().kind();
        assert_eq!(kind("file", 3), io::ErrorKind::FileTooLarge);
        assert_eq!(kind("none", 4), io::ErrorKind::NotFound);
        for name in ["pipe", "socket", "zero", "link", "."] {
            assert_eq!(kind(name, 4), io::ErrorKind::InvalidInput, "{name}");
        }
        let opened = Dir::open_ambient_dir(directory.path(), cap_std::ambient_authority()).unwrap();
        assert!(open_regular_in(&opened, "file").is_ok());
        for name in ["pipe", "socket", "zero", "link", "."] {
            let kind = open_regular_in(&opened, name).unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::InvalidInput, "{name}");
        }
    }
}
