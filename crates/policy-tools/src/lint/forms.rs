//! Valid patterns that mean something else than they seem to.

use super::{finding::Finding, look_alike, subject::Subject};
use crate::{
    literal::escaped,
    outline::{PathPattern, StatementKind},
    policy::{
        Effect,
        parts::{Name, Segment, Token},
    },
    relate,
};

pub(super) fn lint(subject: Subject<'_>, file: usize, found: &mut Vec<Finding>) {
    use StatementKind as S;
    for statement in subject.of_file(file) {
        let restricts = matches!(statement.kind, S::Rule(Effect::Deny | Effect::Ask) | S::Label);
        let needs_all = restricts || statement.kind == S::InvisibleText;
        for pattern in &statement.patterns {
            let text = &pattern.text;
            let extension = || text.rsplit('/').next()?.rsplit_once('.');
            let misread = class(text)
                .or_else(|| regex(text))
                .or_else(|| look_alike::in_name(text))
                .or_else(|| look_alike::in_extension(extension()?.1))
                .or_else(|| restricts.then(|| one_depth(pattern))?)
                .or_else(|| needs_all.then(|| dot_required(text))?);
            let Some((id, message, suggestion)) = misread else { continue };
            found.push(Finding { id, file, span: pattern.span.clone(), message, suggestion });
        }
        for (extension, span) in &statement.extensions {
            let Some((id, message, suggestion)) = look_alike::in_extension(extension) else {
                continue;
            };
            found.push(Finding { id, file, span: span.clone(), message, suggestion });
        }
    }
}

/// Id, message and suggestion of a finding.
pub(super) type MisreadPattern = (&'static str, String, String);

/// Finds `app/[id]/page.tsx`, where `[id]` is the name of a directory, and `post-[id].tsx`.
pub(super) fn class(text: &str) -> Option<MisreadPattern> {
    let found = classes(text).into_iter().find(|class| {
        let is_alone = class.before.is_none_or(|c| is_separator(c) && c != '.')
            && match class.behind.chars().next() {
                Some('[') => class.behind.starts_with("[]]"),
                Some(c) => is_separator(c),
                None => true,
            };
        is_alone && is_word(class.letters)
    })?;
    let letters = found.letters;
    // Of `[[id]\]`, the second bracket has been escaped.
    let is_twice = letters.starts_with('[') && found.behind.starts_with(['\\', '[']);
    let class = if is_twice { format!("[{letters}]]") } else { format!("[{letters}]") };
    let first = letters.chars().next()?;
    let suggestion = match letters.contains('|') {
        true => format!("for one of several names, write `{{{}}}`", letters.replace('|', ",")),
        false => format!("if the name has the brackets, write `{}`", escaped(&class)),
    };
    Some((
        "class-as-name",
        format!("`[{letters}]` stands for one character, such as `{first}`, and not for a name"),
        suggestion,
    ))
}

/// A class in a pattern.
struct Class<'t> {
    /// The character before it: `?` in place of another class, and a literal one itself.
    before: Option<char>,
    letters: &'t str,
    /// The rest of the pattern.
    behind: &'t str,
}

/// Returns the classes of a valid pattern.
fn classes(text: &str) -> Vec<Class<'_>> {
    let (mut classes, mut before, mut rest) = (Vec::new(), None, text.chars());
    while let Some(c) = rest.next() {
        match c {
            '\\' => before = rest.next(),
            '[' => {
                // The first character of a class may be a `]`.
                let inside = rest.as_str();
                let end = inside.char_indices().skip(1).find(|(_, c)| *c == ']');
                let Some((letters, behind)) = end.and_then(|(at, _)| inside.split_at_checked(at))
                else {
                    break;
                };
                let behind = behind.strip_prefix(']').unwrap_or_default();
                classes.push(Class { before, letters, behind });
                let mut all = letters.chars();
                before = all.next().filter(|_| all.next().is_none()).or(Some('?'));
                rest = behind.chars();
            }
            c => before = Some(c),
        }
    }
    classes
}

/// True for a character that is no part of the word or wildcard beside it.
fn is_separator(c: char) -> bool {
    !c.is_alphanumeric() && !matches!(c, '*' | '?')
}

/// Words whose letters are in order by chance.
const IN_ORDER: [&str; 4] = ["city", "dir", "env", "host"];

