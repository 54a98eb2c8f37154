//! Watching the policy's files for the gate, which cannot open them.
//!
//! The files are looked at by name twice a second, not watched through inotify:
//! that would have to follow every link on the way and every directory that
//! holds one, and says nothing on network file systems. A change counts when
//! two looks in a row see the same, so that a file is not read half written.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use rustix::fs::{Stat, stat};

use super::{protocol::Order, supervisor::Gate};
use crate::{
    app::{policy_transfer::SharedPolicy, trusted_paths},
    config::{Operator, PolicyTexts, signature::signature_path},
    sandbox::{ChannelError, TrustedPaths},
};

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_millis(500);

/// The policy of a running gate.
pub(crate) struct PolicyWatch {
    /// The number of its workspace.
    workspace: usize,
    reference: String,
    /// What its files must keep out of, and all else that is trusted.
    trusted: TrustedPaths,
    operator: Operator,
    /// Where the gate takes it from.
    shared: SharedPolicy,
    /// What the policy in force and the last one that was tried were read from.
    paths: Vec<PathBuf>,
    /// What was there when the policy was last read, and at the last look.
    read: Vec<Look>,
    last: Vec<Look>,
    next: Instant,
}

/// What identifies a file's content without reading it; `None` when it is not
/// there.
type Look = Option<(u64, u64, i64, (i64, u64), (i64, u64))>;

impl PolicyWatch {
    /// Watches the policy of the `workspace` of this number with these `texts`;
    /// `trusted` is all else that is trusted, with what the agent gets. The first look offers
    /// the policy in any case: it may have changed since it was read.
    pub(crate) fn new(
        workspace: usize,
        texts: &PolicyTexts,
        trusted: TrustedPaths,
        operator: Operator,
        shared: SharedPolicy,
    ) -> Self {
        let (reference, mut paths) = (texts.reference().to_owned(), texts.looked_up.clone());
        let next = Instant::now() + INTERVAL;
        if operator.require_signature {
            paths.extend(paths.first().map(|policy| signature_path(policy)));
        }
        let (read, last) = (Vec::new(), Vec::new());
        Self { workspace, reference, trusted, operator, shared, paths, read, last, next }
    }

    /// When to look again; never for a policy that is not in files.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        (!self.paths.is_empty()).then_some(self.next)
    }

    /// Looks, if it is time, and hands a changed policy to the gate.
    pub(crate) fn look(&mut self, gate: &Gate) {
        if self.paths.is_empty() || Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + INTERVAL;
        let now = looks(&self.paths);
        if now != self.read && now == self.last {
            self.offer(gate, "file");
        } else {
            self.last = now;
        }
    }

    /// Hands the policy to the gate, changed or not.
    pub(crate) fn reload(&mut self, gate: &Gate) {
        self.offer(gate, "signal");
    }

    fn offer(&mut self, gate: &Gate, trigger: &str) {
        let before = looks(&self.paths);
        let offered = self.gather();
        let (workspace, trigger) = (self.workspace, trigger.to_owned());
        let order =
            |sha256, why| Order::NoPolicy { workspace, trigger: trigger.clone(), sha256, why };
        let sent = match offered {
            Ok(texts) => match self.shared.put(&texts) {
                Ok(hash) => {
                    let trigger = trigger.clone();
                    gate.channel().send(&Order::Policy { workspace, hash, trigger }, &[])
                }
                Err(error) => gate.channel().send(&order(None, error.to_string()), &[]),
            },
            Err((sha256, why)) => gate.channel().send(&order(sha256, why), &[]),
        };
        match sent {
            // It ended while the policy was read, which the supervisor sees by itself.
            Ok(()) | Err(ChannelError::Closed) => {}
            Err(error) => {
                errln!("portcullis: warning: cannot hand the policy to the gate: {error}");
            }
        }
        // What changed while it was read is seen at the next look.
        let fresh = looks(self.paths.get(before.len()..).unwrap_or_default());
        self.read = before.into_iter().chain(fresh).collect();
        self.last = self.read.clone();
    }

    /// Reads the policy, and checks that all that is trusted lies, as it leads now,
    /// where the agent may not change it. The error has the hash, as far as it is
    /// known.
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
                paths.trusted.extend(files);
                paths.check().map_err(|error| error.to_string())
            })
            .and_then(|()| self.operator.trust(&texts).map_err(|error| error.to_string()));
        match checked {
            Ok(_) => Ok(texts),
            Err(why) => Err((Some(texts.sha256()), why)),
        }
    }
}

/// Looks at files by name.
fn looks(paths: &[PathBuf]) -> Vec<Look> {
    paths.iter().map(|path| stat(path).ok().map(|stat| identity(&stat))).collect()
}

fn identity(stat: &Stat) -> (u64, u64, i64, (i64, u64), (i64, u64)) {
    let (changed, touched) =
        ((stat.st_mtime, stat.st_mtime_nsec), (stat.st_ctime, stat.st_ctime_nsec));
    (stat.st_dev, stat.st_ino, stat.st_size, changed, touched)
}
