//! The only archive format that a bundle may have: its members follow one another from the
//! first byte on, then comes the central directory, then its end record. With other
//! formats two programs could unpack different members.

use std::{
    collections::BTreeSet,
    io::{self, Read, Seek, SeekFrom},
};

/// Sizes in bytes of the fixed parts: the end record, its two additions in a ZIP64
/// archive, and the header of a member.
const END: u64 = 22;
const LOCATOR: u64 = 20;
const LARGE_END: u64 = 56;
const LOCAL: u64 = 30;
/// The maximum of bytes of a member's extra field in the header: two numbers.
const MAX_EXTRA: u64 = 20;
/// The maximum of bytes of the central directory.
const MAX_LISTED: u64 = 1 << 20;
/// The value of a 32-bit field whose number is in the extra field, with 64 bits.
const LARGE: u64 = u32::MAX as u64;
/// The id of the extra field with such numbers.
const SIZES: u64 = 1;
/// The type of a regular file, in the highest four bits of a member's attributes.
const REGULAR_FILE: u64 = 0o10;
/// The flag of a name in UTF-8, the only one that is allowed.
const UTF8: u64 = 0x800;

/// Checks that an archive has the format that `audit bundle` writes.
pub(super) fn check(file: &mut (impl Read + Seek)) -> io::Result<()> {
    let length = file.seek(SeekFrom::End(0))?;
    let Some(list) = end(file, length)?.filter(|list| list.bytes <= MAX_LISTED) else {
        return Err(other("its end"));
    };
    let bytes = read(file, list.offset, list.bytes)?;
    let (mut from, mut place, mut names) = (Fields(&bytes), 0, BTreeSet::new());
    for _ in 0..list.members {
        let Listed { header, offset } = from.listed().ok_or_else(|| other("its list"))?;
        let wrong = || other(&format!("the member `{}`", String::from_utf8_lossy(header.name)));
        let most = LOCAL + header.name.len() as u64 + MAX_EXTRA;
        let bytes = read(file, place, most)?;
        let mut own = Fields(&bytes);
        if offset != place || own.local().as_ref() != Some(&header) {
            return Err(wrong());
        }
        // Programs differ in which of two members with one name they use.
        if !names.insert(header.name) {
            return Err(wrong());
        }
        let used = (bytes.len() - own.0.len()) as u64;
        place = (place + used).checked_add(header.packed).ok_or_else(wrong)?;
    }
    if place != list.offset || !from.0.is_empty() {
        return Err(other("what lies between its members"));
    }
    Ok(())
}

fn other(what: &str) -> io::Error {
    io::Error::other(format!("{what} is not as `portcullis audit bundle` writes it"))
}

fn read(file: &mut (impl Read + Seek), from: u64, count: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(count).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The location of the central directory.
struct List {
    members: u64,
    bytes: u64,
    offset: u64,
}

/// Reads the end record of an archive of `length` bytes; `None` unless it follows the
/// central directory.
fn end(file: &mut (impl Read + Seek), length: u64) -> io::Result<Option<List>> {
    let Some(at) = length.checked_sub(END) else { return Ok(None) };
    let bytes = read(file, at, END)?;
    let Some(list) = Fields(&bytes).end() else { return Ok(None) };
    let is_large = list.offset == LARGE || list.bytes == LARGE || list.members == 0xffff;
    if !is_large {
        return Ok((list.offset.checked_add(list.bytes) == Some(at)).then_some(list));
    }
    let Some(at) = at.checked_sub(LOCATOR + LARGE_END) else { return Ok(None) };
    let bytes = read(file, at, LOCATOR + LARGE_END)?;
    let list = Fields(&bytes).large_end(at);
    Ok(list.filter(|list| list.offset.checked_add(list.bytes) == Some(at)))
}

/// The fields that a member's header and its directory entry have in common.
#[derive(PartialEq, Eq)]
struct Header<'a> {
    flags: u64,
    method: u64,
    time: u64,
    crc: u64,
    packed: u64,
    size: u64,
    name: &'a [u8],
}

struct Listed<'a> {
    header: Header<'a>,
    offset: u64,
}

/// A reader of little-endian numbers and strings.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, bytes: u64) -> Option<u64> {
        let taken = self.take(bytes)?.iter().rev();
        Some(taken.fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Reads a number, which must be this one.
    fn is(&mut self, bytes: u64, wanted: u64) -> Option<()> {
        (self.number(bytes)? == wanted).then_some(())
    }

    fn end(&mut self) -> Option<List> {
        self.is(4, 0x0605_4b50)?;
        self.is(4, 0)?;
        let members = self.number(2)?;
        self.is(2, members)?;
        let (bytes, offset) = (self.number(4)?, self.number(4)?);
        self.is(2, 0)?;
        Some(List { members, bytes, offset })
    }

    /// Reads the end records of a ZIP64 archive, the first of which is at `at`.
    fn large_end(&mut self, at: u64) -> Option<List> {
        self.is(4, 0x0606_4b50)?;
        self.is(8, LARGE_END - 12)?;
        self.take(4)?;
        self.is(8, 0)?;
        let members = self.number(8)?;
        self.is(8, members)?;
        let (bytes, offset) = (self.number(8)?, self.number(8)?);
        self.is(4, 0x0706_4b50)?;
        self.is(4, 0)?;
        self.is(8, at)?;
        self.is(4, 1)?;
        Some(List { members, bytes, offset })
    }

    /// Reads a member's entry in the central directory.
    fn listed(&mut self) -> Option<Listed<'a>> {
        self.is(4, 0x0201_4b50)?;
        self.take(2)?;
        let (mut header, name, extra) = self.header()?;
        self.is(4, 0)?; // No comment, the first disk.
        self.take(2)?;
        // Of a link or a device, another program would unpack no file.
        [0, REGULAR_FILE].contains(&(self.number(4)? >> 28)).then_some(())?;
        let mut offset = self.number(4)?;
        header.name = self.take(name)?;
        self.large(extra, [&mut header.size, &mut header.packed, &mut offset])?;
        Some(Listed { header, offset })
    }

    /// Reads a member's header.
    fn local(&mut self) -> Option<Header<'a>> {
        self.is(4, 0x0403_4b50)?;
        let (mut header, name, extra) = self.header()?;
        header.name = self.take(name)?;
        self.large(extra, [&mut header.size, &mut header.packed])?;
        Some(header)
    }

    /// Reads the common fields except the name; also returns the lengths of name and extra
    /// field.
    fn header(&mut self) -> Option<(Header<'a>, u64, u64)> {
        self.take(2)?;
        let flags = self.number(2).filter(|flags| *flags & !UTF8 == 0)?;
        let (method, time, crc) = (self.number(2)?, self.number(4)?, self.number(4)?);
        let (packed, size) = (self.number(4)?, self.number(4)?);
        let header = Header { flags, method, time, crc, packed, size, name: &[] };
        Some((header, self.number(2)?, self.number(2)?))
    }

    /// Reads the extra field of `length` bytes, which must contain exactly the numbers
    /// that are too large for their fields.
    fn large<const N: usize>(&mut self, length: u64, numbers: [&mut u64; N]) -> Option<()> {
        let mut large = numbers.into_iter().filter(|number| **number == LARGE).peekable();
        if large.peek().is_none() {
            return (length == 0).then_some(());
        }
        self.is(2, SIZES)?;
        self.is(2, length.checked_sub(4)?)?;
        let mut field = Fields(self.take(length - 4)?);
        for number in large {
            *number = field.number(8)?;
        }
        field.0.is_empty().then_some(())
    }
}
