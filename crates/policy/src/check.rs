//! Checks of a file's keys and types against the [schema](super::schema).
//!
//! Only the form is checked here; [`statements`](super::statements) interprets strings.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    diagnostics::Problem,
    schema::{Field, POLICY, RETIRED, Shape, Status},
};

/// Maximum number of unknown keys in one table for which a similar known key is searched.
const MAX_SUGGESTIONS: usize = 100;

/// Minimum length of the beginning of a word for which the word is suggested.
const MIN_BEGINNING: usize = 3;

/// Words of other policy languages, with ours.
const SYNONYMS: [(&str, &str); 18] = [
    ("block", "deny"),
    ("cat", "read"),
    ("create", "write"),
    ("delete", "remove"),
    ("dir", "list"),
    ("forbid", "deny"),
    ("get", "read"),
    ("link", "symlink"),
    ("ls", "list"),
    ("move", "rename"),
    ("patch", "edit"),
    ("permit", "allow"),
    ("prompt", "ask"),
    ("reject", "deny"),
    ("rm", "remove"),
    ("rmdir", "remove"),
    ("search", "grep"),
    ("unlink", "remove"),
];

/// A callback for problems, with their places.
pub(super) type Report<'a> = dyn FnMut(Option<Range<usize>>, Problem) + 'a;

/// Checks the entire file. Missing keys are reported only if the file is `complete`: after a syntax
/// error a key may exist without being parsed.
pub(super) fn file(root: &DeTable<'_>, complete: bool, report: &mut Report<'_>) {
    table(root, None, POLICY, "", complete, report);
}

/// Checks an entire file of another kind against its own `fields`.
pub(super) fn document(root: &DeTable<'_>, fields: &[Field], report: &mut Report<'_>) {
    table(root, None, fields, "", true, report);
}

/// Checks `table`, including nested values, against `fields`. `span` is the place of the table,
/// `None` for the file itself; `path` is its name, empty for the file itself.
fn table(
    table: &DeTable<'_>,
    span: Option<Range<usize>>,
    fields: &[Field],
    path: &str,
    complete: bool,
    report: &mut Report<'_>,
) {
    let mut strangers = 0;
    for (key, value) in table {
        let name: &str = key.get_ref();
        let Some(field) = fields.iter().find(|field| field.key == name) else {
            strangers += 1;
            report(Some(key.span()), unknown(name, fields, path, strangers <= MAX_SUGGESTIONS));
            continue;
        };
        shape(value, field.shape, &join(path, name), complete, report);
    }
    for field in fields.iter().filter(|field| complete && field.status == Status::Required) {
        if !table.contains_key(field.key) {
            let what = match path {
                "" => format!("the policy has no `{}`", field.key),
                _ => format!("`{path}` has no `{}`", field.key),
            };
            let help = format!("add `{} = …`: {}", field.key, field.shape.expected());
            report(
                span.clone(),
                Problem::new(what).help(if field.key == "schema" {
                    "start the file with `schema = 1`".to_owned()
                } else {
                    help
                }),
            );
        }
    }
}

fn shape(
    value: &Spanned<DeValue<'_>>,
    expected: Shape,
    path: &str,
    complete: bool,
    report: &mut Report<'_>,
) {
    match (expected, value.get_ref()) {
        (Shape::Text | Shape::Formed(_) | Shape::Size | Shape::Duration, DeValue::String(_))
        | (Shape::Boolean, DeValue::Boolean(_)) => {}
        (Shape::Number, DeValue::Integer(_) | DeValue::Float(_)) => {
            if number(value.get_ref()).is_none() {
                let problem = Problem::new(format!("`{path}` is out of range"))
                    .label("expected a number that is not negative");
                report(Some(value.span()), problem);
            }
        }
        (Shape::Integer(low, high), DeValue::Integer(_)) => {
            if !integer(value.get_ref()).is_some_and(|number| (low..=high).contains(&number)) {
                report(Some(value.span()), integer_out_of_range(path, low, high, expected));
            }
        }
        (Shape::Word(words), DeValue::String(text)) => {
            if !words.contains(&&**text) {
                report(Some(value.span()), bad_word(path, text, words, expected));
            }
        }
        (Shape::List(element) | Shape::Filled(element), DeValue::Array(values)) => {
            for value in values.iter() {
                shape(value, *element, path, complete, report);
            }
        }
        (Shape::Table(fields), DeValue::Table(inner)) => {
            table(inner, Some(value.span()), fields, path, complete, report);
        }
        (Shape::Texts, DeValue::Table(inner)) => {
            for (_, value) in inner {
                shape(value, Shape::Text, path, complete, report);
            }
        }
        (Shape::Tables(fields), DeValue::Array(values)) => {
            for value in values.iter() {
                match value.get_ref() {
                    DeValue::Table(inner) => {
                        table(inner, Some(value.span()), fields, path, complete, report);
                    }
                    other => report(Some(value.span()), wrong_type(path, other, expected)),
                }
            }
        }
        (_, other) => report(Some(value.span()), wrong_type(path, other, expected)),
    }
}

