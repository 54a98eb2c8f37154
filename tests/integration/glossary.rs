//! Names and texts have no word that the glossary excludes, and doc comments begin with their
//! subject.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Excluded words that also have an ordinary meaning, or that of another field.
const ORDINARY: [&str; 35] = [
    "answer",
    "caller",
    "cell",
    "closed",
    "grace",
    "grant",
    "handle",
    "hold",
    "inside",
    "job",
    "longest",
    "mark",
    "most",
    "note",
    "pace",
    "pass",
    "place",
    "public",
    "questions",
    "reservation",
    "row",
    "sound",
    "spelling",
    "spot",
    "staged",
    "stay",
    "swap",
    "tag",
    "terms",
    "trap",
    "tunnel",
    "turn",
    "turns",
    "vault",
    "whole",
];

/// Names that others have given.
const OTHERS: [&str; 1] = ["guest_halt_poll_ns"];

/// Types that say what happened to something, or that ask a question, in place of what it is.
const NO_TYPES: [&str; 24] = [
    "Asked", "Begun", "Ended", "Found", "Given", "Held", "How", "Kept", "Look", "Made", "Must",
    "Said", "Seen", "Settled", "Taken", "Told", "Wanted", "Way", "What", "Where", "Who", "Why",
    "Work", "Wrong",
];

/// First words of a doc comment without a subject.
const NO_SUBJECTS: [&str; 35] = [
    "After",
    "Also",
    "As",
    "At",
    "Because",
    "Before",
    "Being",
    "But",
    "By",
    "For",
    "From",
    "Having",
    "How",
    "If",
    "In",
    "Must",
    "Of",
    "On",
    "Otherwise",
    "So",
    "Then",
    "Through",
    "To",
    "Until",
    "What",
    "When",
    "Where",
    "Whether",
    "Which",
    "While",
    "Who",
    "Whose",
    "Why",
    "With",
    "Without",
];

/// Nouns and adjectives among the words that look like a gerund.
const NO_GERUNDS: [&str; 12] = [
    "Anything",
    "Conflicting",
    "Everything",
    "Missing",
    "Nothing",
    "Pending",
    "Remaining",
    "Running",
    "Something",
    "String",
    "Waiting",
    "Warning",
];

/// Words that say what was done with a value, in place of what it is, so no binding has them.
const NO_NAMES: [&str; 5] = ["bell", "met", "said", "spelling", "vault"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the words that the glossary excludes.
fn excluded() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("docs/GLOSSARY.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| term |"));
    let cells = rows.map(|row| row.trim_end_matches('|').rsplit('|').next().unwrap());
    let (_, metaphors) = text.split_once("has one of these words: ").unwrap();
    let words = cells.chain([metaphors.split_once('.').unwrap().0]);
    let words = words.flat_map(|words| words.split(',')).map(|word| word.trim().to_owned());
    words.filter(|word| !word.is_empty()).collect()
}

