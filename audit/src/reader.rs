//! A reader of records in order, also while a gateway appends more.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use crate::{AuditRecord, LineError, MAX_LINE, SEGMENT_RECORDS, Segment, Source};

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The segment that contains it.
    pub segment: Segment,
    /// Its line number there, counted from 1.
    pub line: u64,
    /// Its bytes without the newline.
    pub bytes: Vec<u8>,
}

impl Entry {
    /// Parses the record.
    ///
    /// # Errors
    ///
    /// If the line is not a record.
    pub fn record(&self) -> Result<AuditRecord, LineError> {
        AuditRecord::parse(&self.bytes)
    }

    /// Returns the sequence number of its position.
    pub fn seq(&self) -> u64 {
        self.segment.first().saturating_add(self.line - 1)
    }
}

/// A reader of lines in the order of the log. It checks no links, which [`crate::Verifier`] does.
/// At the end of the log it returns nothing, and continues when called again after more was
/// appended.
pub struct Reader<'a, S: Source> {
    source: &'a S,
    file: Option<BufReader<S::File>>,
    segment: Segment,
    /// Number of lines read of the segment.
    line: u64,
    /// Offset of the next line.
    offset: u64,
    /// Number of lines to skip before the first wanted one.
    skip: u64,
    /// True after a line was read.
    began: bool,
    /// True if the last read ended within a line.
    torn: bool,
}

impl<'a, S: Source> Reader<'a, S> {
    /// Starts at record `seq`.
    pub fn new(source: &'a S, seq: u64) -> Self {
        Self {
            source,
            file: None,
            segment: Segment::of(seq),
            line: 0,
            offset: 0,
            skip: seq % SEGMENT_RECORDS,
            began: false,
            torn: false,
        }
    }

    /// Returns the next line; `None` at the end of the log. A last line without its newline does
    /// not count yet.
    ///
    /// # Errors
    ///
    /// If reading fails, a line is too long to be a record, or a segment is missing between others.
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

    /// Moves from a segment that is missing to the first one that exists, if those before it were
    /// removed. Returns false at the end of the log.
    fn skip_removed(&mut self) -> io::Result<bool> {
        let names = self.source.list()?;
        let segments = || names.iter().filter_map(|entry| Segment::from_name(&entry.name));
        match segments().min().filter(|first| *first > self.segment && !self.began) {
            Some(first) => {
                (self.segment, self.skip) = (first, 0);
                Ok(true)
            }
            None if segments().any(|segment| segment > self.segment) => {
                let words = format!("`{}` is missing", self.segment);
                Err(io::Error::new(io::ErrorKind::InvalidData, words))
            }
            None => Ok(false),
        }
    }

    /// True if part of the bytes read from the segment no longer exists: a recovery set it aside.
    ///
    /// # Errors
    ///
    /// If the length of the segment cannot be determined.
    pub fn is_cut(&mut self) -> io::Result<bool> {
        let Some(file) = &mut self.file else { return Ok(false) };
        let length = match file.seek(SeekFrom::End(0)) {
            // A compressed segment is never written to.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(false),
            length => length?,
        };
        file.seek(SeekFrom::Start(self.offset))?;
        Ok(length < self.offset)
    }

    /// True if the log ended within a line when [`Reader::next`] returned nothing: a write was cut
    /// short, or is under way.
    pub fn is_torn(&self) -> bool {
        self.torn
    }

    fn whole_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let file = match &mut self.file {
            Some(file) => file,
            None => match self.source.open(&self.segment.to_string()) {
                Ok(file) => self.file.insert(BufReader::with_capacity(1 << 16, file)),
                Err(error) if error.kind() == io::ErrorKind::NotFound && self.skip_removed()? => {
                    return self.whole_line();
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        let mut bytes = Vec::new();
        file.take(MAX_LINE as u64 + 1).read_until(b'\n', &mut bytes)?;
        self.torn = !bytes.is_empty() && !bytes.ends_with(b"\n");
        if bytes.pop_if(|byte| *byte == b'\n').is_some() {
            self.offset += bytes.len() as u64 + 1;
            return Ok(Some(bytes));
        }
        if bytes.len() > MAX_LINE {
            let words = format!("line {} of `{}` is too long", self.line + 1, self.segment);
            return Err(io::Error::new(io::ErrorKind::InvalidData, words));
        }
        // The rest of the line may follow later, or a recovery may set it aside.
        file.seek(SeekFrom::Start(self.offset))?;
        Ok(None)
    }
}
