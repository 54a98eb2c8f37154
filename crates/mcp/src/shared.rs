//! What the threads of one client share: the gateway, the way out, and what is
//! under way. Knows nothing of the protocol's messages.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use portcullis_audit::Receipt;
use portcullis_commands::Registry;
use rmcp::model::CallToolResult;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    attach::Control,
    gateway::{Follower, Gateway, Refusal},
    model::{OperationKind, Session},
    paths::Roots,
};

use super::{
    answer::{self, Trouble},
    arguments::Arguments,
    asking::{Asker, Tickets},
    call::Call,
    further::FurtherWorkspace,
    memory::ClientMemory,
    offer::{Offer, ShownTools},
    tools::Waits,
    writer::LineWriter,
};

/// A change of a file that took no longer is over soon: a client that says
/// something meanwhile is heard no later than that.
const SHORT: Duration = Duration::from_millis(5);

/// What the threads share.
pub(super) struct Shared {
    pub(super) gateway: Arc<Gateway>,
    pub(super) writer: Arc<LineWriter>,
    pub(super) session: Session,
    pub(super) roots: Roots,
    pub(super) further: Vec<FurtherWorkspace>,
    /// The commands of the agent's sandbox, if it can have any.
    pub(super) commands: Option<Arc<Registry>>,
    pub(super) offer: Offer,
    /// The memory of several clients together.
    pub(super) memory: Option<Arc<ClientMemory>>,
    /// Bounds the client's calls that wait in line for the slots of all clients.
    pub(super) calls_in_line: Arc<Semaphore>,
    /// The session is that of another transport.
    pub(super) attached: bool,
    /// No other client of the agent can come.
    pub(super) alone: bool,
    /// What it says comes through the front of a service.
    pub(super) is_behind_front: bool,
    pub(super) tickets: Arc<Tickets>,
    /// Cancelled when the client says no more.
    pub(super) left: CancellationToken,
    /// The client hears no more.
    pub(super) closed: Arc<AtomicBool>,
    /// Calls under way.
    pub(super) calls: AtomicUsize,
    /// Bytes of their arguments.
    pub(super) bytes: AtomicUsize,
    /// Whether the last change of a file was over soon.
    pub(super) short: AtomicBool,
}

impl Shared {
    /// What the policy in force makes of the tools.
    pub(super) fn shown(&self) -> Arc<ShownTools> {
        self.offer.under(&self.gateway.policy())
    }

    /// Whether the disk is one on which a change of a file is over soon, as far as
    /// the last one shows.
    pub(super) fn syncs_are_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Records what was no request.
    pub(super) fn report(&self, event: &str, facts: BTreeMap<String, Value>) -> Option<Receipt> {
        // Without its log the gateway refuses every file by itself.
        self.gateway
            .report(&self.session, event, facts)
            .inspect_err(|error| tracing::error!(%error, "cannot record"))
            .ok()
    }

    /// The client says no more: nobody is there to be asked, or listens.
    pub(super) fn leave(&self) {
        self.tickets.leave();
        self.left.cancel();
    }

    /// The client hears no more.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.leave();
    }

    /// Whether the client hears no more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Lets what is left go out, and forgets what the session did.
    pub(super) fn end(&self, grace: Duration) {
        self.writer.close(grace);
        if self.writer.failed() {
            let why = json!("the client did not take all answers");
            self.report("mcp.dropped", BTreeMap::from([("why".to_owned(), why)]));
        }
        if !self.attached {
            self.gateway.end_session(&self.session);
        }
    }

    pub(super) fn refuse(
        &self,
        op: &str,
        path: Option<&str>,
        refusal: &Refusal,
    ) -> crate::gateway::Error {
        self.gateway.refuse(&self.session, op, path, refusal)
    }

    pub(super) fn call<'a>(&'a self, asker: &'a Asker, follower: &'a dyn Follower) -> Call<'a> {
        // A client that does not read keeps nothing in memory but what has begun.
        // One that shares its memory has made sure before it began.
        if self.memory.is_none() {
            self.writer.wait_for_room();
        }
        Call {
            gateway: &self.gateway,
            session: &self.session,
            roots: &self.roots,
            commands: self.commands.as_deref(),
            is_further: false,
            approver: asker,
            follower,
            receipts: Default::default(),
        }
    }

    /// The further workspace that a call is about: the first in which one of its paths lies.
    fn further_of(&self, kind: OperationKind, arguments: &Arguments) -> Option<&FurtherWorkspace> {
        let mut workspaces = self.further.iter();
        workspaces
            .find(|further| arguments.paths(kind).any(|path| further.roots.relative(path).is_ok()))
    }

    /// Carries a call out.
    pub(super) fn run(
        &self,
        tool: usize,
        arguments: &Arguments,
        asker: &Asker,
        follower: &dyn Follower,
    ) -> CallToolResult {
        let Some(tool) = self.offer.tool(tool) else {
            return answer::said("no such tool", &[]);
        };
        let mut call = self.call(asker, follower);
        let further = tool.kind().and_then(|kind| self.further_of(kind, arguments));
        if let Some(further) = further {
            call.gateway = &further.gateway;
            call.roots = &further.roots;
            call.is_further = true;
        }
        let begun = Instant::now();
        let result = tool.run(&call, arguments);
        let is_short = begun.elapsed() < SHORT;
        // What was refused at once says nothing of the disk.
        if tool.waits() == Waits::Syncs && (result.is_ok() || !is_short) {
            self.short.store(is_short, Ordering::Relaxed);
        }
        let receipts = call.receipts.into_inner();
        match result {
            Ok(answer) => answer::done(answer, &receipts),
            Err(Trouble::Gate(error)) => answer::failed(&error, &receipts),
            Err(Trouble::Said(message)) => answer::said(&message, &receipts),
            Err(Trouble::Arguments(why)) => {
                let refusal = Refusal::Parameters(why);
                let error = self.refuse(tool.word(), arguments.shown_path(), &refusal);
                answer::failed(&error, &receipts)
            }
        }
    }
}

/// As an attached client: its session ends it at once.
impl Control for Shared {
    fn withdraw(&self) {
        self.tickets.withdraw();
    }

    fn end(&self) {
        self.close();
    }
}
