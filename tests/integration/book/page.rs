//! Pages of the book, as mdBook reads them.

use std::path::{Path, PathBuf};

/// The root of the checkout.
pub(super) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A Markdown file.
pub(super) struct Page {
    /// The path from the root of the checkout.
    pub(super) path: String,
    pub(super) text: String,
}

/// A fenced block.
pub(super) struct Block {
    /// The text behind the fence: the language, and `terminal` or `not-run: REASON`.
    pub(super) info: String,
    pub(super) text: String,
}

impl Page {
    pub(super) fn read(path: &str) -> Self {
        let read = |path: &Path| {
            std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
        };
        let mut text = read(&root().join(path));
        if let Some(rest) = text.strip_prefix("{{#include ") {
            let file = rest.split("}}").next().unwrap();
            text = read(&root().join(path).parent().unwrap().join(file));
        }
        Self { path: path.to_owned(), text }
    }

    pub(super) fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut lines = self.text.lines();
        while let Some(line) = lines.next() {
            let Some(info) = line.trim_start().strip_prefix("```") else { continue };
            let indent = line.len() - line.trim_start().len();
            let text: Vec<_> = lines
                .by_ref()
                .take_while(|line| line.trim() != "```")
                .map(|line| line.get(indent..).unwrap_or_default())
                .collect();
            blocks.push(Block { info: info.to_owned(), text: text.join("\n") + "\n" });
        }
        blocks
    }

    /// The text without blocks.
    fn unfenced(&self) -> String {
        let mut fenced = false;
        let mut text = String::new();
        for line in self.text.lines() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            } else if !fenced {
                text += line;
                text.push('\n');
            }
        }
        text
    }

    /// The text without code, which has no links.
    fn prose(&self) -> String {
        self.unfenced().split('`').step_by(2).collect::<Vec<_>>().join("``")
    }

    /// Code within the text.
    pub(super) fn code(&self) -> Vec<String> {
        self.unfenced()
            .replace('\n', " ")
            .split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    }

    /// The targets of all links, but for those to other sites.
    pub(super) fn links(&self) -> Vec<String> {
        let prose = self.prose();
        let inline = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let defined = prose
            .lines()
            .filter(|line| line.starts_with('['))
            .filter_map(|line| line.split_once("]: ").map(|(_, target)| target));
        inline
            .chain(defined)
            .map(|target| target.split_whitespace().collect())
            .filter(|target: &String| !target.contains("://"))
            .collect()
    }

    /// The headings, without marks.
    fn headings(&self) -> Vec<String> {
        let mut fenced = false;
        let mut headings = Vec::new();
        for line in self.text.lines() {
            fenced ^= line.trim_start().starts_with("```");
            let text = line.trim_start_matches('#');
            if !fenced && text.len() < line.len() && text.starts_with(' ') {
                headings.push(text.trim().replace(['`', '*'], ""));
            }
        }
        headings
    }

    pub(super) fn title(&self) -> String {
        self.headings().into_iter().next().unwrap_or_else(|| panic!("{} has no title", self.path))
    }

    /// The anchors that mdBook gives to the headings.
    pub(super) fn anchors(&self) -> Vec<String> {
        let mut anchors: Vec<String> = Vec::new();
        for heading in self.headings() {
            let anchor: String = heading
                .chars()
                .map(|char| if char.is_whitespace() { '-' } else { char })
                .filter(|char| char.is_alphanumeric() || matches!(char, '-' | '_'))
                .flat_map(char::to_lowercase)
                .collect();
            let same = anchors
                .iter()
                .filter(|other| other.strip_prefix(&anchor).is_some_and(is_repetition))
                .count();
            anchors.push(if same == 0 { anchor } else { format!("{anchor}-{same}") });
        }
        anchors
    }
}

/// True for what mdBook adds to an anchor that is there already.
fn is_repetition(end: &str) -> bool {
    end.is_empty() || end.strip_prefix('-').is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
}

/// The paths of all Markdown files beneath a directory, sorted.
fn beneath(directory: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join(directory)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{directory}/{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            found.extend(beneath(&path));
        } else if path.ends_with(".md") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The pages of the book.
pub(super) fn pages() -> Vec<Page> {
    let mut paths = beneath("docs");
    paths.retain(|path| path != "docs/SUMMARY.md");
    paths.iter().map(|path| Page::read(path)).collect()
}

/// Documents beside the book.
pub(super) fn others() -> Vec<Page> {
    ["README.md", "ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md", "tests/peers/README.md"]
        .map(Page::read)
        .into()
}
