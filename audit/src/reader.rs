//! Reading records one after another, also while a gate appends more.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use crate::{AuditRecord, LineError, MAX_LINE, SEGMENT_RECORDS, Segment, Source};

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The segment that it is in.
    pub segment: Segment,
    /// Its line there, counted from 1.
    pub line: u64,
    /// Its bytes without the newline.
    pub bytes: Vec<u8>,
}

impl Entry {
    /// The record that it holds.
    ///
    /// # Errors
    ///
    /// When it holds none.
    pub fn record(&self) -> Result<AuditRecord, LineError> {
        AuditRecord::parse(&self.bytes)
    }

    /// The sequence number that belongs to its place.
    pub fn seq(&self) -> u64 {
        self.segment.first().saturating_add(self.line - 1)
    }
}

/// Reads lines in the order of the log. Checks no links: [`crate::Verifier`]
/// does. At the end of the log it yields nothing, and goes on when asked again
/// after more was appended.
pub struct Reader<'a, S: Source> {
    source: &'a S,
    file: Option<BufReader<S::File>>,
    segment: Segment,
    /// Lines read of the segment.
    line: u64,
    /// Where the next line begins.
    offset: u64,
    /// Lines to leave out before the first that is wanted.
    skip: u64,
    /// Whether a line was read.
    began: bool,
}

impl<'a, S: Source> Reader<'a, S> {
    /// Reads from record `seq` on.
    pub fn new(source: &'a S, seq: u64) -> Self {
        Self {
            source,
            file: None,
            segment: Segment::of(seq),
            line: 0,
            offset: 0,
            skip: seq % SEGMENT_RECORDS,
            began: false,
        }
    }

    /// The next line; `None` at the end of the log. A last line without its
    /// newline is not there yet.
    ///
    /// # Errors
    ///
    /// When reading fails or a line is too long to be a record.
    #[expect(clippy::should_implement_trait, reason = "not an iterator: goes on after `None`")]
    pub fn next(&mut self) -> io::Result<Option<Entry>> {
        loop {
            if self.line == SEGMENT_RECORDS {
                *self =
                    Self { segment: self.segment.next(), file: None, line: 0, offset: 0, ..*self };
            }
            let Some(bytes) = self.whole_line()? else { return Ok(None) };
            self.line += 1;
            self.began = true;
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            return Ok(Some(Entry { segment: self.segment, line: self.line, bytes }));
        }
    }

    /// Goes to the first segment that is there, when those before it were
    /// removed.
    fn pruned(&mut self) -> io::Result<bool> {
        if self.began {
            return Ok(false);
        }
        let names = self.source.list()?;
        let first = names.iter().filter_map(|entry| Segment::from_name(&entry.name)).min();
        let Some(first) = first.filter(|first| *first > self.segment) else { return Ok(false) };
        (self.segment, self.skip) = (first, 0);
        Ok(true)
    }

    /// Whether what was read of the segment is not all there any more: a recovery set a
    /// part of it aside.
    ///
    /// # Errors
    ///
    /// When its length cannot be found out.
    pub fn is_cut(&mut self) -> io::Result<bool> {
        let Some(file) = &mut self.file else { return Ok(false) };
        let length = match file.seek(SeekFrom::End(0)) {
            // A compressed one is never written to.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(false),
            length => length?,
        };
        file.seek(SeekFrom::Start(self.offset))?;
        Ok(length < self.offset)
    }

    fn whole_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let file = match &mut self.file {
            Some(file) => file,
            None => match self.source.open(&self.segment.to_string()) {
                Ok(file) => self.file.insert(BufReader::with_capacity(1 << 16, file)),
                Err(error) if error.kind() == io::ErrorKind::NotFound && self.pruned()? => {
                    return self.whole_line();
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        let mut bytes = Vec::new();
        file.take(MAX_LINE as u64 + 1).read_until(b'\n', &mut bytes)?;
        if bytes.pop_if(|byte| *byte == b'\n').is_some() {
            self.offset += bytes.len() as u64 + 1;
            return Ok(Some(bytes));
        }
        if bytes.len() > MAX_LINE {
            let words = format!("line {} of `{}` is too long", self.line + 1, self.segment);
            return Err(io::Error::new(io::ErrorKind::InvalidData, words));
        }
        // The rest of the line may come later, or be set aside by a recovery.
        file.seek(SeekFrom::Start(self.offset))?;
        Ok(None)
    }
}
