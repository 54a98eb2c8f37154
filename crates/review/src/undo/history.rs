//! The changes to undo, read from the log.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use portcullis_audit::{Hash, Kind, Reader, RecordView, Segment, Source};

use super::{Error, known_directories::KnownDirectories};
use crate::{
    change::{CONTINUES, Change, was_made},
    gateway::SomeAttributes,
    model::{OperationKind, WorkspacePath},
};

/// Maximum number of bytes of records whose changes are held: a log may be of any size.
const MAX_STORED_BYTES: usize = 128 << 20;
/// Estimated bytes that a stored record occupies besides its own.
const OVERHEAD: usize = 256;

/// A selection of changes to undo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Select {
    /// All changes by the gateway after this record.
    After(u64),
    /// All changes from this record on.
    From(u64),
    /// All changes later than this time, in the form of a record's `t`.
    Later(String),
    /// The change of this record, its intent or its outcome, with the changes that it continues and
    /// those that continue it.
    Record(u64),
    /// All changes of the session whose identifier has this prefix.
    Session(String),
}

/// The changes that are relevant for an undo, oldest first.
#[derive(Debug, Default)]
pub struct History {
    /// The changes to undo.
    pub selected: Vec<Change>,
    /// Other changes since the first of them.
    pub others: Vec<Change>,
    /// Number of further changes that were undone already.
    pub undone: usize,
    /// These changes.
    pub(super) undone_changes: Vec<Change>,
    /// The sessions that undid them.
    pub undone_by: BTreeSet<String>,
    /// The sessions whose changes the selected ones undid.
    pub undo_of: BTreeSet<String>,
    /// The first record of the log, if pruned records before it may contain changes of the selected
    /// session.
    pub begins: Option<u64>,
    /// True if changes that were undone are not selected again.
    pub is_without_undone: bool,
}

impl History {
    /// Reads the changes that `select` names.
    ///
    /// An intent without an outcome, or with one that could not be determined, counts as a change:
    /// the current state of the workspace decides.
    ///
    /// # Errors
    /// If the log cannot be read or does not contain the selection.
    pub fn read<S: Source>(source: &S, select: &Select) -> Result<Self, Error> {
        Self::read_with(source, select, false)
    }

    /// Reads them together with the changes of undos that undid some of them, as if these undos were
    /// to be undone first: so an undo that stopped half-way is not in its own way. `None` if there is
    /// no such undo.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_with_undos<S: Source>(source: &S, select: &Select) -> Result<Option<Self>, Error> {
        // The other selections include them.
        if !matches!(select, Select::Record(_) | Select::Session(_)) {
            return Ok(None);
        }
        let history = Self::read_with(source, select, true)?;
        let has_undos = history.selected.iter().any(|change| change.undoes.is_some());
        Ok(Some(history).filter(|_| has_undos))
    }

    fn read_with<S: Source>(source: &S, select: &Select, with_undos: bool) -> Result<Self, Error> {
        let files = source.list()?;
        let segments = files.iter().filter_map(|file| Segment::from_name(&file.name));
        let first = segments.min().map_or(0, |segment| segment.first());
        let start = match select {
            Select::After(seq) => seq.saturating_add(1),
            Select::From(seq) => Self::intent(source, first, *seq)?,
            Select::Record(seq) => {
                let intent = Self::intent(source, first, *seq)?;
                Self::continued(source, intent)?.unwrap_or(intent)
            }
            Select::Later(_) | Select::Session(_) => first,
        };
        if start < first {
            return Err(Error::Begins(first));
        }
        if let Select::After(seq) = select {
            Self::intent(source, first, *seq)?;
        }
        let mut reading = Reading {
            select,
            with_undos,
            start,
            changes: BTreeMap::new(),
            begun: false,
            boots: HashSet::new(),
            is_cut: false,
        };
        reading.take_in(source, first)?;
        let begins = (reading.is_cut && first > 0).then_some(first);
        let mut history = Self { begins, ..reading.finish(first)? };
        history.undo_of = history.sessions_undone(source, first)?;
        Ok(history)
    }

    /// Returns the sessions of the changes that the selected ones undid. Those that were pruned are
    /// not known.
    fn sessions_undone<S: Source>(
        &self,
        source: &S,
        first: u64,
    ) -> Result<BTreeSet<String>, Error> {
        let undone = self.selected.iter().flat_map(|change| change.undoes.iter().flatten());
        let mut undone: BTreeSet<u64> = undone.copied().filter(|seq| *seq >= first).collect();
        // What is selected together with its undo does not come back.
        for change in &self.selected {
            undone.remove(&change.seq);
        }
        let (Some(begin), Some(end)) = (undone.first(), undone.last()) else {
            return Ok(BTreeSet::new());
        };
        let (mut reader, mut sessions) = (Reader::new(source, *begin), BTreeSet::new());
        while let Some(entry) = reader.next()? {
            let record = RecordView::parse(&entry.bytes).map_err(|_| damaged(&entry))?;
            if record.seq > *end {
                break;
            }
            if undone.contains(&record.seq) {
                sessions.extend(record.session().map(str::to_owned));
            }
        }
        Ok(sessions)
    }

    /// Returns the index of the intent that a record is or ends; of any other record its own.
    fn intent<S: Source>(source: &S, first: u64, seq: u64) -> Result<u64, Error> {
        if seq < first {
            return Err(Error::Begins(first));
        }
        Self::look(source, seq, |record| record.of.unwrap_or(seq))
    }

    /// Returns the change that an intent continues.
    fn continued<S: Source>(source: &S, intent: u64) -> Result<Option<u64>, Error> {
        Self::look(source, intent, |record| record.facts.as_ref()?.get(CONTINUES)?.as_u64())
    }

    fn look<S: Source, T>(
        source: &S,
        seq: u64,
        take: impl FnOnce(&RecordView<'_>) -> T,
    ) -> Result<T, Error> {
        let Some(entry) = Reader::new(source, seq).next()? else {
            return Err(Error::NoRecord(seq));
        };
        let record = RecordView::parse(&entry.bytes).map_err(|_| damaged(&entry))?;
        Ok(take(&record))
    }
}

