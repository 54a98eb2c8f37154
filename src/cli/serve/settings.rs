//! What a worker must know of the operator's configuration, as the broker has
//! taken it up: the file may be another by now, or in the middle of a change.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    cli::failure::{Context as _, Failure},
    config::{
        Operator,
        audit::{Audit, Cadence, Compress, Durability, SearchRecords, Target},
    },
};

/// It, on its way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Settings {
    path: Option<PathBuf>,
    require_signature: bool,
    policy_keys: Vec<String>,
    synced: bool,
    summary: bool,
    records: u64,
    seconds: u64,
    compress: Option<u32>,
    /// Where copies of logs go; how to get in there is none of a worker's
    /// business.
    copies: Vec<String>,
}

impl Settings {
    pub(super) fn of(operator: &Operator, audit: &Audit) -> Self {
        let Compress { enabled, after_days } = audit.compress;
        Self {
            path: operator.path.clone(),
            require_signature: operator.require_signature,
            policy_keys: operator.policy_keys.iter().map(ToString::to_string).collect(),
            synced: audit.durability == Durability::Synced,
            summary: audit.search == SearchRecords::Summary,
            records: audit.checkpoints.records,
            seconds: audit.checkpoints.seconds,
            compress: enabled.then_some(after_days),
            copies: audit.ship.iter().map(|target| target.to.clone()).collect(),
        }
    }

    /// What it says. The broker alone knows the signer.
    pub(super) fn read(&self) -> Result<(Operator, Audit), Failure> {
        let keys = self.policy_keys.iter().map(|key| key.parse()).collect::<Result<_, _>>();
        let operator = Operator {
            path: self.path.clone(),
            require_signature: self.require_signature,
            policy_keys: keys.or_fail("cannot use a policy's key")?,
        };
        let copy = |to: &String| Target {
            to: to.clone(),
            headers: Default::default(),
            options: Default::default(),
        };
        let usual = Compress::default();
        let audit = Audit {
            durability: if self.synced { Durability::Synced } else { Durability::Written },
            search: if self.summary { SearchRecords::Summary } else { SearchRecords::Files },
            checkpoints: Cadence { records: self.records, seconds: self.seconds },
            compress: Compress {
                enabled: self.compress.is_some(),
                after_days: self.compress.unwrap_or(usual.after_days),
            },
            ship: self.copies.iter().map(copy).collect(),
            file: self.path.clone(),
            ..Audit::default()
        };
        Ok((operator, audit))
    }
}
