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
    Finds receipts where replies have them: in a JSON value that ends a line (a reply of MCP, ACP, \
    the file protocol or `--json`, or a receipt alone), and as SEQ:HASH alone on a line or after \
    `record`. It counts those in other places, such as contents of files or what an agent says, and \
    does not compare them. A line of more than 64 MiB, or with a receipt in JSON that does not end \
    there, such as indented JSON, is left out.\n\n\
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
    /// The number of those in places where no reply has one: anybody may have written them.
    unattributed: usize,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let directory = args.log.directory()?;
    let receipts = read(args)?;
    if receipts.of.is_empty() {
        let failure = Failure::new("there is no receipt in the transcript");
        return Err(match receipts.unattributed {
            0 => failure,
            count => failure.help(elsewhere(count)),
        });
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
            "unattributed": receipts.unattributed,
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
    if receipts.unattributed > 0 {
        lines.push(format!("not compared: {}", elsewhere(receipts.unattributed)));
    }
    lines.push(format!("receipts: {}, in the log: {}", receipts.of.len(), answers.found));
    lines
}

/// Describes receipts in places where no reply has one.
fn elsewhere(count: usize) -> String {
    let receipts = counted(count as u64, "receipt");
    format!("{receipts} in texts and in other places that anybody may have written")
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
        receipts.read(&String::from_utf8_lossy(&line));
    }
}

/// Returns the leaf hashes of receipts in a text, wherever they are.
fn mentioned(text: &str) -> impl Iterator<Item = Hash> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != ':');
    let of_words = words.filter_map(receipt_of).map(|receipt| receipt.leaf);
    of_words.chain(leaves(text, &['"', ':', ' ', '\\']))
}

/// Returns the hashes in a text behind the name `leaf` and the characters `between`.
fn leaves(text: &str, between: &[char]) -> impl Iterator<Item = Hash> {
    let hash = move |after: &str| after.trim_start_matches(between).get(..64)?.parse::<Hash>().ok();
    text.split("leaf").skip(1).filter_map(hash)
}

/// Parses a receipt in a shell: SEQ:HASH.
fn receipt_of(word: &str) -> Option<Receipt> {
    let (seq, leaf) = word.split_once(':')?;
    Some(Receipt { seq: seq.parse().ok()?, leaf: leaf.parse().ok()?, durable: false })
}

/// Returns the receipt of a line on standard error: `record SEQ:HASH`, before or after what else the
/// line says; or SEQ:HASH alone.
fn of_line(line: &str) -> Option<Receipt> {
    let line = line.trim();
    let first = line.strip_prefix("record ").and_then(|rest| rest.split([',', ' ']).next());
    let last = || line.rsplit_once(" record ").map(|(_, last)| last);
    receipt_of(first.or_else(last).unwrap_or(line))
}

/// Returns the receipts of the JSON value with which a line ends, such as after a time; `None` if
/// there is no such value. A value within another one does not end the line.
fn of_value(line: &str) -> Option<Vec<Receipt>> {
    let mut left = MAX_ATTEMPTS.saturating_mul(line.len());
    let mut rest = line;
    while let Some(json) = rest.find(['{', '[']).and_then(|start| rest.get(start..)) {
        let mut found = Vec::new();
        let mut values = Deserializer::from_str(json);
        let seed = ReceiptSeed { place: Place::Reply, found: &mut found };
        let after = match seed.deserialize(&mut values) {
            Ok(_) => {
                let after = values.into_iter::<Value>().byte_offset();
                if json.get(after..)?.trim().is_empty() {
                    return Some(found);
                }
                after
            }
            Err(error) if error.is_eof() => return None,
            Err(error) => {
                left = left.checked_sub(error.column())?;
                1
            }
        };
        rest = json.get(after..)?;
    }
    None
}

impl Receipts {
    /// Takes the receipts of a line.
    fn read(&mut self, line: &str) {
        let value = of_value(line);
        if value.is_none() && leaves(line, &['"', ':', ' ']).next().is_some() {
            self.left_out += 1;
            return;
        }
        let found = value.unwrap_or_else(|| of_line(line).into_iter().collect());
        // An error of MCP has its receipt twice.
        let known: BTreeSet<_> = found.iter().map(|receipt| receipt.leaf).collect();
        self.unattributed += mentioned(line).filter(|leaf| !known.contains(leaf)).count();
        found.into_iter().for_each(|receipt| self.take(receipt));
    }

    fn take(&mut self, receipt: Receipt) {
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
}

/// The place of a value in a reply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A reply, or a receipt alone.
    Reply,
    /// An attempt of the demonstration.
    Attempt,
    /// The result of JSON-RPC.
    Result,
    /// The `_meta` of a result.
    Meta,
    /// The error of JSON-RPC.
    Error,
    /// The `data` of an error.
    Data,
    /// A receipt.
    Receipt,
    /// Anything else, which an agent or a file may have written.
    Other,
}

impl Place {
    /// Returns the place of a member.
    fn member(self, name: &str) -> Self {
        match (self, name) {
            (Self::Reply, "receipt" | "receipts")
            | (Self::Attempt | Self::Data, "receipt")
            | (Self::Meta, "portcullis/receipt" | "portcullis/receipts") => Self::Receipt,
            (Self::Reply, "attempts") => Self::Attempt,
            (Self::Reply, "result") => Self::Result,
            (Self::Result, "_meta") => Self::Meta,
            (Self::Reply, "error") => Self::Error,
            (Self::Error, "data") => Self::Data,
            _ => Self::Other,
        }
    }
}

/// Finds the receipts of a reply while it is parsed, so that nothing else of it is stored.
struct ReceiptSeed<'a> {
    place: Place,
    found: &'a mut Vec<Receipt>,
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
        Ok(text.parse().map_or(Part::Other, Part::Leaf))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Part, A::Error> {
        let Self { place, found } = self;
        while items.next_element_seed(ReceiptSeed { place, found })?.is_some() {}
        Ok(Part::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Part, A::Error> {
        let Self { place, found } = self;
        let (mut seq, mut leaf, mut durable) = (Part::Other, Part::Other, Part::Other);
        while let Some(name) = members.next_key::<String>()? {
            let place = place.member(&name);
            let value = members.next_value_seed(ReceiptSeed { place, found })?;
            match &*name {
                "seq" => seq = value,
                "leaf" => leaf = value,
                "durable" => durable = value,
                _ => {}
            }
        }
        if matches!(place, Place::Reply | Place::Receipt)
            && let (Part::Number(seq), Part::Leaf(leaf), Part::Flag(durable)) = (seq, leaf, durable)
        {
            found.push(Receipt { seq, leaf, durable });
        }
        Ok(Part::Other)
    }
}
