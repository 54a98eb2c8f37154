//! Further workspaces, which a client reaches by absolute paths.

use std::{fmt, sync::Arc};

use crate::{gateway::Gateway, paths::Roots};

/// A further workspace, with a gateway of its own.
#[derive(Clone)]
pub struct FurtherWorkspace {
    /// Its gateway.
    pub gateway: Arc<Gateway>,
    /// Its root under its canonical and its alias path.
    pub roots: Roots,
    /// The options of a command of the operator's that lead to its gateway.
    pub options: String,
}

impl fmt::Debug for FurtherWorkspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FurtherWorkspace").field("roots", &self.roots).finish_non_exhaustive()
    }
}
