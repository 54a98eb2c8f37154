//! `docs/core-api.txt`: the public items of the crate in `crates/core/`, as the sources have them.
//! Other crates can use only these.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use crate::golden;

const HEADING: &str = "\
# Public items of the crate in `crates/core/`, from the sources. A change is a reviewed line:
# nothing here may write to a workspace, remove a backup or open what is sealed but
# by a request to the gateway. `PORTCULLIS_GOLDEN=write cargo test core_api` updates it.
# Types are named as in their modules: `Error` of a backup is `BackupError` outside.
";

/// The exported name of each item, by its module and its name there.
type Exports = BTreeMap<(String, String), String>;

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("tests") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns the crate's exports: `pub use MODULE::{NAME, NAME as OTHER};`, and nothing else.
fn exports(library: &str) -> Exports {
    let mut exports = Exports::new();
    for statement in library.split("\npub ").skip(1) {
        let (statement, _) = statement.split_once(';').unwrap();
        let uses =
            statement.strip_prefix("use ").expect("only `pub use` in crates/core/src/lib.rs");
        let (module, names) = uses.split_once("::").unwrap();
        assert!(!names.contains('*') && !names.contains("::"), "a glob or a path: {names}");
        for name in names.trim_matches(['{', '}']).split(',').map(str::trim) {
            let (name, exported) = name.split_once(" as ").unwrap_or((name, name));
            if !name.is_empty() {
                exports.insert((module.to_owned(), name.to_owned()), exported.to_owned());
            }
        }
    }
    exports
}

/// Comments and attributes are no part of an item.
fn bare(text: &str) -> String {
    let mut lines = Vec::new();
    let mut attribute = false;
    for line in text.lines().map(str::trim) {
        attribute |= line.starts_with("#[");
        if !attribute && !line.starts_with("//") {
            lines.push(line.split(" // ").next().unwrap());
        }
        attribute &= !line.ends_with(']');
    }
    let text = lines.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    let shorter =
        [("( ", "("), (", )", ")"), (",)", ")"), (" )", ")"), (", }", " }"), ("#[from] ", "")];
    shorter.iter().fold(text, |text, (from, to)| text.replace(from, to))
}

/// The parts of a body between commas that stand in no brackets.
fn parts(body: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    let mut before = ' ';
    for c in body.chars() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '>' if before != '-' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        before = c;
        parts.last_mut().unwrap().push(c);
    }
    let parts = parts.into_iter().map(|part| part.trim().to_owned());
    parts.filter(|part| !part.is_empty()).collect()
}

/// A struct with its public fields.
fn fields(body: &str) -> String {
    let parts = parts(body);
    let (public, private): (Vec<_>, Vec<_>) =
        parts.into_iter().partition(|part| part.starts_with("pub "));
    let public = public.iter().map(|part| part["pub ".len()..].to_owned());
    let hidden = (!private.is_empty()).then(|| "..".to_owned());
    public.chain(hidden).collect::<Vec<_>>().join(", ")
}

/// The type that an `impl` is about, without its parameters.
fn subject(header: &str) -> &str {
    let of = match header.rsplit_once(" for ") {
        Some((_, of)) => of,
        None if header.starts_with("impl<") => header.split_once("> ").unwrap().1,
        None => header.trim_start_matches("impl "),
    };
    of.split(['<', ' ']).next().unwrap()
}

/// A module of the crate while it is read.
struct Reading<'a> {
    exports: &'a Exports,
    module: &'a str,
    items: BTreeSet<String>,
}

