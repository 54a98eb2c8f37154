//! Decisions on the files of commits in an agent's private repository, before they are imported
//! into the operator's.

use portcullis_audit::Draft;

use super::{
    error::Failure,
    link_decisions::LinkDecisions,
    link_targets::{depth, steps_up},
    record,
    reply::Attempt,
    request::Request,
    transaction::Transaction,
};
use crate::{
    model::{
        Access, AsOperation, Operation, Transport, WorkspacePath,
        request::{Remove, Symlink, Write},
    },
    ops::{Context, SomeAttributes, prepare},
    policy::{Object, ObjectKind},
    workspace,
};

/// A change of a file in a commit, decided on as the same change of the workspace, which it does
/// not touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import<R> {
    /// The change.
    pub request: R,
    /// The content before, in the agent's repository.
    pub before: Option<Vec<u8>>,
    /// The content before, in the operator's repository.
    pub original: Option<Vec<u8>>,
    /// The target of the symbolic link that it replaces.
    pub link: Option<String>,
}

impl<R: AsOperation> AsOperation for Import<R> {
    fn as_operation(&self) -> Operation<'_> {
        self.request.as_operation()
    }
}

impl<R> Import<R> {
    /// Decides on the name and its object, then on the content.
    fn decide(
        &self,
        transaction: &Transaction<'_>,
        draft: &mut Draft,
        (path, access): (&WorkspacePath, Access),
        content: Option<&[u8]>,
    ) -> Attempt<Option<Vec<u8>>> {
        let authorizer = transaction.authorizer();
        record::decide(draft, &authorizer.decide_names(path)?);
        let object = Object { kind: ObjectKind::File, links: 1, through_symlink: false };
        authorizer.decide_object_accesses(path, &object, &[access])?;
        let contents = (self.before.as_deref(), self.original.as_deref());
        // The limits of programs apply, not those of a model.
        let context = Context { transport: Transport::Mount, ..transaction.context };
        let sealed = prepare::import(&context, path, contents, content)?;
        transaction.disclose_shown(draft, sealed, |description| {
            description.imports(self.before.as_deref(), content, self.link.as_deref())
        })
    }
}

impl Request for Import<Write> {
    /// The content that the commit gets.
    type Output = Option<Vec<u8>>;

    fn run<'a>(
        &'a self,
        transaction: &Transaction<'a>,
        draft: &mut Draft,
    ) -> Attempt<Self::Output> {
        let Write { path, content, mode } = &self.request;
        if mode.is_some() {
            let set = SomeAttributes { mode: *mode, modified: None }.to_value();
            draft.facts.get_or_insert_default().insert(record::ATTRIBUTES.to_owned(), set);
        }
        self.decide(transaction, draft, (path, Access::Write), Some(content))
    }
}

impl Request for Import<Remove> {
    type Output = Option<Vec<u8>>;

    fn run<'a>(
        &'a self,
        transaction: &Transaction<'a>,
        draft: &mut Draft,
    ) -> Attempt<Self::Output> {
        self.decide(transaction, draft, (&self.request.path, Access::Remove), None)
    }
}

impl Request for Import<Symlink> {
    type Output = Option<Vec<u8>>;

    fn run<'a>(
        &'a self,
        transaction: &Transaction<'a>,
        draft: &mut Draft,
    ) -> Attempt<Self::Output> {
        let Symlink { path, target } = &self.request;
        let authorizer = transaction.authorizer();
        record::decide(draft, &authorizer.decide_names(path)?);
        authorizer.decide_link(path)?;
        let leads_out =
            target.starts_with('/') || target.is_empty() || steps_up(target) > depth(path);
        if leads_out {
            return Err(Failure::from(workspace::Error::Outside));
        }
        // By another link of the workspace, too.
        let (context, workspace) = (&transaction.context, transaction.gateway.workspace());
        LinkDecisions::check_target(context.policy, context.agent, workspace, path, target)?;
        let contents = (self.before.as_deref(), self.original.as_deref());
        let sealed = prepare::import(&transaction.context, path, contents, None)?;
        draft.facts.get_or_insert_default().insert("target".to_owned(), target.as_str().into());
        transaction.disclose_shown(draft, sealed, |description| {
            description.imports(self.before.as_deref(), None, self.link.as_deref())
        })
    }
}
