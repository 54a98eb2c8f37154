//! Searches over a view in memory: the results, their order, and the silence about directories that
//! are passed through.

use std::collections::BTreeMap;

use crate::{
    Contents, Directory, Error, Follower, Line, Matched, NameFilter, Names, NoFollower, Piece,
    Skipped, Start, View, Visit, VisitedEntry, glob, grep,
    model::{GlobQuery, GrepQuery, Page, WorkspacePath},
    policy::ObjectKind,
};

/// Files by their paths. Directories named `closed` are passed through, and names that begin with
/// `no` are not shown.
struct Memory(BTreeMap<&'static str, &'static str>);

struct Place(WorkspacePath);
struct Entry(WorkspacePath);
struct Text(WorkspacePath, Vec<u8>);
struct FileLines(WorkspacePath, Vec<Line>);

fn path(text: &str) -> WorkspacePath {
    WorkspacePath::parse(text).unwrap()
}

impl AsRef<WorkspacePath> for Place {
    fn as_ref(&self) -> &WorkspacePath {
        &self.0
    }
}

impl Directory for Place {
    fn is_shown(&self) -> bool {
        self.0.file_name() != Some("closed")
    }
}

impl AsRef<WorkspacePath> for Entry {
    fn as_ref(&self) -> &WorkspacePath {
        &self.0
    }
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        &self.1
    }
}

impl AsRef<WorkspacePath> for FileLines {
    fn as_ref(&self) -> &WorkspacePath {
        &self.0
    }
}

impl Matched for FileLines {
    fn lines(&self) -> &[Line] {
        &self.1
    }

    fn truncate(&mut self, count: usize) {
        self.1.truncate(count);
    }
}

impl View for Memory {
    type Directory = Place;
    type Waiting = Vec<Place>;
    type Entry = Entry;

    fn list(
        &self,
        directory: &Place,
        wanted: &NameFilter,
        visit: &mut dyn Visit<Entry>,
    ) -> Result<(Option<Vec<Place>>, u64), Skipped> {
        let inside = |file: &&str| {
            let path = path(file);
            let beneath = path.rebase(&directory.0, &WorkspacePath::root())?;
            let name = beneath.components().next()?.to_owned();
            Some((directory.0.join(&name).ok()?, beneath.components().count() > 1))
        };
        let entries: BTreeMap<_, _> = self.0.keys().filter_map(inside).collect();
        let mut waiting = Vec::new();
        for (path, is_directory) in entries {
            if !visit.may_continue() {
                break;
            }
            let relative = path.as_str().get(wanted.start..).unwrap();
            let name = path.file_name().unwrap();
            let pattern = wanted.pattern.as_ref();
            let itself = (wanted.directories || !is_directory)
                && pattern.is_none_or(|pattern| pattern.matches(relative));
            let enter = is_directory && pattern.is_none_or(|p| p.reaches_beneath(relative));
            if name.starts_with("no") || !(itself || enter) {
                continue;
            }
            let kind = if is_directory { ObjectKind::Directory } else { ObjectKind::File };
            let goes = match name {
                "closed" => enter && visit.visit_name(VisitedEntry::Passed(&path)),
                _ => {
                    let entry = Entry(path.clone());
                    visit.visit_name(VisitedEntry::Shown { entry, kind, wanted: itself, enter })
                }
            };
            if goes {
                waiting.push(Place(path));
            }
        }
        Ok(((!waiting.is_empty()).then_some(waiting), 0))
    }

    fn next(&self, waiting: &mut Vec<Place>) -> Option<Place> {
        waiting.pop()
    }

    fn above(&self, directory: &Place) -> Vec<Place> {
        directory.0.ancestors().into_iter().map(Place).collect()
    }

    fn ignore_file(&self, directory: &Place, most: u64) -> Result<Option<Vec<u8>>, Skipped> {
        let text = self.0.get(directory.0.join(".gitignore").unwrap().as_str());
        match text {
            Some(text) if text.len() as u64 > most => Err(Skipped::Gitignore),
            text => Ok(text.map(|text| text.as_bytes().to_vec())),
        }
    }
}

impl Names for Memory {
    type FoundEntry = Entry;

    fn look(&self, entry: Entry) -> Result<Entry, Skipped> {
        Ok(entry)
    }
}

