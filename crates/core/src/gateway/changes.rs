//! How requests are run that change a file, a directory or an entry.

use portcullis_audit::Draft;

use super::{
    error::Failure,
    following::Following,
    reply::{Attempt, Changed},
    request::Request,
    showing::MAX_SHOWN,
    transaction::Transaction,
};
use crate::{
    model::{
        AsOperation, Operation, WorkspacePath,
        request::{Append, Edit, Mkdir, Remove, Rename, SetAttributes, Symlink, Write},
    },
    ops::{self, Base, Context, SealedChange, SomeAttributes, prepare},
    policy::{ObjectKind, Secrets},
    workspace::{self, Permit, Walked},
};

type Preparation<'a> = Result<SealedChange<'a>, ops::Error>;

/// A change of the content of one file; several can be made together.
pub trait ContentChange: AsOperation {
    /// Prepares the change of the file that the permit is about.
    #[doc(hidden)]
    fn prepare<'a>(&'a self, context: &Context<'a>, permit: Permit) -> Preparation<'a>;
}

impl ContentChange for Write {
    fn prepare<'a>(&'a self, context: &Context<'a>, permit: Permit) -> Preparation<'a> {
        let attributes = SomeAttributes { mode: self.mode, modified: None };
        prepare::write(context, permit, &self.content, attributes, Base::Anything)
    }
}

/// A [`Write`] over what its sender began with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteOver {
    /// The write.
    pub write: Write,
    /// The state of the file that the write replaces.
    pub base: Base,
    /// The last change of content that a file which is created shows, in place of now.
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
        let change = prepare::mkdir(&transaction.context, permit, self.recursive)?;
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
        transaction.authorizer().link(permit.path())?;
        leads_inside(transaction, permit.path(), &self.target)?;
        let change = prepare::symlink(context, permit, &self.target)?;
        transaction.limited_change(draft, change, 0)
    }
}

/// Returns whether a link's target goes up behind another name: that name may become a link,
/// which leads elsewhere.
fn climbs_later(target: &str) -> bool {
    let names = target.split('/').filter(|name| !matches!(*name, "" | "."));
    names.skip_while(|name| *name == "..").any(|name| name == "..")
}

/// Refuses a link that leads out of the workspace, or would if a name on its way became a link.
fn leads_inside(
    transaction: &Transaction<'_>,
    link: &WorkspacePath,
    target: &str,
) -> Result<(), workspace::Error> {
    if climbs_later(target) {
        return Err(workspace::Error::Outside);
    }
    let context = &transaction.context;
    // Where it leads is looked up as its agent would, who may list it or not.
    Following::listing(context.policy, context.agent)
        .target(transaction.gate.workspace(), link, target)
        .map(drop)
}

impl Request for Remove {
    type Output = Changed;

    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft) -> Attempt<Changed> {
        let authorizer = transaction.authorizer();
        let permit = transaction.permit(draft)?;
        let files = match permit.object().kind {
            ObjectKind::Directory if self.recursive => {
                let tree = authorizer.walk(&transaction.gate.workspace, permit.path())?;
                authorizer.removal(permit.path(), &tree)?;
                tree.iter().filter(|w| w.stat.kind != ObjectKind::Directory).count()
            }
            ObjectKind::Directory => 0,
            _ => 1,
        };
        let change = prepare::remove(&transaction.context, permit, self.recursive)?;
        transaction.limited_change(draft, change, files)
    }
}

impl Request for Rename {
    type Output = Changed;

    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft) -> Attempt<Changed> {
        let authorizer = transaction.authorizer();
        let permit = transaction.permit(draft)?;
        let target = transaction.rename_target(draft, &self.to, &permit.object())?;
        let tree = match permit.object().kind {
            ObjectKind::Directory => authorizer.walk(&transaction.gate.workspace, permit.path())?,
            _ => Vec::new(),
        };
        authorizer.renaming(permit.path(), target.path(), &permit.object(), &tree)?;
        // The operator may put a link back where it was.
        if permit.object().kind == ObjectKind::Symlink && !transaction.is_operators() {
            leads_inside(transaction, target.path(), &permit.link_target()?)?;
        }
        // An approval holds for what moves as it was.
        let shown = (!transaction.reservations.asks().is_empty()).then_some(MAX_SHOWN);
        // Only rules about secrets look at what lies beneath.
        let is_searched =
            transaction.context.policy.secrets().is_some_and(Secrets::depends_on_path);
        let sees = |walked: &Walked| {
            authorizer.lists(&walked.path, &walked.stat.object(false))
                && authorizer.reads(&walked.path)
        };
        let sees_all = transaction.is_operators()
            || !is_searched
            || (authorizer.reads(permit.path()) && tree.iter().all(sees));
        let context = &transaction.context;
        let change = match prepare::rename(context, permit, target, tree, self.replace, shown) {
            // Perhaps about the content of what is not shown.
            Err(ops::Error::Refused(decision)) if !sees_all => {
                return Err(Failure::hidden(decision));
            }
            change => change?,
        };
        // The file whose name it takes is gone.
        let files = change.origins().len();
        transaction.limited_change(draft, change, files)
    }
}
