//! The mount of an agent's sandbox, served by the gateway.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool, mpsc},
    thread,
    time::{Duration, Instant},
};

use rustix::io::Errno;
use serde_json::{Value, json};

use super::{
    bootstrap::Started,
    failure::{Context as _, Failure},
    scratch::ScratchLocation,
};
use crate::{
    config::audit::MountRecords,
    fuse::{self, Stopper},
    gateway::{Approver, Gateway},
    model::{ClaimedToolCall, Escaped, Session, Transport},
    mount::{CommandLeaders, Mount, Options, Scratch, ScratchMetrics},
    policy::Labelled,
};

/// Timeout for the kernel's INIT.
const INIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for a request in progress once the mount is being stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The order to serve a mount.
#[derive(Debug)]
pub(crate) struct MountOrder {
    /// The descriptor of the kernel's requests and replies.
    pub(crate) device: OwnedFd,
    /// The sandbox's `/proc`, if it has one.
    pub(crate) processes: Option<OwnedFd>,
    /// The commands that the gateway has started in the sandbox, if their records are in the same
    /// log.
    pub(crate) leaders: Option<Arc<CommandLeaders>>,
    /// The tool call that the agent says is in progress.
    pub(crate) tool_call: Arc<ClaimedToolCall>,
    /// True as long as only the sandbox's setup runs.
    pub(crate) setup: Arc<AtomicBool>,
    /// The agent's user id, as the sandbox numbers it.
    pub(crate) user: u32,
    /// The agent's group id, likewise.
    pub(crate) group: u32,
    /// The absolute paths at which programs see the workspace.
    pub(crate) roots: Vec<PathBuf>,
    /// The scratch directories, if the policy names any.
    pub(crate) scratch: Option<ScratchLocation>,
    /// True if programs can read the objects of the workspace's git repository.
    pub(crate) shows_git_objects: bool,
    /// The kind of records that opens leave in the log.
    pub(crate) records: MountRecords,
}

impl MountOrder {
    /// Returns facts of the `start` record.
    pub(crate) fn facts(&self) -> BTreeMap<String, Value> {
        let scratch = self.scratch.iter().flat_map(ScratchLocation::facts);
        let git = self.shows_git_objects.then(|| ("git".to_owned(), json!({ "history": true })));
        scratch.chain(git).collect()
    }

    /// Warns of what programs get past the rules.
    pub(crate) fn warn(&self) {
        if self.shows_git_objects {
            errln!(
                "portcullis: warning: `[git] repository = \"workspace\"`: programs can read each \
                 version of each file that was ever committed, past all rules and with all secrets; \
                 `portcullis policy lint` lists tracked files that rules hide"
            );
        }
        if let Some(scratch) = &self.scratch {
            scratch.warn();
        }
    }

    /// True if programs get the history of the workspace's repository.
    fn has_history(&self) -> bool {
        self.shows_git_objects || self.scratch.as_ref().is_some_and(ScratchLocation::has_history)
    }
}

/// A served mount, until its sandbox ends.
pub(crate) struct ServedMount {
    stopper: Stopper,
    ended: mpsc::Receiver<()>,
    /// The content of the scratch directories at the start.
    scratch: Option<ScratchMetrics>,
}