impl Reading<'_> {
    /// The exported name of a type, which another module than its own may add to, but
    /// not one with a type of this name.
    fn name(&self, text: &str, name: &str) -> Option<&str> {
        let own = self.exports.get(&(self.module.to_owned(), name.to_owned()));
        let other = || {
            let is_own = ["struct", "enum"].iter().any(|word| {
                text.contains(&format!("{word} {name} "))
                    || text.contains(&format!("{word} {name}<"))
            });
            let mut found = self.exports.iter().filter(|((_, other), _)| other == name);
            found.next().filter(|_| found.next().is_none() && !is_own).map(|(_, exported)| exported)
        };
        own.or_else(other).map(String::as_str)
    }

    /// The public items of one source.
    fn read(&mut self, text: &str) {
        let text = text.split("\nmod tests {").next().unwrap();
        let mut lines = text.lines();
        let mut derives = String::new();
        while let Some(line) = lines.next() {
            let mut item = line.to_owned();
            if let Some(derived) = line.strip_prefix("#[derive(") {
                derives = derived.trim_end_matches(")]").to_owned();
            } else if line.starts_with("pub ") || line.starts_with("impl") {
                let mut is_whole = line.ends_with([';', '}']);
                while !is_whole && let Some(line) = lines.next() {
                    item += "\n";
                    item += line;
                    let is_inside = line.starts_with(' ') || line.is_empty();
                    is_whole = !is_inside && (line.starts_with('}') || line.ends_with(';'));
                }
                match line.strip_prefix("pub ") {
                    Some(_) => self.item(&item["pub ".len()..], &derives),
                    None => self.implementation(text, &item),
                }
                derives.clear();
            }
        }
    }

    fn item(&mut self, item: &str, derives: &str) {
        let (word, rest) = item.split_once(' ').unwrap();
        let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
        if word == "use" {
            // Exported only if `lib.rs` says so.
            return;
        }
        let exported = self.exports.get(&(self.module.to_owned(), name.to_owned()));
        let exported = exported.unwrap_or_else(|| panic!("`{name}` is public and not exported"));
        let head = |mark: char| bare(rest[name.len()..].split(mark).next().unwrap());
        let derives =
            if derives.is_empty() { String::new() } else { format!(" [{}]", bare(derives)) };
        let body = |text: &str| bare(&text[text.find('{').unwrap() + 1..text.rfind('}').unwrap()]);
        let line = match word {
            "struct" if item.ends_with('}') => {
                format!("{exported}{}: struct {{ {} }}{derives}", head('{'), fields(&body(rest)))
            }
            "struct" => {
                let inside = bare(rest[name.len()..].trim_end_matches(';'));
                let (generics, inside) = inside.split_once('(').unwrap_or((&inside, ""));
                let shown = fields(inside.trim_end_matches(')'));
                let tuple = if shown.is_empty() { String::new() } else { format!(" ({shown})") };
                format!("{exported}{generics}: struct{tuple}{derives}")
            }
            "enum" => format!(
                "{exported}{}: enum {{ {} }}{derives}",
                head('{'),
                parts(&body(rest)).join(", ")
            ),
            "trait" => {
                self.methods(exported.clone().as_str(), item, "    fn ");
                format!("{exported}: trait{}", head('{'))
            }
            "fn" => {
                let signature = signature(rest[name.len()..].split('{').next().unwrap());
                format!("{exported}: fn{signature}")
            }
            "const" | "type" => {
                format!("{exported}: {word} {}", bare(rest.trim_end_matches(';')))
            }
            other => panic!("`pub {other}` is not known here: {item}"),
        };
        self.items.insert(line);
    }

    fn implementation(&mut self, text: &str, item: &str) {
        let header = bare(item.split('{').next().unwrap());
        // Of these the type is one of the model, and may have the name of another one here.
        let mut traits = ["ContentChange", "Request"].into_iter();
        if let Some(of) = traits.find(|name| header.contains(&format!(" {name} for "))) {
            let output = item.lines().find(|line| line.starts_with("    type Output"));
            let output = output.map(|line| format!(" {{ {} }}", line.trim())).unwrap_or_default();
            self.items.insert(format!("{of}: {header}{output}"));
            return;
        }
        let Some(name) = self.name(text, subject(&header)).map(str::to_owned) else { return };
        if header.contains(" for ") {
            self.items.insert(format!("{name}: {header}"));
        } else {
            self.methods(&name, item, "    pub ");
        }
    }

    /// The methods and constants in a body that begin with `mark`.
    fn methods(&mut self, owner: &str, item: &str, mark: &str) {
        let mut lines = item.lines();
        while let Some(line) = lines.next() {
            let Some(first) = line.strip_prefix(mark) else { continue };
            let mut text = first.to_owned();
            while !text.ends_with(['{', ';', '}']) {
                text += " ";
                text += lines.next().unwrap().trim();
            }
            let text = if mark.contains("fn") { format!("fn {text}") } else { text };
            self.items.insert(match text.strip_prefix("fn ") {
                Some(method) => format!("{owner}::{}", signature(method)),
                None => format!("{owner}::{}", bare(text.split(" = ").next().unwrap())),
            });
        }
    }
}

fn signature(text: &str) -> String {
    bare(text.trim_end_matches("{}").trim_end_matches(['{', ';']))
}

#[test]
fn the_list_of_public_items_is_up_to_date() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/core/src");
    let exports = exports(&std::fs::read_to_string(directory.join("lib.rs")).unwrap());
    let mut files = Vec::new();
    sources(&directory, &mut files);
    let mut items = BTreeSet::new();
    for file in files {
        let inside = file.strip_prefix(&directory).unwrap();
        let module = inside.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        let mut reading = Reading { exports: &exports, module, items: BTreeSet::new() };
        reading.read(&std::fs::read_to_string(&file).unwrap());
        items.append(&mut reading.items);
    }
    for ((module, _), exported) in &exports {
        if module == "portcullis_search" {
            items.insert(format!("{exported}: of the crate in `crates/search/`"));
        }
    }
    for exported in exports.values() {
        let is_listed = |item: &String| {
            item.starts_with(&format!("{exported}:")) || item.starts_with(&format!("{exported}<"))
        };
        assert!(items.iter().any(is_listed), "`{exported}` is exported and not found");
    }
    let count = exports.len();
    let list = items.into_iter().collect::<Vec<_>>().join("\n");
    golden::same("docs/core-api.txt", &format!("{HEADING}# {count} names\n\n{list}\n"));
}
