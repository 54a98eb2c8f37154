//! The check of all paths that the product trusts and all paths that an agent gets: no trusted path
//! lies in, would be made in, or is named through a directory that an agent may change.
//!
//! The check compares names, directories of file systems (device and root of the mounts that this
//! process sees) and inodes, so that bind mounts, links and other names of a directory do not hide
//! an overlap. A file system that is stacked on another, such as overlayfs or FUSE, has another
//! device and is not seen through.

mod entry;

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use self::entry::Entry;
use super::{
    file_locations::{FileLocator, Index},
    machine_keys,
};

/// Directories with programs of the system.
pub const SYSTEM_DIRECTORIES: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store"];

/// Role of a trusted path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trusted {
    /// The state directory of a workspace or of a service.
    State,
    /// A file in a state directory: a key, or a part of the log.
    StateFile,
    /// The directory in which state directories are made by default.
    StatePlace,
    /// A policy, or a file that it extends.
    Policy,
    /// The signature of a policy.
    Signature,
    /// The configuration, or the path where it is looked for.
    Configuration,
    /// A directory to which the log is copied.
    Copies,
    /// A file of a token that lets this process copy the log.
    CopyToken,
    /// A file of a public key.
    PublicKey,
    /// The signer's program.
    Signer,
    /// The program that shows notifications.
    Notifier,
    /// A file among the signer's arguments, which may be the key.
    SignerKey,
    /// The certificate of a service.
    Certificate,
    /// Its private key.
    CertificateKey,
    /// The file of a key that programs in a sandbox use and never have.
    CredentialKey,
    /// A socket of a service.
    Socket,
    /// The directory of the agents' homes.
    Homes,
    /// The program of this process.
    Program,
    /// The directory of connections from sandboxes to their gateways.
    SandboxSocket,
    /// The directory in which the scratch directories of mounts are.
    Scratch,
    /// A part of the git repository that a workspace's file `.git` names.
    Repository,
    /// The file of a summary.
    Summary,
}

impl Trusted {
    /// True if an agent must not read it either.
    pub(super) fn is_private(self) -> bool {
        use Trusted::{Certificate, Homes, Notifier, Program, PublicKey, Signer, Summary};
        !matches!(self, PublicKey | Signer | Notifier | Certificate | Homes | Program | Summary)
    }

    /// True if no path that an agent gets with this access may contain it or lie in it.
    fn is_closed_to(self, access: Access) -> bool {
        // Other agents' homes have their credentials.
        access.is_writable() || self.is_private() || self == Self::Homes
    }

    /// True if an agent that reads it by another name learns a secret.
    fn has_secret(self) -> bool {
        use Trusted::{CertificateKey, CopyToken, CredentialKey, SignerKey, StateFile};
        matches!(self, StateFile | CopyToken | SignerKey | CertificateKey | CredentialKey)
    }

    /// True if it is a secret that this process uses, so that a test can try to open it.
    pub(super) fn is_in_use(self) -> bool {
        matches!(self, Self::State | Self::Policy | Self::Configuration | Self::Copies)
    }

    /// True if agents change its contents, each its own part.
    fn is_of_agents(self) -> bool {
        matches!(self, Self::Homes | Self::Scratch)
    }

    fn advice(self) -> &'static str {
        match self {
            Self::State => {
                "name the directory of a project with `--workspace`, or a state directory elsewhere \
                 with `--state`"
            }
            Self::StateFile => "choose a state directory elsewhere with `--state`",
            Self::Program => "install it elsewhere, and start it from there",
            Self::Summary => "write it to a file elsewhere, such as one beside the workspace",
            Self::Policy | Self::Signature => "keep policies elsewhere",
            Self::Repository => "an agent may change what is there",
            Self::StatePlace
            | Self::Configuration
            | Self::Homes
            | Self::SandboxSocket
            | Self::Scratch => {
                "choose another directory for the agent, or one beneath it without that"
            }
            _ => "keep it elsewhere",
        }
    }
}

impl fmt::Display for Trusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::State => "state directory",
            Self::StateFile => "file of the state directory",
            Self::StatePlace => "directory of state directories",
            Self::Policy => "policy file",
            Self::Signature => "signature of the policy",
            Self::Configuration => "configuration",
            Self::Copies => "directory for copies of the log",
            Self::CopyToken => "token for copies of the log",
            Self::PublicKey => "signer's public key",
            Self::Signer => "signer's program",
            Self::Notifier => "program that shows notifications",
            Self::SignerKey => "signer's file",
            Self::Certificate => "certificate",
            Self::CertificateKey => "key of the certificate",
            Self::CredentialKey => "key of the credential",
            Self::Socket => "service's socket",
            Self::Homes => "directory of agents' homes",
            Self::Program => "program `portcullis`",
            Self::Scratch => "place of scratch directories",
            Self::Repository => "git repository",
            Self::Summary => "summary",
            Self::SandboxSocket => "place of what leads to the gateways of agents",
        })
    }
}

