//! Diagnostics of a policy, with the information that its author needs to correct it.

use std::{fmt, ops::Range};

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use serde::{Deserialize, Serialize};

use crate::model::Escaped;

/// Maximum number of diagnostics that are stored; further ones are counted.
const MAX_STORED_BYTES: usize = 100;
/// Maximum length in bytes of a line that is shown with a marker.
const MAX_LINE: usize = 400;

/// One diagnostic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// The file as the operator named it, or an embedded policy's name.
    pub file: String,
    /// The line, counted from 1; 0 for the file in general.
    pub line: u64,
    /// The column in characters, counted from 1; 0 for the file in general.
    pub column: u64,
    /// The problem.
    pub message: String,
    /// The text at the place, or the one expected there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The correction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// The lines of the place, and the marked byte range in them.
    #[serde(skip)]
    excerpt: Option<(String, Range<usize>)>,
}

/// All problems of a policy and the files it extends, in the order of the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Diagnostics {
    /// The first ones, at most a hundred.
    diagnostics: Vec<Diagnostic>,
    /// The number of further ones.
    omitted: usize,
}

impl Diagnostics {
    /// Returns the stored diagnostics: the first hundred.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics.iter()
    }

    /// Returns the number of further ones.
    pub fn omitted(&self) -> usize {
        self.omitted
    }

    /// True if there are no problems.
    pub fn is_empty(&self) -> bool {
        self.diagnostics.is_empty()
    }

    /// Renders the diagnostics for people, with the source lines, and in ANSI colours if `colour`
    /// is true.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled().hyperlink(false) } else { Renderer::plain() };
        let mut text = String::new();
        for diagnostic in &self.diagnostics {
            text.push_str(&diagnostic.render(&renderer));
            text.push_str("\n\n");
        }
        if self.omitted > 0 {
            text.push_str(&format!("and {} more errors\n", self.omitted));
        }
        text
    }

    /// Removes the text of the file, so that only places are shown.
    pub(super) fn drop_excerpts(&mut self) {
        for diagnostic in &mut self.diagnostics {
            diagnostic.excerpt = None;
        }
    }

    /// Adds a problem at `span` of a file, or with the file in general.
    pub(super) fn report(&mut self, source: &Source, span: Option<Range<usize>>, what: Problem) {
        if self.diagnostics.len() < MAX_STORED_BYTES {
            self.diagnostics.push(source.diagnostic(span, what));
        } else {
            self.omitted += 1;
        }
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render(false).trim_end())
    }
}

impl std::error::Error for Diagnostics {}

impl Diagnostic {
    fn render(&self, renderer: &Renderer) -> String {
        let label = self.label.as_deref();
        let group = Level::ERROR.primary_title(self.message.as_str());
        let group = match &self.excerpt {
            Some((lines, span)) => group.element(
                Snippet::source(lines.as_str())
                    .path(self.file.as_str())
                    .line_start(usize::try_from(self.line).unwrap_or(usize::MAX))
                    .annotation(AnnotationKind::Primary.span(span.clone()).label(label)),
            ),
            None => self.render_place(group),
        };
        let group = match &self.help {
            Some(help) => group.element(Level::HELP.message(Escaped(help).to_string())),
            None => group,
        };
        let mut text = renderer.render(&[group]);
        if let (None, Some(title)) = (&self.excerpt, text.find('\n')) {
            // Without line numbers there is no margin.
            text.insert(title + 1, ' ');
        }
        text
    }

    fn render_place<'a>(&'a self, title: annotate_snippets::Title<'a>) -> Group<'a> {
        let origin = Origin::path(self.file.as_str());
        let group = match (usize::try_from(self.line), usize::try_from(self.column)) {
            (Ok(line), Ok(column)) if line > 0 => {
                title.element(origin.line(line).char_column(column))
            }
            _ => title.element(origin),
        };
        match &self.label {
            Some(label) => group.element(Level::NOTE.message(Escaped(label).to_string())),
            None => group,
        }
    }
}

