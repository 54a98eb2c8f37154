//! The attempts of the demo's agent, in order, with their expected results. Both
//! sides use this list: the agent to act, the demo to judge. The list contains no
//! actual results.

/// An attempt of the agent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    /// Its id, in messages between the two processes.
    pub(super) id: &'static str,
    /// The path in the workspace; for a shell, a short form of the command.
    pub(super) path: &'static str,
    /// An explanation, if the path is not enough.
    pub(super) about: &'static str,
    pub(super) action: Action,
    pub(super) must: ExpectedEnd,
}

/// The action of an attempt.
#[derive(Debug, Clone, Copy)]
pub(super) enum Action {
    /// Read a file through the gateway.
    Read,
    /// Write [`EDITED`] through the gateway.
    Write,
    /// Bypass the gateway: run this in a shell, where `$W` is the workspace and `$S`
    /// the state directory.
    Shell(&'static str),
    /// Remove a directory with its content. ACP has no such request, so the demo
    /// sends it to the same gateway with `portcullis fs rm -r`, under the agent's
    /// name.
    Remove,
}

/// The expected result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectedEnd {
    /// The attempt succeeds, as it would without a gateway.
    Succeed,
    /// The attempt is refused, and nothing is disclosed or changed.
    BeRefused,
}

/// The content that the agent writes to `src/main.rs`.
pub(super) const EDITED: &str = "fn main() {\n    println!(\"edited by the agent\");\n}\n";

/// The file whose change is undone at the end.
pub(super) const UNDONE: &str = "src/main.rs";

/// The attempts of the agent itself, then those of [`Action::Remove`].
pub(super) const ATTEMPTS: [Attempt; 18] = [
    yes("read", "src/main.rs", "", Action::Read),
    yes("edit", UNDONE, "", Action::Write),
    no("secret", ".env", "", Action::Read),
    no("parent", "../outside/secret.txt", "", Action::Read),
    no("link", "notes.txt", "link out", Action::Read),
    no("fifo", "queue", "FIFO", Action::Read),
    no("binary", "logo.png", "binary", Action::Read),
    no("large", "export.csv", "too large", Action::Read),
    no("hook", ".git/hooks/pre-commit", "", Action::Write),
    no("write-link", "notes.txt", "link out", Action::Write),
    yes("own", "echo > ~/own; cat ~/own", "", Action::Shell("echo own >~/own && cat ~/own")),
    no("cat", "cat src/main.rs", "", Action::Shell("cat src/main.rs")),
    no("cat-host", "cat $WS/src/main.rs", "", Action::Shell("cat \"$W/src/main.rs\"")),
    no("append", "echo >> $WS/README.md", "", Action::Shell("echo tampered >>\"$W/README.md\"")),
    no("log", "cat $STATE/audit/*", "", Action::Shell("cat \"$S\"/audit/*.jsonl")),
    no("policy", "echo >> $POLICY", "", Action::Shell("echo '# loosened' >>\"$P\"")),
    yes("remove", "old", "directory", Action::Remove),
    no("remove-git", ".git", "directory", Action::Remove),
];

const fn yes(id: &'static str, path: &'static str, about: &'static str, action: Action) -> Attempt {
    Attempt { id, path, about, action, must: ExpectedEnd::Succeed }
}

const fn no(id: &'static str, path: &'static str, about: &'static str, action: Action) -> Attempt {
    Attempt { id, path, about, action, must: ExpectedEnd::BeRefused }
}

impl Attempt {
    /// Returns the operation's name in the log, or `shell`.
    pub(super) fn operation(&self) -> &'static str {
        match self.action {
            Action::Read => "read",
            Action::Write => "write",
            Action::Shell(_) => "shell",
            Action::Remove => "remove",
        }
    }

    /// Returns the path as the table shows it.
    pub(super) fn shown(&self) -> String {
        match self.about {
            "" => self.path.to_owned(),
            about => format!("{} ({about})", self.path),
        }
    }
}
