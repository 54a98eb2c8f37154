//! Replacing pieces of a text one after the other, as the reference server
//! documents it: the old text as it is, else line by line whatever the
//! indentation, which is then kept.

/// Applies edits of old and new text in their order; each changes the first
/// place that fits.
///
/// # Errors
/// Says which old text was not found.
pub(super) fn apply(text: &str, edits: &[(&str, &str)]) -> Result<String, String> {
    // A file of DOS lines is edited as one of plain lines and stays one.
    let dos = text.contains("\r\n") && !text.replace("\r\n", "").contains('\n');
    let mut content = if dos { text.replace("\r\n", "\n") } else { text.to_owned() };
    for (old, new) in edits {
        let (old, new) = match dos {
            true => (old.replace("\r\n", "\n"), new.replace("\r\n", "\n")),
            false => ((*old).to_owned(), (*new).to_owned()),
        };
        if old.is_empty() {
            return Err("`oldText` is empty".to_owned());
        }
        content = match content.split_once(&old) {
            Some((head, tail)) => [head, &new, tail].concat(),
            None => by_line(&content, &old, &new)
                .ok_or_else(|| format!("could not find a match for the edit:\n{old}"))?,
        };
    }
    Ok(if dos { content.replace('\n', "\r\n") } else { content })
}

/// Replaces the first lines that are those of `old` but for white space around.
fn by_line(text: &str, old: &str, new: &str) -> Option<String> {
    let lines: Vec<&str> = text.split('\n').collect();
    let old: Vec<&str> = old.split('\n').collect();
    let same = |window: &[&str]| window.iter().zip(&old).all(|(a, b)| a.trim() == b.trim());
    let at = lines.windows(old.len()).position(same)?;
    let (head, rest) = lines.split_at_checked(at)?;
    let (replaced, tail) = rest.split_at_checked(old.len())?;
    let base = indentation(replaced.first()?);
    let new: Vec<String> = new
        .split('\n')
        .enumerate()
        .map(|(number, line)| {
            let theirs = old.get(number).map_or("", |line| indentation(line));
            let ours = indentation(line);
            if number > 0 && (theirs.is_empty() || ours.is_empty()) {
                return line.to_owned();
            }
            let deeper = if number == 0 { 0 } else { ours.len().saturating_sub(theirs.len()) };
            format!("{base}{}{}", " ".repeat(deeper), line.trim_start())
        })
        .collect();
    let new = new.iter().map(String::as_str);
    let all: Vec<&str> = head.iter().copied().chain(new).chain(tail.iter().copied()).collect();
    Some(all.join("\n"))
}

fn indentation(line: &str) -> &str {
    let rest = line.trim_start().len();
    line.get(..line.len() - rest).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_build_on_each_other_and_change_the_first_place() {
        assert_eq!(apply("a b a", &[("a", "b"), ("b b", "c")]).unwrap(), "c a");
        assert!(apply("a", &[("x", "y")]).unwrap_err().contains('x'));
        assert!(apply("a", &[("", "y")]).is_err());
        assert_eq!(apply("a", &[]).unwrap(), "a");
    }

    #[test]
    fn indentation_that_differs_is_kept() {
        let text = "fn f() {\n    if x {\n        y();\n    }\n}\n";
        let edited = apply(text, &[("if x {\n    y();\n}", "if z {\n    w();\n}")]).unwrap();
        assert!(edited.contains("    if z {\n"), "{edited}");
        assert!(edited.contains("    w();\n"), "{edited}");
        assert!(apply("a\nb", &[("b\nc\nd", "x")]).is_err());
    }

    #[test]
    fn dos_lines_stay() {
        assert_eq!(apply("a\r\nb\r\n", &[("a\nb", "c\nd")]).unwrap(), "c\r\nd\r\n");
        assert_eq!(apply("a\r\nb\n", &[("b", "c")]).unwrap(), "a\r\nc\n");
    }
}
