//! State shared by the threads of one client: the gateway, the output, and the requests in
//! flight. It does not depend on the protocol's messages.

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
use rmcp::{
    ErrorData,
    model::{CallToolResult, ErrorCode, RequestId},
};
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
    approver::{CallApprover, Tickets},
    arguments::Arguments,
    call::Call,
    further::FurtherWorkspace,
    memory::ClientMemory,
    tool_catalog::{ShownTools, ToolCatalog},
    tool_result::{self, ToolError},
    tools::ExpectedWait,
    writer::LineWriter,
};

/// Maximum duration of a short change, and so the longest time for which it delays the
/// client's next request.
const MAX_SHORT_CHANGE: Duration = Duration::from_millis(5);

/// State shared by the threads of one client.
pub(super) struct Shared {
    pub(super) gateway: Arc<Gateway>,
    pub(super) writer: Arc<LineWriter>,
    pub(super) session: Session,
    pub(super) roots: Roots,
    pub(super) further: Vec<FurtherWorkspace>,
    /// The commands of the agent's sandbox, if it may run any.
    pub(super) commands: Option<Arc<Registry>>,
    pub(super) catalog: ToolCatalog,
    /// The memory shared by several clients.
    pub(super) memory: Option<Arc<ClientMemory>>,
    /// Bounds the client's calls that queue for the slots of all clients.
    pub(super) calls_in_line: Arc<Semaphore>,
    /// True if the session belongs to another transport.
    pub(super) attached: bool,
    /// True if the agent can have no other client.
    pub(super) alone: bool,
    /// True if its input comes through the front of a service.
    pub(super) is_behind_front: bool,
    pub(super) tickets: Arc<Tickets>,
    /// Cancelled when the client's input has ended.
    pub(super) left: CancellationToken,
    /// Set when the client reads no more.
    pub(super) closed: Arc<AtomicBool>,
    /// Set when the client has lost the right to its requests.
    pub(super) revoked: Arc<AtomicBool>,
    /// Number of calls in flight.
    pub(super) calls: AtomicUsize,
    /// Bytes of their arguments.
    pub(super) bytes: AtomicUsize,
    /// True if the last change of a file was short.
    pub(super) short: AtomicBool,
}

impl Shared {
    /// Returns the selection of tools under the policy in force.
    pub(super) fn shown(&self) -> Arc<ShownTools> {
        self.catalog.under(&self.gateway.policy())
    }

    /// Returns true if changes of files are short on this disk, judged by the last one.
    pub(super) fn syncs_are_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Records an event that is no request.
    pub(super) fn report(&self, event: &str, facts: BTreeMap<String, Value>) -> Option<Receipt> {
        // Without its log the gateway refuses every request anyway.
        self.gateway
            .report(&self.session, event, facts)
            .inspect_err(|error| tracing::error!(%error, "cannot record"))
            .ok()
    }

    /// Notes that the client's input has ended: approvals are withdrawn.
    pub(super) fn leave(&self) {
        self.tickets.leave();
        self.left.cancel();
    }

    /// Notes that the client reads no more.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.leave();
    }

    /// Returns true if the client reads no more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Writes the remaining output, and ends the session.
    pub(super) fn end(&self, grace: Duration) {
        self.writer.close(grace);
        if self.writer.failed() {
            let reason = json!("the client did not take all answers");
            self.report("mcp.dropped", BTreeMap::from([("reason".to_owned(), reason)]));
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

    /// Refuses a request for its method.
    pub(super) fn refuse_method(&self, method: &str, refusal: &Refusal) -> crate::gateway::Error {
        self.gateway.refuse_method(&self.session, method, refusal)
    }

    /// Adds a record and its receipt to an error by which `rmcp` refuses a request itself.
    pub(super) fn on_record(&self, method: &str, mut error: ErrorData) -> ErrorData {
        let of_rmcp = match error.code {
            ErrorCode::INVALID_PARAMS => error.data.is_none(),
            code => code == ErrorCode::UNSUPPORTED_PROTOCOL_VERSION,
        };
        if of_rmcp {
            let refusal = Refusal::Parameters(error.message.to_string());
            let described = tool_result::describe(&self.refuse_method(method, &refusal));
            let mut data = described.as_object().cloned().unwrap_or_default();
            if let Some(Value::Object(own)) = error.data.take() {
                data.extend(own);
            }
            error.data = Some(Value::Object(data));
        }
        error
    }

    pub(super) fn call<'a>(
        &'a self,
        asker: &'a CallApprover,
        follower: &'a dyn Follower,
    ) -> Call<'a> {
        // A client that does not read occupies memory only for calls that have begun. One
        // that shares its memory has waited before.
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
            revoked: &self.revoked,
            receipts: Default::default(),
            request: None,
        }
    }

    /// Returns the further workspace of a call: the first that contains one of its paths.
    fn further_of(&self, kind: OperationKind, arguments: &Arguments) -> Option<&FurtherWorkspace> {
        let mut workspaces = self.further.iter();
        workspaces
            .find(|further| arguments.paths(kind).any(|path| further.roots.relative(path).is_ok()))
    }

    /// Carries out a call.
    pub(super) fn run(
        &self,
        tool: usize,
        (id, arguments): (&RequestId, &Arguments),
        asker: &CallApprover,
        follower: &dyn Follower,
    ) -> CallToolResult {
        let Some(tool) = self.catalog.tool(tool) else {
            return tool_result::failure("no such tool", &[]);
        };
        let mut call = self.call(asker, follower);
        call.request = Some(id);
        let further = tool.kind().and_then(|kind| self.further_of(kind, arguments));
        if let Some(further) = further {
            call.gateway = &further.gateway;
            call.roots = &further.roots;
            call.is_further = true;
        }
        let begun = Instant::now();
        let result = tool.run(&call, arguments);
        let is_short = begun.elapsed() < MAX_SHORT_CHANGE;
        // An early refusal says nothing about the disk.
        if tool.waits() == ExpectedWait::Syncs && (result.is_ok() || !is_short) {
            self.short.store(is_short, Ordering::Relaxed);
        }
        let receipts = call.receipts.into_inner();
        match result {
            Ok(answer) => tool_result::done(answer, &receipts),
            Err(ToolError::Gateway(error)) => tool_result::failed(&error, &receipts),
            Err(ToolError::Said(message)) => tool_result::failure(&message, &receipts),
            Err(ToolError::Arguments(reason)) => {
                let refusal = Refusal::Parameters(reason);
                let error = self.refuse(tool.word(), arguments.shown_path(), &refusal);
                tool_result::failed(&error, &receipts)
            }
        }
    }
}

/// Control of an attached client by its session.
impl Control for Shared {
    fn withdraw(&self) {
        self.tickets.withdraw();
    }

    fn end(&self) {
        self.close();
    }
}
