//! The output to the operator about connections, which also has the help on denials.

/// The output to the operator about connections. The reasons are searched for secrets and escaped.
pub trait OperatorOutput: Send + Sync {
    /// Warns of a connection or request that failed, was cut off or was refused: `what` says so.
    fn warn(&self, what: &str, reason: &str);
    /// Reports a denied connection. Returns the help on it for the program.
    fn denied(&self, denied: &DeniedConnection<'_>, reason: &str) -> String;
    /// Returns true if anything was reported.
    fn has_reported(&self) -> bool;
}

/// A denied connection, as its record describes it.
#[derive(Debug, Clone, Copy)]
pub struct DeniedConnection<'a> {
    /// The host and port.
    pub to: &'a str,
    /// The address that was decided on, if it came to that.
    pub address: Option<&'a str>,
    /// The rule.
    pub rule: &'a str,
    /// The kind of the rule, if it is one of a policy.
    pub kind: RuleKind<'a>,
    /// True if it was to be made with a credential of the operator's.
    pub has_credential: bool,
    /// The HTTP status with which a request was refused, if it was one.
    pub status: Option<u16>,
}

/// The kind of a rule of a policy, as help depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleKind<'a> {
    /// It denies.
    Deny,
    /// It asks a person.
    Ask,
    /// It applies once labelled content was read, such as at this path.
    WhenRead(Option<&'a str>),
}
