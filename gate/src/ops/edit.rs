//! Replacing one piece of text.

use super::{Change, Context, Error, Sealed, content::Current, replace::Replacement};
use crate::{model::Access, workspace::Permit};

/// Reads the old content as a reader would, replaces the one occurrence of
/// `from` by `to`, and checks the file that would result.
///
/// # Errors
/// When the old text does not occur exactly once, and as the other changes.
pub fn prepare<'a>(
    context: &Context<'a>,
    permit: Permit,
    from: &str,
    to: &str,
) -> Result<Sealed<Box<dyn Change + 'a>>, Error> {
    if from.is_empty() {
        return Err(Error::Invalid("the old text is empty"));
    }
    let current = Current::look_for_change(context, &permit)?;
    let old = current.existing_bytes(context, &permit, Access::Read)?;
    let view = context.seen(permit.path(), old.clone())?;
    let text = str::from_utf8(&view.bytes)
        .map_err(|_| Error::Invalid("a binary file cannot be edited; write it whole"))?;
    let content = replace_once(text, from, to)?;
    let content = context.store(permit.path(), Some(&old), content.into_bytes())?;
    Replacement::seal(*context, permit, current, Some(&old), content)
}

/// Replaces `from`, which must occur exactly once; occurrences that overlap
/// count.
fn replace_once(text: &str, from: &str, to: &str) -> Result<String, Error> {
    let (head, tail) = text.split_once(from).ok_or(Error::Occurrences(0))?;
    let step = from.chars().next().map_or(1, char::len_utf8);
    let occurrences = std::iter::successors(text.get(head.len()..), |rest| {
        let next = rest.get(step..)?;
        next.get(next.find(from)?..)
    })
    .count();
    if occurrences != 1 {
        return Err(Error::Occurrences(occurrences));
    }
    Ok([head, to, tail].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_exactly_one_occurrence() {
        assert_eq!(replace_once("a b c", "b", "x").unwrap(), "a x c");
        assert!(matches!(replace_once("a b c", "z", "x"), Err(Error::Occurrences(0))));
        assert!(matches!(replace_once("b b", "b", "x"), Err(Error::Occurrences(2))));
        assert!(matches!(replace_once("aaa", "aa", "x"), Err(Error::Occurrences(2))));
        assert_eq!(replace_once("żółć", "ół", "").unwrap(), "żć");
    }
}
