//! The locations of copies: a directory, object storage or an HTTP server.

use std::path::Path;

#[cfg(feature = "full")]
use super::store;
use super::{directory, target::Store};
use crate::config::audit::Target;

/// The error of a copy that was removed or is incomplete.
pub(super) const GONE: &str = "the copy is not there any more, or not whole";

/// Begins a copy at a location.
pub(super) fn begin(place: &Target) -> Result<Box<dyn Store>, String> {
    match place.to.starts_with('/') {
        true => Ok(Box::new(directory::Copy::begin(Path::new(&place.to))?)),
        false => remote(place),
    }
}

/// Opens a copy at a location; `None` if it is known to be gone.
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

/// Returns the location `name` beneath a target.
pub(super) fn within(target: &Target, name: &str) -> Target {
    Target { to: format!("{}/{name}", target.to.trim_end_matches('/')), ..target.clone() }
}
