//! Valid patterns that mean something else than they seem to.

use super::{finding::Finding, subject::Subject};
use crate::{literal::escaped, outline::StatementKind, policy::Effect};

/// Letters of other scripts (Cyrillic, Greek, Armenian, phonetic) that look like letters of ASCII.
const LOOK_ALIKES: &str = "аеорсухіјѕһԁԛԝӏАВЕКМНОРСТУХІЈЅοανρυΑΒΕΖΗΙΚΜΝΟΡΤΥΧօոսցհɑɡ";

pub(super) fn lint(subject: Subject<'_>, file: usize, found: &mut Vec<Finding>) {
    for statement in subject.of_file(file) {
        for pattern in &statement.patterns {
            let text = &pattern.text;
            let restricts =
                matches!(statement.kind, StatementKind::Rule(Effect::Deny | Effect::Ask));
            let misread = class(text)
                .or_else(|| regex(text))
                .or_else(|| look_alike(text))
                .or_else(|| look_alike_extension(text.rsplit_once('.')?.1))
                .or_else(|| restricts.then(|| root_only(text))?)
                .or_else(|| restricts.then(|| dot_required(text))?);
            let Some((id, message, suggestion)) = misread else { continue };
            found.push(Finding { id, file, span: pattern.span.clone(), message, suggestion });
        }
        for (extension, span) in &statement.extensions {
            let Some((id, message, suggestion)) = look_alike_extension(extension) else { continue };
            found.push(Finding { id, file, span: span.clone(), message, suggestion });
        }
    }
}

