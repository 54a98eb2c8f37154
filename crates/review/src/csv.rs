//! Cells of a CSV file (RFC 4180) that a spreadsheet takes as text.

use super::Field;
use crate::model::Escaped;

/// A cell: control, bidirectional and invisible characters are escaped, what a
/// spreadsheet would take for a formula gets a quote mark in front (OWASP, "CSV
/// injection"), and what needs quotes is in quotes.
pub fn cell(text: &str) -> String {
    let shown = Escaped(text).to_string();
    // Full-width forms are formulas to some spreadsheets too.
    let formula = ['=', '+', '-', '@', '|', '%', '＝', '＋', '－', '＠'];
    let start = text.trim_start_matches(|c: char| c.is_whitespace() || c.is_control());
    let shown = if start.starts_with(formula) { format!("'{shown}") } else { shown };
    if shown.contains([',', '"', ';', ' ', '\'']) {
        format!("\"{}\"", shown.replace('"', "\"\""))
    } else {
        shown
    }
}

/// The first line: names of columns.
pub fn header(fields: &[Field]) -> String {
    fields.iter().map(|field| field.as_str()).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_is_a_formula_or_leaves_its_place() {
        assert_eq!(cell("src/main.rs"), "src/main.rs");
        assert_eq!(cell("=1+1"), "\"'=1+1\"");
        assert_eq!(cell("-1"), "\"'-1\"");
        assert_eq!(cell("@SUM(A1)"), "\"'@SUM(A1)\"");
        assert_eq!(cell("\t=1"), "\"'\\t=1\"");
        assert_eq!(cell("a,\"b\"\n"), "\"a,\"\"b\"\"\\n\"");
        assert_eq!(cell("a\u{202e}\u{1b}[2J"), "a\\u{202e}\\u{1b}[2J");
    }
}
