//! The operation `edit`: one occurrence of a text is replaced.

use super::{
    Base, Context, Error, SealedChange, SomeAttributes, content::Current, replace::Replacement,
};
use crate::{model::Access, workspace::Permit};

/// Reads the old content as a reader would, replaces the only occurrence of `from` by `to`, and
/// checks the result.
///
/// # Errors
/// When the old text does not occur exactly once, and as other changes.
pub(crate) fn prepare<'a>(
    context: &Context<'a>,
    permit: Permit,
    from: &str,
    to: &str,
) -> Result<SealedChange<'a>, Error> {
    if from.is_empty() {
        return Err(Error::Invalid("the old text is empty"));
    }
    let current = Current::look_for_change(context, &permit)?;
    let old = current.existing_bytes(context, &permit, Access::Read)?;
    let view = context.seen(permit.path(), old.clone())?;
    let text = str::from_utf8(&view.bytes).map_err(|_| {
        Error::Invalid("a binary file cannot be edited; write its complete content")
    })?;
    let content = replace_once(text, from, to)?;
    let content = context.store(permit.path(), Some(&old), content.into_bytes().into())?;
    Replacement::seal(
        *context,
        permit,
        current,
        Some(&old),
        content,
        SomeAttributes::default(),
        Base::Anything,
    )
}

/// Replaces `from`, which must occur exactly once; overlapping occurrences count. The occurrences
/// are not counted: in `aaa…` each position may be one.
fn replace_once(text: &str, from: &str, to: &str) -> Result<String, Error> {
    let Some((head, tail)) = text.split_once(from) else {
        return Err(Error::Occurrences(match has_with_crlf(text, from) {
            true => "0 times: its lines end in LF, those of the file in CRLF;",
            false => "0 times,",
        }));
    };
    let step = from.chars().next().map_or(1, char::len_utf8);
    if text.get(head.len() + step..).is_some_and(|rest| rest.contains(from)) {
        return Err(Error::Occurrences("more than once,"));
    }
    Ok([head, to, tail].concat())
}

/// True if `from` would occur with line ends in CRLF, which clients leave out.
fn has_with_crlf(text: &str, from: &str) -> bool {
    from.contains('\n') && text.contains(&from.replace("\r\n", "\n").replace('\n', "\r\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_exactly_one_occurrence() {
        assert_eq!(replace_once("a b c", "b", "x").unwrap(), "a x c");
        assert!(matches!(replace_once("a b c", "z", "x"), Err(Error::Occurrences("0 times,"))));
        let lf = replace_once("a\r\nb\r\n", "a\nb", "x").unwrap_err().to_string();
        assert!(lf.contains("0 times: its lines end in LF"), "{lf}");
        assert!(replace_once("a\r\nb\r\n", "a\r\nb", "x").is_ok());
        for (text, from) in [("b b", "b"), ("aaa", "aa"), ("żżż", "żż")] {
            let twice = replace_once(text, from, "x");
            assert!(matches!(twice, Err(Error::Occurrences("more than once,"))), "{text}");
        }
        assert_eq!(replace_once("żółć", "ół", "").unwrap(), "żć");
    }

    #[test]
    fn a_text_that_overlaps_itself_everywhere_is_looked_through_twice() {
        let text = "a".repeat(4 << 20);
        let twice = replace_once(&text, &"a".repeat(1 << 20), "x");
        assert!(matches!(twice, Err(Error::Occurrences("more than once,"))));
    }
}
