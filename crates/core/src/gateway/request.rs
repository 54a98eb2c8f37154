//! Requests: each operation has a type of its own, which names its result and implements its
//! execution.

use portcullis_audit::Draft;

use super::{reply::Attempt, transaction::Transaction};
use crate::model::AsOperation;

/// A request that the gateway carries out: a type of `model::request`, `WatchQuery`, `WriteOver`,
/// `Exchange` or `Import`. Only this crate implements it, since no other crate can name what `run`
/// takes.
pub trait Request: AsOperation {
    /// The result in the reply.
    type Output;

    /// Runs one attempt, and fills `draft` with what becomes known on the way.
    #[doc(hidden)]
    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft)
    -> Attempt<Self::Output>;
}
