//! `portcullis audit check-receipts`: compares the receipts that a client got with
//! the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::{self, BufRead, BufReader, Read as _},
    path::PathBuf,
    process::ExitCode,
};

use portcullis_audit::{DamageKind, Hash, Receipt, Report};
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Deserializer, Value, json};

use super::{
    heads,
    location::{LogSource, existing},
};
use crate::{
    app::failure::{Context as _, Exit, Failure},
    cli::render::counted,
    model::Escaped,
    operator_files,
};

/// The longest line of a transcript, in bytes. Longer lines are skipped and counted;
/// the result then is no success, because receipts in them are not checked.
const MAX_LINE: u64 = 64 << 20;

/// Maximum number of bytes of a line that are parsed in vain, in multiples of its length.
const MAX_ATTEMPTS: usize = 16;

/// The damage that a verifier reports for a receipt that is not in the log.
const HEADS: [DamageKind; 2] = [DamageKind::WrongHead, DamageKind::MissingHead];

/// Check every receipt in a client's transcript against the log
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit check-receipts session.jsonl\n  \
    portcullis audit check-receipts - < session.jsonl\n\n\
    Takes any text with a JSON value on a line, such as a recorded ACP or MCP session, and finds \
    every object with `seq`, `leaf` and `durable` in it, and every word of the form SEQ:HASH. A \
    line of more than 64 MiB, or with too many incomplete JSON values, is left out, like a receipt \
    in indented JSON.\n\n\
    Exit codes: 0 all are in the log, 5 some are not, are of pruned records, or were left out.")]
pub(super) struct Args {
    #[command(flatten)]
    log: LogSource,
    /// The transcript; `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// The receipts in a transcript.
#[derive(Default)]
struct Receipts {
    of: BTreeMap<u64, Receipt>,
    /// Records with two different receipts.
    conflicting: BTreeSet<u64>,
    /// The number of lines that were left out.
    left_out: u64,
    /// The number of receipts that the line has.
    taken: u64,
    /// The number of bytes of the line that may still be parsed in vain.
    left: usize,
    is_left_out: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let directory = args.log.directory()?;
    let receipts = read(args)?;
    if receipts.of.is_empty() {
        return Err(Failure::new("there is no receipt in the transcript"));
    }
    let source = existing(&directory)?;
    let expected = receipts.of.values().map(|receipt| (receipt.seq, receipt.leaf));
    let report = heads::verified(&args.log, &source, expected, &directory)?;
    let answers = Answers::of(&receipts, &report);
    let whole = report.is_valid()
        && receipts.conflicting.is_empty()
        && receipts.left_out == 0
        && answers.all_found();
    if args.json {
        outjson!(json!({
            "valid": whole,
            "receipts": receipts.of.len(),
            "found": answers.found,
            "pruned": answers.pruned,
            "missing": answers.missing.iter().map(|(receipt, what)| {
                json!({ "seq": receipt.seq, "leaf": receipt.leaf, "durable": receipt.durable,
                    "found": what })
            }).collect::<Vec<_>>(),
            "conflicting": receipts.conflicting,
            "leftOut": receipts.left_out,
            "damages": report.damages,
        }));
    } else {
        for line in lines(&receipts, &report, &answers) {
            outln!("{line}");
        }
    }
    if whole {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::silent(Exit::Audit))
}

fn lines(receipts: &Receipts, report: &Report, answers: &Answers<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    for (receipt, what) in &answers.missing {
        let durable = match receipt.durable {
            true => "the receipt says that it was on stable storage",
            false => {
                "the receipt does not say that it was on stable storage: a power loss may take it"
            }
        };
        lines.push(format!("missing: {}:{}: {what}; {durable}", receipt.seq, receipt.leaf));
    }
    for seq in &receipts.conflicting {
        lines.push(format!("conflicting: two receipts of record {seq} differ"));
    }
    for damage in report.damages.iter().filter(|damage| !HEADS.contains(&damage.kind)) {
        lines.push(format!("damaged: {}", Escaped(&damage.to_string())));
    }
    if receipts.left_out > 0 {
        let left_out = counted(receipts.left_out, "line");
        lines.push(format!("left out: {left_out}, too long or not to be parsed"));
    }
    if answers.pruned > 0 {
        lines.push(format!("pruned, not checkable: {}", answers.pruned));
    }
    lines.push(format!("receipts: {}, in the log: {}", receipts.of.len(), answers.found));
    lines
}

/// The result of the comparison with the log.
#[derive(Default)]
struct Answers<'a> {
    /// The number of receipts found.
    found: usize,
    /// The number of receipts of pruned records, if the log proves that they were
    /// pruned.
    pruned: usize,
    missing: Vec<(&'a Receipt, &'static str)>,
}

impl<'a> Answers<'a> {
    fn of(receipts: &'a Receipts, report: &Report) -> Self {
        let damages: BTreeMap<u64, DamageKind> = report
            .damages
            .iter()
            .filter(|damage| HEADS.contains(&damage.kind))
            .filter_map(|damage| Some((damage.seq?, damage.kind)))
            .collect();
        let mut answers = Self::default();
        for (seq, receipt) in &receipts.of {
            let what = match damages.get(seq) {
                Some(DamageKind::WrongHead) => "the log has another record there",
                Some(_ends) => "the log ends before it",
                None if report.matched.contains(seq) => {
                    answers.found += 1;
                    continue;
                }
                None if *seq < report.pruned => {
                    answers.pruned += 1;
                    continue;
                }
                None => "the log has too many damages to look for it",
            };
            answers.missing.push((receipt, what));
        }
        answers
    }

