//! `portcullis audit show`: prints records, for people and for programs.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, IsTerminal as _},
    path::Path,
    process::ExitCode,
    thread,
    time::Duration,
};

use portcullis_audit::{
    Directory, Entry, Hash, Kind, LineError, MAX_JUNK, Reader, RecordView, SEGMENT_RECORDS, Segment,
};

use super::{
    filter::Filter,
    location::LogSource,
    select::{ScanProgress, print_nothing_matched},
};
use crate::{
    app::{
        audit_log::{NEWER, note_unverified, read_log, unreadable},
        failure::{Exit, Failure},
        output,
        pager::PagerOptions,
    },
    cli::{
        render::{counted, time},
        rows::fitted,
    },
    model::{Escaped, Quoted},
    review::{self, Scanned},
};

/// Interval of checks of a followed log.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum of lines of a followed log whose leaf hashes are stored, to notice changes.
const MAX_LEAVES: usize = 1 << 16;

/// Print records, oldest first
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis log --last 20                     the same as `audit show`\n  \
    portcullis audit show --last 20\n  \
    portcullis audit show --decision deny --since 2h\n  \
    portcullis audit show --follow --op write --path src/\n\n\
    Shows what the log says; `portcullis audit verify` says whether the log is intact.")]
pub(crate) struct Args {
    #[command(flatten)]
    log: LogSource,
    #[command(flatten)]
    filter: Filter,
    /// Print only the last N records
    #[arg(short = 'n', long, value_name = "N")]
    last: Option<usize>,
    /// Follow the log: print the last ten records, then new ones
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    pager: PagerOptions,
    /// Print the lines of the log unchanged: one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When the log cannot be read, or has lines that are no records.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let directory = args.log.directory()?;
    let log = read_log(&directory)?;
    let (source, segments) = (Directory::new(&directory), log.segments());
    let filter = args.filter.records(&args.log)?;
    note_unverified(&directory);
    if !args.json && !args.follow {
        args.log.enable(args.pager);
    }
    let mut show = Printer {
        args,
        filter,
        directory: &directory,
        bar: ScanProgress::new("reading", log.bytes()),
        damages: Vec::new(),
        not_records: 0,
        newer: 0,
        junk: 0,
        out_of_line: 0,
        next: None,
        is_empty: true,
        leaves: args.follow.then(BTreeMap::new),
    };
    let last = args.last.or(args.follow.then_some(10));
    let mut reader = match last {
        Some(last) => show.last(&source, &segments, last)?,
        None => show.all(&source, &segments)?,
    };
    while let Some(reader) = &mut reader {
        let mut read = show.read(reader).map_err(|error| unreadable(&directory, &error))?;
        if args.follow && show.is_changed(reader, read.as_ref())? {
            read = show.again(&source, reader)?;
        }
        match read {
            Some(entry) => {
                if show.wanted(&entry) && !show.entry(&entry) {
                    break;
                }
            }
            None if args.follow => {
                show.bar.finish();
                thread::sleep(POLL_INTERVAL);
            }
            None => {
                if reader.is_torn() {
                    show.damages.push("the last segment ends within a line".to_owned());
                }
                break;
            }
        }
    }
    show.bar.finish();
    if show.is_empty {
        print_nothing_matched(&log, &show.filter);
    }
    show.damage(&log.damages().map_err(|error| unreadable(&directory, &error))?)
}

struct Printer<'a> {
    args: &'a Args,
    filter: review::Filter,
    directory: &'a Path,
    bar: ScanProgress,
    /// Descriptions of segments that lack records, or end within one.
    damages: Vec<String>,
    /// The number of lines that are no records, and of their bytes since the last record.
    not_records: u64,
    /// Lines of another version of the format.
    newer: u64,
    junk: u64,
    /// The number of records out of sequence.
    out_of_line: u64,
    /// The next sequence number, if known.
    next: Option<u64>,
    /// True as long as nothing was printed.
    is_empty: bool,
    /// The leaf hashes of the last lines of a followed log, by sequence number.
    leaves: Option<BTreeMap<u64, Hash>>,
}

