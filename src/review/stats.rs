//! Counting records by any of their fields.

use std::{collections::HashMap, io};

use portcullis_audit::RecordView;

use super::{Field, Filter, Log, Scanned};

/// How many records have the same values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The values, in the order of the fields; untrusted text.
    pub values: Vec<Option<String>>,
    /// Records.
    pub records: u64,
    /// Their bytes, disclosed or stored.
    pub bytes: u64,
    /// The first one's time.
    pub first: String,
    /// The last one's.
    pub last: String,
}

#[derive(Debug, Default)]
struct Sums(HashMap<Vec<Option<String>>, Sum>);

#[derive(Debug, Default)]
struct Sum {
    records: u64,
    bytes: u64,
    first: String,
    last: String,
}

/// Records counted by fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// The groups, those with most records first.
    pub groups: Vec<Group>,
    /// What could not be read.
    pub scanned: Scanned,
}

impl Stats {
    /// Counts the records that `filter` wants.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn of(log: &Log, filter: &Filter, fields: &[Field]) -> io::Result<Self> {
        let add = |sums: &mut Sums, record: &RecordView<'_>| {
            let values =
                fields.iter().map(|field| field.of(record).map(std::borrow::Cow::into_owned));
            sums.0.entry(values.collect()).or_default().add(
                1,
                record.bytes.unwrap_or(0),
                record.t.as_str(),
                record.t.as_str(),
            );
        };
        let mut all = Sums::default();
        let scanned = log.fold(filter, add, |part: Sums| {
            for (values, sum) in part.0 {
                all.0.entry(values).or_default().add(sum.records, sum.bytes, &sum.first, &sum.last);
            }
        })?;
        let mut groups: Vec<_> = all
            .0
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
