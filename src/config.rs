//! Policies by file or name, with all that they extend, from the operator's
//! disk.
//!
//! Everything is opened here, before anything of the agent's is looked at.
//! Refuses what is no regular file, without blocking on it, and what is larger
//! than a policy may be.

pub mod audit;
mod beside;
mod file;
pub mod operator;
mod piped;
mod policy_texts;
pub mod serve;
pub mod signature;

use crate::policy::Policy;

pub(crate) use file::{read as read_file, why as why_unreadable};

pub use beside::{TestFile, tests_beside};
pub use operator::Operator;
pub use policy_texts::{Error, PolicyTexts, with_text};
use signature::PolicyKey;

/// A policy and where it came from.
#[derive(Debug)]
pub struct LoadedPolicy {
    /// The policy.
    pub policy: Policy,
    /// Whose signature was checked, where one is required.
    pub signed_by: Option<PolicyKey>,
    /// The texts from which it was compiled.
    pub texts: PolicyTexts,
}

/// Loads and compiles the policy `reference` that is to be enforced, with a
/// signature, if the operator requires one.
///
/// # Errors
/// When there is no such policy, it does not compile, or is not signed as it must be.
pub fn load_trusted(reference: &str, operator: &Operator) -> Result<LoadedPolicy, Error> {
    let texts = PolicyTexts::load(reference)?;
    let signed_by = operator.trust(&texts)?;
    Ok(LoadedPolicy { policy: texts.compile()?, signed_by, texts })
}