/// True if the letters of a class rather form a word, or several with `|` between them: sets are
/// usually written in order, and each letter once.
fn is_word(letters: &str) -> bool {
    // The second bracket of `[[lang]`.
    let letters = letters.strip_prefix('[').unwrap_or(letters);
    // Names of hidden files are short, so their letters may be in order by chance.
    let is_hidden = letters.starts_with('.');
    let letters = letters.strip_prefix("...").or(letters.strip_prefix('.')).unwrap_or(letters);
    let is_sign = |c| matches!(c, '_' | '-' | '=' | '|');
    let plain = letters.chars().all(|c| c.is_ascii_alphanumeric() || is_sign(c));
    // Of `a-z` and `0-9a-f`, and not of `blog-post`.
    let mut parts = letters.split('-');
    let has_range = letters.contains('-') && parts.any(|part| part.len() < 2);
    let both_cases =
        letters.chars().any(|c| c.is_ascii_lowercase() && letters.contains(c.to_ascii_uppercase()));
    let has_letters = letters.contains(|c: char| c.is_ascii_alphabetic());
    let order = letters.trim_matches(['_', '=']).to_ascii_lowercase();
    let signs = order.chars().filter(|c| !c.is_ascii_digit() && *c != '-');
    let is_sorted = signs.is_sorted_by(|a, b| a < b) && !IN_ORDER.contains(&&*order);
    plain
        && !letters.starts_with('|')
        && has_letters
        && !has_range
        && !both_cases
        && (!is_sorted || (is_hidden && letters.len() > 1))
}