/// A path that the product trusts, now or at a later start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedPath {
    /// Its role.
    pub role: Trusted,
    /// The path as it was named, absolute; it need not exist.
    pub path: PathBuf,
}

/// Access of an agent to a path that it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Changes only through the gateway.
    Workspace,
    /// Changes: its home.
    Home,
    /// Changes: a grant.
    Write,
    /// Reads: a grant.
    Read,
}

impl Access {
    fn is_writable(self) -> bool {
        self != Self::Read
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Workspace => "workspace",
            Self::Home => "agent's home directory",
            Self::Write => "directory that the agent may write",
            Self::Read => "directory that the agent may read",
        })
    }
}

/// A path that an agent gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentPath {
    /// Its access there.
    pub access: Access,
    /// The path as it was named, absolute.
    pub path: PathBuf,
    /// Its canonical path when it was opened or mounted: its name may lead elsewhere by now.
    pub target: Option<PathBuf>,
}

/// All paths that are compared.
#[derive(Debug, Clone, Default)]
pub struct TrustedPaths {
    /// The trusted paths.
    pub trusted: Vec<TrustedPath>,
    /// The paths that agents get.
    pub agents: Vec<AgentPath>,
}

/// A path lies where it must not, or cannot be checked.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The paths overlap: one lies within the other.
    #[error("the {one} `{}` and the {other} `{}` overlap: {advice}", one_path.display(), other_path.display())]
    Overlap {
        /// The role of the path that an agent gets.
        one: String,
        /// The path.
        one_path: PathBuf,
        /// The role of the other path.
        other: String,
        /// The other path.
        other_path: PathBuf,
        /// Advice.
        advice: &'static str,
    },
    /// An agent could make a name lead elsewhere.
    #[error("the {role} `{}` is named through `{}`, which lies in the {location} `{}`: the agent may change that, and so choose what the name leads to; name it by a path that leaves that out", path.display(), through.display(), location_path.display())]
    Redirectable {
        /// The role of the path.
        role: String,
        /// The path.
        path: PathBuf,
        /// The name on its way.
        through: PathBuf,
        /// The role of the directory that contains the name.
        location: String,
        /// The directory.
        location_path: PathBuf,
    },
    /// An agent could change the file under another name.
    #[error("the {role} `{}` has another name (a hard link), which may lie in the {location} `{}`, and there the agent reaches it; give it one name: replace it by a copy of it", path.display(), location_path.display())]
    HardLink {
        /// The role of the file.
        role: String,
        /// The file.
        path: PathBuf,
        /// The role of a directory on the same file system.
        location: String,
        /// The directory.
        location_path: PathBuf,
    },
    /// A path cannot be looked up.
    #[error("cannot look up the {role} `{}`: {error}", path.display())]
    Lookup {
        /// The role.
        role: String,
        /// The path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The mounts of this machine cannot be read.
    #[error("cannot read the mounts of this machine: {0}")]
    Mounts(io::Error),
}

impl TrustedPaths {
    /// Checks all paths, as they lead now.
    ///
    /// # Errors
    /// The first path that lies, would be made, or is named where it must not, or that cannot be
    /// looked up.
    pub fn check(&self) -> Result<(), TrustError> {
        self.look_up(|checked| {
            checked.overlaps()?;
            checked.hard_links()?;
            checked.nesting()?;
            checked.names(&checked.trusted, |_| Trusted::is_of_agents)?;
            // The name of an agent's own home lies among the homes, which the operator made.
            checked.names(&checked.agents, |access| match access {
                Access::Home => |_| false,
                _ => Trusted::is_of_agents,
            })
        })
    }

