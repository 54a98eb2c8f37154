//! One call of a tool while it is carried out: its paths, its operations, and
//! the records that they leave.

use std::cell::RefCell;

use portcullis_audit::Receipt;
use portcullis_commands::Registry;

use crate::{
    gateway::{Approver, Client, Content, Follower, Gateway, Refusal, Request},
    model::{Encoding, LineRange, OperationKind, Session, WorkspacePath, request::Read},
    paths::{NotInside, Roots},
};

use super::answer::Trouble;

/// One call.
pub(super) struct Call<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) session: &'a Session,
    pub(super) roots: &'a Roots,
    /// The commands of the agent's sandbox, if it can have any.
    pub(super) commands: Option<&'a Registry>,
    /// It is about a further workspace, to which absolute paths alone lead.
    pub(super) is_further: bool,
    pub(super) approver: &'a dyn Approver,
    /// Hears of a search, and says whether the client takes the call back.
    pub(super) follower: &'a dyn Follower,
    pub(super) receipts: RefCell<Vec<Receipt>>,
}

impl Call<'_> {
    /// A path of the client: relative to the workspace, or absolute beneath
    /// its root.
    pub(super) fn path(&self, kind: OperationKind, text: &str) -> Result<WorkspacePath, Trouble> {
        let parsed = match text.starts_with('/') {
            true => self.roots.relative(text),
            false if self.is_further => Err(NotInside::Outside),
            false => WorkspacePath::parse(text).map_err(NotInside::Path),
        };
        parsed.map_err(|error| {
            let refusal = match error {
                NotInside::Path(error) => Refusal::Path(error),
                NotInside::Relative | NotInside::Outside => Refusal::Outside,
            };
            Trouble::Gate(self.gateway.refuse(self.session, kind.as_str(), Some(text), &refusal))
        })
    }

    /// A pattern on paths, which is absolute where paths are.
    pub(super) fn pattern(&self, text: &str) -> Result<String, Trouble> {
        match self.is_further {
            true => Ok(self.path(OperationKind::Glob, text)?.as_str().to_owned()),
            false => Ok(text.to_owned()),
        }
    }

    /// A path as the client can name it in the next call.
    pub(super) fn shown(&self, path: &WorkspacePath) -> String {
        match self.is_further {
            true => self.roots.absolute(path),
            false => path.as_str().to_owned(),
        }
    }

    /// Puts a request to the gateway.
    pub(super) fn put<R: Request>(&self, request: &R) -> Result<R::Output, Trouble> {
        let operation = request.as_operation();
        self.go_on(operation.kind(), operation.path().as_str())?;
        let (approver, follower) = (self.approver, self.follower);
        let client = Client { approver, follower, ..Client::default() };
        let reply = self.gateway.handle(self.session, request, client)?;
        self.receipts.borrow_mut().push(reply.receipt);
        Ok(reply.output)
    }

    /// Refuses to go on when the client takes the call back, and puts that on record.
    pub(super) fn go_on(&self, kind: OperationKind, path: &str) -> Result<(), Trouble> {
        match self.is_cancelled() {
            true => Err(Trouble::Gate(self.gateway.refuse(
                self.session,
                kind.as_str(),
                Some(path),
                &Refusal::Cancelled,
            ))),
            false => Ok(()),
        }
    }

    /// Whether the client takes the call back.
    pub(super) fn is_cancelled(&self) -> bool {
        !self.follower.is_wanted()
    }

    /// A file's content, or some of its lines.
    pub(super) fn read(
        &self,
        path: &str,
        range: LineRange,
        encoding: Encoding,
    ) -> Result<Content, Trouble> {
        let path = self.path(OperationKind::Read, path)?;
        self.put(&Read { path, range, encoding })
    }

    /// Refuses to read one file more for a reply that is full.
    pub(super) fn no_room(&self, path: &str) -> Trouble {
        let why = "what was asked for before it fills the reply; ask for it in another call";
        let refusal = Refusal::Parameters(why.to_owned());
        let op = OperationKind::Read.as_str();
        Trouble::Gate(self.gateway.refuse(self.session, op, Some(path), &refusal))
    }
}