struct Reading<'a> {
    select: &'a Select,
    /// True if undos of the selected changes are selected, too.
    with_undos: bool,
    start: u64,
    changes: BTreeMap<u64, Change>,
    /// True after the first selected change; earlier ones are not stored.
    begun: bool,
    /// The gateways that started and did not stop.
    boots: HashSet<String>,
    /// True if the gateway of the first selected change started before the log begins.
    is_cut: bool,
}

impl Reading<'_> {
    fn take_in<S: Source>(&mut self, source: &S, first: u64) -> Result<(), Error> {
        let mut reader = Reader::new(source, self.start);
        let mut kept = 0;
        while let Some(entry) = reader.next()? {
            let record = RecordView::parse(&entry.bytes).map_err(|_| damaged(&entry))?;
            if let Select::Later(moment) = self.select
                && record.seq == first
                && first > 0
                && record.t.as_str() > moment.as_str()
            {
                return Err(Error::Begins(first));
            }
            match (record.kind, record.of) {
                (Kind::Start, _) => self.boots.extend(record.boot().map(str::to_owned)),
                (Kind::Stop, _) => drop(record.boot().map(|boot| self.boots.remove(boot))),
                // A connection changes nothing in the workspace, and cannot be undone.
                (Kind::Intent, _) if record.op() == Some(OperationKind::Connect.as_str()) => {}
                (Kind::Intent, _) => {
                    let Some(change) = Change::of(&record) else { return Err(damaged(&entry)) };
                    let is_wanted = match self.select {
                        Select::Later(moment) => change.t > *moment,
                        Select::Session(begin) => change.session.starts_with(begin.as_str()),
                        _ => true,
                    };
                    if is_wanted && !self.begun {
                        self.begun = true;
                        self.is_cut = matches!(self.select, Select::Session(_))
                            && record.boot().is_none_or(|boot| !self.boots.contains(boot));
                    }
                    if self.begun {
                        kept += entry.bytes.len() + OVERHEAD;
                        if kept > MAX_STORED_BYTES {
                            return Err(Error::TooMany(change.seq));
                        }
                        self.changes.insert(change.seq, change);
                    }
                }
                (Kind::Outcome | Kind::Recovered, Some(of)) if !was_made(record.result()) => {
                    self.changes.remove(&of);
                }
                (Kind::Outcome | Kind::Recovered, Some(of)) => {
                    if let Some(change) = self.changes.get_mut(&of) {
                        change.result = record.result().map(str::to_owned);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn finish(mut self, first: u64) -> Result<History, Error> {
        let Self { select, with_undos, start, .. } = self;
        let mut known = KnownDirectories::default();
        self.changes.retain(|_, change| known.take(change));
        let mut history = History::default();
        let mut sessions = BTreeSet::new();
        let is_wanted = |change: &Change| match select {
            Select::After(_) | Select::From(_) => true,
            Select::Later(moment) => change.t > *moment,
            Select::Record(_) => change.seq == start || change.continues == Some(start),
            Select::Session(begin) => change.session.starts_with(begin.as_str()),
        };
        let mut undos = HashSet::new();
        let undone = match select {
            // These selections include the undos in the period, which are undone themselves.
            Select::After(_) | Select::From(_) | Select::Later(_) => BTreeMap::new(),
            Select::Record(_) | Select::Session(_) => {
                history.is_without_undone = true;
                let all = undone_by(self.changes.values());
                let is_undo = |change: &&Change| {
                    let mut undoes = change.undoes.iter().flatten().chain(&change.step_of);
                    !all.contains_key(&change.seq)
                        && undoes.any(|seq| self.changes.get(seq).is_some_and(is_wanted))
                };
                if with_undos {
                    undos.extend(self.changes.values().filter(is_undo).map(|change| change.seq));
                }
                let others = self.changes.values();
                undone_by(others.filter(|change| !undos.contains(&change.seq)))
            }
        };
        for change in self.changes.into_values() {
            let wanted = is_wanted(&change);
            if wanted {
                sessions.insert(change.session.clone());
            }
            if let Some(by) = undone.get(&change.seq).filter(|_| wanted) {
                history.undone += 1;
                history.undone_by.insert(by.clone());
                history.undone_changes.push(change);
            } else if wanted || undos.contains(&change.seq) {
                history.selected.push(change);
            } else {
                history.others.push(change);
            }
        }
        match select {
            Select::Record(seq) if sessions.is_empty() => Err(Error::NoChange(*seq)),
            Select::Session(begin) => match sessions.len() {
                0 => Err(Error::NoSession {
                    session: begin.clone(),
                    begins: Some(first).filter(|first| *first > 0),
                }),
                1 => Ok(history),
                _ => Err(Error::Ambiguous(begin.clone())),
            },
            _ => Ok(history),
        }
    }
}

impl History {
    /// Keeps only the changes that are needed to restore a path to its state before all of them:
    /// changes of the path, and of the paths that it or a directory above it was renamed to.
    pub fn narrow(&mut self, path: &WorkspacePath) {
        let mut followed = vec![path.clone()];
        let mut kept = Vec::new();
        let mut contents = Contents::default();
        for mut change in self.selected.drain(..) {
            let moved = contents.take(&change);
            if !followed.iter().any(|path| change.touches(path)) {
                self.others.push(change);
                continue;
            }
            let is_followed = |own: &WorkspacePath| {
                followed.iter().any(|path| own.is_within(path) || path.is_within(own))
            };
            if let (Some(to), Some((content, mode)), false) =
                (&change.to, moved, is_followed(&change.path))
                && followed.iter().any(|path| to.is_within(path))
            {
                // A file that took the path's name, as programs save: its own name was not asked for.
                change.path = to.clone();
                (change.operation, change.to, change.after) =
                    (OperationKind::Write, None, Some(content));
                // The mode is that of the new file, even if no record has it.
                change.attributes = Some(SomeAttributes { mode, modified: None });
            }
            if let Some(to) = &change.to {
                let moved: Vec<_> = followed
                    .iter()
                    .filter_map(|path| match change.path.is_within(path) {
                        true => Some(to.clone()),
                        false => path.rebase(&change.path, to),
                    })
                    .collect();
                followed.extend(moved);
            }
            // A tree is removed and restored with all changes in it.
            let whole = matches!(change.operation, OperationKind::Remove | OperationKind::Restore);
            if whole && !followed.contains(&change.path) {
                followed.push(change.path.clone());
            }
            kept.push(change);
        }
        self.selected = kept;
        self.others.sort_by_key(|change| change.seq);
    }
}

/// The contents that changes of files put at paths, with the modes that they set.
#[derive(Default)]
struct Contents(HashMap<WorkspacePath, (Hash, Option<u32>)>);

impl Contents {
    /// Follows the next change; returns the content that a rename moved and its mode, as far as they
    /// are known.
    fn take(&mut self, change: &Change) -> Option<(Hash, Option<u32>)> {
        let known = self.0.remove(&change.path);
        match (&change.to, change.after) {
            (Some(to), _) if change.exchange => {
                self.0.remove(to);
                None
            }
            (Some(to), _) => {
                self.0.remove(to);
                self.0.extend(known.map(|content| (to.clone(), content)));
                known
            }
            (None, after) => {
                let content = match change.operation {
                    OperationKind::Write | OperationKind::Append | OperationKind::Edit => after,
                    // It leaves the content as it is.
                    OperationKind::SetAttributes => known.map(|(content, _)| content),
                    _ => None,
                };
                let set = change.attributes.and_then(|attributes| attributes.mode);
                let mode = set.or(known.and_then(|(_, mode)| mode));
                self.0.extend(content.map(|content| (change.path.clone(), (content, mode))));
                None
            }
        }
    }
}

/// Returns the changes that others undid, unless these were undone as well, each with the session
/// of its undo.
fn undone_by<'a>(changes: impl DoubleEndedIterator<Item = &'a Change>) -> BTreeMap<u64, String> {
    let mut undone = BTreeMap::new();
    for change in changes.rev() {
        if !undone.contains_key(&change.seq) {
            let session = || change.session.clone();
            undone.extend(change.undoes.iter().flatten().map(|seq| (*seq, session())));
        }
    }
    undone
}

fn damaged(entry: &portcullis_audit::Entry) -> Error {
    Error::Damaged { segment: entry.segment.to_string(), line: entry.line }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "writes a log of its own")]
mod tests {
    use portcullis_audit::Directory;

    use super::*;

    /// Makes a log whose first segment was pruned: record 65,536 at 10:00, a change by a gateway
    /// that started before it, then a gateway that started later.
    fn pruned() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let records = [
            ("decision", "10:00", "old", "old"),
            ("intent", "10:01", "old", "old"),
            ("start", "10:02", "new", "new"),
            ("intent", "10:03", "new", "new"),
        ];
        let lines = (65_536..).zip(records).map(|(seq, (kind, t, boot, session))| {
            format!(
                r#"{{"v":1,"seq":{seq},"kind":"{kind}","t":"2026-11-21T{t}:00.000000Z","boot":"{boot}","session":"{session}","op":"write","path":"a","nonce":"{:032}","prev":"{:064}"}}
"#,
                0, 0
            )
        });
        let name = directory.path().join(Segment::of(65_536).to_string());
        std::fs::write(name, lines.collect::<String>()).unwrap();
        directory
    }

    /// Changes before the beginning of the log counted as none, and the state at its first record
    /// as that of the requested time.
    #[test]
    fn a_moment_before_the_log_begins_is_refused() {
        let log = pruned();
        let read = |t: &str| {
            let moment = format!("2026-11-21T{t}:00.000000Z");
            History::read(&Directory::new(log.path()), &Select::Later(moment))
        };
        for before in ["09:00", "09:59"] {
            assert!(matches!(read(before), Err(Error::Begins(65_536))), "{before}");
        }
        assert_eq!(read("10:00").unwrap().selected.len(), 2);
        assert_eq!(read("10:02").unwrap().selected.len(), 1);
        assert!(read("11:00").unwrap().selected.is_empty());
    }

    #[test]
    fn a_session_whose_beginning_may_be_pruned_says_so() {
        let log = pruned();
        let read = |session: &str| {
            let select = Select::Session(session.to_owned());
            History::read(&Directory::new(log.path()), &select).unwrap()
        };
        let (old, new) = (read("old"), read("new"));
        assert_eq!((old.selected.len(), old.begins), (1, Some(65_536)));
        assert_eq!((new.selected.len(), new.begins), (1, None));
    }
}
