//! Exports of records for other programs: OCSF events, CSV, Parquet.

mod ocsf;
#[cfg(feature = "parquet")]
mod parquet;

pub use ocsf::{SCHEMA, events};
#[cfg(feature = "parquet")]
pub use parquet::parquet;

use std::{
    io::{self, Write},
    ops::ControlFlow,
};

use portcullis_audit::RecordView;

use super::{Field, Filter, Log, ScanOrder, Scanned, cell, header};

/// The result of an export.
#[derive(Debug)]
pub struct Exported {
    /// Number of rows or events.
    pub rows: u64,
    /// The parts of the log that could not be read.
    pub scanned: Scanned,
}

/// Writes the records that match `filter` as CSV: a header and every field.
///
/// # Errors
/// If the log cannot be read or `out` cannot be written.
pub fn csv(log: &Log, filter: &Filter, out: &mut impl Write) -> io::Result<Exported> {
    let mut writer = Writer { out, rows: 0, error: None };
    let _ = writer.line(&header(Field::ALL));
    writer.rows = 0;
    let pick = |record: &RecordView<'_>, _line: &[u8]| Some(csv_line(Field::ALL, record));
    let scanned = log.scan(filter, ScanOrder::Oldest, pick, |line| writer.line(&line))?;
    writer.finish(scanned)
}

/// Formats a record as a line of CSV.
pub fn csv_line(columns: &[Field], record: &RecordView<'_>) -> String {
    let mut line = String::with_capacity(512);
    for (at, column) in columns.iter().enumerate() {
        if at > 0 {
            line.push(',');
        }
        if let Some(value) = column.of(record) {
            line.push_str(&cell(&value));
        }
    }
    line
}

/// Reports that a record's time is invalid, which no gateway writes.
fn untimed(seq: u64, lost: &mut Scanned) {
    lost.damage(|| format!("record {seq} has no valid time"));
}

/// A writer of lines that stops at the first error.
struct Writer<W> {
    out: W,
    rows: u64,
    error: Option<io::Error>,
}

impl<W: Write> Writer<W> {
    fn line(&mut self, line: &str) -> ControlFlow<()> {
        self.rows += 1;
        match self.out.write_all(line.as_bytes()).and_then(|()| self.out.write_all(b"\n")) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.error = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    fn finish(mut self, scanned: Scanned) -> io::Result<Exported> {
        match self.error {
            Some(error) => Err(error),
            None => {
                self.out.flush()?;
                Ok(Exported { rows: self.rows, scanned })
            }
        }
    }
}