type MisreadPattern = (&'static str, String, String);

/// Finds `app/[id]/page.tsx`, where `[id]` is the name of a directory.
fn class(text: &str) -> Option<MisreadPattern> {
    let (class, letters) = text.split(['/', '{', '}', ',']).find_map(|name| {
        let (letters, rest) = name.strip_prefix('[')?.split_once(']')?;
        let alone = rest.is_empty() || rest.starts_with('.');
        (alone && is_word(letters)).then(|| (format!("[{letters}]"), letters))
    })?;
    let first = letters.chars().next()?;
    Some((
        "class-as-name",
        format!("`{class}` stands for one character, such as `{first}`, and not for a name"),
        format!("if the name has the brackets, write `{}`", escaped(&class)),
    ))
}

/// True if the letters of a class rather form a word: sets are usually written in order.
fn is_word(letters: &str) -> bool {
    // Names of hidden files are short, so their letters may be in order by chance.
    let is_hidden = letters.starts_with('.');
    let letters = letters.strip_prefix("...").or(letters.strip_prefix('.')).unwrap_or(letters);
    let plain = letters.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let both_cases =
        letters.chars().any(|c| c.is_ascii_lowercase() && letters.contains(c.to_ascii_uppercase()));
    let is_sorted = letters.to_ascii_lowercase().chars().is_sorted();
    plain && !both_cases && (!is_sorted || (is_hidden && letters.len() > 1))
}

/// Finds `src/.*`, written as a regular expression.
fn regex(text: &str) -> Option<MisreadPattern> {
    let names: Vec<_> = text.split('/').collect();
    let is_plain = |name: &&str| !name.contains(['*', '?', '[', '{', '}']);
    let all = match names.as_slice() {
        [before @ .., ".*"] => !before.is_empty() && before.iter().all(is_plain),
        [".*", ..] => names.len() > 1,
        _ => false,
    };
    all.then(|| {
        (
            "regex-as-pattern",
            format!("`.*` in `{text}` stands for names that begin with a dot"),
            format!(
                "write `{}` for all, `{}` for what begins with a dot",
                text.replace(".*", "**"),
                text.replace(".*", ".?*")
            ),
        )
    })
}

/// Finds `.env`, `*.pem`, `.*` and `{id_rsa,private}`, which apply at any depth in ignore files.
fn root_only(text: &str) -> Option<MisreadPattern> {
    // Patterns for all names are no names, and `*.*` has a lint of its own.
    let is_all = text == "*.*" || text.chars().all(|c| matches!(c, '*' | '?'));
    let is_name = !text.contains('/') && text != "." && !is_all;
    is_name.then(|| {
        (
            "root-only-name",
            format!("`{text}` is about the workspace root alone, not about directories in it"),
            format!("write `**/{text}` for any depth, `{text}/**` for the root's own"),
        )
    })
}

/// Finds `*.*`, which stands for all names on other systems.
fn dot_required(text: &str) -> Option<MisreadPattern> {
    text.split('/').any(|name| name == "*.*").then(|| {
        (
            "dot-required",
            format!("`*.*` in `{text}` is about names with a dot in them"),
            format!("write `{}` for all names", text.replace("*.*", "*")),
        )
    })
}

/// Finds a name in ASCII with a letter of another script that looks the same.
fn look_alike(text: &str) -> Option<MisreadPattern> {
    let name = text.split('/').find(|name| {
        name.chars().any(|c| c.is_ascii_alphabetic()) && name.chars().any(is_look_alike)
    })?;
    mixed(name)
}

/// Finds an extension that looks like one in ASCII. Entire names of such letters are words of their
/// script, but extensions hardly are.
fn look_alike_extension(extension: &str) -> Option<MisreadPattern> {
    let is_letter = |c: char| !c.is_ascii() && c.is_alphabetic();
    let foreign = || extension.chars().filter(|c| is_letter(*c));
    if foreign().all(is_look_alike) { mixed(extension) } else { None }
}

fn is_look_alike(c: char) -> bool {
    // Letters in full width.
    LOOK_ALIKES.contains(c) || matches!(c, '\u{ff21}'..='\u{ff3a}' | '\u{ff41}'..='\u{ff5a}')
}

fn mixed(name: &str) -> Option<MisreadPattern> {
    let letter = name.chars().find(|c| is_look_alike(*c))?;
    Some((
        "mixed-scripts",
        format!(
            "`{letter}` in `{name}` is U+{:04X}, a letter of another script",
            u32::from(letter)
        ),
        "write the letter of the keyboard; the name with that one is another name".to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_that_are_words_are_told_from_sets() {
        for name in [
            "app/[id]/page.tsx",
            "[slug].tsx",
            "a/{b,[lang]}/c",
            "[...slug]",
            "x/[userId]",
            "[.env]",
        ] {
            assert_eq!(class(name).map(|found| found.0), Some("class-as-name"), "{name}");
        }
        for name in [
            "[abc]",
            "[a-z]",
            "[!id]",
            "[Mm]akefile",
            "[yYnN].txt",
            "x[id]",
            "\\[id\\]",
            "[0123]",
            "[]]",
        ] {
            assert_eq!(class(name), None, "{name}");
        }
    }

    #[test]
    fn regular_expressions_are_told_from_names_with_a_dot() {
        for text in ["src/.*", "a/b/.*", ".*/secret"] {
            assert_eq!(regex(text).map(|found| found.0), Some("regex-as-pattern"), "{text}");
        }
        for text in [".*", "**/.*", "src/.?*", ".env.*", "src/.*rc", "a+b", "[+]"] {
            assert_eq!(regex(text), None, "{text}");
        }
    }

    #[test]
    fn names_of_the_root_alone_are_told_from_paths() {
        for text in
            ["*.pem", ".env", "id_rsa", "*secret*", "{.env,.npmrc}", "[.]env", "id_*", "private"]
                .into_iter()
                .chain([".*", "*~", ".#*", "_*"])
        {
            assert!(root_only(text).is_some(), "{text}");
        }
        for text in ["**/.env", "private/**", "src{,/**}", "*", "**", ".", "?", "??", "*.*"] {
            assert_eq!(root_only(text), None, "{text}");
        }
    }

    #[test]
    fn letters_of_another_script_are_told_from_words_of_it() {
        assert!(look_alike("src/p\u{430}yments").is_some());
        assert!(look_alike("*.\u{435}nv").is_some() && look_alike("\u{ff45}nv").is_some());
        for extension in ["\u{435}nv", "\u{435}\u{445}\u{435}", "\u{ff45}\u{ff58}\u{ff45}"] {
            assert!(look_alike_extension(extension).is_some(), "{extension}");
        }
        for extension in ["env", "\u{43e}\u{442}\u{447}", "na\u{ef}f", "*", "\u{44f}"] {
            assert_eq!(look_alike_extension(extension), None, "{extension}");
        }
        for text in ["src/payments", "\u{43e}\u{442}\u{447}\u{435}\u{442}/a", "caf\u{e9}"] {
            assert_eq!(look_alike(text), None, "{text}");
        }
    }
}
