//! Records as a Parquet file: one row per record, in row groups of 65,536.
//!
//! Columns are those of the log under its names; `docs/audit.md` lists them.

use std::{
    io::{self, Write},
    ops::ControlFlow,
    sync::Arc,
};

use jiff::Timestamp;
use parquet::{
    basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical},
    data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int64Type},
    errors::ParquetError,
    file::{
        properties::WriterProperties,
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
    schema::types::{Type, TypePtr},
};

use super::{Exported, untimed};
use portcullis_audit::RecordView;
use serde_json::json;

use crate::{Field, Filter, Log, ScanOrder, Scanned};

/// Rows of a row group.
const ROW_GROUP_SIZE: usize = 65_536;

/// Fields that are objects in the log, written as JSON text.
const OBJECTS: [&str; 3] = ["findings", "counts", "facts"];

/// The values of one column, without absent ones.
enum Values {
    Text(Vec<ByteArray>),
    Number(Vec<i64>),
    Truth(Vec<bool>),
}

/// One column: its values, and for each record whether it has one.
struct ParquetColumn {
    name: &'static str,
    values: Values,
    present: Vec<i16>,
}

/// The cells of a record, for the thread that writes.
struct CellValues(Vec<Option<CellValue>>);

enum CellValue {
    Text(String),
    Number(i64),
    Truth(bool),
}

/// Returns the fields of the log, without those derived from others.
fn fields() -> impl Iterator<Item = Field> {
    Field::ALL.iter().copied().filter(|field| !matches!(field, Field::Day | Field::Hour))
}

fn is_number(field: Field) -> bool {
    matches!(field, Field::Seq | Field::Line | Field::Bytes | Field::Of)
}

/// Writes the records that match `filter`.
///
/// # Errors
/// If the log cannot be read or `out` cannot be written.
pub fn parquet(log: &Log, filter: &Filter, out: &mut (impl Write + Send)) -> io::Result<Exported> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(format!("portcullis {}", env!("CARGO_PKG_VERSION")))
        .build();
    let schema = schema().map_err(failed)?;
    let mut writer =
        SerializedFileWriter::new(out, schema, Arc::new(properties)).map_err(failed)?;
    let mut group = columns();
    let (mut rows, mut waiting, mut error) = (0, 0, None);
    let mut lost = Scanned::default();
    let mut scanned = log.scan(
        filter,
        ScanOrder::Oldest,
        |record, _line| {
            let time = record.t.as_str().parse().ok();
            Some((cells(record, time), time.is_none().then_some(record.seq)))
        },
        |(cells, without_time)| {
            if let Some(seq) = without_time {
                untimed(seq, &mut lost);
            }
            for (column, cell) in group.iter_mut().zip(cells.0) {
                column.push(cell);
            }
            rows += 1;
            waiting += 1;
            if waiting < ROW_GROUP_SIZE {
                return ControlFlow::Continue(());
            }
            waiting = 0;
            match write_group(&mut writer, std::mem::replace(&mut group, columns())) {
                Ok(()) => ControlFlow::Continue(()),
                Err(failure) => {
                    error = Some(failure);
                    ControlFlow::Break(())
                }
            }
        },
    )?;
    if let Some(error) = error {
        return Err(failed(error));
    }
    if waiting > 0 {
        write_group(&mut writer, group).map_err(failed)?;
    }
    writer.close().map_err(failed)?;
    scanned.add(lost);
    Ok(Exported { rows, scanned })
}

fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    }
}

