//! Requests that change a file, a directory or an entry.

use portcullis_audit::Draft;

use super::{
    approval_preview::MAX_SHOWN,
    authorizer::Authorizer,
    error::{Failure, HIDDEN, never_served},
    link_decisions::LinkDecisions,
    link_targets::{self, Move},
    obligations::Obligations,
    reply::{Attempt, Changed},
    request::Request,
    transaction::Transaction,
};
use crate::{
    model::{
        Access, AgentName, AsOperation, Operation, OperationKind, WorkspacePath,
        request::{Append, Edit, Mkdir, Remove, Rename, SetAttributes, Symlink, Write},
    },
    ops::{self, Base, Context, ExchangeEntry, SealedChange, SomeAttributes, prepare},
    policy::{Decision, ObjectKind, Policy, Secrets},
    view::WorkspaceView,
    workspace::{self, Permit, Resolved, VisitedName, Walked},
};

/// The reason for which a link keeps a directory from being moved, if it is not shown.
const HIDDEN_LINK: &str = "a link that is not shown would lead out of the workspace";

type Preparation<'a> = Result<SealedChange<'a>, ops::Error>;

/// A change of the content of one file; several can be made together.
pub trait ContentChange: AsOperation {
    /// Prepares the change of the file of the permit.
    #[doc(hidden)]
    fn prepare<'a>(&'a self, context: &Context<'a>, permit: Permit) -> Preparation<'a>;
}

impl ContentChange for Write {
    fn prepare<'a>(&'a self, context: &Context<'a>, permit: Permit) -> Preparation<'a> {
        let attributes = SomeAttributes { mode: self.mode, modified: None };
        prepare::write(context, permit, &self.content, attributes, Base::Anything)
    }
}

/// A [`Write`] with the state on which its sender based it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteOver {
    /// The write.
    pub write: Write,
    /// The state of the file that the write replaces.
    pub base: Base,
    /// Modification time of a file that is created, in place of now.
    pub modified: Option<(i64, u32)>,
}

impl AsOperation for WriteOver {
    fn as_operation(&self) -> Operation<'_> {
        self.write.as_operation()
    }
}

impl ContentChange for WriteOver {
    fn prepare<'a>(&'a self, context: &Context<'a>, permit: Permit) -> Preparation<'a> {
        let attributes = SomeAttributes { mode: self.write.mode, modified: self.modified };
        prepare::write(context, permit, &self.write.content, attributes, self.base)
    }
}

impl ContentChange for Append {
    fn prepare<'a>(&'a self, context: &Context<'a>, permit: Permit) -> Preparation<'a> {
        prepare::append(context, permit, &self.content)
    }
}

impl ContentChange for Edit {
    fn prepare<'a>(&'a self, context: &Context<'a>, permit: Permit) -> Preparation<'a> {
        prepare::edit(context, permit, &self.old, &self.new)
    }
}

impl<C: ContentChange> Request for C {
    type Output = Changed;

    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft) -> Attempt<Changed> {
        let permit = transaction.permit(draft)?;
        let change = self.prepare(&transaction.context, permit)?;
        transaction.limited_change(draft, change, 0)
    }
}

impl Request for Mkdir {
    type Output = Changed;

    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft) -> Attempt<Changed> {
        let permit = transaction.permit(draft)?;
        let change = prepare::mkdir(&transaction.context, permit, (self.recursive, self.mode))?;
        transaction.limited_change(draft, change, 0)
    }
}

impl Request for SetAttributes {
    type Output = Changed;

    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft) -> Attempt<Changed> {
        let permit = transaction.permit(draft)?;
        let after = SomeAttributes { mode: self.mode, modified: self.modified };
        let change = prepare::set_attributes(&transaction.context, permit, after)?;
        transaction.limited_change(draft, change, 0)
    }
}

impl Request for Symlink {
    type Output = Changed;

    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft) -> Attempt<Changed> {
        let (permit, context) = (transaction.permit(draft)?, &transaction.context);
        transaction.authorizer().decide_link(permit.path())?;
        leads_inside(transaction, permit.path(), &self.target)?;
        let change = prepare::symlink(context, permit, &self.target)?;
        transaction.limited_change(draft, change, 0)
    }
}

