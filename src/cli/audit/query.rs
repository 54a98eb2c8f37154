//! `portcullis audit query`: searches the log.

use std::{cmp::Reverse, collections::BinaryHeap, ops::ControlFlow, process::ExitCode};

use portcullis_audit::{RecordView, Segment};
use serde_json::{Map, Value};

use super::select::{Indexed, ScanProgress, Select, print_nothing_matched, warn_of_pruned};
use crate::{
    app::{audit_log::damaged, failure::Failure, output, pager::PagerOptions},
    cli::{
        render::time,
        rows::{coloured, table},
    },
    model::{Escaped, Quoted, distinct},
    review::{Field, ScanOrder, Stats, cell, export::csv_line, header, verdict, visible_json},
};

/// The default columns of a table.
const COLUMNS: [Field; 9] = [
    Field::Seq,
    Field::Time,
    Field::Kind,
    Field::Agent,
    Field::Op,
    Field::Decision,
    Field::Rule,
    Field::Result,
    Field::Path,
];
/// The maximum of rows in a table; a longer result consists of several.
const MAX_TABLE_ROWS: usize = 500;

/// Search the log, oldest record first
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit query --decision deny --since 2d\n  \
    portcullis audit query --path 'src/**/*.rs' --op write --op edit\n  \
    portcullis audit query --stats agent,decision\n  \
    portcullis audit query --hash 2c8b08da5ce60398 --json\n  \
    portcullis audit query --since 2026-11-01 --csv > november.csv\n\n\
    An outcome repeats only session, agent, operation and path of its intent: the intent has rule \
    and decision, the outcome has the result (`of` names the intent). Only the outcome of a \
    connection that was cut off has a decision of its own.\n\n\
    Reports what the log says; `portcullis audit verify` reports whether the log is intact. A long \
    log gets an index beside it (`index` in the state directory), which can be deleted at any \
    time.\n\n\
    Exit codes: 0 searched, 5 something in the log could not be read.")]
pub(super) struct Args {
    #[command(flatten)]
    log: Indexed,
    /// Print only the first N records
    #[arg(long, value_name = "N", conflicts_with_all = ["last", "stats"])]
    first: Option<usize>,
    /// Print only the last N records
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "stats")]
    last: Option<usize>,
    /// Print these columns, in a table or as CSV, instead of the usual ones
    #[arg(long, value_name = "FIELD", value_delimiter = ',', conflicts_with_all = ["json", "stats"])]
    columns: Vec<Field>,
    /// Print how many records have each value of these fields: any field, `day` or `hour`
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    stats: Vec<Field>,
    #[command(flatten)]
    pager: PagerOptions,
    /// Print one JSON object a line; hidden characters are escaped in it
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV; `docs/audit.md` describes the columns
    #[arg(long)]
    csv: bool,
    #[command(flatten)]
    select: Select,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if !args.json && !args.csv {
        args.log.at.enable(args.pager);
    }
    if args.stats.is_empty() { records(args) } else { stats(args) }
}

fn records(args: &Args) -> Result<ExitCode, Failure> {
    let (log, bar) = args.log.open()?;
    let columns = match args.columns.as_slice() {
        [] if args.csv => Field::ALL,
        [] => &COLUMNS,
        columns => columns,
    };
    let pick = |record: &RecordView<'_>, line: &[u8]| {
        Some(if args.json {
            vec![visible_json(&String::from_utf8_lossy(line)).into_owned()]
        } else if args.csv {
            vec![csv_line(columns, record)]
        } else {
            columns.iter().map(|column| shown(*column, record)).collect()
        })
    };
    let mut out = RowPrinter::new(args, columns, &bar);
    let filter = args.select.filter(&args.log.at)?;
    if args.last.is_none() {
        warn_of_pruned(&log, filter.since.as_deref());
    }
    let scanned = if let Some(last) = args.last {
        // The newest segments come first, so records are put into the order of the log. No more
        // than the last ones are held.
        let mut newest = BinaryHeap::new();
        let mut segment = None;
        let pick = |record: &RecordView<'_>, line: &[u8]| {
            pick(record, line).map(|item| (record.seq, item))
        };
        let scanned = log.scan(&filter, ScanOrder::NewestSegment, pick, |item| {
            let of = Segment::of(item.0);
            let is_earlier = segment.replace(of).is_some_and(|before| before > of);
            if is_earlier && newest.len() >= last {
                return ControlFlow::Break(());
            }
            newest.push(Reverse(item));
            if newest.len() > last {
                newest.pop();
            }
            ControlFlow::Continue(())
        });
        let mut newest = newest.into_sorted_vec().into_iter().rev();
        let _ = newest.try_for_each(|Reverse((_, item))| out.row(item));
        scanned
    } else {
        let mut left = args.first.unwrap_or(usize::MAX);
        log.scan(&filter, ScanOrder::Oldest, pick, |item| {
            if left == 0 {
                return ControlFlow::Break(());
            }
            left -= 1;
            match out.row(item) {
                ControlFlow::Continue(()) if left > 0 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        })
    };
    let is_empty = out.finish();
    drop(bar);
    if is_empty {
        print_nothing_matched(&log, &filter);
    }
    let scanned = scanned.map_err(|error| args.log.unreadable(&error).beside_result())?;
    damaged(&scanned)?;
    Ok(ExitCode::SUCCESS)
}