impl Printer<'_> {
    /// Reads the next line; fails after too many bytes that are no records.
    fn read(&self, reader: &mut Reader<'_, Directory>) -> io::Result<Option<Entry>> {
        if self.junk > MAX_JUNK {
            let words = format!("more than {MAX_JUNK} bytes are no records");
            return Err(io::Error::new(io::ErrorKind::InvalidData, words));
        }
        let entry = reader.next()?;
        if let Some(entry) = &entry {
            self.bar.advance(entry.bytes.len() as u64 + 1);
        }
        Ok(entry)
    }

    /// Returns true if the log was replaced: it is shorter, or the next line does not
    /// continue the chain.
    fn is_changed(
        &self,
        reader: &mut Reader<'_, Directory>,
        next: Option<&Entry>,
    ) -> Result<bool, Failure> {
        let Some(entry) = next else {
            return reader.is_cut().map_err(|error| unreadable(self.directory, &error));
        };
        let before = entry.seq().checked_sub(1);
        let leaf = before.and_then(|seq| self.leaves.as_ref()?.get(&seq));
        let record = RecordView::parse(&entry.bytes);
        Ok(leaf.is_some_and(|leaf| !record.is_ok_and(|record| record.prev == *leaf)))
    }

    /// Reads the log again up to the first changed line, and reports a change of lines
    /// that were read already.
    fn again<'s>(
        &mut self,
        source: &'s Directory,
        reader: &mut Reader<'s, Directory>,
    ) -> Result<Option<Entry>, Failure> {
        let Some(leaves) = &mut self.leaves else { return Ok(None) };
        let first = leaves.first_key_value().map_or(0, |(seq, _)| *seq);
        *reader = Reader::new(source, first);
        let mut expected = first;
        let differs = loop {
            let next = reader.next().map_err(|error| unreadable(self.directory, &error))?;
            match next {
                Some(entry) if leaves.get(&entry.seq()) == Some(&Hash::leaf(&entry.bytes)) => {
                    expected = entry.seq().saturating_add(1);
                }
                other => break other,
            }
        };
        if !leaves.split_off(&expected).is_empty() {
            errln!(
                "portcullis: warning: the log changed: from record {expected} on its records are not \
                 those printed before; `portcullis audit show --kind recovered` says whether it was \
                 recovered"
            );
        }
        self.next = None;
        Ok(differs)
    }

    /// Returns true if it is a record that matches the filters.
    fn wanted(&mut self, entry: &Entry) -> bool {
        if let Some(leaves) = &mut self.leaves {
            leaves.insert(entry.seq(), Hash::leaf(&entry.bytes));
            if leaves.len() > MAX_LEAVES {
                leaves.pop_first();
            }
        }
        let first = (entry.line == 1).then(|| entry.segment.first());
        let expected = first.or(self.next);
        let gap = first.is_some() && self.next.is_some_and(|next| Some(next) != first);
        match RecordView::parse(&entry.bytes) {
            Ok(record) => {
                self.junk = 0;
                if gap || expected.is_some_and(|expected| expected != record.seq) {
                    self.out_of_line += 1;
                }
                self.next = Some(record.seq.saturating_add(1));
                self.filter.matches(&record)
            }
            Err(error) => {
                match error {
                    LineError::Version { .. } => self.newer += 1,
                    _ => self.not_records += 1,
                }
                self.junk += entry.bytes.len() as u64 + 1;
                self.next = expected.map(|expected| expected.saturating_add(1));
                false
            }
        }
    }

    /// Reports lines that are no records, and the damage of the files.
    fn damage(&self, files: &Scanned) -> Result<ExitCode, Failure> {
        let named = files.damages.iter().chain(&self.damages).take(Scanned::MAX_DESCRIBED);
        let mut words: Vec<_> = named.map(|damage| Escaped(damage).to_string()).collect();
        let are_damaged = !words.is_empty();
        let all = files.damaged.saturating_add(self.damages.len() as u64);
        let more = all.saturating_sub(words.len() as u64);
        if more > 0 {
            words.push(format!("and {more} more like these"));
        }
        if self.newer > 0 {
            words.push(format!(
                "a newer portcullis wrote {} of the log, which this one cannot read",
                counted(self.newer, "record")
            ));
        }
        if self.not_records > 0 {
            words.push(match self.not_records {
                1 => "1 line of the log is not a record".to_owned(),
                count => format!("{count} lines of the log are not records"),
            });
        }
        if self.out_of_line > 0 {
            let count = self.out_of_line;
            words.push(format!("{} out of sequence", counted(count, "record")));
        }
        if words.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        Err(Failure::new(words.join(", "))
            .help(match self.not_records + self.out_of_line {
                0 if !are_damaged => NEWER,
                _ => "`portcullis audit verify` says what is wrong",
            })
            .exit(Exit::Audit)
            .beside_result())
    }

    /// Reads a segment, and passes on the entries that match until `found` returns false. Returns
    /// the number of lines, `None` if `found` ended it. Damage ends the segment and is noted, so
    /// that it hides no other one.
    fn segment(
        &mut self,
        source: &Directory,
        segment: Segment,
        found: &mut dyn FnMut(&mut Self, Entry) -> bool,
    ) -> Result<Option<u64>, Failure> {
        let (mut reader, mut lines) = (Reader::new(source, segment.first()), 0);
        while lines < SEGMENT_RECORDS {
            match self.read(&mut reader) {
                Ok(Some(entry)) => {
                    lines = entry.line;
                    if self.wanted(&entry) && !found(self, entry) {
                        return Ok(None);
                    }
                }
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.damages.push(format!("{segment} cannot be read to its end: {error}"));
                    (self.junk, self.next) = (0, None);
                    break;
                }
                Err(error) => return Err(unreadable(self.directory, &error)),
            }
        }
        Ok(Some(lines))
    }

    /// Notes that a segment that is not the last one has too few lines.
    fn check_length(&mut self, segment: Segment, lines: u64) {
        if lines < SEGMENT_RECORDS {
            self.damages.push(format!("{segment} has {lines} records, not {SEGMENT_RECORDS}"));
        }
    }

    /// Prints all matching records, segment by segment: a segment that ends too early does
    /// not hide later ones. Returns a reader of later records, `None` if the output is
    /// closed.
    fn all<'s>(
        &mut self,
        source: &'s Directory,
        segments: &[Segment],
    ) -> Result<Option<Reader<'s, Directory>>, Failure> {
        let Some((last, before)) = segments.split_last() else { return Ok(None) };
        for segment in before {
            let lines = self.segment(source, *segment, &mut |show, entry| show.entry(&entry))?;
            let Some(lines) = lines else { return Ok(None) };
            self.check_length(*segment, lines);
        }
        Ok(Some(Reader::new(source, last.first())))
    }

    /// Prints the last `count` matching records, reading segments from the end. Returns a
    /// reader of later records; `None` if the output is closed.
    fn last<'s>(
        &mut self,
        source: &'s Directory,
        segments: &[Segment],
        count: usize,
    ) -> Result<Option<Reader<'s, Directory>>, Failure> {
        let mut found: VecDeque<Entry> = VecDeque::new();
        let mut end = segments.last().map_or(0, |last| last.first());
        for segment in segments.iter().rev() {
            // The segment after it was read before.
            self.next = None;
            let mut here = VecDeque::new();
            let room = count - found.len();
            let lines = self.segment(source, *segment, &mut |_, entry| {
                here.push_back(entry);
                if here.len() > room {
                    here.pop_front();
                }
                true
            })?;
            let lines = lines.unwrap_or_default();
            match Some(segment) == segments.last() {
                true => end = end.saturating_add(lines),
                false => self.check_length(*segment, lines),
            }
            here.append(&mut found);
            found = here;
            if found.len() == count {
                break;
            }
        }
        self.next = None;
        for entry in found {
            if !self.entry(&entry) {
                return Ok(None);
            }
        }
        Ok(Some(Reader::new(source, end)))
    }

    /// Prints a record; returns false if the output is closed.
    fn entry(&mut self, entry: &Entry) -> bool {
        self.is_empty = false;
        self.bar.suspend(|| match self.args.json {
            true if io::stdout().is_terminal() => {
                outjson!(String::from_utf8_lossy(&entry.bytes));
            }
            true => outln!("{}", String::from_utf8_lossy(&entry.bytes)),
            false => {
                if let Ok(record) = RecordView::parse(&entry.bytes) {
                    let is_denied = review::verdict(&record) == Some("deny");
                    outln!("{}", fitted(&line(&record), is_denied));
                }
            }
        });
        !output::is_closed()
    }
}

