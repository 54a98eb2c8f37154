//! A policy file with all files that it extends, as texts.
//!
//! This module follows `extends` but opens nothing: the caller provides a [`Loader`]. Every problem
//! is stored with its place and reported by `compile`, so that an author sees all of them at once.

use std::ops::Range;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use toml::de::DeTable;

use super::{
    check::shortened,
    diagnostics::{Problem, Source},
    embedded::{embedded, is_name, unknown_name},
};
use crate::model::Escaped;

/// Maximum size of a policy file in bytes.
pub const MAX_FILE: usize = 1 << 20;
/// Maximum length of a chain of files that extend each other.
const MAX_DEPTH: usize = 8;
/// Maximum number of files in one policy, and in a list of one file.
const MAX_FILES: usize = 32;

/// A policy file with all files that it extends, as texts with names.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PolicySource {
    files: Vec<SourceFile>,
}

/// One file of a policy, as loaded.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The identity of the file: its canonical path. Not shown.
    pub id: String,
    /// The name to show: as the operator or the extending file wrote it.
    pub name: String,
    /// The content. More than [`MAX_FILE`] bytes are refused, so a loader need not read more.
    pub bytes: Vec<u8>,
}

/// A loader of the files that `extends` names.
pub trait Loader {
    /// Loads the file `reference`, which the file with the ID `from` extends.
    ///
    /// # Errors
    /// A short reason why it could not be loaded.
    fn load(&mut self, from: &str, reference: &str) -> Result<Loaded, String>;
}

/// A loader for policies that extend embedded ones only.
struct NoFiles;

