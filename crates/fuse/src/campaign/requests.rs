//! Random requests.

use std::{ffi::OsString, os::unix::ffi::OsStringExt as _};

use zerocopy::IntoBytes as _;

use super::seeded_random::Random;
use crate::{
    abi::{InHeader, opcode},
    session::BUFFER,
};

/// The number of each request.
pub(super) const UNIQUE: u64 = 7;

/// The operations, with the size of their structure and the number of their names.
pub(super) const OPERATIONS: &[(u32, usize, usize)] = &[
    (opcode::LOOKUP, 0, 1),
    (opcode::FORGET, 8, 0),
    (opcode::GETATTR, 16, 0),
    (opcode::SETATTR, 88, 0),
    (opcode::READLINK, 0, 0),
    (opcode::SYMLINK, 0, 2),
    (opcode::MKNOD, 16, 1),
    (opcode::MKDIR, 8, 1),
    (opcode::UNLINK, 0, 1),
    (opcode::RMDIR, 0, 1),
    (opcode::RENAME, 8, 2),
    (opcode::LINK, 8, 1),
    (opcode::OPEN, 8, 0),
    (opcode::READ, 40, 0),
    (opcode::WRITE, 40, 0),
    (opcode::STATFS, 0, 0),
    (opcode::RELEASE, 24, 0),
    (opcode::FSYNC, 16, 0),
    (opcode::SETXATTR, 8, 1),
    (opcode::GETXATTR, 8, 1),
    (opcode::LISTXATTR, 8, 0),
    (opcode::REMOVEXATTR, 0, 1),
    (opcode::FLUSH, 24, 0),
    (opcode::INIT, 64, 0),
    (opcode::OPENDIR, 8, 0),
    (opcode::READDIR, 40, 0),
    (opcode::RELEASEDIR, 24, 0),
    (opcode::FSYNCDIR, 16, 0),
    (opcode::CREATE, 16, 1),
    (opcode::INTERRUPT, 8, 0),
    (opcode::DESTROY, 0, 0),
    (opcode::BATCH_FORGET, 8, 0),
    (opcode::FALLOCATE, 32, 0),
    (opcode::READDIRPLUS, 40, 0),
    (opcode::RENAME2, 16, 2),
    (opcode::LSEEK, 24, 0),
    (opcode::TMPFILE, 16, 1),
];

impl Random {
    /// Returns a request: mostly one that the kernel could send, else random bytes, one with an
    /// unknown opcode, or a wrong length.
    pub(super) fn request(&mut self) -> Vec<u8> {
        let (opcode, arguments) = match self.below(8) {
            0 => {
                let most = self.most();
                (u32::try_from(self.below(64)).unwrap(), self.bytes(most))
            }
            1 => {
                let most = self.most();
                (u32::try_from(self.below(1 << 32)).unwrap(), self.bytes(most))
            }
            _ => self.arguments(),
        };
        let length = size_of::<InHeader>() + arguments.len();
        let len = match self.below(32) {
            0 => self.below(1 << 32),
            _ => length as u64,
        };
        let len = u32::try_from(len).unwrap();
        let nodeid = self.below(9);
        let header = InHeader { len, opcode, unique: UNIQUE, nodeid, ..InHeader::default() };
        [header.as_bytes(), &arguments].concat()
    }

    /// Returns the arguments of an operation that the kernel knows.
    fn arguments(&mut self) -> (u32, Vec<u8>) {
        let at = usize::try_from(self.below(OPERATIONS.len() as u64)).unwrap();
        let (code, fixed, names) = OPERATIONS[at];
        // Small numbers, known flags, and the type of a regular file.
        let byte = |random: &mut Self| {
            [0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 16, 0x81, 255][random.below(14) as usize]
        };
        let mut arguments: Vec<u8> = (0..fixed).map(|_| byte(self)).collect();
        for _ in 0..names {
            arguments.extend(self.text(40).into_vec());
            arguments.push(0);
        }
        let most = self.most();
        let mut size_of_rest = |at: usize, unit: usize, random: &mut Self| {
            let mut rest = random.bytes(most);
            rest.truncate(rest.len() / unit * unit);
            let size = u32::try_from(rest.len() / unit).unwrap();
            arguments[at..at + 4].copy_from_slice(&size.to_ne_bytes());
            arguments.extend(rest);
        };
        match code {
            opcode::WRITE => size_of_rest(16, 1, self),
            opcode::SETXATTR => size_of_rest(0, 1, self),
            opcode::BATCH_FORGET => size_of_rest(0, 16, self),
            _ => {}
        }
        (code, arguments)
    }

    /// Returns a maximum of bytes: sometimes that of the largest request.
    fn most(&mut self) -> usize {
        if self.below(256) == 0 { BUFFER - 256 } else { 120 }
    }

    /// Returns at most `most` bytes. Half of them consist mostly of NULs and letters, so that names
    /// and small numbers occur.
    pub(super) fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = usize::try_from(self.below(most as u64 + 1)).unwrap();
        let is_text = self.below(2) == 0;
        let block = (0..length.min(120)).map(|_| match is_text {
            true => b"\0\0\0\0ab/."[self.below(8) as usize],
            false => self.below(256) as u8,
        });
        let block: Vec<u8> = block.collect();
        block.iter().copied().cycle().take(length).collect()
    }

    /// Returns a text without NULs of at most `most` bytes, mostly a name.
    pub(super) fn text(&mut self, most: usize) -> OsString {
        let mut bytes = self.bytes(most);
        bytes.retain(|byte| *byte != 0 && *byte != b'/');
        match self.below(16) {
            0 => OsString::from("a/b"),
            1 => OsString::from(".."),
            2 => OsString::new(),
            _ if bytes.is_empty() => OsString::from("a"),
            _ => OsString::from_vec(bytes),
        }
    }
}