/// Returns the project's files, without data and dependencies.
fn files() -> Vec<PathBuf> {
    const KINDS: [&str; 11] =
        ["conf", "md", "mjs", "py", "rs", "service", "sh", "toml", "ts", "txt", "yaml"];
    let mut pending: Vec<_> =
        ["audit", "benches", "crates", "deploy", "docs", "policies", "presets"]
            .iter()
            .chain(&["src", "tests", "ARCHITECTURE.md", "CHANGELOG.md", "README.md", "SECURITY.md"])
            .map(|name| root().join(name))
            .collect();
    let mut files = Vec::new();
    while let Some(path) = pending.pop() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let others = ["GLOSSARY.md", "glossary.rs", "node_modules", "target", "vectors"];
        if others.contains(&name) || name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            pending.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|kind| KINDS.iter().any(|known| kind == *known)) {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Returns the words of names and texts in lower case: `a_b`, `aB` and `A b` have two.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_lower = false;
    for character in text.chars() {
        if !character.is_ascii_alphabetic() || (character.is_ascii_uppercase() && is_lower) {
            words.push(String::new());
        }
        if character.is_ascii_alphabetic() {
            words.last_mut().unwrap().push(character.to_ascii_lowercase());
        }
        is_lower = character.is_ascii_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn words_are_found_in_names_and_texts() {
    assert_eq!(
        words("fn the_gate(GateKey, MAX_GATES) // Gate."),
        ["fn", "the", "gate", "gate", "key", "max", "gates", "gate"]
    );
}

#[test]
fn nothing_has_a_word_that_the_glossary_excludes() {
    let excluded = excluded();
    assert!(excluded.len() > 50, "the glossary was not understood");
    for word in ORDINARY {
        assert!(excluded.contains(word), "`{word}` is not in the glossary");
    }
    let checked: BTreeSet<_> = excluded
        .iter()
        .filter(|word| !ORDINARY.contains(&word.as_str()))
        .flat_map(|word| [word.clone(), format!("{word}s")])
        .collect();
    let mut wrong = Vec::new();
    for file in files() {
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        let text = std::fs::read_to_string(&file).unwrap();
        let text = OTHERS.iter().fold(text, |text, other| text.replace(other, ""));
        for (number, line) in [name.as_str()].into_iter().chain(text.lines()).enumerate() {
            let bad = words(line).into_iter().filter(|word| checked.contains(word));
            wrong.extend(bad.map(|word| format!("{name}:{number}: {word}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn types_are_named_after_what_they_are() {
    const KEYWORDS: [&str; 4] = ["struct ", "enum ", "trait ", "type "];
    let mut wrong = Vec::new();
    for file in files().iter().filter(|file| file.extension().is_some_and(|kind| kind == "rs")) {
        for line in std::fs::read_to_string(file).unwrap().lines() {
            let code = line.trim_start();
            let code = code.split_once(") ").map_or(code, |(start, rest)| match start {
                "pub(crate" | "pub(super" => rest,
                _ => code,
            });
            let code = code.trim_start_matches("pub ");
            let Some(rest) = KEYWORDS.iter().find_map(|keyword| code.strip_prefix(keyword)) else {
                continue;
            };
            let end = rest.find(|character: char| !character.is_alphanumeric());
            let name = &rest[..end.unwrap_or(rest.len())];
            if NO_TYPES.contains(&name) {
                wrong.push(format!("{}: {name}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// True for `Reading`, and false for `Nothing`.
fn is_gerund(word: &str) -> bool {
    let is_word = word.starts_with(|first: char| first.is_ascii_uppercase())
        && word.chars().skip(1).all(|letter| letter.is_ascii_lowercase());
    is_word && word.ends_with("ing") && !NO_GERUNDS.contains(&word)
}

/// Returns the code of a line, without texts that end in it and comments.
fn code(line: &str) -> String {
    let code = line.split("//").next().unwrap();
    code.split('"').step_by(2).collect::<Vec<_>>().join("\"")
}

#[test]
fn bindings_are_named_after_what_they_are() {
    let mut wrong = Vec::new();
    for file in files().iter().filter(|file| file.extension().is_some_and(|kind| kind == "rs")) {
        let name = file.strip_prefix(root()).unwrap();
        if name.starts_with("tests") || name.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        for (number, line) in std::fs::read_to_string(file).unwrap().lines().enumerate() {
            let code = code(line);
            let mut names = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            if names.any(|name| NO_NAMES.contains(&name)) {
                wrong.push(format!("{}:{}: {line}", name.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn doc_comments_begin_with_their_subject() {
    let (mut wrong, mut comments) = (Vec::new(), 0);
    for file in files().iter().filter(|file| file.extension().is_some_and(|kind| kind == "rs")) {
        let text = std::fs::read_to_string(file).unwrap();
        let mut is_in_comment = false;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start();
            let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
            let first = comment.and_then(|comment| comment.split_whitespace().next());
            if !is_in_comment && let Some(first) = first {
                comments += 1;
                let first = first.trim_end_matches([',', ':', ';', '.']);
                if NO_SUBJECTS.contains(&first) || is_gerund(first) {
                    wrong.push(format!("{}:{}: {line}", file.display(), number + 1));
                }
            }
            is_in_comment = comment.is_some();
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(comments > 5000, "the sources were not found");
}