    /// Checks the trusted paths, but not how the paths that agents get lie to each other.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_trusted(&self) -> Result<(), TrustError> {
        self.look_up(|checked| {
            checked.overlaps()?;
            checked.hard_links()?;
            checked.names(&checked.trusted, |_| Trusted::is_of_agents)
        })
    }

    /// Checks that no agent chooses the target of `path`, whose role is `role`: no name on the way
    /// lies in a directory that an agent may change, and the path does not lead into a trusted one.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_way(&self, role: &dyn fmt::Display, path: &Path) -> Result<(), TrustError> {
        self.look_up(|checked| {
            let entry = Entry::new(checked.around, role, path, None)?;
            checked.way(&entry, Trusted::is_of_agents)?;
            let mut around = checked.trusted_at.around(&entry.location);
            let trusted = around.find_map(|number| {
                checked.trusted.get(number).filter(|(role, _)| role.is_private())
            });
            match trusted {
                Some((role, trusted)) => Err(entry.overlap(trusted, role.advice())),
                None => Ok(()),
            }
        })
    }

    fn look_up(
        &self,
        check: impl FnOnce(&Checked<'_>) -> Result<(), TrustError>,
    ) -> Result<(), TrustError> {
        let around = FileLocator::read().map_err(TrustError::Mounts)?;
        let trusted = self.trusted.iter().map(|t| Entry::new(&around, &t.role, &t.path, None));
        let trusted = trusted.collect::<Result<Vec<_>, _>>()?;
        let agents = self
            .agents
            .iter()
            .map(|a| Entry::new(&around, &a.access, &a.path, a.target.as_deref()));
        let agents = agents.collect::<Result<Vec<_>, _>>()?;
        let checked = Checked {
            around: &around,
            trusted: self.trusted.iter().map(|t| t.role).zip(&trusted).collect(),
            agents: self.agents.iter().map(|a| a.access).zip(&agents).collect(),
            trusted_at: Index::of(trusted.iter().map(|entry| &entry.location)),
            agents_at: Index::of(agents.iter().map(|entry| &entry.location)),
            with_keys: machine_keys::with_keys(),
        };
        check(&checked)
    }
}

