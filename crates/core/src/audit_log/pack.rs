//! Compression of old segments. The bytes of their lines stay the same: the unpacked segment must
//! have the stored root.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    time::{Duration, SystemTime},
};

use cap_std::fs::Dir;
use portcullis_audit::{Hash, LogFile, MAX_LINE, MAX_SEGMENT, PACKED, Segment, tree::Frontier};
use rustix::fs::{Mode, OFlags, RenameFlags};

use super::{AuditLog, Error, checkpoints, disk, disk::Folder, roots};

/// The zstd level: higher ones cost much and save little on such lines.
const LEVEL: i32 = 6;

impl AuditLog {
    /// Compresses the full segments that were last written `age` ago, except the newest one;
    /// returns their number, and the bytes that this saved. Does nothing while another process does
    /// it. May be killed at any moment: the plain segment is removed once the compressed one is
    /// durable, and takes precedence while both exist.
    ///
    /// # Errors
    ///
    /// When a segment cannot be read or written, or does not unpack to the same lines. It stays
    /// plain then.
    pub fn compress_segments(state: &Dir, age: Duration) -> Result<(u64, u64), Error> {
        let audit = Folder::open(state, "audit")?;
        let Some(alone) = Exclusive::try_begin(&audit)? else { return Ok((0, 0)) };
        alone.clear(&audit)?;
        let Some(newest) = checkpoints::newest(&audit)? else { return Ok((0, 0)) };
        let mut segments: Vec<_> = audit
            .names()
            .map_err(Error::io("read the audit log"))?
            .iter()
            .filter_map(|name| Segment::from_name(name))
            .collect();
        segments.sort();
        segments.truncate(segments.len().saturating_sub(2));
        segments.retain(|segment| segment.next().first() <= newest.size);
        if !checkpoints::roots_reach(
            &audit,
            segments.last().map_or(Segment(0), |last| last.next()),
        )? {
            return Err(Error::NoRoots);
        }
        let (mut count, mut saved) = (0, 0);
        for segment in segments {
            let plain = open(&audit, &segment.to_string())?;
            let meta = plain.metadata().map_err(Error::std("look at the audit log"))?;
            let written = meta.modified().map_err(Error::std("look at the audit log"))?;
            if meta.len() > MAX_SEGMENT {
                let reason = "it is longer than a segment can be".to_owned();
                return Err(Error::Damaged { segment, reason });
            }
            if SystemTime::now().duration_since(written).is_ok_and(|old| old >= age) {
                let packed = one(&audit, segment, plain, meta.len())?;
                count += 1;
                saved += meta.len().saturating_sub(packed);
            }
        }
        Ok((count, saved))
    }
}

/// Excludes other processes from compressing or removing segments while it exists.
pub(super) struct Exclusive(#[expect(dead_code, reason = "open for its lock")] File);

impl Exclusive {
    /// Opens a descriptor of its own, so that closing it releases the lock.
    fn file(audit: &Folder) -> Result<File, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(audit, ".", flags, Mode::empty())
            .map(File::from)
            .map_err(Error::io("open the log's directory"))
    }

    /// Waits for another process that has the lock.
    pub(super) fn begin(audit: &Folder) -> Result<Self, Error> {
        let file = Self::file(audit)?;
        disk::wait_lock(&file, "audit").map(|()| Self(file))
    }

    /// Removes the incomplete files of a process that was killed.
    pub(super) fn clear(&self, audit: &Folder) -> Result<(), Error> {
        for name in audit.names().map_err(Error::io("read the audit log"))? {
            if name.starts_with(".seg-") && name.contains(PACKED) {
                audit.remove(&name).map_err(Error::io("remove an unfinished file"))?;
            }
        }
        Ok(())
    }

    fn try_begin(audit: &Folder) -> Result<Option<Self>, Error> {
        let file = Self::file(audit)?;
        Ok(disk::try_lock(&file)?.then_some(Self(file)))
    }
}

fn open(audit: &Folder, name: &str) -> Result<File, Error> {
    audit.file(name, OFlags::RDONLY).map_err(Error::io("open a segment of the audit log"))
}

fn one(audit: &Folder, segment: Segment, plain: File, length: u64) -> Result<u64, Error> {
    let name = format!("{segment}{PACKED}");
    let temp = format!(".{name}.{}", disk::random_id()?);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let file = audit.file(&temp, flags).map_err(Error::io("make a compressed segment"))?;
    let packed = AuditLog::compress_segment(plain, &file, length)
        .and_then(|()| file.sync_all())
        .and_then(|()| Ok(file.metadata()?.len()))
        .map_err(Error::std("compress a segment"))
        .and_then(|packed| check(audit, segment, &temp).map(|()| packed))
        .and_then(|packed| {
            rustix::fs::renameat_with(audit, &temp, audit, &name, RenameFlags::empty())
                .and_then(|()| audit.sync())
                .and_then(|()| audit.remove(segment.to_string()))
                .and_then(|()| audit.sync())
                .map_err(Error::io("name a compressed segment"))?;
            Ok(packed)
        });
    if packed.is_err() {
        // An incomplete file is of no use.
        let _removed = audit.remove(&temp);
    }
    packed
}

impl AuditLog {
    /// Compresses `length` bytes; the header has that number, which readers need.
    ///
    /// # Errors
    ///
    /// Of the system.
    pub fn compress_segment(
        plain: impl io::Read,
        packed: impl io::Write,
        length: u64,
    ) -> io::Result<()> {
        let mut encoder = zstd::Encoder::new(packed, LEVEL)?;
        encoder.set_pledged_src_size(Some(length))?;
        encoder.include_contentsize(true)?;
        encoder.include_checksum(true)?;
        io::copy(&mut plain.take(length), &mut encoder)?;
        encoder.finish().map(drop)
    }
}

/// Checks that the unpacked segment has its stored root.
fn check(audit: &Folder, segment: Segment, temp: &str) -> Result<(), Error> {
    let read = || Error::std("read a compressed segment");
    // The check uses the reader that will read it later.
    let name = segment.to_string();
    let file = LogFile::open(&name, |asked| {
        if asked == name {
            Err(io::ErrorKind::NotFound.into())
        } else {
            Ok(audit.file(temp, OFlags::RDONLY)?)
        }
    })
    .map_err(read())?;
    let mut tree = Frontier::new();
    let (mut reader, mut line) = (BufReader::with_capacity(1 << 18, file), Vec::new());
    loop {
        line.clear();
        let next = (&mut reader).take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line);
        if next.map_err(read())? == 0 {
            break;
        }
        tree.push(Hash::leaf(line.strip_suffix(b"\n").unwrap_or(&line)));
    }
    let kept = roots::read(audit, segment.next().0)?;
    if kept.len() as u64 == segment.next().0 && kept.last() == Some(&tree.root()) {
        return Ok(());
    }
    let reason = "a segment does not have the stored root".to_owned();
    Err(Error::Damaged { segment, reason })
}
