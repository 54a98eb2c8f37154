#![allow(missing_docs)]
pub(crate) fn load_policy(_: &str) -> Result<crate::policy::Policy, crate::cli::Failure> {
    Ok(crate::policy::Policy)
}