/// Refuses to give a link a name at which it could not be made, and to move a directory to where a
/// link in it would lead out of the workspace: programs on the host would follow it. Another session
/// may have exchanged the link that an undo moves, so the operator's links are no exception.
fn check_links(
    transaction: &Transaction<'_>,
    permit: &Permit,
    to: &WorkspacePath,
    tree: &[Walked],
) -> Result<(), Failure> {
    let (from, workspace) = (permit.path(), transaction.gateway.workspace());
    let is_operators = transaction.is_operators();
    if permit.object().kind == ObjectKind::Symlink && !is_operators {
        leads_inside(transaction, to, &permit.link_target()?)?;
    }
    let Context { policy, agent, .. } = transaction.context;
    let listing = LinkDecisions::listing(policy, agent);
    let follows = |visited: VisitedName<'_>| listing.is_shown(visited);
    let agent_follows = (!is_operators).then_some(&follows as _);
    let beneath = tree.iter().map(|walked| (&walked.path, walked.stat.object(false)));
    let entries = std::iter::once((from, permit.object())).chain(beneath);
    let Some((link, object)) =
        Move { from, to, agent_follows }.first_refused(workspace, from, entries)?
    else {
        return Ok(());
    };
    if is_operators {
        return Err(link_targets::outside(link, link_targets::REMOVE).into());
    }
    if transaction.authorizer().lists(link, &object) {
        return Err(workspace::Error::Outside.into());
    }
    Err(Failure::hidden(Decision::built_in_denial(HIDDEN, HIDDEN_LINK)))
}

/// Decides on what an agent's removal of `from` does to the entries beneath it, or its rename to the
/// new name with them. `decided` gets the decisions in the gateway's order, which ends with the first
/// denial, each with the path before the change.
///
/// # Errors
/// When the entries cannot be read, or would get no new path.
pub fn decide_entries(
    (policy, agent): (&Policy, &AgentName),
    workspace: WorkspaceView<'_>,
    (from, to): (&Resolved, Option<&WorkspacePath>),
    decided: &mut dyn FnMut(&WorkspacePath, Decision),
) -> Result<(), workspace::Error> {
    let operation = if to.is_some() { OperationKind::Rename } else { OperationKind::Remove };
    let obligations = &Obligations::default();
    let authorizer = Authorizer { policy, agent, operation, is_operators: false, obligations };
    let (root, object) = (from.path(), from.object());
    let tree = match object.kind {
        ObjectKind::Directory => workspace.walk(root)?,
        _ => Vec::new(),
    };
    let beneath = || tree.iter().map(|walked| (&walked.path, walked.stat.object(false)));
    for (path, object) in beneath() {
        decided(path, authorizer.decide_entry(Access::Remove, path, &object));
    }
    let Some(to) = to else { return Ok(()) };
    let entries = || std::iter::once((root, object)).chain(beneath());
    let new: Option<Vec<_>> = entries().map(|(old, _)| old.rebase(root, to)).collect();
    for ((old, object), new) in entries().zip(new.ok_or(workspace::Error::TooLong)?) {
        authorizer.decide_new_name((old, &new), &object).for_each(|made| decided(old, made));
    }
    if object.kind == ObjectKind::Symlink {
        let target = workspace.link_target(root)?;
        if let Err(error) = LinkDecisions::check_target(policy, agent, workspace, to, &target) {
            decided(root, never_served(&error).ok_or(error)?);
        }
    }
    let listing = LinkDecisions::listing(policy, agent);
    let follows = |visited: VisitedName<'_>| listing.is_shown(visited);
    let moved = Move { from: root, to, agent_follows: Some(&follows) };
    if let Some((link, object)) = moved.first_refused(workspace, root, entries())? {
        let outside = workspace::Error::Outside;
        let decision = match authorizer.lists(link, &object) {
            true => never_served(&outside).ok_or(outside)?,
            false => Decision::built_in_denial(HIDDEN, HIDDEN_LINK),
        };
        decided(link, decision);
    }
    Ok(())
}

/// Refuses a link that leads out of the workspace, or would if a name on its way became a link.
fn leads_inside(
    transaction: &Transaction<'_>,
    link: &WorkspacePath,
    target: &str,
) -> Result<(), workspace::Error> {
    let (context, workspace) = (&transaction.context, transaction.gateway.workspace());
    LinkDecisions::check_target(context.policy, context.agent, workspace, link, target)
}

/// True if the agent may see everything that secret rules look at when an entry moves.
fn sees_all(transaction: &Transaction<'_>, path: &WorkspacePath, tree: &[Walked]) -> bool {
    let authorizer = transaction.authorizer();
    let is_searched = transaction.context.policy.secrets().is_some_and(Secrets::depends_on_path);
    let sees = |walked: &Walked| {
        authorizer.lists(&walked.path, &walked.stat.object(false)) && authorizer.reads(&walked.path)
    };
    transaction.is_operators() || !is_searched || (authorizer.reads(path) && tree.iter().all(sees))
}

