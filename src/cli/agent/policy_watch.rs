//! Watches the policy's files for the gateway, which cannot open them.
//!
//! The files are checked by path twice a second, not watched through inotify: that would have
//! to follow every link on the way and every directory that contains one, and reports nothing
//! on network file systems. A change counts when two checks in a row have the same result, so
//! that no file is read half written.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use rustix::fs::{Stat, stat};

use super::{protocol::GatewayOrder, supervisor::GatewayProcess};
use crate::{
    app::{policy_transfer::SharedPolicy, trusted_paths},
    config::{Operator, PolicyTexts, signature::signature_path},
    sandbox::{ChannelError, TrustedPaths},
};

/// Interval of checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The policy of a running gateway.
pub(crate) struct PolicyWatch {
    /// The number of its workspace.
    workspace: usize,
    reference: String,
    /// The paths that its files must not overlap with, and all other trusted paths.
    trusted: TrustedPaths,
    operator: Operator,
    /// The file through which the gateway gets it.
    shared: SharedPolicy,
    /// The files of the policy in force, and of the last one that was tried.
    paths: Vec<PathBuf>,
    /// The results of the check at the last read of the policy, and of the last check.
    read: Vec<FileIdentity>,
    last: Vec<FileIdentity>,
    next: Instant,
}

/// The identity of a file's content, as far as visible without a read; `None` if the file is
/// missing.
type FileIdentity = Option<(u64, u64, i64, (i64, u64), (i64, u64))>;

impl PolicyWatch {
    /// Watches the policy of workspace number `workspace` with these `texts`; `trusted` are
    /// all other trusted paths, with the agent's. The first check offers the policy in any
    /// case: it may have changed since it was read.
    pub(crate) fn new(
        workspace: usize,
        texts: &PolicyTexts,
        trusted: TrustedPaths,
        operator: Operator,
        shared: SharedPolicy,
    ) -> Self {
        let (reference, mut paths) = (texts.reference().to_owned(), texts.looked_up.clone());
        let next = Instant::now() + CHECK_INTERVAL;
        if operator.require_signature {
            paths.extend(paths.first().map(|policy| signature_path(policy)));
        }
        let (read, last) = (Vec::new(), Vec::new());
        Self { workspace, reference, trusted, operator, shared, paths, read, last, next }
    }

    /// Returns the time of the next check; `None` for a policy that is not in files.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        (!self.paths.is_empty()).then_some(self.next)
    }

    /// Checks the files, if it is time, and passes a changed policy to the gateway.
    pub(crate) fn look(&mut self, gateway: &GatewayProcess) {
        if self.paths.is_empty() || Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + CHECK_INTERVAL;
        let now = looks(&self.paths);
        if now != self.read && now == self.last {
            self.offer(gateway, "file");
        } else {
            self.last = now;
        }
    }

    /// Passes the policy to the gateway, changed or not.
    pub(crate) fn reload(&mut self, gateway: &GatewayProcess) {
        self.offer(gateway, "signal");
    }

    fn offer(&mut self, gateway: &GatewayProcess, trigger: &str) {
        let before = looks(&self.paths);
        let offered = self.gather();
        let (workspace, trigger) = (self.workspace, trigger.to_owned());
        let order = |sha256, reason| GatewayOrder::NoPolicy {
            workspace,
            trigger: trigger.clone(),
            sha256,
            reason,
        };
        let sent = match offered {
            Ok(texts) => match self.shared.put(&texts) {
                Ok(hash) => {
                    let trigger = trigger.clone();
                    gateway.channel().send(&GatewayOrder::Policy { workspace, hash, trigger }, &[])
                }
                Err(error) => gateway.channel().send(&order(None, error.to_string()), &[]),
            },
            Err((sha256, reason)) => gateway.channel().send(&order(sha256, reason), &[]),
        };
        match sent {
            // The gateway ended meanwhile, which the supervisor notices.
            Ok(()) | Err(ChannelError::Closed) => {}
            Err(error) => {
                errln!("portcullis: warning: cannot hand the policy to the gateway: {error}");
            }
        }
        // Changes during the read are noticed at the next check.
        let fresh = looks(self.paths.get(before.len()..).unwrap_or_default());
        self.read = before.into_iter().chain(fresh).collect();
        self.last = self.read.clone();
    }

    /// Reads the policy, and checks that no trusted path, as it leads now, can be changed by
    /// the agent. The error contains the hash, if it is known.
    fn gather(&mut self) -> Result<PolicyTexts, (Option<String>, String)> {
        let texts = PolicyTexts::load(&self.reference).map_err(|e| (None, e.to_string()))?;
        for path in &texts.looked_up {
            if !self.paths.contains(path) {
                self.paths.push(path.clone());
            }
        }
        let checked = trusted_paths::policy(&texts, &self.operator)
            .map_err(|failure| failure.message().to_owned())
            .and_then(|files| {
                let mut paths = self.trusted.clone();
                paths.trusted.extend(files.iter().cloned());
                paths.check().map_err(|error| error.to_string())?;
                trusted_paths::check_served(files, &self.operator)
                    .map_err(|failure| failure.message().to_owned())
            })
            .and_then(|()| self.operator.trust(&texts).map_err(|error| error.to_string()));
        match checked {
            Ok(_) => Ok(texts),
            Err(reason) => Err((Some(texts.sha256()), reason)),
        }
    }
}

/// Checks files by path.
fn looks(paths: &[PathBuf]) -> Vec<FileIdentity> {
    paths.iter().map(|path| stat(path).ok().map(|stat| identity(&stat))).collect()
}

fn identity(stat: &Stat) -> (u64, u64, i64, (i64, u64), (i64, u64)) {
    let (changed, touched) =
        ((stat.st_mtime, stat.st_mtime_nsec), (stat.st_ctime, stat.st_ctime_nsec));
    (stat.st_dev, stat.st_ino, stat.st_size, changed, touched)
}
