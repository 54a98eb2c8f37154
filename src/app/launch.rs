//! The order with which a broker starts a serving process, which opens neither policy nor
//! configuration itself.

use std::{os::fd::OwnedFd, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    failure::{Context as _, Failure},
    opened::{Locations, Opened},
    policy_loading::unusable,
    policy_transfer,
    preset_hosts::PresetHosts,
};
use crate::config::{LoadedPolicy, Operator, audit::Audit};

/// The order. The policy's texts are attached first, then the channels to the signer and to the
/// notifier, if there are any.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Launch {
    pub(crate) workspace: PathBuf,
    pub(crate) state: PathBuf,
    /// The former path of a moved workspace, as the operator names it.
    pub(crate) adopt: Option<PathBuf>,
    /// The operator's configuration.
    pub(crate) config: Option<PathBuf>,
    /// True if policies must be signed; the broker checks that.
    pub(crate) signatures: bool,
    /// The signer of the policy.
    pub(crate) signed_by: Option<String>,
    pub(crate) audit: Audit,
    /// True if a notifier is started.
    pub(crate) notifies: bool,
    /// The hosts of the session besides the policy's.
    pub(crate) hosts: PresetHosts,
    /// The log level.
    pub(crate) log: String,
}

impl Launch {
    /// Opens the files of the order, under the policy whose texts come first among `files`.
    pub(crate) fn open(
        &self,
        files: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Opened, Failure> {
        let texts = files.next().ok_or_else(|| Failure::new("no policy came with the order"))?;
        let texts = policy_transfer::read(texts).or_fail("cannot read the policy")?;
        // The broker has checked the signature.
        let signed_by = self.signed_by.as_deref().map(str::parse).transpose();
        let signed_by = signed_by.or_fail("cannot read whose signature the policy has")?;
        let mut policy = texts.compile().map_err(|error| unusable(texts.reference(), &error))?;
        policy.give_hosts(self.hosts.rules()?);
        let operator = Operator {
            path: self.config.clone(),
            require_signature: self.signatures,
            ..Operator::default()
        };
        let locations = Locations {
            workspace: &self.workspace,
            state: Some(&self.state),
            adopt: self.adopt.as_deref(),
        };
        let policy = LoadedPolicy { policy, signed_by, texts };
        Opened::open_under(&locations, operator, self.audit.clone(), policy)
    }
}
