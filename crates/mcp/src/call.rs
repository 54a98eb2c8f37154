//! A call of a tool in progress: its paths, its operations, and their receipts.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicBool, Ordering},
};

use portcullis_audit::Receipt;
use portcullis_commands::Registry;
use rmcp::model::RequestId;

use crate::{
    gateway::{Approver, Client, Content, Follower, Gateway, Refusal, Request},
    model::{Encoding, LineRange, OperationKind, Session, WorkspacePath, request::Read},
    paths::{OutsideWorkspace, Roots},
};

use super::tool_result::ToolError;

/// A call in progress.
pub(super) struct Call<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) session: &'a Session,
    pub(super) roots: &'a Roots,
    /// The commands of the agent's sandbox, if it can have any.
    pub(super) commands: Option<&'a Registry>,
    /// True if the call is about a further workspace, where paths are absolute.
    pub(super) is_further: bool,
    pub(super) approver: &'a dyn Approver,
    /// Gets the progress of a search, and knows if the client cancels the call.
    pub(super) follower: &'a dyn Follower,
    /// Set when the client has lost the right to its requests.
    pub(super) revoked: &'a AtomicBool,
    pub(super) receipts: RefCell<Vec<Receipt>>,
    /// The id of the client's request, if it is a call of a tool.
    pub(super) request: Option<&'a RequestId>,
}

impl Call<'_> {
    /// Parses a path of the client: relative to the workspace, or absolute beneath
    /// its root.
    pub(super) fn path(&self, kind: OperationKind, text: &str) -> Result<WorkspacePath, ToolError> {
        let parsed = match text.starts_with('/') {
            true => self.roots.relative(text),
            false if self.is_further => Err(OutsideWorkspace::Outside),
            false => WorkspacePath::parse(text).map_err(OutsideWorkspace::Path),
        };
        parsed.map_err(|error| {
            let refusal = match error {
                OutsideWorkspace::Path(error) => Refusal::Path(error),
                OutsideWorkspace::Relative | OutsideWorkspace::Outside => Refusal::Outside,
            };
            ToolError::Gateway(self.gateway.refuse(
                self.session,
                kind.as_str(),
                Some(text),
                &refusal,
            ))
        })
    }

    /// Converts a pattern on paths, which in a further workspace is absolute.
    pub(super) fn pattern(&self, text: &str) -> Result<String, ToolError> {
        match self.is_further {
            true => Ok(self.path(OperationKind::Glob, text)?.as_str().to_owned()),
            false => Ok(text.to_owned()),
        }
    }

    /// Returns a path in the form that the client can use in its next call.
    pub(super) fn shown(&self, path: &WorkspacePath) -> String {
        match self.is_further {
            true => self.roots.absolute(path),
            false => path.as_str().to_owned(),
        }
    }

    /// Passes a request to the gateway.
    pub(super) fn put<R: Request>(&self, request: &R) -> Result<R::Output, ToolError> {
        let operation = request.as_operation();
        self.check_cancelled(operation.kind(), operation.path().as_str())?;
        let (approver, follower) = (self.approver, self.follower);
        let client = Client { approver, follower, ..Client::default() };
        let reply = self.gateway.handle(self.session, request, client)?;
        self.receipts.borrow_mut().push(reply.receipt);
        Ok(reply.output)
    }

    /// Checks for cancellation; a cancelled call is refused, on record.
    pub(super) fn check_cancelled(&self, kind: OperationKind, path: &str) -> Result<(), ToolError> {
        match self.is_cancelled() {
            true => Err(ToolError::Gateway(self.gateway.refuse(
                self.session,
                kind.as_str(),
                Some(path),
                &Refusal::Cancelled,
            ))),
            false => Ok(()),
        }
    }

    /// Returns true if the client has cancelled the call, or has lost the right to it.
    pub(super) fn is_cancelled(&self) -> bool {
        !self.follower.is_wanted() || self.revoked.load(Ordering::SeqCst)
    }

    /// Reads a file, or some of its lines.
    pub(super) fn read(
        &self,
        path: &str,
        range: LineRange,
        encoding: Encoding,
    ) -> Result<Content, ToolError> {
        let path = self.path(OperationKind::Read, path)?;
        self.put(&Read { path, range, encoding })
    }
}
