//! `mode`: whether a policy is enforced or only observed.

/// What becomes of what nothing allows: `mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// It is denied.
    #[default]
    Enforce,
    /// It passes and is recorded. Only default deny is relaxed: denials,
    /// questions, and the checks of types and content stay in force.
    Observe,
}

impl Mode {
    /// The word in policies and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
        }
    }
}
