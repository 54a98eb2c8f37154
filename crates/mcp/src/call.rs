//! One call of a tool while it is carried out: its paths, its operations, and
//! the records that they leave.

use std::cell::RefCell;

use portcullis_audit::Receipt;

use crate::{
    gateway::{
        Approver, Caller, Content, Entries, Entry, Follower, Found, Gateway, Matches, Names,
        Output, Refusal, Source,
    },
    model::{
        Encoding, GlobQuery, GrepQuery, LineRange, Operation, OperationKind, Session, WorkspacePath,
    },
    paths::{NotInside, Roots},
};

use super::answer::Trouble;

/// One call.
pub(super) struct Call<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) session: &'a Session,
    pub(super) roots: &'a Roots,
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

    /// Puts an operation to the gateway.
    pub(super) fn put(&self, operation: &Operation) -> Result<Output, Trouble> {
        self.go_on(operation.kind(), operation.path().as_str())?;
        let caller = Caller { approver: self.approver, follower: self.follower };
        let reply = self.gateway.handle_for(self.session, operation, Source::Disk, caller)?;
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
    pub(super) fn read_at(
        &self,
        path: WorkspacePath,
        range: LineRange,
        encoding: Encoding,
    ) -> Result<Content, Trouble> {
        match self.put(&Operation::Read { path, range, encoding })? {
            Output::Content(content) => Ok(content),
            _ => Err(surprise()),
        }
    }

    /// The same of a path as the client has it.
    pub(super) fn read(
        &self,
        path: &str,
        range: LineRange,
        encoding: Encoding,
    ) -> Result<Content, Trouble> {
        self.read_at(self.path(OperationKind::Read, path)?, range, encoding)
    }

    /// Refuses to read one file more for a reply that is full.
    pub(super) fn no_room(&self, path: &str) -> Trouble {
        let why = "what was asked for before it fills the reply; ask for it in another call";
        let refusal = Refusal::Parameters(why.to_owned());
        let op = OperationKind::Read.as_str();
        Trouble::Gate(self.gateway.refuse(self.session, op, Some(path), &refusal))
    }

    /// The names in a directory.
    pub(super) fn list(&self, path: WorkspacePath) -> Result<Entries, Trouble> {
        match self.put(&Operation::List { path })? {
            Output::Entries(entries) => Ok(entries),
            _ => Err(surprise()),
        }
    }

    /// The same without what only a look at each entry tells.
    pub(super) fn names(&self, path: WorkspacePath) -> Result<Names, Trouble> {
        match self.put(&Operation::Names { path })? {
            Output::Names(names) => Ok(names),
            _ => Err(surprise()),
        }
    }

    /// What is known of one entry.
    pub(super) fn stat(&self, path: WorkspacePath) -> Result<Entry, Trouble> {
        match self.put(&Operation::Stat { path })? {
            Output::Stat(entry) => Ok(entry),
            _ => Err(surprise()),
        }
    }
}

impl Call<'_> {
    /// What lies beneath a directory and matches a pattern.
    pub(super) fn glob(&self, path: WorkspacePath, query: GlobQuery) -> Result<Found, Trouble> {
        match self.put(&Operation::Glob { path, query })? {
            Output::Found(found) => Ok(found),
            _ => Err(surprise()),
        }
    }

    /// Lines that match.
    pub(super) fn grep(&self, path: WorkspacePath, query: GrepQuery) -> Result<Matches, Trouble> {
        match self.put(&Operation::Grep { path, query })? {
            Output::Matches(matches) => Ok(matches),
            _ => Err(surprise()),
        }
    }
}

/// The gateway answered another question: that would be a fault of ours.
pub(super) fn surprise() -> Trouble {
    Trouble::Said("the gate gave another answer than was asked for".to_owned())
}
