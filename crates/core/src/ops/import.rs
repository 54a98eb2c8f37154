//! Content of a file of a commit for the operator's repository.

use portcullis_audit::Hash;

use super::{Context, Error, Facts, Sealed};
use crate::{model::WorkspacePath, policy::Labelled};

const DIFFERS: &str = "the operator's commit has another content than the one that the agent's commit \
                       replaces: it was changed and not committed when the session began, or \
                       a filter of git changes it";

/// Checks that `before`, which a commit replaces, is what the policy shows of `original`, and
/// decides on `content`, in which secrets of `original` are restored; `None` is a removal.
///
/// # Errors
/// When they differ, or the policy denies either content: an agent that was not shown a file must
/// not replace it as if it were missing.
pub(crate) fn prepare(
    context: &Context<'_>,
    path: &WorkspacePath,
    (before, original): (Option<&[u8]>, Option<&[u8]>),
    content: Option<&[u8]>,
) -> Result<Sealed<Option<Vec<u8>>>, Error> {
    let shown = original.map(|original| context.seen(path, original.to_vec())).transpose()?;
    if shown.as_ref().map(|shown| shown.bytes.as_slice()) != before {
        return Err(Error::Invalid(DIFFERS));
    }
    let content = content.map(|content| context.store(path, original, content.into()));
    let content = content.transpose()?.map(std::borrow::Cow::into_owned);
    let facts = Facts {
        bytes: content.as_ref().and_then(|content| u64::try_from(content.len()).ok()),
        before: original.map(Hash::of),
        after: content.as_deref().map(Hash::of),
        ..Facts::default()
    };
    // The operator gets it, and not the agent, whose content it is.
    Ok(Sealed::content(content, facts, Labelled::default()))
}