/// Returns the failure of a rename, which may be about the content of a hidden entry.
fn of_content(error: ops::Error, sees_all: bool) -> Failure {
    match error {
        ops::Error::Refused(decision) if !sees_all => Failure::hidden(decision),
        error => error.into(),
    }
}

impl Request for Remove {
    type Output = Changed;

    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft) -> Attempt<Changed> {
        let authorizer = transaction.authorizer();
        let permit = transaction.permit(draft)?;
        let files = match permit.object().kind {
            ObjectKind::Directory if self.recursive => {
                let tree = authorizer.walk(&transaction.gateway.workspace, permit.path())?;
                authorizer.decide_removal(permit.path(), &tree)?;
                tree.iter().filter(|w| w.stat.kind != ObjectKind::Directory).count()
            }
            ObjectKind::Directory => 0,
            _ => 1,
        };
        let change = prepare::remove(&transaction.context, permit, self.recursive)?;
        transaction.limited_change(draft, change, files)
    }
}

/// Returns the entries of the permit's object, if that is a directory.
fn tree(transaction: &Transaction<'_>, permit: &Permit) -> Result<Vec<Walked>, Failure> {
    match permit.object().kind {
        ObjectKind::Directory => {
            transaction.authorizer().walk(&transaction.gateway.workspace, permit.path())
        }
        _ => Ok(Vec::new()),
    }
}

impl Request for Rename {
    type Output = Changed;

    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft) -> Attempt<Changed> {
        let authorizer = transaction.authorizer();
        let permit = transaction.permit(draft)?;
        let target = transaction.rename_target(draft, &self.to, &permit.object())?;
        let tree = tree(transaction, &permit)?;
        authorizer.decide_rename(permit.path(), target.path(), &permit.object(), &tree)?;
        check_links(transaction, &permit, target.path(), &tree)?;
        transaction.carry_moved(draft, permit.path(), target.path(), &tree)?;
        // An approval covers the moved object as it was.
        let shown = (!transaction.obligations.asks().is_empty()).then_some(MAX_SHOWN);
        let sees_all = sees_all(transaction, permit.path(), &tree);
        let context = &transaction.context;
        let change = prepare::rename(context, permit, target, tree, self.replace, shown);
        let change = change.map_err(|error| of_content(error, sees_all))?;
        // A replaced file is removed.
        let files = change.origins().len();
        transaction.limited_change(draft, change, files)
    }
}

/// A [`Rename`] that exchanges the two names in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// The two names; nothing is replaced.
    pub rename: Rename,
}

impl AsOperation for Exchange {
    fn as_operation(&self) -> Operation<'_> {
        self.rename.as_operation()
    }
}

impl Request for Exchange {
    type Output = Changed;

    /// Both objects are renamed, so each name needs what the old and the new one of a rename need.
    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft) -> Attempt<Changed> {
        let authorizer = transaction.authorizer();
        let one = transaction.permit(draft)?;
        let other = transaction.rename_target(draft, &self.rename.to, &one.object())?;
        for permit in [&one, &other] {
            for access in [Access::Remove, Access::Write] {
                authorizer.require(authorizer.decide_name(access, permit.path()))?;
                authorizer.decide_object_accesses(permit.path(), &permit.object(), &[access])?;
            }
        }
        let side = |permit: Permit| -> Result<ExchangeEntry, Failure> {
            let tree = tree(transaction, &permit)?;
            Ok(ExchangeEntry { permit, tree })
        };
        let (one, other) = (side(one)?, side(other)?);
        for (side, new) in [(&one, other.permit.path()), (&other, one.permit.path())] {
            authorizer.decide_rename(side.permit.path(), new, &side.permit.object(), &side.tree)?;
            check_links(transaction, &side.permit, new, &side.tree)?;
            transaction.carry_moved(draft, side.permit.path(), new, &side.tree)?;
        }
        // A question describes one of the two only.
        if transaction.obligations.withdraw_asks() {
            let reason = "nobody can be asked about an exchange: rename one after the other";
            return Err(Decision::built_in_denial("exchange", reason).into());
        }
        let sees_all =
            [&one, &other].iter().all(|side| sees_all(transaction, side.permit.path(), &side.tree));
        let change = prepare::exchange(&transaction.context, one, other);
        let change = change.map_err(|error| of_content(error, sees_all))?;
        transaction.gateway.backup_store.end_runs();
        transaction.limited_change(draft, change, 0)
    }
}
