//! The workspaces of a connection: the one in which the agent begins, and further ones. The
//! beginning of an absolute path says in which of them it lies.

use std::sync::Arc;

use crate::{
    FurtherWorkspace,
    gateway::Gateway,
    model::WorkspacePath,
    paths::{NotInside, Roots},
};

use super::{door::Door, jobs::Job};

/// Where a path lies: the further workspace, if it is one, and the path in there.
pub(super) type Located = (Option<Arc<FurtherWorkspace>>, WorkspacePath);

impl Door<'_> {
    /// The workspace in which an absolute path lies.
    pub(super) fn locate(&self, path: &str) -> Result<Located, NotInside> {
        let mut found = self.roots.relative(path).map(|inside| (None, inside));
        for further in &self.further {
            if !matches!(found, Err(NotInside::Outside)) {
                break;
            }
            let inside = further.roots.relative(path);
            found = inside.map(|inside| (Some(Arc::clone(further)), inside));
        }
        found
    }

    /// The gateway and the roots of a job's workspace.
    pub(super) fn workspace_of<'a>(&'a self, job: &'a Job) -> (&'a Gateway, &'a Roots) {
        match &job.further {
            Some(further) => (&further.gateway, &further.roots),
            None => (self.gateway, &self.roots),
        }
    }

    /// The gateways of all workspaces.
    pub(super) fn gateways(&self) -> impl Iterator<Item = &Gateway> {
        std::iter::once(self.gateway).chain(self.further.iter().map(|further| &*further.gateway))
    }
}
