//! Texts, tables and lists as HTML.

use std::fmt::{Display, Write as _};

use crate::model::{Escaped, distinct};

/// Maximum number of rows of a table, so that a report of a busy week fits on a few printed pages.
pub(super) const MAX_ROWS: usize = 50;

/// Escapes untrusted text for HTML, with hidden characters made visible, so that no two texts look
/// alike.
pub(super) fn text(untrusted: &str) -> String {
    quoted(&distinct(untrusted, &[]))
}

/// Escapes text for HTML in which names are quoted or escaped already, or are JSON.
pub(super) fn quoted(shown: &str) -> String {
    let mut out = String::with_capacity(shown.len() + 16);
    for c in Escaped(shown).to_string().chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Escapes the text of a policy. Its backslashes stay as they are: they are part of patterns.
pub(super) fn lines(untrusted: &str) -> String {
    untrusted.lines().map(quoted).collect::<Vec<_>>().join("\n")
}

pub(super) fn maybe(untrusted: Option<&String>) -> String {
    untrusted.map_or_else(|| "<span class=\"none\">–</span>".to_owned(), |value| text(value))
}

/// Formats a time to the second.
pub(super) fn moment(t: &str) -> String {
    text(&t.get(..19).unwrap_or(t).replace('T', " "))
}

/// Formats a complete hash in a font that lets it wrap.
pub(super) fn hash(value: Option<&String>) -> String {
    value
        .map_or_else(|| maybe(None), |value| format!("<code class=\"hash\">{}</code>", text(value)))
}

/// Escapes a path, which may be wrapped behind each `/`.
pub(super) fn path(untrusted: Option<&String>) -> String {
    untrusted.map_or_else(|| maybe(None), |path| text(path).replace('/', "/<wbr>"))
}

/// A page under construction.
#[derive(Default)]
pub(super) struct Page {
    html: String,
    /// Identifiers and titles of the sections.
    sections: Vec<(String, &'static str)>,
}

impl Page {
    /// Adds HTML verbatim.
    pub(super) fn raw(&mut self, html: impl Display) {
        let _ = write!(self.html, "{html}");
    }

    /// Begins a section, which the list of contents names.
    pub(super) fn section(&mut self, title: &'static str) {
        let id = title.to_lowercase().replace(' ', "-");
        self.raw(format_args!("<h2 id=\"{id}\">{title}</h2>\n"));
        self.sections.push((id, title));
    }

    /// Returns the page, with the list of contents in place of the first `mark`.
    pub(super) fn finish(self, mark: &str) -> String {
        let items = self
            .sections
            .iter()
            .map(|(id, title)| format!("<li><a href=\"#{id}\">{title}</a></li>"));
        let contents = format!("<nav><ul>{}</ul></nav>\n", items.collect::<String>());
        self.html.replacen(mark, &contents, 1)
    }

    /// Adds a table of cells that are HTML.
    pub(super) fn table<const N: usize>(
        &mut self,
        heads: [&str; N],
        rows: impl IntoIterator<Item = [String; N]>,
    ) {
        let rows = Vec::from_iter(rows);
        let is_number =
            |cell: &String| !cell.is_empty() && cell.bytes().all(|b| b.is_ascii_digit());
        let class = |at: usize| {
            let all = !rows.is_empty() && rows.iter().all(|row| row.get(at).is_some_and(is_number));
            if all { " class=\"n\"" } else { "" }
        };
        self.raw("<div class=\"wide\"><table>\n<thead><tr>");
        for (at, head) in heads.iter().enumerate() {
            self.raw(format_args!("<th{}>{head}</th>", class(at)));
        }
        self.raw("</tr></thead>\n<tbody>\n");
        for row in &rows {
            self.raw("<tr>");
            for (at, cell) in row.iter().enumerate() {
                self.raw(format_args!("<td{}>{cell}</td>", class(at)));
            }
            self.raw("</tr>\n");
        }
        self.raw("</tbody></table></div>\n");
    }

    /// Adds a table of the first [`MAX_ROWS`] of `total` rows; `rest` is the command that lists the
    /// others.
    pub(super) fn list<const N: usize>(
        &mut self,
        heads: [&str; N],
        rows: impl IntoIterator<Item = [String; N]>,
        total: u64,
        rest: &str,
    ) {
        let rows = Vec::from_iter(rows.into_iter().take(MAX_ROWS));
        let left_out = total.saturating_sub(rows.len() as u64);
        self.table(heads, rows);
        self.rest(left_out, rest);
    }

    /// Says how many more there are, and which command lists them.
    pub(super) fn rest(&mut self, count: u64, command: &str) {
        if count > 0 {
            self.raw(format_args!(
                "<p class=\"note\">… and {count} more: <code>{}</code></p>\n",
                quoted(command)
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_markup() {
        assert_eq!(
            text("<img src=x onerror='a'>\u{202e}\"&\n"),
            "&lt;img src=x onerror=&#39;a&#39;&gt;\\u{202e}&quot;&amp;\\n"
        );
        assert_eq!(text(r"\u{202e}"), r"\\u{202e}");
    }
}
