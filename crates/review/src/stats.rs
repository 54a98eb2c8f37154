//! Numbers of records by any of their fields.

use std::{collections::HashMap, io};

use portcullis_audit::RecordView;

use super::{
    Field, Filter, Log, Scanned,
    field::bytes,
    scan::{MAX_STORED_BYTES, OVERHEAD},
};

/// Number of characters of a record's time.
const TIME_LENGTH: usize = 27;

/// The number of records with the same values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The values, in the order of the fields; untrusted text.
    pub values: Vec<Option<String>>,
    /// Number of records.
    pub records: u64,
    /// Bytes disclosed or stored in them.
    pub bytes: u64,
    /// The time of the first record.
    pub first: String,
    /// The time of the last record.
    pub last: String,
}

#[derive(Debug, Default)]
struct Sums {
    groups: HashMap<Vec<Option<String>>, Sum>,
    /// Bytes of the values.
    bytes: usize,
    /// Number of records in no group, because there are too many values.
    left_out: u64,
}

impl Sums {
    fn of(&mut self, values: Vec<Option<String>>, records: u64) -> Option<&mut Sum> {
        if !self.groups.contains_key(&values) {
            let bytes = values.iter().flatten().map(String::len).sum::<usize>() + OVERHEAD;
            if self.bytes + bytes > MAX_STORED_BYTES {
                self.left_out += records;
                return None;
            }
            self.bytes += bytes;
        }
        Some(self.groups.entry(values).or_default())
    }
}

#[derive(Debug, Default)]
struct Sum {
    records: u64,
    bytes: u64,
    first: String,
    last: String,
}

/// Numbers of records by fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// The groups, by descending number of records.
    pub groups: Vec<Group>,
    /// The parts of the log that could not be read.
    pub scanned: Scanned,
}

impl Stats {
    /// Counts the records that match `filter`.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn of(log: &Log, filter: &Filter, fields: &[Field]) -> io::Result<Self> {
        let add = |sums: &mut Sums, record: &RecordView<'_>, _line: &[u8]| {
            let values =
                fields.iter().map(|field| field.of(record).map(std::borrow::Cow::into_owned));
            if let Some(sum) = sums.of(values.collect(), 1) {
                // Text beyond the length of a time is cut off.
                let t = record.t.as_str();
                let t = t
                    .char_indices()
                    .nth(TIME_LENGTH)
                    .map_or(t, |(end, _)| t.get(..end).unwrap_or(t));
                sum.add(1, bytes(record).unwrap_or(0), t, t);
            }
        };
        let mut all = Sums::default();
        let mut scanned = log.fold(filter, add, |part: Sums| {
            all.left_out += part.left_out;
            for (values, sum) in part.groups {
                if let Some(all) = all.of(values, sum.records) {
                    all.add(sum.records, sum.bytes, &sum.first, &sum.last);
                }
            }
        })?;
        if all.left_out > 0 {
            scanned.damage(|| {
                format!("too many values to count them all: {} records were left out", all.left_out)
            });
        }
        let mut groups: Vec<_> = all
            .groups
            .into_iter()
            .map(|(values, Sum { records, bytes, first, last })| Group {
                values,
                records,
                bytes,
                first,
                last,
            })
            .collect();
        groups.sort_by(|a, b| b.records.cmp(&a.records).then_with(|| a.values.cmp(&b.values)));
        Ok(Self { groups, scanned })
    }
}

impl Sum {
    fn add(&mut self, records: u64, bytes: u64, first: &str, last: &str) {
        if self.records == 0 {
            first.clone_into(&mut self.first);
        }
        last.clone_into(&mut self.last);
        self.records += records;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}