/// Formats a record for people: the most important fields in columns, the others behind
/// them.
fn line(record: &RecordView<'_>) -> String {
    let text =
        |text: Option<&str>| text.map_or_else(|| "-".to_owned(), |text| Quoted(text).to_string());
    let verdict = match record.kind {
        Kind::Outcome | Kind::Recovered => text(record.result()),
        _ => text(review::verdict(record)),
    };
    let time = time(record.t.as_str());
    let mut line = format!(
        "{:>6}  {time}  {:<9}  {verdict:<5}  {:<7}  {:<12}  {}",
        record.seq,
        record.kind,
        text(record.op()),
        text(record.agent()),
        text(record.subject().as_deref()),
    );
    if let Some(target) = record.fact("target") {
        line += &format!(" -> {}", Quoted(target));
    }
    let mut more = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            line += &format!("  {name}={}", Quoted(value));
        }
    };
    more("to", record.to());
    more("resolved", record.resolved());
    more("rule", record.rule());
    if record.kind != Kind::Outcome && record.kind != Kind::Recovered {
        more("result", record.result());
    }
    more("reason", record.reason());
    more("of", record.of.map(|of| of.to_string()).as_deref());
    more("bytes", record.bytes.map(|bytes| bytes.to_string()).as_deref());
    more("backup", record.backup());
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use portcullis_audit::{AuditRecord, Draft, Hash};

    use super::*;

    #[test]
    fn a_record_is_one_line_whatever_is_in_it() {
        let draft = Draft {
            op: Some("rename".to_owned()),
            agent: Some("coder".to_owned()),
            path: Some("a\n\u{1b}[2J\u{202e}b c".to_owned()),
            to: Some("d".to_owned()),
            decision: Some("deny".to_owned()),
            rule: Some("ci".to_owned()),
            reason: Some("CI changes need a person".to_owned()),
            ..Draft::default()
        };
        let record = AuditRecord {
            v: 1,
            seq: 7,
            kind: Kind::Decision,
            t: "2026-11-21T08:00:00.123456Z".to_owned(),
            draft,
            nonce: "0".repeat(32),
            prev: Hash::ZERO,
        };
        let text = serde_json::to_vec(&record).unwrap();
        let record = RecordView::parse(&text).unwrap();
        insta::assert_snapshot!(line(&record), @r#"     7  2026-11-21 08:00:00Z  decision   deny   rename   coder         "a\n\u{1b}[2J\u{202e}b c"  to=d  rule=ci  reason="CI changes need a person""#);
    }
}
