//! The workspaces of a connection: the one in which the agent begins, and further ones. The prefix
//! of an absolute path determines its workspace.

use std::sync::Arc;

use crate::{
    FurtherWorkspace,
    gateway::Gateway,
    model::WorkspacePath,
    paths::{OutsideWorkspace, Roots},
};

use super::{proxy::AcpProxy, request_queue::QueuedRequest};

/// The location of a path: its further workspace, if any, and the path in the workspace.
pub(super) type Located = (Option<Arc<FurtherWorkspace>>, WorkspacePath);

impl AcpProxy<'_> {
    /// Returns the workspace of an absolute path, and the path in it.
    pub(super) fn locate(&self, path: &str) -> Result<Located, OutsideWorkspace> {
        let mut found = self.roots.relative(path).map(|inside| (None, inside));
        for further in &self.further {
            if !matches!(found, Err(OutsideWorkspace::Outside)) {
                break;
            }
            let inside = further.roots.relative(path);
            found = inside.map(|inside| (Some(Arc::clone(further)), inside));
        }
        found
    }

    /// Returns the gateway and the roots of a job's workspace.
    pub(super) fn workspace_of<'a>(
        &'a self,
        queued: &'a QueuedRequest,
    ) -> (&'a Gateway, &'a Roots) {
        match &queued.further {
            Some(further) => (&further.gateway, &further.roots),
            None => (self.gateway, &self.roots),
        }
    }

    /// Returns the gateways of all workspaces.
    pub(super) fn gateways(&self) -> impl Iterator<Item = &Gateway> {
        std::iter::once(self.gateway).chain(self.further.iter().map(|further| &*further.gateway))
    }
}