impl ServedMount {
    /// Serves a mount, as a transport of its own, for the session of `started`. `approver` passes
    /// questions to the operator.
    pub(crate) fn serve(
        started: &Started,
        order: MountOrder,
        approver: Box<dyn Approver + Send>,
    ) -> Result<Self, Failure> {
        const DOING: &str = "cannot serve the mount";
        let has_history = order.has_history();
        let kernel =
            fuse::Session::begin(order.device, Instant::now() + INIT_TIMEOUT).or_fail(DOING)?;
        let stopper = kernel.stopper();
        let gateway = Arc::clone(&started.gateway);
        let session = Session { transport: Transport::Mount, ..started.session.clone() };
        let (processes, leaders, tool_call) = (order.processes, order.leaders, order.tool_call);
        let setup = order.setup;
        let scratch = order.scratch.map(|place| Scratch::open(&place.directory, place.rules));
        let scratch = scratch.transpose().map_err(|error| match error {
            Errno::BUSY => Failure::new(
                "too many sessions of this workspace, agent and policy have scratch directories",
            )
            .help("wait until one of them has ended, or give this one another name with `--agent`"),
            error => Failure::new(format_args!("cannot open the scratch directories: {error}")),
        })?;
        let records_each_open = order.records == MountRecords::Opens;
        let options = Options::new(order.user, order.group);
        // A killed process could not record them.
        let unrecorded = scratch.as_ref().map(|scratch| scratch.begin(&session.id));
        let unrecorded = unrecorded.transpose().or_fail("cannot open the scratch directories")?;
        let policy = gateway.policy();
        let labels = match &scratch {
            Some(scratch) => scratch.take_labels(policy.labels(), has_history).or_fail(DOING)?,
            None if has_history => policy.labels().all(),
            None => Labelled::default(),
        };
        carry(&gateway, &session, &labels)?;
        if let (Some(Some(left_by)), Some(scratch)) = (unrecorded, &scratch) {
            let mut facts = scratch.numbers().facts();
            facts.insert("previousSession".to_owned(), left_by.into());
            gateway.note(&session, ScratchMetrics::RECORD, facts).or_fail(DOING)?;
        }
        let metrics = scratch.as_ref().map(Scratch::numbers);
        let roots = order.roots;
        let options = Options {
            processes,
            leaders,
            tool_call,
            setup,
            roots,
            scratch,
            records_each_open,
            ..options
        };
        let (ends, ended) = mpsc::channel::<()>();
        thread::Builder::new()
            .name("mount".to_owned())
            .spawn(move || {
                let mount = Mount::new(&gateway, session.clone(), options).asking(&*approver);
                if let Err(error) = mount.serve(&kernel) {
                    tracing::error!(%error, "the mount is not served any more");
                }
                if let Err(error) = mount.record_unstored() {
                    tracing::error!(%error, "cannot record which writes were not stored");
                }
                if let Err(error) = mount.record_scratch() {
                    tracing::error!(%error, "cannot record what is in scratch directories");
                }
                drop(mount);
                drop((gateway, ends));
            })
            .or_fail(DOING)?;
        Ok(Self { stopper, ended, scratch: metrics })
    }

    /// Returns the facts about the content of the scratch directories at the start.
    pub(crate) fn facts(&self) -> BTreeMap<String, Value> {
        let facts = self.scratch.map(|scratch| {
            let ScratchMetrics { entries, bytes, .. } = scratch;
            ("scratch".to_owned(), json!({ "entries": entries, "bytes": bytes }))
        });
        facts.into_iter().collect()
    }

    /// Waits until the last writes are committed and the mount is gone, at most for `timeout`.
    /// Returns false if a request is still in progress then, whose record may be missing.
    pub(crate) fn end(self, timeout: Duration) -> bool {
        let is_late = |ended| ended == Err(mpsc::RecvTimeoutError::Timeout);
        if !is_late(self.ended.recv_timeout(timeout)) {
            return true;
        }
        tracing::warn!("stopped while a program still had the mount");
        self.stopper.stop();
        !is_late(self.ended.recv_timeout(STOP_TIMEOUT))
    }
}

/// Has the session carry the labels of what the git repository of its programs may contain.
fn carry(gateway: &Gateway, session: &Session, labels: &Labelled) -> Result<(), Failure> {
    gateway.carry_copied(session, labels, "repository").or_fail("cannot record labels")?;
    for id in labels.ids() {
        errln!(
            "portcullis: note: the git repository of the programs may contain what is labelled `{}`: \
             rules with `whenRead` apply from the start",
            Escaped(id)
        );
    }
    Ok(())
}
