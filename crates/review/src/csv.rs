//! Cells of a CSV file (RFC 4180) that a spreadsheet reads as text.

use super::Field;
use crate::model::distinct;

/// Formats a cell. Control, bidirectional and invisible characters are escaped, and backslashes that
/// could pass for the beginning of such an escape are doubled; text that a
/// spreadsheet would read as a formula is prefixed with a quote mark (OWASP, "CSV injection"), also
/// after a `;`, where some spreadsheets begin a cell, and cells that require it are quoted.
pub fn cell(text: &str) -> String {
    let parts: Vec<_> = text.split(';').map(part).collect();
    let shown = parts.join(";");
    if shown.contains([',', '"', ';', ' ', '\'']) {
        format!("\"{}\"", shown.replace('"', "\"\""))
    } else {
        shown
    }
}

/// Formats what a spreadsheet may take for one cell, of which it may remove double quotes.
fn part(text: &str) -> String {
    let shown = distinct(text, &[]);
    // Some spreadsheets accept full-width forms in formulas.
    let formula = ['=', '+', '-', '@', '|', '%', '＝', '＋', '－', '＠'];
    let is_left_out = |c: char| c.is_whitespace() || c.is_control() || c == '"';
    let is_formula = text.trim_start_matches(is_left_out).starts_with(formula);
    if is_formula { format!("'{shown}") } else { shown }
}

/// Formats the header line with the names of the columns.
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
        assert_eq!(cell("\"=1"), "\"'\"\"=1\"");
        assert_eq!(cell("a,\"b\"\n"), "\"a,\"\"b\"\"\\n\"");
        assert_eq!(cell("a\u{202e}\u{1b}[2J"), "a\\u{202e}\\u{1b}[2J");
        assert_eq!(cell(r"a\u{202e}"), r"a\\u{202e}");
    }
}