/// Finds `src/.*` and `src/.*/x`, written as regular expressions.
fn regex(text: &str) -> Option<MisreadPattern> {
    let names: Vec<_> = text.split('/').collect();
    let is_plain = |name: &&str| *name == ".*" || !name.contains(['*', '?', '[', '{', '}']);
    let begins = names.first() == Some(&".*");
    let all = begins || (names.contains(&".*") && names.iter().all(is_plain));
    (all && names.len() > 1).then(|| {
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

/// Finds names that are meant at any depth, as in ignore files: `.env`, `*.pem`, `.*`, one
/// alternative of `{id_rsa,a/b}`, and `*/.env`.
fn one_depth(pattern: &PathPattern) -> Option<MisreadPattern> {
    let all = pattern.written();
    let (found, is_of_root) = all.iter().find_map(|alternative| {
        let segments = alternative.segments();
        let [above @ .., Segment::Name(name)] = segments else { return None };
        let is_any = |segment: &Segment| *segment == Segment::Name(Name::Any);
        // `src{,/**}` says that it is about the one directory, `{**/,}x` is about any depth.
        let goes_on = all.iter().any(|other| {
            let other = other.segments();
            (other.len() > segments.len() && other.starts_with(segments))
                || matches!(other, [Segment::AnyDepth, Segment::Name(deep)] if deep == name)
        });
        let is_one = above.iter().all(is_any) && !is_wildcard(name) && !goes_on;
        is_one.then_some((alternative, above.is_empty()))
    })?;
    let text = &pattern.text;
    let example = relate::example(found, "x").unwrap_or_else(|| text.clone());
    let limit = match is_of_root {
        true => " in the workspace root alone, not in its directories",
        false => ", and that name at no other depth",
    };
    let deeper = text.trim_start_matches("*/");
    Some((
        "root-only-name",
        format!("`{text}` is about `{example}`{limit}"),
        format!("write `**/{deeper}` for any depth, `{text}/**` for this one alone"),
    ))
}

/// True for a pattern of all names, and for `*.*`, which has a lint of its own.
fn is_wildcard(name: &Name) -> bool {
    match name {
        Name::Any => true,
        Name::Infix(text) => &**text == ".",
        Name::Tokens(tokens) => tokens.iter().all(|t| matches!(t, Token::One | Token::Many)),
        Name::Literal(_) | Name::Prefix(_) | Name::Suffix(_) => false,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::WorkspacePath;

    #[test]
    fn classes_that_are_words_are_told_from_sets() {
        for name in [
            "app/[id]/page.tsx",
            "[slug].tsx",
            "a/{b,[lang]}/c",
            "[...slug]",
            "x/[userId]",
            "[.env]",
            "config/[env].yml",
            "[app]/x",
            "[secret|keys]/**",
            "[a|b]",
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
            "[[]id[]]",
            "[0123]",
            "[]]",
            "part-[1234567890].csv",
            "sha-[0-9a-f]-x",
            "x_[a-zA-Z0-9_-].y",
            "a[|]b",
            "[|ab]",
            "[<>|]",
            "[a-z|0-9]",
            "[rwx]",
            "[abcd].txt",
            "*.[ch]",
            "*.[hc]",
            "*.[ch]pp",
            "*.[tj]s",
            "id_[rd]sa",
            "v[0-9][dc].txt",
            "wg[0-9]*.conf",
            "[._-]x",
            "x-[xyz_]",
            "**/git~[0-9]/**",
            "[id]*",
        ] {
            assert_eq!(class(name), None, "{name}");
        }
    }

    /// They matched no such name, and nothing said so.
    #[test]
    fn names_in_brackets_were_not_told_beside_others_or_with_signs() {
        for name in [
            "routes/[id=integer]/+page.ts",
            "pages/post-[id].tsx",
            "[id]-[slug]/x",
            "[id]_edit",
            "users-[group]/[a]",
            "a-[0-9]/[blog-post]",
            "@[user]",
            "app/[[lang]\\]/**",
            "app/[[...slug]\\]/page.tsx",
            "[[lang][]]",
            "\\[[lang]\\]",
        ] {
            assert_eq!(class(name).map(|found| found.0), Some("class-as-name"), "{name}");
        }
        // The advice replaces the class, with a bracket that is escaped already.
        for (text, name) in [
            ("[[lang]\\]", "[[lang]]"),
            ("[[...slug][]]", "[[...slug]]"),
            ("[id=integer]", "[id=integer]"),
        ] {
            let (_, _, advice) = class(text).unwrap();
            let advised = advice.split('`').nth(1).unwrap();
            let advised = PathPattern::denying(advised).unwrap();
            assert!(advised.matches(&WorkspacePath::parse(name).unwrap()), "{advice}");
        }
    }

    #[test]
    fn regular_expressions_are_told_from_names_with_a_dot() {
        for text in ["src/.*", "a/b/.*", ".*/secret", "src/.*/secret", ".*/secret/.*", ".*/a/**"] {
            assert_eq!(regex(text).map(|found| found.0), Some("regex-as-pattern"), "{text}");
        }
        for text in [
            ".*",
            "**/.*",
            "**/.*/**",
            "*/.*/x",
            "src/.?*",
            "src/.?*/x",
            ".env.*",
            "src/.*rc",
            "a+b",
            "[+]",
        ] {
            assert_eq!(regex(text), None, "{text}");
        }
    }

    fn is_of_one_depth(text: &str) -> bool {
        one_depth(&PathPattern::denying(text).unwrap()).is_some()
    }

    #[test]
    fn names_of_the_root_alone_are_told_from_paths() {
        for text in
            ["*.pem", ".env", "id_rsa", "*secret*", "{.env,.npmrc}", "[.]env", "id_*", "private"]
                .into_iter()
                .chain([".*", "*~", ".#*", "_*"])
        {
            assert!(is_of_one_depth(text), "{text}");
        }
        for text in ["**/.env", "private/**", "src{,/**}", "*", "**", ".", "?", "??", "*.*"] {
            assert!(!is_of_one_depth(text), "{text}");
        }
    }

    /// They left the same name open in other directories, and nothing said so.
    #[test]
    fn an_alternative_of_the_root_alone_and_one_of_each_directory_were_not_told() {
        for text in ["{.env,config/*.pem}", "{*.pem,certs/*.key}", "*/.env", "*/*/*.pem"] {
            let (_, _, advice) = one_depth(&PathPattern::denying(text).unwrap()).expect(text);
            for advised in [1, 3].map(|part| advice.split('`').nth(part).unwrap()) {
                assert!(!is_of_one_depth(advised), "{advised}");
            }
        }
        for text in [
            "config/*.pem",
            "{.env,.npmrc}/**",
            "**/{.env,*.pem}",
            "{a/b,c/d}",
            "*/*",
            "*/.env/**",
            "{a,b}{,/**}",
            // It is about any depth, and was said to be about the root alone.
            "{**/,}x",
            "{,**/}.env",
        ] {
            assert!(!is_of_one_depth(text), "{text}");
        }
    }
}
