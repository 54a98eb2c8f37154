//! A part of a file, read without its position.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt as _,
};

/// A range of bytes of a file, read without its position.
pub(super) struct Range<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl<'a> Range<'a> {
    pub(super) fn new(file: &'a File, end: u64) -> Self {
        Self { file, at: 0, end }
    }

    pub(super) fn between(file: &'a File, at: u64, end: u64) -> Self {
        Self { file, at, end }
    }
}

impl Read for Range<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let length = left.min(buffer.len());
        let count = self.file.read_at(buffer.get_mut(..length).unwrap_or_default(), self.at)?;
        self.at = self.at.saturating_add(count as u64);
        Ok(count)
    }
}
