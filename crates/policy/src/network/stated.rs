//! The `[network]` table of one policy file.

use std::collections::BTreeSet;

use super::{Network, NetworkLimits, NetworkRule, SessionHosts};
use crate::{
    Mode,
    layered::{Layered, least},
    limits::Limit,
};

/// The `[network]` table of one file. Its rules are stored apart, because they do not merge.
#[derive(Debug, Clone, Default)]
pub(crate) struct StatedNetwork {
    /// True if the file has the table, even an empty one.
    pub(crate) is_stated: bool,
    pub(crate) mode: Option<Mode>,
    pub(crate) bytes_out: Option<Layered<u64>>,
    pub(crate) connections: Option<Layered<u64>>,
    /// The ids of credentials that programs may use.
    pub(crate) credentials: Option<BTreeSet<String>>,
}

impl StatedNetwork {
    /// Returns the table with places in the `layer`th file of a policy.
    pub(crate) fn in_layer(self, layer: usize) -> Self {
        let set = |layered: Option<Layered<u64>>| layered.map(|layered| layered.in_layer(layer));
        Self { bytes_out: set(self.bytes_out), connections: set(self.connections), ..self }
    }

    /// Merges the tables: the smaller limits of both, and the credentials that both name.
    pub(crate) fn and(self, extended: Self) -> Self {
        Self {
            is_stated: self.is_stated || extended.is_stated,
            mode: self.mode,
            bytes_out: least(self.bytes_out, extended.bytes_out),
            connections: least(self.connections, extended.connections),
            credentials: match (self.credentials, extended.credentials) {
                (Some(ours), Some(theirs)) => Some(&ours & &theirs),
                (ours, theirs) => ours.or(theirs),
            },
        }
    }

    /// Returns the network as it is enforced; `file` names the file of a layer.
    pub(crate) fn complete(
        self,
        layers: Vec<Vec<NetworkRule>>,
        file: impl Fn(usize) -> Option<String>,
    ) -> Network {
        let limit = |layered: Option<Layered<u64>>, rule, reason| {
            layered.map(|layered| Limit::new(layered, rule, reason, &file))
        };
        Network {
            is_stated: self.is_stated,
            mode: Mode::Enforce,
            layers,
            credentials: self.credentials.unwrap_or_default(),
            session: SessionHosts::default(),
            limits: NetworkLimits {
                bytes_out: limit(
                    self.bytes_out,
                    "network.limits.bytesOut",
                    "the session would send the host more than it may",
                ),
                connections: limit(
                    self.connections,
                    "network.limits.connections",
                    "the session has as many connections as it may",
                ),
            },
        }
    }
}