impl Loader for NoFiles {
    fn load(&mut self, _from: &str, _reference: &str) -> Result<Loaded, String> {
        Err("only embedded policies can be extended here".to_owned())
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct SourceFile {
    id: String,
    source: Source,
    /// The problem, if the bytes are not a policy at all; then the text is empty.
    unreadable: Option<String>,
    extends: Vec<Extended>,
    rulesets: Vec<Ruleset>,
}

/// A file of rules that `[secrets] rulesets` names.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Ruleset {
    span: Range<usize>,
    file: String,
    loaded: Result<Source, String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Extended {
    span: Range<usize>,
    reference: String,
    target: Result<usize, String>,
}

impl PolicySource {
    /// Returns the embedded policy `name`.
    pub fn embedded(name: &str) -> Option<Self> {
        Some(Self::from_text(name, embedded(name)?))
    }

    /// Makes a policy from its text, which may extend embedded policies only.
    pub fn from_text(name: &str, text: &str) -> Self {
        let entry =
            Loaded { id: id_of(name), name: name.to_owned(), bytes: text.as_bytes().to_vec() };
        Self::load(entry, &mut NoFiles)
    }

    /// Loads the policy `entry` with all files that it extends.
    pub fn load(entry: Loaded, loader: &mut dyn Loader) -> Self {
        let mut source = Self { files: Vec::new() };
        source.add(entry, &mut Vec::new(), loader);
        source
    }

    fn add(&mut self, loaded: Loaded, chain: &mut Vec<String>, loader: &mut dyn Loader) -> usize {
        let (text, unreadable) = match readable(loaded.bytes) {
            Ok(text) => (text, None),
            Err(reason) => (String::new(), Some(reason)),
        };
        let extends = extends(&text);
        // Embedded policies name none, and every start parses them.
        let rulesets = if is_embedded(&loaded.id, &text) { Vec::new() } else { rulesets(&text) };
        let load = |(location, named): (usize, NamedRuleset)| match within(location) {
            Ok(()) => named.load(&loaded.id, loader),
            Err(reason) => Ruleset { span: named.span, file: named.file, loaded: Err(reason) },
        };
        let rulesets = rulesets.into_iter().enumerate().map(load).collect();
        let number = self.files.len();
        chain.push(loaded.id.clone());
        self.files.push(SourceFile {
            id: loaded.id.clone(),
            source: Source::new(loaded.name, text),
            unreadable,
            extends: Vec::new(),
            rulesets,
        });
        for (location, (reference, span)) in extends.into_iter().enumerate() {
            let target =
                within(location).and_then(|()| self.follow(&loaded.id, &reference, chain, loader));
            if let Some(file) = self.files.get_mut(number) {
                file.extends.push(Extended { span, reference, target });
            }
        }
        chain.pop();
        number
    }

    fn follow(
        &mut self,
        from: &str,
        reference: &str,
        chain: &mut Vec<String>,
        loader: &mut dyn Loader,
    ) -> Result<usize, String> {
        let loaded = if is_name(reference) {
            let text = embedded(reference).ok_or_else(|| unknown_name(reference))?;
            let name = reference.to_owned();
            Loaded { id: id_of(reference), name, bytes: text.as_bytes().to_vec() }
        } else {
            loader.load(from, reference)?
        };
        if chain.contains(&loaded.id) {
            return Err("this policy extends itself, directly or through others".to_owned());
        }
        if let Some(known) = self.files.iter().position(|file| file.id == loaded.id) {
            return Ok(known);
        }
        if chain.len() >= MAX_DEPTH {
            return Err(format!("policies extend each other more than {MAX_DEPTH} deep"));
        }
        if self.files.len() >= MAX_FILES {
            return Err(format!("the policy is made of more than {MAX_FILES} files"));
        }
        Ok(self.add(loaded, chain, loader))
    }

    /// Returns the SHA-256 of all the texts: the hash by which records name the policy.
    pub fn sha256(&self) -> String {
        HEXLOWER.encode(&Sha256::digest(self.bundle()))
    }

    /// Returns the texts in order; the first is the policy itself.
    pub fn sources(&self) -> impl DoubleEndedIterator<Item = &Source> + ExactSizeIterator {
        self.files.iter().map(|file| &file.source)
    }

    /// Returns for each text if it is embedded.
    pub fn embedded_files(&self) -> impl Iterator<Item = bool> {
        self.files.iter().map(|file| is_embedded(&file.id, &file.source.text))
    }

    /// Returns a file and all files that it extends, each once; the file itself is first.
    pub fn lineage(&self, file: usize) -> Vec<usize> {
        let mut lineage = Vec::new();
        let mut open = vec![file];
        while let Some(next) = open.pop() {
            if lineage.contains(&next) {
                continue;
            }
            lineage.push(next);
            let extends = self.files.get(next).map_or(&[][..], |file| &file.extends);
            open.extend(extends.iter().rev().filter_map(|extended| extended.target.clone().ok()));
        }
        lineage
    }

    /// Returns the problems of loading the file `number` and the files that it extends.
    pub(super) fn problems(&self, number: usize) -> Vec<(Option<Range<usize>>, Problem)> {
        let Some(file) = self.files.get(number) else { return Vec::new() };
        let unreadable = file.unreadable.iter().map(|reason| (None, Problem::new(reason.clone())));
        let extends = file.extends.iter().filter_map(|extended| {
            let reason = extended.target.as_ref().err()?;
            let what = format!("cannot extend \"{}\"", shortened(&extended.reference));
            Some((Some(extended.span.clone()), Problem::new(what).label(reason.clone())))
        });
        let rulesets = file.rulesets.iter().filter_map(|ruleset| {
            let reason = ruleset.loaded.as_ref().err()?;
            let what = format!("cannot use the rules in \"{}\"", shortened(&ruleset.file));
            Some((Some(ruleset.span.clone()), Problem::new(what).label(reason.clone())))
        });
        unreadable.chain(extends).chain(rulesets).collect()
    }

    /// Returns the rule files of the file `number`.
    pub(super) fn rulesets(&self, number: usize) -> impl Iterator<Item = &Source> {
        let rulesets = self.files.get(number).map_or(&[][..], |file| &file.rulesets);
        rulesets.iter().filter_map(|ruleset| ruleset.loaded.as_ref().ok())
    }

    /// Returns all texts in one, with a line before each that says how it was extended. It does not
    /// depend on the location of the policy.
    pub(super) fn bundle(&self) -> String {
        let mut bundle = String::new();
        for (number, file) in self.files.iter().enumerate() {
            let name = if number == 0 { "the policy" } else { file.source.file.as_str() };
            let extends: Vec<_> = file
                .extends
                .iter()
                .filter_map(|extended| extended.target.as_ref().ok())
                .map(|target| format!(" {}", target + 1))
                .collect();
            bundle.push_str(&format!(
                "# portcullis: file {} of {}: {}, {} bytes, extends:{}\n",
                number + 1,
                self.files.len(),
                Escaped(name),
                file.source.text.len(),
                extends.concat(),
            ));
            push_text(&mut bundle, &file.source.text);
            for rules in file.rulesets.iter().filter_map(|ruleset| ruleset.loaded.as_ref().ok()) {
                bundle.push_str(&format!(
                    "# portcullis: rules of file {}: {}, {} bytes\n",
                    number + 1,
                    Escaped(&rules.file),
                    rules.text.len(),
                ));
                push_text(&mut bundle, &rules.text);
            }
        }
        bundle
    }
}

fn push_text(bundle: &mut String, text: &str) {
    bundle.push_str(text);
    if !text.ends_with('\n') {
        bundle.push('\n');
    }
}

/// A rule file as named in a policy.
struct NamedRuleset {
    span: Range<usize>,
    file: String,
    /// The required hash of its bytes.
    pin: Option<String>,
}

impl NamedRuleset {
    fn load(self, from: &str, loader: &mut dyn Loader) -> Ruleset {
        let loaded = loader.load(from, &self.file).and_then(|loaded| {
            let sha256 = HEXLOWER.encode(&Sha256::digest(&loaded.bytes));
            if self.pin.as_ref().is_some_and(|pin| !pin.eq_ignore_ascii_case(&sha256)) {
                return Err(format!("its SHA-256 is not the one that is pinned, but {sha256}"));
            }
            Ok(Source::new(self.file.clone(), readable(loaded.bytes)?))
        });
        Ruleset { span: self.span, file: self.file, loaded }
    }
}

/// Checks that a list may have an element at `location`. Elements beyond the maximum are an error
/// rather than ignored: a policy without some of its files would allow too much.
fn within(location: usize) -> Result<(), String> {
    match location < MAX_FILES {
        true => Ok(()),
        false => Err(format!("the list names more than {MAX_FILES} files")),
    }
}

/// Returns the policies that a text names, up to one more than the maximum. Every start calls this,
/// so it parses no more than necessary.
fn extends(text: &str) -> Vec<(String, Range<usize>)> {
    let (mut root, errors) = DeTable::parse_recoverable(head(text));
    if !errors.is_empty() {
        // The text that looked like the first table may have been within a value.
        root = DeTable::parse_recoverable(text).0;
    }
    let list = root.get_ref().get("extends").and_then(|value| value.get_ref().as_array());
    list.into_iter()
        .flat_map(|list| list.iter())
        .filter_map(|value| Some((value.get_ref().as_str()?.to_owned(), value.span())))
        .take(MAX_FILES + 1)
        .collect()
}

/// Returns the text before the apparent first table, which contains the top-level keys.
fn head(text: &str) -> &str {
    let is_table = |line: &&str| line.trim_start().starts_with('[');
    let end = text.split_inclusive('\n').take_while(|line| !is_table(line)).map(str::len).sum();
    text.get(..end).unwrap_or(text)
}

/// Returns the rule files that a text names, up to one more than the maximum.
fn rulesets(text: &str) -> Vec<NamedRuleset> {
    // Only these escapes can stand for a letter of a key.
    if !["rulesets", "\\u", "\\U", "\\x"].iter().any(|word| text.contains(word)) {
        return Vec::new();
    }
    let (root, _) = DeTable::parse_recoverable(text);
    let secrets = root.get_ref().get("secrets").and_then(|value| value.get_ref().as_table());
    let list = secrets.and_then(|secrets| secrets.get("rulesets")?.get_ref().as_array());
    list.into_iter()
        .flat_map(|list| list.iter())
        .filter_map(|value| {
            let table = value.get_ref().as_table()?;
            let text = |key: &str| Some(table.get(key)?.get_ref().as_str()?.to_owned());
            let span = table.get("file")?.span();
            Some(NamedRuleset { span, file: text("file")?, pin: text("sha256") })
        })
        .take(MAX_FILES + 1)
        .collect()
}

fn id_of(name: &str) -> String {
    format!("embedded:{name}")
}

/// True if a text is that of an embedded policy.
fn is_embedded(id: &str, text: &str) -> bool {
    id.strip_prefix("embedded:").and_then(embedded) == Some(text)
}

fn readable(bytes: Vec<u8>) -> Result<String, String> {
    if bytes.len() > MAX_FILE {
        return Err(format!("the file is larger than {} MiB", MAX_FILE >> 20));
    }
    if let Some(reason) = encoded_otherwise(&bytes) {
        return Err(reason.to_owned());
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = error.as_bytes().iter().take(good).filter(|byte| **byte == b'\n').count() + 1;
        format!("the file is not UTF-8: bad byte in line {line}")
    })
}

/// Detects encodings in which editors of other systems save. The parser skips a byte order mark of
/// UTF-8.
fn encoded_otherwise(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, _, ..] | [_, 0, ..] => {
            Some("the file is UTF-16 or UTF-32; save it as UTF-8")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EMBEDDED;

    /// Returns the result of parsing the complete text.
    fn whole(text: &str) -> Vec<String> {
        let (root, errors) = DeTable::parse_recoverable(text);
        assert!(errors.is_empty(), "{text}: {errors:?}");
        let list = root.get_ref()["extends"].get_ref().as_array().unwrap();
        list.iter().map(|value| value.get_ref().as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn what_a_text_extends_is_found_however_it_is_written() {
        for text in [
            "extends = [\"a\", \"b\"]\n[secrets]\n",
            "extends = [\n\"a\", # [x]\n\"b\"]",
            "name = \"\"\"\n[x]\n\"\"\"\nextends = ['a']\r\n  [secrets]\nnames = []\n",
            "lists = [\n[1],\n[2]]\nextends = ['a', 'b']\n[[rules]]\n[[rules]]\n",
            "\"ext\\u0065nds\" = [\"a\"]\n",
            "\u{feff}extends = [\"a\"]\n[secrets]\n",
        ] {
            let found: Vec<_> = extends(text).into_iter().collect();
            let names: Vec<_> = found.iter().map(|(name, _)| name.clone()).collect();
            assert_eq!(names, whole(text), "{text}");
            for (name, span) in found {
                assert!(text.get(span).unwrap().contains(&name), "{text}");
            }
        }
        for text in ["[secrets]\nextends = ['a']\n", "[[extends]]\na = 1\n", "", "extends = 1"] {
            assert_eq!(extends(text), [], "{text}");
        }
    }

    #[test]
    fn rule_files_are_found_however_they_are_written() {
        for text in [
            "[secrets]\nrulesets = [{ file = \"a\" }]\n",
            "secrets.rulesets = [{ file = 'a' }]\n",
            "[\"secrets\"]\n\"rul\\u0065sets\" = [{ file = 'a' }]\n",
            "[secrets]\n\"rul\\U00000065sets\" = [{ file = 'a' }]\n",
            "[secrets]\n\"rul\\x65sets\" = [{ file = 'a' }]\n",
            "[[secrets.rulesets]]\nfile = 'a'\n",
        ] {
            let found: Vec<_> = rulesets(text).into_iter().map(|named| named.file).collect();
            assert_eq!(found, ["a"], "{text}");
        }
        assert!(rulesets("[other]\nrulesets = [{ file = 'a' }]\n").is_empty());
        for (name, text) in EMBEDDED {
            assert!(rulesets(text).is_empty(), "{name}");
        }
    }

    /// A loader that has every rule file but one.
    struct SingleFileLoader;

    impl Loader for SingleFileLoader {
        fn load(&mut self, _from: &str, reference: &str) -> Result<Loaded, String> {
            let name = reference.to_owned();
            match reference {
                "./missing.toml" => Err("no such file".to_owned()),
                _ => {
                    let rule = format!("[[rules]]\nid = \"{name}\"\nregex = '''token-{name}'''\n");
                    Ok(Loaded { id: name.clone(), name, bytes: rule.into_bytes() })
                }
            }
        }
    }

    fn complaints(text: &str) -> Vec<String> {
        let (id, name) = ("policy".to_owned(), "policy".to_owned());
        let entry = Loaded { id, name, bytes: text.as_bytes().to_vec() };
        let source = PolicySource::load(entry, &mut SingleFileLoader);
        assert_eq!(crate::compile(&source).is_err(), !source.problems(0).is_empty(), "{text}");
        source.problems(0).into_iter().map(|(_, problem)| format!("{problem:?}")).collect()
    }

    #[test]
    fn a_file_beyond_the_last_that_is_looked_at_is_an_error() {
        let rulesets = |count: usize| {
            let one = |n| format!("{{ file = \"{n}\", format = \"gitleaks\" }}");
            let all: Vec<_> = (0..count).map(one).collect();
            format!("schema = 1\n[secrets]\nrulesets = [{}]\n", all.join(", "))
        };
        let extends = |count: usize, last: &str| {
            format!("schema = 1\nextends = [{}\"{last}\"]\n", "\"baseline\", ".repeat(count))
        };
        for good in [rulesets(32), extends(31, "baseline")] {
            assert!(complaints(&good).is_empty(), "{:?}", complaints(&good));
        }
        for bad in [rulesets(33), extends(32, "baseline"), extends(40, "./missing.toml")] {
            let complaints = complaints(&bad);
            assert_eq!(complaints.len(), 1, "{complaints:?}");
            assert!(complaints[0].contains("more than 32 files"), "{complaints:?}");
        }
    }
}