/// Returns the value of a non-negative integer.
pub(super) fn integer(value: &DeValue<'_>) -> Option<u64> {
    let number = value.as_integer()?;
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// Returns the value of a non-negative finite number.
pub(super) fn number(value: &DeValue<'_>) -> Option<f64> {
    let number: f64 = match value {
        DeValue::Float(number) => number.as_str().parse().ok()?,
        other => integer(other)?.to_string().parse().ok()?,
    };
    (number.is_finite() && number >= 0.0).then_some(number)
}

fn unknown(name: &str, fields: &[Field], path: &str, suggest: bool) -> Problem {
    let location = if path.is_empty() { String::new() } else { format!(" in `{path}`") };
    let problem = Problem::new(format!("unknown key `{}`{location}", shortened(name)));
    if let Some((_, help)) = RETIRED.iter().find(|(key, _)| *key == join(path, name)) {
        return problem.label("no longer a key").help(*help);
    }
    let known = fields.iter().map(|field| field.key);
    match nearest(name, known.clone().filter(|_| suggest)) {
        Some(near) => problem.label("not a key here").help(format!("did you mean `{near}`?")),
        None => {
            let known: Vec<_> = known.collect();
            problem.label("not a key here").help(format!("known keys: {}", known.join(", ")))
        }
    }
}

fn bad_word(path: &str, text: &str, words: &[&str], expected: Shape) -> Problem {
    let problem = Problem::new(format!("`{path}` cannot be \"{}\"", shortened(text)))
        .label(format!("expected {}", expected.expected()));
    match nearest(text, words.iter().copied()) {
        Some(near) => problem.help(format!("did you mean \"{near}\"?")),
        None => problem,
    }
}

fn integer_out_of_range(path: &str, low: u64, high: u64, expected: Shape) -> Problem {
    if path == "schema" {
        return Problem::new("this version reads schema 1 only").label(if low == high {
            format!("expected {low}")
        } else {
            expected.expected()
        });
    }
    Problem::new(format!("`{path}` is out of range"))
        .label(format!("expected {}", expected.expected()))
}

fn wrong_type(path: &str, value: &DeValue<'_>, expected: Shape) -> Problem {
    let found = value.type_str();
    let article = if found.starts_with(['a', 'i']) { "an" } else { "a" };
    Problem::new(format!("`{path}` cannot be {article} {found}"))
        .label(format!("expected {}", expected.expected()))
}

/// Returns the known word that is most similar to `text`, if one is similar enough: that of the
/// same meaning, one that begins with `text`, or one of similar spelling.
pub fn nearest<'a>(text: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if text.len() > 64 {
        return None;
    }
    let folded = text.to_lowercase();
    let distance = |word: &str| match word.to_lowercase() {
        _ if SYNONYMS.contains(&(&*folded, word)) => 0,
        lower if folded.len() >= MIN_BEGINNING && lower.starts_with(&folded) => 1,
        lower => strsim::damerau_levenshtein(&folded, &lower),
    };
    known
        .map(|word| (distance(word), word))
        // Two letters of a short word make another word: `rmdir` is not `mkdir`.
        .filter(|(distance, word)| {
            *distance <= if word.len() <= 5 { 1 } else { 1 + word.len() / 4 }
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Returns the beginning of a text of any length.
pub(super) fn shortened(text: &str) -> String {
    let mut start: String = text.chars().take(60).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    start
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

#[cfg(test)]
mod tests {
    use super::nearest;
    use crate::model::OperationKind;

    /// A rule that followed the advice guarded another operation: `mkdir` in place of `rmdir`.
    #[test]
    fn another_operation_was_suggested() {
        let meant = |text| nearest(text, OperationKind::ALL.into_iter().map(OperationKind::as_str));
        for (text, word) in [
            ("rmdir", "remove"),
            ("cat", "read"),
            ("get", "read"),
            ("link", "symlink"),
            ("dir", "list"),
            ("ls", "list"),
            ("patch", "edit"),
            ("raed", "read"),
            ("wirte", "write"),
            ("lst", "list"),
            ("renmae", "rename"),
        ] {
            assert_eq!(meant(text), Some(word), "{text}");
        }
        assert_eq!(nearest("hosts", ["rules", "tests", "limits"].into_iter()), None);
    }
}
