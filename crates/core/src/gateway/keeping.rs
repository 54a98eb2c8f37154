//! What is kept of what a change replaces, before it is made and after.

use portcullis_audit::Hash;

use super::{error::Failure, saved::discard, transaction::Transaction};
use crate::{
    backup::{Meta, Saved},
    model::Operation,
    ops::{Change, Sealed},
    policy::ObjectKind,
};

impl<'a> Transaction<'a> {
    /// What goes with a directory is exactly what the vault keeps of it; what
    /// another process put there since it was walked through is decided on now.
    pub(super) fn decide_on_kept(
        &self,
        sealed: &Sealed<Box<dyn Change + 'a>>,
        saved: &[Saved],
    ) -> Result<(), Failure> {
        match (self.operation, sealed.permit().object().kind, saved.first()) {
            (
                Operation::Remove { .. } | Operation::Restore { .. },
                ObjectKind::Directory,
                Some(tree),
            ) => self.authorizer().kept(&self.gate.vault, tree),
            _ => Ok(()),
        }
    }

    /// Keeps everything that the change will replace.
    pub(super) fn keep(
        &self,
        sealed: &Sealed<Box<dyn Change + 'a>>,
    ) -> Result<Vec<Saved>, Failure> {
        let vault = &self.gate.vault;
        let mut saved = Vec::new();
        for origin in sealed.origins() {
            let permit = sealed.kept_permit();
            let (operation, after) = (self.operation.kind(), self.authored(sealed));
            let beyond_size = self.is_operators();
            let meta = Meta { session: self.session, operation, after, beyond_size };
            match vault.save(permit, &meta, origin) {
                Ok(one) => saved.push(one),
                Err(error) => {
                    discard(vault, saved);
                    return Err(error.into());
                }
            }
        }
        Ok(saved)
    }

    /// Hash of what the change stores, where the agent made that up itself and
    /// nobody has to be asked: a copy that is kept for a question must not say
    /// that what was asked for has come about.
    fn authored(&self, sealed: &Sealed<Box<dyn Change + 'a>>) -> Option<Hash> {
        let is_own = matches!(
            self.operation,
            Operation::Write { .. } | Operation::Append { .. } | Operation::Edit { .. }
        );
        if is_own && self.reservations.asks().is_empty() { sealed.facts().after } else { None }
    }
}
