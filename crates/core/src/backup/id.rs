//! Identifiers of backups: the time, and random bits.

use std::{fmt, str::FromStr};

use jiff::{Timestamp, civil::DateTime, tz::Offset};

use super::Error;
use crate::random::random_bytes;

/// Identifies one backup, for example `20261103T120102123456Z-9f04c1aa`: UTC to the microsecond and
/// 32 random bits. Ids and their texts sort alike, by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackupId {
    micros: i64,
    random: u32,
}

/// A text is not a [`BackupId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the id of a backup, such as `20261103T120102123456Z-9f04c1aa`")]
pub struct BackupIdError;

impl BackupId {
    /// Range of times that the text can have: the years 1970 to 9998.
    const MICROS: std::ops::RangeInclusive<i64> = 0..=253_370_764_799_999_999;

    /// Makes an id for `micros` since 1970.
    pub(super) fn new(micros: i64) -> Result<Self, Error> {
        let bytes = random_bytes().map_err(Error::os("get random bytes"))?;
        let micros = micros.clamp(*Self::MICROS.start(), *Self::MICROS.end());
        Ok(Self { micros, random: u32::from_be_bytes(bytes) })
    }

    /// Returns the time of the backup, in microseconds since 1970. Each backup of a path is later
    /// than the one before, even if the clock was set back in between.
    pub(crate) fn micros(self) -> i64 {
        self.micros
    }

    /// True if an id can begin with `text`.
    pub fn may_begin(text: &str) -> bool {
        text.len() <= FORM.len() && text.bytes().zip(FORM.bytes()).all(fits)
    }

    /// Returns the time of the backup; see [`BackupId::micros`].
    pub fn time(self) -> Timestamp {
        Timestamp::from_microsecond(self.micros).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

impl fmt::Display for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = Offset::UTC.to_datetime(self.time());
        write!(f, "{:04}{:02}{:02}T", t.year(), t.month(), t.day())?;
        write!(f, "{:02}{:02}{:02}", t.hour(), t.minute(), t.second())?;
        write!(f, "{:06}Z-{:08x}", t.subsec_nanosecond() / 1000, self.random)
    }
}

impl fmt::Debug for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for BackupId {
    type Err = BackupIdError;

    fn from_str(text: &str) -> Result<Self, BackupIdError> {
        // Each time has one text: no signs, no capitals, no missing zeros.
        if text.len() != FORM.len() || !Self::may_begin(text) {
            return Err(BackupIdError);
        }
        let (day, rest) = text.split_once('T').ok_or(BackupIdError)?;
        let (clock, random) = rest.split_once("Z-").ok_or(BackupIdError)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| BackupIdError);
        let (day, clock) = (number(day)?, number(clock)?);
        let part = |value: u64, unit: u64, modulus: u64| {
            i8::try_from(value / unit % modulus).map_err(|_| BackupIdError)
        };
        let civil = DateTime::new(
            i16::try_from(day / 10_000).map_err(|_| BackupIdError)?,
            part(day, 100, 100)?,
            part(day, 1, 100)?,
            part(clock, 10_000_000_000, 100)?,
            part(clock, 100_000_000, 100)?,
            part(clock, 1_000_000, 100)?,
            i32::try_from(clock % 1_000_000).map_err(|_| BackupIdError)? * 1000,
        );
        let civil = civil.map_err(|_| BackupIdError)?;
        let time = Offset::UTC.to_timestamp(civil).map_err(|_| BackupIdError)?;
        let random = u32::from_str_radix(random, 16).map_err(|_| BackupIdError)?;
        let id = Self { micros: time.as_microsecond(), random };
        if Self::MICROS.contains(&id.micros) { Ok(id) } else { Err(BackupIdError) }
    }
}

/// The form of the text: `0` stands for a decimal digit, `f` for a hexadecimal one.
const FORM: &str = "00000000T000000000000Z-ffffffff";

fn fits((byte, form): (u8, u8)) -> bool {
    match form {
        b'0' => byte.is_ascii_digit(),
        b'f' => is_hex(byte),
        _ => byte == form,
    }
}

/// True if the byte is a lower-case hexadecimal digit.
pub(super) fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_id_are_inverse_and_sort_alike() {
        let mut ids: Vec<BackupId> = [0, 1, 999_999, 1_793_707_262_123_456, i64::MAX]
            .into_iter()
            .map(|micros| BackupId::new(micros).unwrap())
            .collect();
        for id in &ids {
            assert_eq!(id.to_string().parse(), Ok(*id), "{id}");
            assert_eq!(id.to_string().len(), 31);
        }
        ids.sort();
        let texts: Vec<String> = ids.iter().map(ToString::to_string).collect();
        assert!(texts.is_sorted());
    }

    #[test]
    fn refuses_other_forms() {
        assert!("20261103T120102123456Z-9f04c1aa".parse::<BackupId>().is_ok());
        for bad in [
            "",
            "20261103T120102123456Z-9F04C1AA",
            "20261103T120102123456Z-+f04c1aa",
            "20261103T120102123456Z-f04c1aa",
            "20261303T120102123456Z-9f04c1aa",
            "20261103T250102123456Z-9f04c1aa",
            "020261103T120102123456Z-9f04c1aa",
            "20261103T120102123456Z-9f04c1aa/../x",
        ] {
            assert_eq!(bad.parse::<BackupId>(), Err(BackupIdError), "{bad}");
        }
    }
}