/// Checks that none of the paths, each with its role, lies within another.
///
/// # Errors
/// The first overlap, or a path that cannot be looked up.
pub fn all_apart(paths: &[(&'static str, PathBuf)]) -> Result<(), TrustError> {
    let around = FileLocator::read().map_err(TrustError::Mounts)?;
    let entries = paths.iter().map(|(role, path)| Entry::new(&around, role, path, None));
    let entries = entries.collect::<Result<Vec<_>, _>>()?;
    let index = Index::of(entries.iter().map(|entry| &entry.location));
    for (number, entry) in entries.iter().enumerate() {
        let other = index.around(&entry.location).find(|found| *found != number);
        if let Some(other) = other.and_then(|found| entries.get(found)) {
            return Err(other.overlap(entry, "each needs a directory of its own"));
        }
    }
    Ok(())
}

struct Checked<'a> {
    around: &'a FileLocator,
    trusted: Vec<(Trusted, &'a Entry<'a>)>,
    agents: Vec<(Access, &'a Entry<'a>)>,
    trusted_at: Index,
    agents_at: Index,
    /// Directories whose keys no sandbox has, each with the keys' directories.
    with_keys: Vec<(PathBuf, Vec<PathBuf>)>,
}

impl Checked<'_> {
    fn agent(&self, number: usize) -> Option<(Access, &Entry<'_>)> {
        self.agents.get(number).copied()
    }

    /// True if a sandbox hides a trusted path in a directory of the system that an agent may read, as
    /// `/etc/ssl/private`.
    fn is_among_keys(&self, trusted: &Entry<'_>, access: Access, agent: &Entry<'_>) -> bool {
        let mut with_keys = self.with_keys.iter();
        access == Access::Read
            && with_keys.any(|(directory, keys)| {
                *directory == agent.target && keys.iter().any(|it| trusted.target.starts_with(it))
            })
    }

    /// Checks that no trusted path lies in one that an agent gets, nor the other way round; paths
    /// that are no secret may be read.
    fn overlaps(&self) -> Result<(), TrustError> {
        for (role, entry) in &self.trusted {
            // The agents may change their homes and scratch directories.
            let above = self.trusted_at.above(&entry.location);
            let mut above = above.filter_map(|number| self.trusted.get(number));
            if let Some((_, location)) = above.find(|(above, _)| above.is_of_agents()) {
                return Err(location.overlap(entry, role.advice()));
            }
            let around = self.agents_at.around(&entry.location);
            for (access, agent) in around.filter_map(|number| self.agent(number)) {
                if role.is_closed_to(access) && !self.is_among_keys(entry, access, agent) {
                    return Err(agent.overlap(entry, role.advice()));
                }
            }
        }
        for (access, agent) in &self.agents {
            let around = self.trusted_at.around(&agent.location);
            for (role, entry) in around.filter_map(|number| self.trusted.get(number)) {
                // A home lies among the homes.
                let is_own = (*role, *access) == (Trusted::Homes, Access::Home);
                let is_kept = is_own || self.is_among_keys(entry, *access, agent);
                if !is_kept && role.is_closed_to(*access) {
                    return Err(agent.overlap(entry, role.advice()));
                }
            }
        }
        Ok(())
    }

    /// Checks that no trusted file has another name where an agent may change it, or read it if it
    /// is secret: an agent made one beside its draft, and the operator moved the draft; or a copy
    /// of the state directory has links in place of files.
    fn hard_links(&self) -> Result<(), TrustError> {
        for (role, entry) in &self.trusted {
            // Build tools link a program, and packages of the system their programs.
            let is_of_package = matches!(role, Trusted::Signer | Trusted::Notifier)
                && SYSTEM_DIRECTORIES.iter().any(|place| entry.target.starts_with(place))
                && !entry.target.starts_with("/usr/local");
            if *role == Trusted::Program || is_of_package || !entry.has_other_names()? {
                continue;
            }
            let agents =
                self.agents.iter().filter(|(access, _)| access.is_writable() || role.has_secret());
            // A place that was not made yet has no other name of the file.
            let shared =
                self.trusted.iter().filter(|(role, it)| role.is_of_agents() && it.exists());
            let mut places = agents.map(|(_, it)| it).chain(shared.map(|(_, it)| it));
            if let Some(location) = places.find(|it| it.location.shares_device(&entry.location)) {
                return Err(TrustError::HardLink {
                    role: entry.role.to_string(),
                    path: entry.path.to_owned(),
                    location: location.role.to_string(),
                    location_path: location.path.to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Checks that no agent reaches a workspace by itself, and that none gets a path in another
    /// grant that it may change: it could put a link in its place.
    fn nesting(&self) -> Result<(), TrustError> {
        for (number, (access, agent)) in self.agents.iter().enumerate() {
            let others = |found: &usize| *found != number;
            let around = self.agents_at.around(&agent.location).filter(others);
            for (other, entry) in around.filter_map(|number| self.agent(number)) {
                if *access == Access::Workspace || other == Access::Workspace {
                    let advice = "an agent reaches a workspace only through the gateway; choose \
                                  directories that lie apart";
                    return Err(entry.overlap(agent, advice));
                }
            }
            let above = self.agents_at.above(&agent.location).filter(others);
            for (other, entry) in above.filter_map(|number| self.agent(number)) {
                if other.is_writable() {
                    let advice = "the agent could put something else in the place of the inner \
                                  one; leave one of them out";
                    return Err(entry.overlap(agent, advice));
                }
            }
        }
        Ok(())
    }

    /// Checks that no agent can make a name on the way to any of them lead elsewhere.
    fn names<Role: Copy>(
        &self,
        entries: &[(Role, &Entry<'_>)],
        shared: impl Fn(Role) -> fn(Trusted) -> bool,
    ) -> Result<(), TrustError> {
        entries.iter().try_for_each(|(role, entry)| self.way(entry, shared(*role)))
    }

    /// Checks the names on the way to one of them, where agents change the paths that they get and
    /// the trusted ones that are `shared`.
    fn way(&self, entry: &Entry<'_>, shared: impl Fn(Trusted) -> bool) -> Result<(), TrustError> {
        for name in &entry.names {
            let Some(directory) = name.parent() else { continue };
            let directory = self.around.directory(directory);
            let directory = directory.map_err(|error| entry.lookup(error))?;
            let agents = self.agents_at.around(&directory);
            let agents = agents.filter_map(|number| self.agent(number));
            let agents =
                agents.filter(|(access, _)| access.is_writable()).map(|(_, location)| location);
            let trusted = self.trusted_at.around(&directory);
            let trusted = trusted.filter_map(|number| self.trusted.get(number));
            let trusted = trusted.filter(|(role, _)| shared(*role)).map(|(_, location)| *location);
            if let Some(location) = agents.chain(trusted).next() {
                return Err(TrustError::Redirectable {
                    role: entry.role.to_string(),
                    path: entry.path.to_owned(),
                    through: name.clone(),
                    location: location.role.to_string(),
                    location_path: location.path.to_owned(),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "trusted_paths/tests.rs"]
mod tests;