impl Contents for Memory {
    type Text = Text;
    type Matched = FileLines;

    fn read(&self, Entry(path): Entry) -> Result<Text, Skipped> {
        let text = self.0[path.as_str()].as_bytes().to_vec();
        Ok(Text(path, text))
    }

    fn leave(&self, _: Text) {}

    fn matched(&self, Text(path, text): Text, pieces: Vec<Piece>, _: u64) -> FileLines {
        let line = |piece: Piece| {
            let Piece { number, bytes, matches, cut } = piece;
            let text = String::from_utf8(text[bytes].to_vec()).unwrap();
            Line { number, text, matches, cut }
        };
        FileLines(path, pieces.into_iter().map(line).collect())
    }
}

fn memory() -> Memory {
    Memory(BTreeMap::from([
        (".git/config", "x"),
        (".gitignore", "*.o\nbuilt/\n"),
        ("a.txt", "one\ntwo\n"),
        ("built/deep.txt", "two\n"),
        ("closed/in/c.txt", "\u{feff}two\r\nthree\r\n"),
        ("d/b.o", "two\n"),
        ("d/e/f.txt", "zero\ntwo\ntwo\n"),
        ("d/no/g.txt", "two\n"),
        ("no.txt", "two\n"),
    ]))
}

fn root() -> Start<Memory> {
    Start::Beneath(Place(WorkspacePath::root()))
}

fn names(query: &GlobQuery, start: Option<&str>) -> (Vec<String>, Vec<(Skipped, u64)>) {
    let start = start.map(|start| Place(path(start)));
    let (found, summary) = glob(&memory(), start, query, &NoFollower).unwrap();
    let names = found.iter().map(|Entry(path)| path.to_string()).collect();
    (names, summary.skipped.into_iter().collect())
}

#[test]
fn names_are_sorted_and_what_is_passed_through_leaves_no_trace() {
    let query = GlobQuery { pattern: "**".to_owned(), ..GlobQuery::default() };
    let (found, skipped) = names(&query, Some("."));
    let expected = [".gitignore", "a.txt", "closed/in", "closed/in/c.txt", "d", "d/e", "d/e/f.txt"];
    assert_eq!(found, expected);
    assert_eq!(skipped, [(Skipped::Ignored, 2)]);
    let query = GlobQuery { pattern: "**/*.{o,txt}".to_owned(), ignored: true, ..query };
    let expected = ["a.txt", "built/deep.txt", "closed/in/c.txt", "d/b.o", "d/e/f.txt"];
    assert_eq!(names(&query, Some(".")), (expected.map(str::to_owned).to_vec(), vec![]));
    // The file above the start applies, too.
    let query = GlobQuery { pattern: "*".to_owned(), ..GlobQuery::default() };
    let (found, skipped) = names(&query, Some("d"));
    assert_eq!((found, skipped), (vec!["d/e".to_owned()], vec![(Skipped::Ignored, 1)]));
    assert_eq!(names(&query, None), (vec![], vec![(Skipped::Ask, 1)]));
}

#[test]
fn pages_give_every_line_once() {
    let mut after = None;
    let mut found = Vec::new();
    loop {
        let page = Page { after, results: 1, bytes: 1 << 10 };
        let query = GrepQuery {
            pattern: "two|three".to_owned(),
            page: Some(Box::new(page)),
            ..GrepQuery::default()
        };
        let (files, summary) = grep(&memory(), root(), &query, &NoFollower).unwrap();
        for FileLines(path, lines) in files {
            found.extend(
                lines.into_iter().map(|line| format!("{path}:{} {}", line.number, line.text)),
            );
        }
        match summary.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let expected = [
        "a.txt:2 two",
        "closed/in/c.txt:1 two",
        "closed/in/c.txt:2 three",
        "d/e/f.txt:2 two",
        "d/e/f.txt:3 two",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_search_that_nobody_wants_any_more_gives_nothing() {
    struct RemovedEntry;
    impl Follower for RemovedEntry {
        fn is_wanted(&self) -> bool {
            false
        }
    }
    let query = GrepQuery { pattern: "two".to_owned(), ..GrepQuery::default() };
    let error = grep(&memory(), root(), &query, &RemovedEntry).err();
    assert_eq!(error, Some(Error::Cancelled));
}
