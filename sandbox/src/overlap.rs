//! The gate's own state is out of reach: what the agent gets must not overlap
//! with what it must not get, whatever the names.
//!
//! Compared are places in filesystems (device and directory, from the mounts
//! that this process sees), so bind mounts and links do not hide an overlap.
//! What is stacked by a filesystem of its own, such as overlayfs or FUSE, has
//! another device and is not seen through.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::mounts::{self, Mounts, Spot};

/// What a policy file is called.
const POLICY: &str = "policy file";

/// All paths that matter when an agent is started or a gate opened.
#[derive(Debug, Clone, Default)]
pub struct Territory {
    /// The workspace.
    pub workspace: PathBuf,
    /// The state directory; need not exist yet.
    pub state: PathBuf,
    /// Policy files.
    pub operator: Vec<PathBuf>,
    /// Other files of the operator's, each with what it is.
    pub others: Vec<(&'static str, PathBuf)>,
    /// The agent's home directory, if there is an agent; need not exist yet.
    pub home: Option<PathBuf>,
    /// What the agent may read, under canonical names.
    pub read: Vec<PathBuf>,
    /// What the agent may write, too.
    pub write: Vec<PathBuf>,
}

/// Two places overlap, or cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum OverlapError {
    /// One lies within the other.
    #[error("the {one} `{}` and the {other} `{}` overlap: {why}", one_path.display(), other_path.display())]
    Overlap {
        /// The role of the first.
        one: &'static str,
        /// The first.
        one_path: PathBuf,
        /// The role of the second.
        other: &'static str,
        /// The second.
        other_path: PathBuf,
        /// What to do.
        why: &'static str,
    },
    /// A path cannot be looked up.
    #[error("cannot look up the {role} `{}`: {error}", path.display())]
    Lookup {
        /// The role.
        role: &'static str,
        /// The path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The mounts of this machine cannot be read.
    #[error("cannot read the mounts of this machine: {0}")]
    Mounts(io::Error),
}

struct Place {
    role: &'static str,
    path: PathBuf,
    spots: Vec<Spot>,
}

impl Territory {
    /// Checks that nothing overlaps that must not.
    ///
    /// # Errors
    /// The first overlap, or a path that cannot be looked up.
    pub fn check(&self) -> Result<(), OverlapError> {
        let mounts = Mounts::read().map_err(OverlapError::Mounts)?;
        let place = |role, path: &Path| {
            let lookup = |error| OverlapError::Lookup { role, path: path.to_owned(), error };
            let real = mounts::canonical(path).map_err(lookup)?;
            let spots = mounts.spots(&real).map_err(lookup)?;
            Ok(Place { role, path: path.to_owned(), spots })
        };
        let workspace = place("workspace", &self.workspace)?;
        let state = place("state directory", &self.state)?;
        let mut operator = Vec::new();
        let policies = self.operator.iter().map(|file| (POLICY, file));
        for (role, file) in policies.chain(self.others.iter().map(|(role, file)| (*role, file))) {
            operator.push(place(role, file)?);
            // A link to it is as good as the file itself.
            if let (Some(parent), Some(name)) = (file.parent(), file.file_name()) {
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                if let Ok(parent) = mounts::canonical(parent)
                    && let Ok(spot) = mounts.spot(&parent)
                {
                    let spots = vec![Spot { path: spot.path.join(name), ..spot }];
                    operator.push(Place { role, path: file.clone(), spots });
                }
            }
        }
        // By its name, too: a link that is there only now must not hide it.
        let granted = |role, path: &Path| {
            let mut granted = place(role, path)?;
            let lookup = |error| OverlapError::Lookup { role, path: path.to_owned(), error };
            granted.spots.extend(mounts.spots(path).map_err(lookup)?);
            Ok::<_, OverlapError>(granted)
        };
        let mut agent = Vec::new();
        if let Some(home) = &self.home {
            agent.push(place("agent's home directory", home)?);
        }
        for path in &self.read {
            agent.push(granted("directory that the agent may read", path)?);
        }
        for path in &self.write {
            agent.push(granted("directory that the agent may write", path)?);
        }

        apart(&workspace, &state, "choose a state directory outside the workspace with `--state`")?;
        for file in &operator {
            let why = match file.role {
                POLICY => "keep policies outside the workspace, or the agent could change them",
                _ => "keep it outside the workspace, or the agent could change it",
            };
            apart(&workspace, file, why)?;
        }
        for given in &agent {
            apart(given, &workspace, "the agent reaches the workspace only through the gate")?;
            apart(given, &state, "the state directory is the gate's own")?;
            for file in &operator {
                let why = match file.role {
                    POLICY => "policies are the operator's own",
                    _ => "it is the operator's own",
                };
                apart(given, file, why)?;
            }
        }
        Ok(())
    }
}

/// Checks that none of the places lies within another.
///
/// # Errors
/// The first overlap, or a path that cannot be looked up.
pub fn all_apart(places: &[(&'static str, PathBuf)]) -> Result<(), OverlapError> {
    let mounts = Mounts::read().map_err(OverlapError::Mounts)?;
    let place = |(role, path): &(&'static str, PathBuf)| {
        let lookup = |error| OverlapError::Lookup { role, path: path.clone(), error };
        let real = mounts::canonical(path).map_err(lookup)?;
        let spots = mounts.spots(&real).map_err(lookup)?;
        Ok(Place { role, path: path.clone(), spots })
    };
    let places = places.iter().map(place).collect::<Result<Vec<_>, OverlapError>>()?;
    for (index, one) in places.iter().enumerate() {
        for other in places.iter().skip(index + 1) {
            apart(one, other, "each needs a directory of its own")?;
        }
    }
    Ok(())
}

fn apart(one: &Place, other: &Place, why: &'static str) -> Result<(), OverlapError> {
    if one.spots.iter().any(|a| other.spots.iter().any(|b| a.overlaps(b))) {
        return Err(OverlapError::Overlap {
            one: one.role,
            one_path: one.path.clone(),
            other: other.role,
            other_path: other.path.clone(),
            why,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn territory(base: &Path) -> Territory {
        for name in ["work/inner", "state", "home", "tools"] {
            let mut whole = base.to_owned();
            for part in name.split('/') {
                whole.push(part);
                let _ = rustix::fs::mkdir(&whole, rustix::fs::Mode::RWXU);
            }
        }
        Territory {
            workspace: base.join("work"),
            state: base.join("state"),
            operator: vec![base.join("policy.toml")],
            others: vec![("configuration", base.join("portcullis.toml"))],
            home: Some(base.join("home")),
            read: vec![base.join("tools")],
            write: vec![],
        }
    }

    #[test]
    fn places_that_are_apart_pass() {
        let tmp = tempfile::tempdir().unwrap();
        territory(tmp.path()).check().unwrap();
    }

    #[test]
    fn every_kind_of_overlap_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let base = tmp.path();
        let good = territory(base);
        let link = base.join("link");
        std::os::unix::fs::symlink(base.join("work/inner"), &link).unwrap();
        let bad = [
            Territory { state: base.join("work/.state/not/yet"), ..good.clone() },
            Territory { state: base.to_owned(), ..good.clone() },
            Territory { operator: vec![base.join("work/policy.toml")], ..good.clone() },
            Territory { home: Some(base.join("state/home")), ..good.clone() },
            Territory { home: Some(base.join("work/inner")), ..good.clone() },
            Territory { read: vec!["/".into()], ..good.clone() },
            Territory { read: vec![base.join("work/inner")], ..good.clone() },
            Territory { write: vec![link], ..good.clone() },
            Territory { write: vec![base.join("state")], ..good.clone() },
            Territory { read: vec![base.join("policy.toml")], ..good.clone() },
        ];
        for territory in bad {
            let got = territory.check();
            assert!(matches!(got, Err(OverlapError::Overlap { .. })), "{territory:?} {got:?}");
        }
    }

    #[test]
    fn a_file_that_is_no_policy_is_called_by_its_own_name() {
        let tmp = tempfile::tempdir().unwrap();
        let key = tmp.path().join("work/key.pem");
        let others = vec![("key of the certificate", key.clone())];
        let bad = Territory { others, ..territory(tmp.path()) };
        let said = bad.check().unwrap_err().to_string();
        let named = format!("the key of the certificate `{}` overlap: keep it", key.display());
        assert!(said.contains(&named), "{said}");
    }

    #[test]
    fn a_link_that_hides_the_workspace_while_it_is_looked_up_is_no_way_in() {
        let tmp = tempfile::tempdir().unwrap();
        let base = mounts::existing(tmp.path()).unwrap();
        let good = territory(&base);
        // When the name was looked up, a directory; at this moment, a link.
        std::os::unix::fs::symlink(base.join("tools"), base.join("work/moment")).unwrap();
        let bad = Territory { read: vec![base.join("work/moment")], ..good };
        assert!(matches!(bad.check(), Err(OverlapError::Overlap { .. })));
    }

    #[test]
    fn a_policy_behind_a_link_in_the_workspace_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let good = territory(tmp.path());
        std::os::unix::fs::symlink(tmp.path().join("policy.toml"), tmp.path().join("work/p.toml"))
            .unwrap();
        std::os::unix::fs::symlink("/etc/passwd", tmp.path().join("work/q.toml")).unwrap();
        let bad = Territory { operator: vec![tmp.path().join("work/q.toml")], ..good };
        assert!(matches!(bad.check(), Err(OverlapError::Overlap { .. })));
    }
}
