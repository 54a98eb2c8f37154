//! Workspaces besides the one that a client is served: absolute paths alone lead to them.

use std::{fmt, path::PathBuf, sync::Arc};

use crate::{gateway::Gateway, paths::Roots};

/// A further workspace, with a gateway of its own.
#[derive(Clone)]
pub struct FurtherWorkspace {
    /// Its gateway.
    pub gateway: Arc<Gateway>,
    /// Its root under each of its names.
    pub roots: Roots,
    /// Its state directory.
    pub state: PathBuf,
}

impl fmt::Debug for FurtherWorkspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FurtherWorkspace").field("roots", &self.roots).finish_non_exhaustive()
    }
}
