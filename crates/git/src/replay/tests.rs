use super::{one_commit::DIFFERS, *};
use crate::{Entry, Format, Mode, ObjectKind, update::Node};

/// A repository in memory.
#[derive(Default)]
struct Memory(HashMap<ObjectId, Object>);

impl Memory {
    fn add(&mut self, object: Object) -> ObjectId {
        let id = object.id.clone();
        self.0.insert(id.clone(), object);
        id
    }

    /// Adds a commit of these files.
    fn commit(&mut self, parents: &[&ObjectId], files: &[(&str, Mode, &str)]) -> ObjectId {
        let mut root = Node::default();
        for (path, mode, text) in files {
            let bytes = text.as_bytes().to_vec();
            let id = self.add(Object::new(Format::Sha1, ObjectKind::Blob, bytes));
            root.set(path, Some(Entry { mode: *mode, id }));
        }
        let mut nothing = Memory::default();
        let added = HashMap::new();
        let mut overlay = Overlay::new(&mut nothing, &added, (MAX_NEW_OBJECTS, MAX_NEW));
        let tree = root.apply(&mut overlay, Format::Sha1, None).unwrap().unwrap();
        let made = overlay.made;
        self.0.extend(made);
        let who = "a <a@example.org> 1 +0000".to_owned();
        let parents = parents.iter().map(|id| (*id).clone()).collect();
        let message = "subject\n".to_owned();
        let commit = Commit { tree, parents, author: who.clone(), committer: who, message };
        self.add(commit.object(Format::Sha1))
    }
}

impl Source for Memory {
    fn read(&mut self, id: &ObjectId, kind: ObjectKind, _: u64) -> Result<Vec<u8>, Error> {
        let object = self.0.get(id).ok_or_else(|| Error::Missing(id.clone()))?;
        assert_eq!(object.kind, kind);
        Ok(object.bytes.clone())
    }
}

/// Restores `SECRET` in place of `[x]` if the original has it, and refuses `denied`.
struct Judge(Vec<String>);

impl Judge {
    fn check(&mut self, word: &str, change: &FileChange<'_>) -> Result<(), String> {
        let mode = change.mode.map(|mode| format!(" {mode:o}")).unwrap_or_default();
        self.0.push(format!("{word} {}{mode}", change.path));
        let shown = change.original.map(|o| String::from_utf8_lossy(o).replace("SECRET", "[x]"));
        if change.before != shown.as_deref().map(str::as_bytes) {
            return Err("differs".to_owned());
        }
        if change.path.starts_with("denied") { Err("denied".to_owned()) } else { Ok(()) }
    }
}