/// Returns the problems of a text that is not valid TOML: the first syntax error, since later ones
/// mostly follow from it; without one, the duplicate keys.
pub(super) fn syntax_problems(
    errors: &[toml::de::Error],
) -> impl Iterator<Item = (Option<Range<usize>>, Problem)> {
    let first = errors.iter().position(is_syntax_error);
    let shown = first.map_or(0..errors.len(), |first| first..first + 1);
    errors.get(shown).into_iter().flatten().map(|error| {
        let message = error.message();
        let message = message.strip_suffix(", expected literal string").unwrap_or(message);
        (error.span(), Problem::new(format!("not valid TOML: {message}")))
    })
}

/// Returns true unless the error is a duplicate key, after which the rest can be interpreted.
pub(super) fn is_syntax_error(error: &toml::de::Error) -> bool {
    error.message() != "duplicate key"
}

/// The text of one file, to convert byte positions into lines.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "(String, String)", into = "(String, String)")]
pub struct Source {
    /// The file as the operator named it.
    pub file: String,
    /// Its text.
    pub text: String,
    line_starts: Vec<usize>,
}

impl From<(String, String)> for Source {
    fn from((file, text): (String, String)) -> Self {
        Self::new(file, text)
    }
}

impl From<Source> for (String, String) {
    fn from(source: Source) -> Self {
        (source.file, source.text)
    }
}

impl Source {
    pub(super) fn new(file: String, text: String) -> Self {
        let starts = text.match_indices('\n').map(|(index, _)| index + 1);
        let line_starts = std::iter::once(0).chain(starts).collect();
        Self { file, text, line_starts }
    }

    /// Returns the line of a byte position, counted from 1.
    pub(super) fn line(&self, position: usize) -> u64 {
        self.line_starts.partition_point(|start| *start <= position) as u64
    }

    /// Returns the byte position at which the line of `position` starts.
    pub(super) fn line_start_of(&self, position: usize) -> usize {
        self.line_start(self.line(position))
    }

    fn diagnostic(&self, span: Option<Range<usize>>, what: Problem) -> Diagnostic {
        let span = span.map(|span| self.char_boundaries(span));
        let (mut line, mut column, mut excerpt) = (0, 0, None);
        if let Some(span) = &span {
            line = self.line(span.start);
            let first = self.line_start(line);
            let last = self.line(span.end.max(span.start + 1) - 1);
            let end = self.line_end(last);
            column =
                self.text.get(first..span.start).map_or(0, |text| text.chars().count()) as u64 + 1;
            // A span over many lines is marked on its first line only.
            let end = if last > line + 4 { self.line_end(line) } else { end };
            excerpt = self
                .text
                .get(first..end)
                .filter(|lines| lines.lines().all(|line| line.len() <= MAX_LINE))
                .map(|lines| (lines.to_owned(), span.start - first..span.end.min(end) - first));
        }
        Diagnostic {
            file: Escaped(&self.file).to_string(),
            line,
            column,
            message: Escaped(&what.message).to_string(),
            label: what.label.map(|label| Escaped(&label).to_string()),
            help: what.help,
            excerpt,
        }
    }

    fn line_start(&self, line: u64) -> usize {
        let index = usize::try_from(line).unwrap_or(usize::MAX).saturating_sub(1);
        self.line_starts.get(index).copied().unwrap_or(self.text.len())
    }

    fn line_end(&self, line: u64) -> usize {
        let start = self.line_start(line);
        let rest = self.text.get(start..).unwrap_or_default();
        start + rest.find('\n').unwrap_or(rest.len())
    }

    fn char_boundaries(&self, span: Range<usize>) -> Range<usize> {
        let start = self.text.floor_char_boundary(span.start);
        start..self.text.ceil_char_boundary(span.end).max(start)
    }
}

/// The parts of a diagnostic without its place.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    message: String,
    label: Option<String>,
    help: Option<String>,
}

impl Problem {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), label: None, help: None }
    }

    pub(super) fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}
