//! Settings of a policy that are values rather than patterns: limits on content, retention of
//! backups, the agent process's access. This module contains their defaults and the rule by which
//! they merge: the stricter one applies.

use std::{path::Path, time::Duration};

use super::{
    agent_limits::AgentLimits,
    decision::Effect,
    layered::{Layered, least},
    limits::StatedLimits,
    mount::{MountSettings, StatedMount},
    scratch::{History, Repository, Scratch, StatedScratch},
};

/// The retention of backups: `[backups] keep`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Maximum number of backups of one file, at least 1.
    pub versions: u64,
    /// Maximum age in days, at least 1.
    pub days: u64,
    /// Maximum size of all of them together, in bytes.
    pub size: u64,
}

/// The access of the confined agent process besides the gateway: `[agent]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentAccess {
    /// Names of the environment variables that it inherits.
    pub env: Vec<String>,
    /// Host paths that it may read and execute: absolute, without `..`. Paths that do not exist are
    /// left out.
    pub read: Vec<String>,
    /// Host paths that it may change: absolute, without `..`.
    pub write: Vec<String>,
    /// The decision on commands that the gateway starts in its sandbox: ACP `terminal/*`, and
    /// `exec` of MCP.
    pub terminal: Effect,
    /// The resource limits on its programs.
    pub limits: AgentLimits,
}

/// The treatment of content that is not text. For the mount, which returns bytes, the laxer value
/// is named `allow`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Binary {
    /// It is denied.
    Deny,
    /// It is encoded as base64.
    Base64,
}

/// The treatment of a path that leads through a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Symlinks {
    /// It is denied.
    Deny,
    /// It is followed within the workspace.
    Beneath,
}

/// The treatment of a file with several names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hardlinks {
    /// It is denied.
    Deny,
    /// It is allowed.
    Allow,
}

/// The default environment variables of an agent.
const DEFAULT_ENV: [&str; 3] = ["PATH", "LANG", "TERM"];

/// The default host paths that an agent may read: programs and libraries, certificates, and files
/// for name lookups.
const DEFAULT_READ: [&str; 18] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/group",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/resolv.conf",
    "/etc/ssl",
];

/// The settings as files state them.
#[derive(Debug, Clone, Default)]
pub(super) struct StatedSettings {
    pub(super) max_read: Option<Layered<u64>>,
    pub(super) max_write: Option<Layered<u64>>,
    pub(super) binary_read: Option<Layered<Binary>>,
    pub(super) binary_write: Option<Layered<Binary>>,
    pub(super) symlinks: Option<Layered<Symlinks>>,
    pub(super) hardlinks_read: Option<Layered<Hardlinks>>,
    pub(super) hardlinks_write: Option<Layered<Hardlinks>>,
    pub(super) limits: StatedLimits,
    pub(super) mount: StatedMount,
    pub(super) scratch: StatedScratch,
    pub(super) repository: Option<Layered<Repository>>,
    pub(super) history: Option<Layered<History>>,
    pub(super) approval_timeout: Option<Layered<Duration>>,
    pub(super) versions: Option<u64>,
    pub(super) days: Option<u64>,
    pub(super) size: Option<u64>,
    pub(super) env: Option<Vec<String>>,
    pub(super) read: Option<Vec<String>>,
    pub(super) write: Option<Vec<String>>,
    pub(super) terminal: Option<Effect>,
    pub(super) agent_limits: AgentLimits,
}

impl StatedSettings {
    /// Returns the settings as stated by the file of layer `layer`.
    pub(super) fn in_layer(mut self, layer: usize) -> Self {
        fn set<T>(layered: &mut Option<Layered<T>>, layer: usize) {
            if let Some(Layered { location: Some((file, _)), .. }) = layered {
                *file = layer;
            }
        }
        set(&mut self.max_read, layer);
        set(&mut self.max_write, layer);
        set(&mut self.binary_read, layer);
        set(&mut self.binary_write, layer);
        set(&mut self.symlinks, layer);
        set(&mut self.hardlinks_read, layer);
        set(&mut self.hardlinks_write, layer);
        set(&mut self.repository, layer);
        set(&mut self.history, layer);
        self.limits = self.limits.in_layer(layer);
        self.mount = self.mount.in_layer(layer);
        self.scratch = self.scratch.in_layer(layer);
        self
    }

    /// Returns the stricter of both, setting by setting; a missing one sets no bound.
    pub(super) fn and(self, other: &Self) -> Self {
        Self {
            max_read: least(self.max_read, other.max_read),
            max_write: least(self.max_write, other.max_write),
            binary_read: least(self.binary_read, other.binary_read),
            binary_write: least(self.binary_write, other.binary_write),
            symlinks: least(self.symlinks, other.symlinks),
            hardlinks_read: least(self.hardlinks_read, other.hardlinks_read),
            hardlinks_write: least(self.hardlinks_write, other.hardlinks_write),
            limits: self.limits.and(other.limits),
            mount: self.mount.and(other.mount),
            scratch: self.scratch.and(&other.scratch),
            repository: least(self.repository, other.repository),
            history: least(self.history, other.history),
            approval_timeout: least(self.approval_timeout, other.approval_timeout),
            // The larger retention of backups is the stricter one.
            versions: self.versions.max(other.versions),
            days: self.days.max(other.days),
            size: self.size.max(other.size),
            env: both(self.env, other.env.as_ref(), |ours, theirs| {
                ours.into_iter().filter(|name| theirs.contains(name)).collect()
            }),
            read: both(self.read, other.read.as_ref(), |ours, theirs| shared(&ours, theirs)),
            write: both(self.write, other.write.as_ref(), |ours, theirs| shared(&ours, theirs)),
            // The later effect is the stricter one.
            terminal: self.terminal.max(other.terminal),
            agent_limits: self.agent_limits.and(other.agent_limits),
        }
    }

