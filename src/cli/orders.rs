//! What the broker orders while the gate serves: to stop, or to take another
//! policy up. The gate cannot open policy files; it is given their texts, and
//! compiles and tests them aside.

use std::{
    fs::File,
    io::{self, PipeReader, Read as _, Seek as _},
    os::fd::{AsFd as _, OwnedFd},
};

use cap_std::fs::Dir;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};

use super::{
    gate::{Closable, Order},
    local,
    policy::warn_of_observing,
    supervise::is_reload,
};
use crate::{
    app::policy_rollback,
    config::Gathered,
    gateway::Gateway,
    model::{Escaped, Session},
    policy::{Diagnostics, compile},
    sandbox::Channel,
};

/// Most bytes that the texts of a policy take on their way here: as many files
/// as it may have, of the largest size, in base64, and their names.
const LARGEST: u64 = 64 << 20;

/// Who orders, and what the orders are about.
pub(super) struct Orders<'a> {
    pub(super) channel: &'a Channel,
    pub(super) signals: &'a SignalFd,
    pub(super) gateway: &'a Gateway,
    pub(super) session: &'a Session,
    pub(super) state: &'a Dir,
    /// Whether policies are signed; the broker has checked that.
    pub(super) signatures: bool,
    pub(super) agent_in: Closable,
}

/// A gate that takes other policies up.
pub(super) struct Reloading<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) session: &'a Session,
    pub(super) state: &'a Dir,
    /// Whether policies are signed; the broker has checked that.
    pub(super) signatures: bool,
}

impl Orders<'_> {
    /// Follows orders until the gate is to stop, which closes the agent's
    /// input, or until `done` is closed.
    pub(super) fn follow(&self, done: &PipeReader) {
        loop {
            let mut waiting = [
                PollFd::from_borrowed_fd(done.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.channel.as_fd(), PollFlags::IN),
            ];
            match poll(&mut waiting, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return self.agent_in.close(),
            }
            let [ended, signalled, ordered] = waiting.map(|fd| !fd.revents().is_empty());
            if ended {
                return;
            }
            while signalled && let Ok(Some(signal)) = self.signals.read_signal() {
                // Whoever hangs up means the broker, which looks at the policy.
                if !is_reload(&signal) {
                    return self.agent_in.close();
                }
            }
            if !ordered {
                continue;
            }
            match self.channel.receive::<Order>() {
                Ok((Order::Policy { trigger }, files)) => {
                    if !self.reloading().reload(files, &trigger) && trigger == "signal" {
                        errln!("portcullis: the policy is the one in force");
                    }
                }
                Ok((Order::NoPolicy { trigger, sha256, why }, _)) => {
                    self.reloading().refuse(sha256.as_deref(), &why, &trigger);
                }
                // A broker that is gone, or speaks in tongues, ends it.
                Ok((Order::Stop, _)) | Err(_) => return self.agent_in.close(),
            }
        }
    }

    fn reloading(&self) -> Reloading<'_> {
        let Self { gateway, session, state, signatures, .. } = *self;
        Reloading { gateway, session, state, signatures }
    }
}

impl Reloading<'_> {
    /// Takes up the policy whose texts are in the first of `files`, or records why
    /// not. Returns false where it is the policy in force already.
    pub(super) fn reload(&self, files: Vec<OwnedFd>, trigger: &str) -> bool {
        self.take_up(files, trigger).unwrap_or_else(|(sha256, why)| {
            self.refuse(sha256.as_deref(), &why, trigger);
            true
        })
    }

    fn take_up(
        &self,
        files: Vec<OwnedFd>,
        trigger: &str,
    ) -> Result<bool, (Option<String>, String)> {
        let gathered = match files.into_iter().next().map(read) {
            Some(Ok(gathered)) => gathered,
            _ => return Err((None, "it did not arrive whole".to_owned())),
        };
        let source = gathered.source();
        let sha256 = source.sha256();
        if sha256 == self.gateway.policy().sha256() {
            return Ok(false);
        }
        let policy = match compile(&source) {
            Ok(policy) => policy,
            Err(diagnostics) => {
                err!("{}", diagnostics.render(false));
                return Err((Some(sha256), first(&diagnostics)));
            }
        };
        if self.signatures
            && let Err(failure) = policy_rollback::check(self.state, &policy)
        {
            return Err((Some(sha256), failure.message().to_owned()));
        }
        if let Err(error) = local::keep_policy(self.state, &policy, self.gateway.boot()) {
            return Err((Some(sha256), format!("cannot keep its text: {error}")));
        }
        let (name, version) = (policy.name().to_owned(), policy.version());
        match self.gateway.reload(self.session, policy, trigger) {
            Ok(Some(receipt)) => {
                errln!(
                    "portcullis: policy `{}` version {version} is in force, record {}",
                    Escaped(&name),
                    receipt.seq
                );
                let policy = self.gateway.policy();
                warn_of_observing(&policy);
                if self.signatures
                    && let Err(error) = policy_rollback::note(self.state, &policy)
                {
                    tracing::error!(%error, "cannot note the version of a signed policy");
                }
            }
            Ok(None) => {}
            Err(error) => return Err((Some(sha256), error.to_string())),
        }
        Ok(true)
    }

    /// Records that another policy is not taken up.
    pub(super) fn refuse(&self, sha256: Option<&str>, why: &str, trigger: &str) {
        let policy = self.gateway.policy();
        errln!(
            "portcullis: warning: the changed policy is not taken up: {}; version {} stays in \
             force",
            Escaped(why),
            policy.version()
        );
        if let Err(error) = self.gateway.refuse_policy(self.session, sha256, why, trigger) {
            // Without its log the gateway refuses every file by itself.
            tracing::error!(%error, "cannot record");
        }
    }
}

pub(super) fn read(file: OwnedFd) -> io::Result<Gathered> {
    let mut file = File::from(file);
    file.rewind()?;
    let mut text = Vec::new();
    file.take(LARGEST).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// What is wrong, in one line for the record.
pub(super) fn first(diagnostics: &Diagnostics) -> String {
    let more = diagnostics.iter().count().saturating_sub(1).saturating_add(diagnostics.omitted());
    let Some(one) = diagnostics.iter().next() else { return "it does not load".to_owned() };
    let place = if one.line > 0 { format!(" ({}:{})", one.file, one.line) } else { String::new() };
    let rest = if more > 0 { format!(", and {more} more errors") } else { String::new() };
    let label = one.label.as_ref().map(|label| format!(": {label}")).unwrap_or_default();
    format!("it does not load: {}{label}{place}{rest}", one.message)
}
