//! A grant must not lie where the agent can change things: it would choose, for
//! its next start or while this one looks its names up, what the grant leads to.
//!
//! Compared are names and places in filesystems, as in `overlap`.

use std::path::{Path, PathBuf};

use super::{
    layout::{self, GrantError, Resolved},
    mounts::{Mounts, Spot},
};

/// A directory that the agent may change, with all that is mounted in it.
struct Writable {
    path: PathBuf,
    spots: Vec<Spot>,
}

/// Checks that neither a grant, nor a link on the way to one, nor the home
/// directory, which need not exist yet, lies within what the agent may change.
///
/// # Errors
/// The first that does, or a path that cannot be looked up.
pub(super) fn check(read: &[Resolved], write: &[Resolved], home: &Path) -> Result<(), GrantError> {
    let mounts = Mounts::read().map_err(GrantError::Mounts)?;
    let home = begun(home)?;
    let writable = write
        .iter()
        .chain([&home])
        .map(|granted| {
            let path = granted.target.clone();
            let spots = mounts.spots(&path).map_err(|e| GrantError::Lookup(path.clone(), e))?;
            Ok(Writable { path, spots })
        })
        .collect::<Result<Vec<_>, GrantError>>()?;
    for granted in read.iter().chain(write).chain([&home]) {
        let links = granted.links.iter().map(|(link, _)| link);
        for place in links.chain([&granted.target]) {
            let spot = mounts.spot(place).map_err(|e| GrantError::Lookup(place.clone(), e))?;
            if let Some(around) = writable.iter().find(|w| w.holds(place, &spot)) {
                return Err(GrantError::Nested(granted.path.clone(), around.path.clone()));
            }
        }
    }
    Ok(())
}

impl Writable {
    /// Itself it does not hold: its own name lies outside.
    fn holds(&self, place: &Path, spot: &Spot) -> bool {
        (place != self.path && place.starts_with(&self.path))
            || self.spots.iter().any(|around| spot.is_beneath(around))
    }
}

/// Looks up the names of a path of which only the beginning need exist.
fn begun(path: &Path) -> Result<Resolved, GrantError> {
    let lookup = |error| GrantError::Lookup(path.to_owned(), error);
    let mut rest = Vec::new();
    for above in path.ancestors() {
        match layout::resolve(above) {
            Ok(mut found) => {
                found.path = path.to_owned();
                found.target.extend(rest.iter().rev());
                return Ok(found);
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => rest.extend(above.file_name()),
            Err(e) => return Err(lookup(e)),
        }
    }
    Err(lookup(std::io::ErrorKind::NotFound.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{Mode, mkdir};

    use super::*;
    use crate::{layout::resolve_grants, spec::Grant};

    fn resolved(paths: &[PathBuf]) -> Vec<Resolved> {
        let grants: Vec<_> =
            paths.iter().map(|path| Grant { path: path.clone(), required: true }).collect();
        resolve_grants(&grants).unwrap()
    }

    #[test]
    fn a_grant_in_a_directory_that_the_agent_may_change_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let base = crate::mounts::existing(place.path()).unwrap();
        for name in ["cache", "cache/tools", "other", "home", "home/inner"] {
            mkdir(base.join(name), Mode::RWXU).unwrap();
        }
        // What the agent made of a directory that was given to it before.
        symlink(base.join("other"), base.join("cache/link")).unwrap();
        symlink(base.join("cache/link"), base.join("outside")).unwrap();
        let at = |name: &str| base.join(name);
        let refused = |read: &[PathBuf], write: &[PathBuf], home: &str| {
            let got = check(&resolved(read), &resolved(write), &base.join(home));
            matches!(got, Err(GrantError::Nested(..)))
        };
        let cache = [at("cache")];
        assert!(refused(&[at("cache/tools")], &cache, "home"));
        assert!(refused(&[at("cache/link")], &cache, "home"));
        assert!(refused(&[at("outside")], &cache, "home"));
        assert!(refused(&[], &[at("cache"), at("cache/tools")], "home"));
        assert!(refused(&[at("home/inner")], &[], "home"));
        assert!(refused(&[], &cache, "cache/not/there/yet"));
        assert!(!refused(&[at("other")], &cache, "home"));
        assert!(!refused(&cache, &cache, "not/there/yet"));
        assert!(!refused(std::slice::from_ref(&base), &cache, "home"));
    }
}