fn schema() -> Result<TypePtr, ParquetError> {
    let column = |name: &str, physical, logical: Option<LogicalType>, repetition| {
        let column = Type::primitive_type_builder(name, physical);
        let column = column.with_repetition(repetition).with_logical_type(logical);
        column.build().map(Arc::new)
    };
    let number = LogicalType::integer(64, false);
    let time = LogicalType::timestamp(true, TimeUnit::MICROS);
    let mut columns = Vec::new();
    for field in fields() {
        let always = matches!(field, Field::Seq | Field::Kind);
        let repetition = if always { Repetition::REQUIRED } else { Repetition::OPTIONAL };
        let (physical, logical) = match field {
            Field::Time => (Physical::INT64, Some(time.clone())),
            Field::WouldDeny => (Physical::BOOLEAN, None),
            field if is_number(field) => (Physical::INT64, Some(number.clone())),
            _ => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        columns.push(column(field.as_str(), physical, logical, repetition)?);
    }
    for name in OBJECTS {
        let json = Some(LogicalType::String);
        columns.push(column(name, Physical::BYTE_ARRAY, json, Repetition::OPTIONAL)?);
    }
    Type::group_type_builder("record").with_fields(columns).build().map(Arc::new)
}

fn columns() -> Vec<ParquetColumn> {
    let column = |name, values| ParquetColumn { name, values, present: Vec::new() };
    let mut columns: Vec<_> = fields()
        .map(|field| {
            let values = match field {
                Field::WouldDeny => Values::Truth(Vec::new()),
                field if is_number(field) || field == Field::Time => Values::Number(Vec::new()),
                _ => Values::Text(Vec::new()),
            };
            column(field.as_str(), values)
        })
        .collect();
    columns.extend(OBJECTS.map(|name| column(name, Values::Text(Vec::new()))));
    columns
}

fn cells(record: &RecordView<'_>, time: Option<Timestamp>) -> CellValues {
    // Parquet stores unsigned numbers in the bits of signed ones.
    let number = |number: u64| Some(CellValue::Number(number.cast_signed()));
    let mut cells: Vec<_> = fields()
        .map(|field| match field {
            Field::Seq => number(record.seq),
            Field::Line => record.line.and_then(number),
            Field::Bytes => record.bytes.and_then(number),
            Field::Of => record.of.and_then(number),
            Field::WouldDeny => record.would_deny.map(CellValue::Truth),
            Field::Time => time.map(|time| CellValue::Number(time.as_microsecond())),
            field => field.of(record).map(|text| CellValue::Text(text.into_owned())),
        })
        .collect();
    let json = [
        record.findings.as_ref().map(|list| json!(list)),
        record.counts.as_ref().map(|counts| json!(counts)),
        record.facts.as_ref().map(|facts| json!(facts)),
    ];
    cells.extend(json.map(|value| value.map(|value| CellValue::Text(value.to_string()))));
    CellValues(cells)
}

impl ParquetColumn {
    fn push(&mut self, cell: Option<CellValue>) {
        let present = match (&mut self.values, cell) {
            (Values::Text(values), Some(CellValue::Text(text))) => {
                values.push(ByteArray::from(text.into_bytes()));
                true
            }
            (Values::Number(values), Some(CellValue::Number(number))) => {
                values.push(number);
                true
            }
            (Values::Truth(values), Some(CellValue::Truth(truth))) => {
                values.push(truth);
                true
            }
            _ => false,
        };
        self.present.push(i16::from(present));
    }
}

fn write_group<W: Write + Send>(
    writer: &mut SerializedFileWriter<W>,
    columns: Vec<ParquetColumn>,
) -> Result<(), ParquetError> {
    let mut group = writer.next_row_group()?;
    for column in columns {
        match &column.values {
            Values::Text(values) => write_column::<ByteArrayType, W>(&mut group, &column, values),
            Values::Number(values) => write_column::<Int64Type, W>(&mut group, &column, values),
            Values::Truth(values) => write_column::<BoolType, W>(&mut group, &column, values),
        }?;
    }
    group.close()?;
    Ok(())
}

fn write_column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    column: &ParquetColumn,
    values: &[T::T],
) -> Result<(), ParquetError> {
    let Some(mut writer) = group.next_column()? else {
        return Err(ParquetError::General(format!("no column for `{}`", column.name)));
    };
    writer.typed::<T>().write_batch(values, Some(&column.present), None)?;
    writer.close()
}
