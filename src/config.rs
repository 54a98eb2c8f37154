//! Loads policies by file or name, with all policies that they extend, from the
//! operator's disk.
//!
//! Everything is opened here, before any file of the agent. Refuses entries that are
//! no regular files, without blocking on them, and files that are larger than a
//! policy may be.

pub mod approvals;
pub mod audit;
pub mod credentials;
mod file;
mod keys;
pub mod operator;
mod piped;
mod policy_texts;
mod preset_credentials;
pub mod serve;
pub mod signature;
mod test_files;

use crate::policy::Policy;

pub(crate) use file::{NO_SUCH_FILE, read as read_file, reason as why_unreadable};
pub(crate) use preset_credentials::{PRESETS, PresetCredential};

pub use operator::Operator;
pub use policy_texts::{Error, PolicyTexts, with_text};
use signature::PolicyKey;
pub use test_files::{TestFile, tests_beside};

/// A policy with its origin.
#[derive(Debug)]
pub struct LoadedPolicy {
    /// The policy.
    pub policy: Policy,
    /// The key of its signature, if one is required.
    pub signed_by: Option<PolicyKey>,
    /// The texts from which it was compiled.
    pub texts: PolicyTexts,
}

/// Loads and compiles the policy `reference`, which is to be enforced, and checks its
/// signature, if the operator requires one.
///
/// # Errors
/// When there is no such policy, it does not compile, or is not signed as it must be.
pub fn load_trusted(reference: &str, operator: &Operator) -> Result<LoadedPolicy, Error> {
    let texts = PolicyTexts::load(reference)?;
    let signed_by = operator.trust(&texts)?;
    Ok(LoadedPolicy { policy: texts.compile()?, signed_by, texts })
}
