//! The setting `mode`: a policy is enforced or only observed.

/// The treatment of requests that nothing allows: `mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Denies them.
    #[default]
    Enforce,
    /// Allows and records them. Only the default denial is relaxed: denials by rules, questions,
    /// and the checks of types and content stay in force.
    Observe,
}

impl Mode {
    /// Returns the name in policies and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
        }
    }
}