impl PathAuthorizer for Judge {
    fn text(&mut self, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn is_invisible(&self, _: char) -> bool {
        false
    }

    fn write(&mut self, change: &FileChange<'_>, content: &[u8]) -> Result<Vec<u8>, String> {
        self.check("write", change)?;
        let original = String::from_utf8_lossy(change.original.unwrap_or_default());
        if content.starts_with(b"[x]") && !original.contains("SECRET") {
            return Err("nothing to restore".to_owned());
        }
        Ok(String::from_utf8_lossy(content).replace("[x]", "SECRET").into_bytes())
    }

    fn link(&mut self, change: &FileChange<'_>, _: &str) -> Result<(), String> {
        self.check("link", change)
    }

    fn remove(&mut self, change: &FileChange<'_>) -> Result<(), String> {
        self.check("remove", change)
    }
}

use Mode::{Executable, File, Link};

/// Replays the last commit of `files` beside a hidden file; returns the outcome, the decisions and
/// the resulting files.
fn replay(files: &[(&str, Mode, &str)]) -> (Outcome, Vec<String>, Vec<(String, Mode, String)>) {
    let mut theirs = Memory::default();
    let begun = [("a", File, "1\n"), ("d/b", File, "[x]\n"), ("d/c", File, "c")];
    let start = theirs.commit(&[], &begun);
    let last = theirs.commit(&[&start], files);
    let mut ours = Memory::default();
    let base = [
        ("a", File, "1\n"),
        ("d/b", File, "SECRET\n"),
        ("d/c", File, "c"),
        ("e/hidden", File, "h"),
    ];
    let base = ours.commit(&[], &base);
    let mut judge = Judge(Vec::new());
    let listed = HashSet::from([last.clone()]);
    let sources: (&mut dyn Source, &mut dyn Source) = (&mut theirs, &mut ours);
    let trailers = vec!["Portcullis-Session: s".to_owned()];
    let begin = Begin { base: base.clone(), start: Some(start), listed, known: HashMap::new() };
    let mut replay = Replay::new(sources, begin, trailers).unwrap();
    let outcome = replay.commit(&last, &mut judge).outcome;
    replay.into_objects().into_iter().for_each(|object| drop(ours.add(object)));
    let mut found = Vec::new();
    if let Outcome::Imported { commit, .. } = &outcome {
        let commit = Commit::read(&mut ours, commit).unwrap();
        assert_eq!(commit.message, "subject\n\nPortcullis-Session: s\n");
        assert_eq!(commit.parents, [base]);
        for change in diff(&mut ours, None, Some(&commit.tree)).unwrap() {
            let entry = change.new.unwrap();
            let bytes = ours.read(&entry.id, ObjectKind::Blob, 100).unwrap();
            let text = String::from_utf8(bytes).unwrap();
            found.push((String::from_utf8(change.path).unwrap(), entry.mode, text));
        }
    }
    (outcome, judge.0, found)
}

fn refusals(outcome: Outcome) -> Vec<(Option<String>, String)> {
    match outcome {
        Outcome::Refused(reason) => reason,
        outcome => panic!("{outcome:?}"),
    }
}

#[test]
fn a_difference_is_replayed_beside_what_was_hidden() {
    let (outcome, asked, found) =
        replay(&[("a", Executable, "1\n"), ("d/b", File, "[x]\nmore\n"), ("l", Link, "a")]);
    assert!(matches!(outcome, Outcome::Imported { paths: 4, .. }), "{outcome:?}");
    assert_eq!(asked, ["write a 755", "write d/b", "remove d/c", "link l"]);
    let expected = [
        ("a", Executable, "1\n"),
        ("d/b", File, "SECRET\nmore\n"),
        ("e/hidden", File, "h"),
        ("l", Link, "a"),
    ];
    let expected = expected.map(|(path, mode, text)| (path.to_owned(), mode, text.to_owned()));
    assert_eq!(found, expected);
}

#[test]
fn files_and_directories_take_each_others_places() {
    let (outcome, _, found) = replay(&[("a/new", File, "n"), ("d", File, "was a directory")]);
    assert!(matches!(outcome, Outcome::Imported { .. }), "{outcome:?}");
    let paths: Vec<_> = found.iter().map(|(path, ..)| path.as_str()).collect();
    assert_eq!(paths, ["a/new", "d", "e/hidden"]);
}

#[test]
fn what_was_hidden_is_not_replaced() {
    let begun = [("a", File, "1\n"), ("d/b", File, "[x]\n"), ("d/c", File, "c")];
    for (path, mode) in [("e/hidden", File), ("e", File), ("e", Link)] {
        let (outcome, ..) = replay(&[&begun[..], &[(path, mode, "x")]].concat());
        let reason = refusals(outcome);
        assert_eq!(reason[0].0.as_deref(), Some(path), "{reason:?}");
    }
}

#[test]
fn every_refusal_of_a_commit_is_told() {
    let begun = [("a", File, "1\n"), ("d/b", File, "[x]\n"), ("d/c", File, "c")];
    let more = [("denied", File, "x"), (".git/config", File, "x"), ("x/.GIT", File, "x")];
    let more = [&begun[..], &more, &[("sub", Mode::Submodule, "x"), (".gitmodules", Link, "a")]];
    let reason = refusals(replay(&more.concat()).0);
    let paths: Vec<_> = reason.iter().map(|(path, _)| path.as_deref().unwrap()).collect();
    assert_eq!(paths, [".git/config", ".gitmodules", "denied", "sub", "x/.GIT"]);
}

#[test]
fn a_commit_that_was_replayed_before_stands_for_itself_while_it_is_there() {
    let (mut theirs, mut ours) = (Memory::default(), Memory::default());
    let start = theirs.commit(&[], &[("a", File, "1\n")]);
    let one = theirs.commit(&[&start], &[("a", File, "2\n")]);
    let two = theirs.commit(&[&one], &[("a", File, "3\n")]);
    let base = ours.commit(&[], &[("a", File, "other\n")]);
    let imported = ours.commit(&[&base], &[("a", File, "2\n")]);
    let gone = Object::new(Format::Sha1, ObjectKind::Commit, Vec::new()).id;
    for (known, listed, is_there) in [
        (&imported, vec![&one, &two], true),
        // The known name is that of a replay in an earlier session.
        (&imported, vec![&two], true),
        (&gone, vec![&one, &two], false),
    ] {
        let known = HashMap::from([(one.clone(), known.clone())]);
        let listed: Vec<_> = listed.into_iter().cloned().collect();
        let begin = Begin {
            base: base.clone(),
            start: Some(start.clone()),
            listed: listed.iter().cloned().collect(),
            known,
        };
        let mut replay = Replay::new((&mut theirs, &mut ours), begin, Vec::new()).unwrap();
        let mut judge = Judge(Vec::new());
        let mut last = None;
        for id in &listed {
            last = Some(replay.commit(id, &mut judge).outcome);
        }
        match last.unwrap() {
            Outcome::Imported { parents, .. } => assert_eq!(parents.first(), Some(&imported)),
            outcome => assert!(!is_there, "{outcome:?}"),
        }
    }
}

/// Replays commits that each remove all of `paths`, of which an import may change `left` and so
/// many bytes, and returns the outcomes and the number of decisions.
fn removals(paths: &[String], commits: usize, left: (usize, usize)) -> (Vec<Outcome>, usize) {
    let (mut theirs, mut ours) = (Memory::default(), Memory::default());
    let files: Vec<_> = paths.iter().map(|path| (path.as_str(), Link, "x")).collect();
    let begun = [&[("a", File, "1\n")][..], &files].concat();
    let start = theirs.commit(&[], &begun);
    let base = ours.commit(&[], &begun);
    let mut sibling = |number| theirs.commit(&[&start], &[("a", File, &format!("{number}\n"))]);
    let listed: Vec<_> = (2..commits + 2).map(&mut sibling).collect();
    let begin = Begin {
        base,
        start: Some(start),
        listed: listed.iter().cloned().collect(),
        known: HashMap::new(),
    };
    let mut replay = Replay::new((&mut theirs, &mut ours), begin, Vec::new()).unwrap();
    replay.paths_left = left;
    let mut judge = Judge(Vec::new());
    let outcomes = listed.iter().map(|id| replay.commit(id, &mut judge).outcome).collect();
    (outcomes, judge.0.len())
}

#[test]
fn an_import_decides_on_a_limited_number_of_paths_and_of_their_bytes() {
    let paths: Vec<_> = (0..100).map(|number| format!("link-{number:04}")).collect();
    for left in [(202, MAX_PATH_BYTES), (MAX_PATHS, 2 * 901)] {
        let (outcomes, decisions) = removals(&paths, 3, left);
        assert!(matches!(outcomes[..2], [Outcome::Imported { .. }, Outcome::Imported { .. }]));
        let reasons = refusals(outcomes[2].clone());
        assert!(reasons[0].1.contains("import again"), "{reasons:?}");
        assert_eq!(decisions, 202);
    }
}

#[test]
fn a_refused_commit_decides_on_no_more_paths_than_it_reports() {
    let paths: Vec<_> = (0..40).map(|number| format!("denied{number:x}")).collect();
    let (outcomes, decisions) = removals(&paths, 200, (MAX_PATHS, MAX_PATH_BYTES));
    let reasons: Vec<_> = outcomes.into_iter().map(|outcome| refusals(outcome).len()).collect();
    assert_eq!((reasons[0], reasons[98], reasons[199]), (20, 20, 1));
    // The file `a` comes first in each.
    assert_eq!(decisions, reasons.iter().sum::<usize>() + reasons.len(), "{reasons:?}");
}

/// Replays a merge of two imported commits that are on commits of the operator's with these files, of
/// which the agent does not see `hidden`, and returns its outcome and the decisions.
fn merged(
    files: [&[(&str, Mode, &str)]; 2],
    tree: &[(&str, Mode, &str)],
) -> (Outcome, Vec<String>) {
    merged_with(files, tree, None, MAX_PATHS)
}

/// The same without the object of a `missing` content, where an import may change `paths_left`.
fn merged_with(
    files: [&[(&str, Mode, &str)]; 2],
    tree: &[(&str, Mode, &str)],
    missing: Option<&str>,
    paths_left: usize,
) -> (Outcome, Vec<String>) {
    let (mut theirs, mut ours) = (Memory::default(), Memory::default());
    let start = ours.commit(&[], &[("a", File, "0\n"), ("hidden", File, "0\n")]);
    let mut known = HashMap::new();
    let mut parents = Vec::new();
    for (number, files) in files.into_iter().enumerate() {
        let seen: Vec<_> = files.iter().filter(|file| file.0 != "hidden").copied().collect();
        let label = format!("{number}\n");
        let above = theirs.commit(&[], &[("n", File, label.as_str())]);
        let from = theirs.commit(&[&above], &seen);
        let operators = ours.commit(&[&start], files);
        let imported = ours.commit(&[&operators], files);
        known.insert(from.clone(), imported);
        parents.push(from);
    }
    let merge = theirs.commit(&parents.iter().collect::<Vec<_>>(), tree);
    let begin = Begin {
        base: start,
        start: parents.first().cloned(),
        listed: HashSet::from([merge.clone()]),
        known,
    };
    theirs.0.retain(|_, object| missing.is_none_or(|text| object.bytes != text.as_bytes()));
    let mut replay = Replay::new((&mut theirs, &mut ours), begin, Vec::new()).unwrap();
    replay.paths_left.0 = paths_left;
    let mut judge = Judge(Vec::new());
    (replay.commit(&merge, &mut judge).outcome, judge.0)
}

#[test]
fn a_merge_of_two_lines_of_the_operators_takes_back_neither() {
    let hidden = [("a", File, "1\n"), ("hidden", File, "1\n")];
    let other = [("a", File, "1\n"), ("hidden", File, "2\n")];
    let reasons = refusals(merged([&hidden, &other], &[("a", File, "1\n")]).0);
    assert_eq!(reasons, [(Some("hidden".to_owned()), DIFFERS.to_owned())]);
    for (path, is_refused) in [("b", false), ("denied", true)] {
        let [one, two] = ["1\n", "2\n"].map(|text| [("a", File, "1\n"), (path, File, text)]);
        let (outcome, decisions) = merged([&one, &two], &one);
        assert_eq!(matches!(outcome, Outcome::Refused(_)), is_refused, "{outcome:?}");
        assert_eq!(decisions, [format!("write {path}")]);
    }
}

/// Regression: an earlier import that could not be read passed for one without parents, so that a merge
/// took back what the operator had changed before it.
#[test]
fn a_merge_on_an_import_that_cannot_be_read_is_refused() {
    let (mut theirs, mut ours) = (Memory::default(), Memory::default());
    let [one, two] = ["1\n", "2\n"].map(|text| [("a", File, "1\n"), ("hidden", File, text)]);
    let base = ours.commit(&[], &[("a", File, "0\n"), ("hidden", File, "0\n")]);
    let [left, right] = [&one, &two].map(|files| ours.commit(&[&base], files));
    let left = ours.commit(&[&left], &one);
    let unreadable = ours.commit(&[&right], &two);
    let right = ours.commit(&[&unreadable], &two);
    ours.0.remove(&unreadable);
    let seen = [("a", File, "1\n")];
    let [from_left, before] = ["l", "r"].map(|name| theirs.commit(&[], &[(name, File, "")]));
    let from_right = theirs.commit(&[&before], &seen);
    let merge = theirs.commit(&[&from_left, &from_right], &seen);
    let begin = Begin {
        base,
        start: None,
        listed: HashSet::from([merge.clone()]),
        known: HashMap::from([(from_left, left), (before, unreadable), (from_right, right)]),
    };
    let mut replay = Replay::new((&mut theirs, &mut ours), begin, Vec::new()).unwrap();
    let reasons = refusals(replay.commit(&merge, &mut Judge(Vec::new())).outcome);
    assert!(reasons[0].1.contains("is missing"), "{reasons:?}");
}

/// Regression: which parent came first decided whether a merge could keep a file with a secret.
#[test]
fn a_merge_keeps_a_file_that_one_parent_removed_in_any_order() {
    for is_removed_first in [false, true] {
        let (mut theirs, mut ours) = (Memory::default(), Memory::default());
        let secret = ("s", File, "[x]\n");
        let start = theirs.commit(&[], &[("a", File, "1\n"), secret]);
        let base = ours.commit(&[], &[("a", File, "1\n"), ("s", File, "SECRET\n")]);
        let kept = theirs.commit(&[&start], &[("a", File, "2\n"), secret]);
        let removed = theirs.commit(&[&start], &[("a", File, "1\n")]);
        let parents = if is_removed_first { [&removed, &kept] } else { [&kept, &removed] };
        let merge = theirs.commit(&parents, &[("a", File, "2\n"), secret]);
        let listed = [&kept, &removed, &merge];
        let begin = Begin {
            base,
            start: Some(start),
            listed: listed.into_iter().cloned().collect(),
            known: HashMap::new(),
        };
        let mut replay = Replay::new((&mut theirs, &mut ours), begin, Vec::new()).unwrap();
        let mut judge = Judge(Vec::new());
        let outcomes = listed.map(|id| replay.commit(id, &mut judge).outcome);
        let Outcome::Imported { commit, .. } = &outcomes[2] else { panic!("{outcomes:?}") };
        // It was decided on, with what it brings back.
        assert_eq!(judge.0.contains(&"write s".to_owned()), is_removed_first, "{:?}", judge.0);
        let commit = commit.clone();
        replay.into_objects().into_iter().for_each(|object| drop(ours.add(object)));
        let tree = Commit::read(&mut ours, &commit).unwrap().tree;
        let files = diff(&mut ours, None, Some(&tree)).unwrap();
        let contents = files.iter().map(|file| {
            let id = &file.new.as_ref().unwrap().id;
            ours.read(id, ObjectKind::Blob, 100).unwrap()
        });
        assert_eq!(contents.collect::<Vec<_>>(), [b"2\n".to_vec(), b"SECRET\n".to_vec()]);
    }
}

/// Regression: the comparison with the other parents decided on paths before it counted all of them,
/// and did not say on which path it failed.
#[test]
fn a_comparison_with_the_other_parents_counts_first_and_names_the_path() {
    let [one, two] = ["1\n", "2\n"].map(|text| [("b", File, text), ("c", File, text)]);
    let (outcome, decisions) = merged_with([&one, &two], &one, None, 1);
    assert!(refusals(outcome)[0].1.contains("import again"));
    assert!(decisions.is_empty(), "{decisions:?}");
    let (outcome, _) = merged_with([&one, &two], &one, Some("2\n"), MAX_PATHS);
    let reasons = refusals(outcome);
    let paths: Vec<_> = reasons.iter().map(|(path, _)| path.as_deref().unwrap()).collect();
    assert_eq!(paths, ["b", "c"], "{reasons:?}");
}