/// Formats a value for a table.
fn shown(field: Field, record: &RecordView<'_>) -> String {
    let value = field.of(record).unwrap_or_default();
    match field {
        Field::Time => time(&value),
        Field::Decision => Escaped(verdict(record).unwrap_or_default()).to_string(),
        // Blanks in a name could pass for the space between two columns.
        Field::Path | Field::Resolved | Field::To if !value.is_empty() => {
            let with = record.fact("credential").map(|id| format!(" with `{}`", Escaped(id)));
            format!("{}{}", Quoted(&value), with.unwrap_or_default())
        }
        _ => distinct(&value, &[]),
    }
}

/// Formats a value that records have in common for a table.
fn shown_group(field: Field, value: Option<&str>) -> String {
    match (field, value) {
        (_, None) => "-".to_owned(),
        (Field::Path | Field::Resolved | Field::To, Some(value)) => Quoted(value).to_string(),
        (_, Some(value)) => distinct(value, &[]),
    }
}

/// Prints rows as they come: lines at once, tables by the page.
struct RowPrinter<'a> {
    args: &'a Args,
    columns: &'a [Field],
    bar: &'a ScanProgress,
    waiting: Vec<Vec<String>>,
    begun: bool,
    rows: u64,
}

impl<'a> RowPrinter<'a> {
    fn new(args: &'a Args, columns: &'a [Field], bar: &'a ScanProgress) -> Self {
        Self { args, columns, bar, waiting: Vec::new(), begun: false, rows: 0 }
    }

    fn row(&mut self, row: Vec<String>) -> ControlFlow<()> {
        self.rows += 1;
        self.waiting.push(row);
        if self.waiting.len() < MAX_TABLE_ROWS { ControlFlow::Continue(()) } else { self.flush() }
    }

    /// Prints the pending rows; `Break` once the output is closed.
    fn flush(&mut self) -> ControlFlow<()> {
        let rows = std::mem::take(&mut self.waiting);
        let mut text = String::new();
        if self.args.json || self.args.csv {
            if self.args.csv && !self.begun {
                text += &format!("{}\n", header(self.columns));
            }
            for row in rows {
                text.extend(row);
                text.push('\n');
            }
        } else if !rows.is_empty() {
            let heads = self.columns.iter().map(|column| column.as_str().to_uppercase());
            let is_number = |index: usize| {
                let column = self.columns.get(index);
                matches!(column, Some(Field::Seq | Field::Bytes | Field::Line | Field::Of))
            };
            let decision = self.columns.iter().position(|column| *column == Field::Decision);
            let is_denied = |row: &Vec<String>| {
                decision.and_then(|at| row.get(at)).is_some_and(|decision| decision == "deny")
            };
            // The heads have a row of their own.
            let denied: Vec<_> = std::iter::once(false).chain(rows.iter().map(is_denied)).collect();
            for (line, is_denied) in table(heads, rows, is_number).into_iter().zip(denied) {
                text += &coloured(line, is_denied);
                text.push('\n');
            }
        }
        self.begun = true;
        self.bar.suspend(|| output::raw(text.as_bytes()));
        if output::is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Prints what waits; true if there was no row at all.
    fn finish(mut self) -> bool {
        let _ = self.flush();
        self.rows == 0
    }
}

fn stats(args: &Args) -> Result<ExitCode, Failure> {
    let (log, bar) = args.log.open()?;
    let filter = args.select.filter(&args.log.at)?;
    warn_of_pruned(&log, filter.since.as_deref());
    let stats =
        Stats::of(&log, &filter, &args.stats).map_err(|error| args.log.unreadable(&error))?;
    drop(bar);
    if args.json {
        for group in &stats.groups {
            let mut object = Map::new();
            for (field, value) in args.stats.iter().zip(&group.values) {
                object.insert(field.as_str().to_owned(), value.clone().into());
            }
            object.insert("records".to_owned(), group.records.into());
            object.insert("totalBytes".to_owned(), group.bytes.into());
            object.insert("first".to_owned(), group.first.clone().into());
            object.insert("last".to_owned(), group.last.clone().into());
            outjson!(Value::Object(object));
        }
    } else if args.csv {
        outln!("{},records,totalBytes,first,last", header(&args.stats));
        for group in &stats.groups {
            let cells = group.values.iter().map(|value| cell(value.as_deref().unwrap_or("")));
            let cells = cells.collect::<Vec<_>>().join(",");
            outln!("{cells},{},{},{},{}", group.records, group.bytes, group.first, group.last);
        }
    } else if stats.groups.is_empty() {
        outln!("no record matches");
    } else {
        let heads = args.stats.iter().map(|field| field.as_str().to_uppercase());
        let heads = heads.chain(["RECORDS".to_owned(), "BYTES".to_owned()]);
        let rows = stats.groups.iter().map(|group| {
            let values = args.stats.iter().zip(&group.values);
            let mut row: Vec<_> =
                values.map(|(field, value)| shown_group(*field, value.as_deref())).collect();
            row.extend([group.records.to_string(), group.bytes.to_string()]);
            row
        });
        outln!("{}", table(heads, rows, |index| index >= args.stats.len()).join("\n"));
    }
    damaged(&stats.scanned)?;
    Ok(ExitCode::SUCCESS)
}
