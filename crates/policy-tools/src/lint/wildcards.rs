//! `[[tests]]` about paths that look like patterns.

use toml::de::DeTable;

use super::{finding::Finding, subject::Subject};

pub(super) fn lint(subject: Subject<'_>, file: usize, found: &mut Vec<Finding>) {
    let Some(outline) = subject.outline.get(file) else { return };
    let (root, _) = DeTable::parse_recoverable(&outline.text);
    let tests = root.get_ref().get("tests").and_then(|tests| tests.get_ref().as_array());
    for test in tests.into_iter().flat_map(|tests| tests.iter()) {
        let Some(table) = test.get_ref().as_table() else { continue };
        for value in ["path", "to"].into_iter().filter_map(|key| table.get(key)) {
            let Some(path) = value.get_ref().as_str().filter(|path| is_pattern(subject, path))
            else {
                continue;
            };
            found.push(Finding {
                id: "wildcard-in-test",
                file,
                span: value.span(),
                message: format!("the test is about one entry whose name is `{path}`"),
                suggestion: "name an entry that the pattern matches, and one that it does not"
                    .to_owned(),
            });
        }
    }
}

/// True if a path was certainly meant as a pattern. Names can have brackets: `app/[id]/page.tsx`.
/// They are a class if a pattern of the policy has the same component.
fn is_pattern(subject: Subject<'_>, path: &str) -> bool {
    let braces = path.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let has_alternatives = braces.is_some_and(|(inside, _)| inside.contains(','));
    let is_written = |component: &str| {
        let mut patterns = subject.statements().flat_map(|(_, statement)| &statement.patterns);
        patterns.any(|pattern| pattern.text.split('/').any(|written| written == component))
    };
    path.contains(['*', '?'])
        || has_alternatives
        || path.split('/').any(|component| component.contains('[') && is_written(component))
}