    /// Fills in the defaults.
    pub(super) fn complete(self) -> Settings {
        let texts = |stated: Option<Vec<String>>, default: &[&str]| {
            stated.unwrap_or_else(|| default.iter().map(ToString::to_string).collect())
        };
        let repository = or_default(self.repository, Repository::Private);
        let history = or_default(self.history, History::Deny);
        Settings {
            max_read: or_default(self.max_read, 10 << 20),
            max_write: or_default(self.max_write, 10 << 20),
            binary_read: or_default(self.binary_read, Binary::Deny),
            binary_write: or_default(self.binary_write, Binary::Deny),
            symlinks: or_default(self.symlinks, Symlinks::Beneath),
            hardlinks_read: or_default(self.hardlinks_read, Hardlinks::Deny),
            hardlinks_write: or_default(self.hardlinks_write, Hardlinks::Deny),
            mount: self.mount.complete(),
            scratch: self.scratch.complete(repository.value, history.value),
            repository,
            history,
            approval_timeout: self.approval_timeout,
            backups: Retention {
                versions: self.versions.unwrap_or(20),
                days: self.days.unwrap_or(30),
                size: self.size.unwrap_or(2 << 30),
            },
            agent: AgentAccess {
                env: texts(self.env, &DEFAULT_ENV),
                read: texts(self.read, &DEFAULT_READ),
                write: texts(self.write, &[]),
                terminal: self.terminal.unwrap_or(Effect::Deny),
                limits: self.agent_limits,
            },
        }
    }
}

/// The settings in force.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `files.maxReadSize`.
    pub max_read: Layered<u64>,
    /// `files.maxWriteSize`.
    pub max_write: Layered<u64>,
    /// `files.binary.read`.
    pub binary_read: Layered<Binary>,
    /// `files.binary.write`.
    pub binary_write: Layered<Binary>,
    /// `files.symlinks`.
    pub symlinks: Layered<Symlinks>,
    /// `files.hardlinks.read`.
    pub hardlinks_read: Layered<Hardlinks>,
    /// `files.hardlinks.write`.
    pub hardlinks_write: Layered<Hardlinks>,
    /// `[mount]`.
    pub mount: MountSettings,
    /// `[scratch]`.
    pub scratch: Option<Scratch>,
    /// `git.repository`.
    pub repository: Layered<Repository>,
    /// `git.history`.
    pub history: Layered<History>,
    /// `limits.approvalTimeout`; `None` if a request waits as long as its session lasts.
    pub approval_timeout: Option<Layered<Duration>>,
    /// `[backups]`.
    pub backups: Retention,
    /// `[agent]`.
    pub agent: AgentAccess,
}

fn both<T: Clone>(ours: Option<T>, theirs: Option<&T>, merge: impl Fn(T, &T) -> T) -> Option<T> {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => Some(merge(ours, theirs)),
        (ours, theirs) => ours.or_else(|| theirs.cloned()),
    }
}

/// Returns the paths that are within both lists of directories.
fn shared(ours: &[String], theirs: &[String]) -> Vec<String> {
    let within = |path: &str, list: &[String]| {
        list.iter().any(|directory| Path::new(path).starts_with(directory))
    };
    let mut paths: Vec<String> = ours.iter().filter(|path| within(path, theirs)).cloned().collect();
    paths.extend(theirs.iter().filter(|path| within(path, ours) && !ours.contains(path)).cloned());
    paths
}

fn or_default<T>(layered: Option<Layered<T>>, value: T) -> Layered<T> {
    layered.unwrap_or(Layered { value, location: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: &[&str]) -> Option<Vec<String>> {
        Some(list.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn directories_that_both_name_are_shared() {
        let ours = StatedSettings {
            read: texts(&["/usr/lib", "/opt", "/usrx"]),
            ..StatedSettings::default()
        };
        let theirs =
            StatedSettings { read: texts(&["/usr", "/opt/tool"]), ..StatedSettings::default() };
        assert_eq!(ours.and(&theirs).read, texts(&["/usr/lib", "/opt/tool"]));
    }

    #[test]
    fn the_stricter_setting_wins_and_an_absent_one_sets_no_bound() {
        let layered = |value| Some(Layered { value, location: None });
        let ours = StatedSettings {
            max_read: layered(5),
            versions: Some(3),
            terminal: Some(Effect::Ask),
            ..StatedSettings::default()
        };
        let theirs = StatedSettings {
            max_read: layered(4),
            versions: Some(7),
            terminal: Some(Effect::Allow),
            ..StatedSettings::default()
        };
        let merged = ours.and(&theirs).complete();
        assert_eq!(merged.max_read.value, 4);
        assert_eq!(merged.max_write.value, 10 << 20);
        assert_eq!(merged.backups.versions, 7);
        assert_eq!(merged.agent.terminal, Effect::Ask);
    }
}
