//! The top-level keys of the operator's configuration.

/// The keys that [`operator`](super::operator) reads itself.
pub(super) const KEYS: [&str; 2] = ["requireSignature", "policyKeys"];
/// Sections that other modules read.
pub(super) const SECTIONS: [&str; 7] =
    ["approvals", "audit", "credentials", "serve", "telemetry", "workspaces", "agents"];

/// Returns the keys that are not `own`: other modules read them.
pub(super) fn keys_except(own: &[&str]) -> Vec<&'static str> {
    KEYS.into_iter().chain(SECTIONS).filter(|key| !own.contains(key)).collect()
}