    fn all_found(&self) -> bool {
        self.missing.is_empty() && self.pruned == 0
    }
}

fn read(args: &Args) -> Result<Receipts, Failure> {
    let shown = args.file.display();
    let doing = format!("cannot read the transcript `{shown}`");
    let mut reader: Box<dyn BufRead> = if args.file.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(operator_files::open(&args.file).or_fail(&doing)?))
    };
    let mut receipts = Receipts::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line).or_fail(&doing)?;
        if read == 0 {
            return Ok(receipts);
        }
        if read as u64 == MAX_LINE && line.last() != Some(&b'\n') {
            receipts.left_out += 1;
            reader.skip_until(b'\n').or_fail(&doing)?;
            continue;
        }
        receipts.left = MAX_ATTEMPTS.saturating_mul(line.len());
        receipts.is_left_out = false;
        receipts.taken = 0;
        let text = String::from_utf8_lossy(&line);
        receipts.read(&text);
        receipts.is_left_out |= receipts.taken == 0 && has_leaf(&text);
        receipts.left_out += u64::from(receipts.is_left_out);
    }
}

/// True if a line has a receipt's hash: in indented JSON a receipt is on several lines.
fn has_leaf(line: &str) -> bool {
    line.split("\"leaf\"").skip(1).any(|after| {
        let value = after.trim_start().strip_prefix(':').map(str::trim_start);
        let digits = value.and_then(|value| value.strip_prefix('"')?.get(..64));
        digits.is_some_and(|digits| digits.parse::<Hash>().is_ok())
    })
}

impl Receipts {
    fn take(&mut self, receipt: Receipt) {
        self.taken += 1;
        match self.of.get_mut(&receipt.seq) {
            Some(known) if known.leaf != receipt.leaf => {
                self.conflicting.insert(receipt.seq);
            }
            Some(known) => known.durable |= receipt.durable,
            None => {
                self.of.insert(receipt.seq, receipt);
            }
        }
    }

    /// Finds receipts in a text: words, and JSON values within other text, such as
    /// after a time.
    fn read(&mut self, text: &str) {
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != ':') {
            if let Some((seq, leaf)) = word.split_once(':')
                && let (Ok(seq), Ok(leaf)) = (seq.parse(), leaf.parse())
            {
                self.take(Receipt { seq, leaf, durable: false });
            }
        }
        let mut rest = text;
        while let Some(json) = rest.find(['{', '[']).and_then(|start| rest.get(start..)) {
            let mut values = Deserializer::from_str(json);
            let after = match (ReceiptSeed { receipts: self }).deserialize(&mut values) {
                Ok(_) => values.into_iter::<Value>().byte_offset(),
                // All that it contains, to the end of the text, was seen.
                Err(error) if error.is_eof() => return,
                Err(error) => {
                    let above = json.split_inclusive('\n').take(error.line().saturating_sub(1));
                    let parsed = above.map(str::len).sum::<usize>() + error.column();
                    let Some(left) = self.left.checked_sub(parsed) else {
                        self.is_left_out = true;
                        return;
                    };
                    self.left = left;
                    // A value that is no receipt may contain one.
                    1
                }
            };
            rest = json.get(after..).unwrap_or_default();
        }
    }
}

/// Finds receipts in a JSON value while it is parsed, so that nothing of it is stored, and so that
/// those in a value that does not end are found, too.
struct ReceiptSeed<'a> {
    receipts: &'a mut Receipts,
}

/// The parts of a value that a receipt may consist of.
enum Part {
    Number(u64),
    Leaf(Hash),
    Flag(bool),
    Other,
}

impl<'de> DeserializeSeed<'de> for ReceiptSeed<'_> {
    type Value = Part;

    fn deserialize<D: serde::Deserializer<'de>>(self, values: D) -> Result<Part, D::Error> {
        values.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ReceiptSeed<'_> {
    type Value = Part;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Part, E> {
        Ok(Part::Other)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Part, E> {
        Ok(Part::Flag(flag))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Part, E> {
        Ok(Part::Number(number))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Part, E> {
        Ok(Part::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Part, E> {
        Ok(Part::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<Part, E> {
        // A reply within a string, as in some transcripts.
        if text.contains(':') {
            self.receipts.read(text);
        }
        Ok(text.parse().map_or(Part::Other, Part::Leaf))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Part, A::Error> {
        let Self { receipts } = self;
        while items.next_element_seed(ReceiptSeed { receipts })?.is_some() {}
        Ok(Part::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Part, A::Error> {
        let Self { receipts } = self;
        let (mut seq, mut leaf, mut durable) = (Part::Other, Part::Other, Part::Other);
        while let Some(name) = members.next_key::<String>()? {
            let value = members.next_value_seed(ReceiptSeed { receipts })?;
            match &*name {
                "seq" => seq = value,
                "leaf" => leaf = value,
                "durable" => durable = value,
                _ => {}
            }
        }
        if let (Part::Number(seq), Part::Leaf(leaf), Part::Flag(durable)) = (seq, leaf, durable) {
            receipts.take(Receipt { seq, leaf, durable });
        }
        Ok(Part::Other)
    }
}
