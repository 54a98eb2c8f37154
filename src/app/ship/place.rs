//! Where copies are: in a directory, in object storage or behind HTTP.

use std::path::Path;

#[cfg(feature = "full")]
use super::store;
use super::{directory, target::Store};
use crate::config::audit::Target;

/// What is said of a copy that was removed or has not what was sent to it.
pub(super) const GONE: &str = "the copy is not there any more, or not whole";

/// Begins a copy at a place.
pub(super) fn begin(place: &Target) -> Result<Box<dyn Store>, String> {
    match place.to.starts_with('/') {
        true => Ok(Box::new(directory::Copy::begin(Path::new(&place.to))?)),
        false => remote(place),
    }
}

/// Opens the place of a copy; `None` where it is known to be there no more.
pub(super) fn existing(place: &Target) -> Result<Option<Box<dyn Store>>, String> {
    match place.to.starts_with('/') {
        true => {
            let copy = directory::existing(Path::new(&place.to))?;
            Ok(copy.map(|copy| Box::new(copy) as Box<dyn Store>))
        }
        false => remote(place).map(Some),
    }
}

#[cfg(feature = "full")]
pub(super) fn remote(place: &Target) -> Result<Box<dyn Store>, String> {
    Ok(Box::new(store::Remote::open(place)?))
}

#[cfg(not(feature = "full"))]
pub(super) fn remote(place: &Target) -> Result<Box<dyn Store>, String> {
    Err(format!(
        "this build of portcullis copies to directories only, not to {}: build it with `--features \
         full`",
        place.shown()
    ))
}

/// A place of this name beneath a target.
pub(super) fn within(target: &Target, name: &str) -> Target {
    Target { to: format!("{}/{name}", target.to.trim_end_matches('/')), ..target.clone() }
}
