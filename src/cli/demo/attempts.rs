//! What the demo's agent tries, in order, and what must become of it. Both
//! sides use this list: the agent to act, the demo to judge. How it goes is in
//! neither.

/// One thing that the agent tries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    /// Names the attempt between the two processes.
    pub(super) id: &'static str,
    /// The path in the workspace; the command, of a shell.
    pub(super) path: &'static str,
    /// What is the matter with it, if the path does not say it.
    pub(super) about: &'static str,
    pub(super) action: Action,
    pub(super) must: Must,
}

/// What is done.
#[derive(Debug, Clone, Copy)]
pub(super) enum Action {
    /// Ask the gate for a file.
    Read,
    /// Ask the gate to put [`EDITED`] there.
    Write,
    /// Go past the gate: run this with a shell, where `$W` is the workspace
    /// and `$S` the state directory.
    Shell(&'static str),
    /// Remove a directory with all that is in it. The protocol between agents
    /// and editors has no such request, so the demo asks the same gate for it
    /// with `portcullis fs rm -r`, under the agent's name.
    Remove,
}

/// What must become of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Must {
    /// It is done, as it would be without a gate.
    Succeed,
    /// It is refused, and nothing is disclosed or changed.
    BeRefused,
}

/// What the agent makes of `src/main.rs`.
pub(super) const EDITED: &str = "fn main() {\n    println!(\"edited by the agent\");\n}\n";

/// The file whose change is undone at the end.
pub(super) const UNDONE: &str = "src/main.rs";

/// The attempts of the agent's own, then those of [`Action::Remove`].
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
    Attempt { id, path, about, action, must: Must::Succeed }
}

const fn no(id: &'static str, path: &'static str, about: &'static str, action: Action) -> Attempt {
    Attempt { id, path, about, action, must: Must::BeRefused }
}

impl Attempt {
    /// The operation's word in the log, or `shell`.
    pub(super) fn operation(&self) -> &'static str {
        match self.action {
            Action::Read => "read",
            Action::Write => "write",
            Action::Shell(_) => "shell",
            Action::Remove => "remove",
        }
    }

    /// The path as the table shows it.
    pub(super) fn shown(&self) -> String {
        match self.about {
            "" => self.path.to_owned(),
            about => format!("{} ({about})", self.path),
        }
    }
}
