//! Lints and their findings.

use std::ops::Range;

/// A kind of finding.
#[derive(Debug, Clone, Copy)]
pub struct Lint {
    /// Its stable id.
    pub id: &'static str,
    /// The reason why it matters.
    pub reason: &'static str,
    /// True if the policy protects less than its text suggests and neither the workspace nor a test
    /// run is needed to see it: `policy check` warns of it, too.
    pub misleading: bool,
}

/// Every lint.
pub const LINTS: &[Lint] = &[
    misleading(
        "agent-name",
        "a rule for a name that no agent has by default applies only to agents that an operator \
         names so",
    ),
    misleading("any-host", "anything that an agent reads can be sent to any host"),
    misleading(
        "class-as-name",
        "a pattern about names of one character does not apply to the name meant",
    ),
    other(
        "covered-pattern",
        "a pattern that another one of the list covers has no effect, and distracts a reviewer",
    ),
    other("delayed-execution", "another program runs such a file later, outside of the gateway"),
    other("duplicate-pattern", "if a pattern appears twice, removing one of them changes nothing"),
    misleading(
        "dot-required",
        "a pattern that was meant for all names leaves names without a dot open",
    ),
    other("duplicate-rule", "two equal rules differ as soon as only one of them is changed"),
    misleading(
        "closes-model",
        "an agent cannot continue if something that it reads closes the host of its model, or has \
         a person asked about it",
    ),
    misleading(
        "denies-nothing",
        "a denial applies only at its own ports and for its own agents, and to no exempt host",
    ),
    other(
        "entry-without-content",
        "a pattern covers the entry that it matches, and not what is beneath it",
    ),
    misleading(
        "evadable-extension",
        "an agent that may choose file names evades the rule with another ending",
    ),
    misleading(
        "except-everything",
        "an exception for all that a secret name matches leaves nothing of that name closed",
    ),
    misleading(
        "git-history",
        "rules decide on files as they are; what was committed is in the history as it was",
    ),
    misleading(
        "keyword-outside-match",
        "content without any of the keywords is not searched, so such a match is not found",
    ),
    misleading(
        "mixed-scripts",
        "with a character that only looks like another one, a pattern matches no real name and \
         protects nothing",
    ),
    misleading(
        "mount-unbounded",
        "limits on a model's requests do not apply to programs, for which only the defaults remain",
    ),
    other("no-tests", "without tests nobody notices when a change of the policy opens something"),
    other("not-compared", "a rule that repeats another one may have no finding"),
    misleading(
        "partly-denied-host",
        "a rule about a name does not cover the names beneath it, and one about those does not \
         cover the name itself; IPv4 and IPv6 are different networks",
    ),
    other(
        "redundant-except",
        "an exception that matches no secret name suggests that something is open",
    ),
    misleading(
        "regex-as-pattern",
        "a glob that was meant as a regular expression protects or permits something else",
    ),
    other(
        "regex-huge-repetition",
        "a large counted repetition makes the expression slow and heavy to compile",
    ),
    other(
        "regex-without-keywords",
        "without a keyword the expression is tried on every content, which is slow",
    ),
    misleading(
        "root-only-name",
        "a denial or label without `**/` leaves out the same name in other directories",
    ),
    misleading(
        "shared-host",
        "a rule trusts every server behind a host, and anybody can put a server behind this one",
    ),
    other(
        "secret-everything",
        "an entry with a secret name cannot be allowed, so no agent can work",
    ),
    other(
        "shadowed-rule",
        "a rule that changes nothing suggests a protection or a permission that is not there",
    ),
    misleading(
        "unguarded-operation",
        "another operation on the same path shows, changes or removes what the rule guards",
    ),
    other("unknown-lint", "a comment that allows an unknown lint has no effect"),
    other(
        "unmatched-glob",
        "a pattern that matches nothing is often misspelt, and then protects or permits nothing",
    ),
    other("unreachable-pattern", "what it allows is denied elsewhere, so it permits nothing"),
    other("unreachable-rule", "what it allows is denied elsewhere, so the rule permits nothing"),
    other(
        "unroutable-host",
        "an address that is not globally routable is a service of this machine or its surroundings",
    ),
    other("untested-rule", "without a test a change of the policy can disable the rule unnoticed"),
    other(
        "unused-label",
        "a label that no rule of this policy names changes nothing in a session with one workspace",
    ),
    misleading(
        "value-not-redacted",
        "what a rule redacts is its group, or the match without one; the rest is disclosed",
    ),
    misleading(
        "wildcard-in-test",
        "nothing is expanded in a test, so it does not test the names that the pattern matches",
    ),
    misleading(
        "word-as-wildcard",
        "a rule about one name does not apply to the others, for which it was meant",
    ),
    misleading(
        "word-boundary",
        "a secret that follows a letter, such as the `n` of an escaped line feed, is not found",
    ),
];

const fn misleading(id: &'static str, reason: &'static str) -> Lint {
    Lint { id, reason, misleading: true }
}

const fn other(id: &'static str, reason: &'static str) -> Lint {
    Lint { id, reason, misleading: false }
}

/// One result of a lint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The lint's stable id, one of [`LINTS`].
    pub id: &'static str,
    /// The index of the file in the outline.
    pub file: usize,
    /// The byte range in its text.
    pub span: Range<usize>,
    /// The fact that was found.
    pub message: String,
    /// The change that resolves it.
    pub suggestion: String,
}

impl Finding {
    /// Returns the lint that found it.
    pub fn lint(&self) -> Option<&'static Lint> {
        LINTS.iter().find(|lint| lint.id == self.id)
    }

    /// Returns the reason why it matters.
    pub fn reason(&self) -> &'static str {
        self.lint().map_or("", |lint| lint.reason)
    }

    /// True if the policy protects less than its text suggests.
    pub fn is_misleading(&self) -> bool {
        self.lint().is_some_and(|lint| lint.misleading)
    }
}
