//! A policy as it is compiled: what evaluation asks.

use std::collections::HashMap;

use super::{
    index::PatternSet,
    limits::Limits,
    mode::Mode,
    questions::{PerAccess, Questions},
    scratch::Scratch,
    secrets::Secrets,
    settings::{AgentAccess, Retention, Settings},
    statements::Agents,
};
use crate::model::Door;

/// A policy in force. It comes only from [`compile`](super::compile()).
#[derive(Debug)]
pub struct Policy {
    pub(super) name: String,
    pub(super) version: u64,
    pub(super) tests: usize,
    pub(super) own_tests: usize,
    pub(super) bundle: String,
    pub(super) sha256: String,
    pub(super) layers: Vec<Layer>,
    pub(super) denied_extensions: HashMap<String, (usize, u64)>,
    pub(super) secrets: PatternSet,
    pub(super) secret_places: Vec<SecretPlace>,
    pub(super) denials: PatternSet,
    pub(super) deny_rules: Vec<Rule>,
    pub(super) asks: PatternSet,
    pub(super) ask_rules: Vec<Rule>,
    pub(super) mode: Mode,
    pub(super) settings: Settings,
    pub(super) limits: Limits,
    pub(super) mount_limits: Limits,
    pub(super) content_secrets: Option<Secrets>,
}

/// What one file allows, and what its exceptions are.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) file: String,
    pub(super) allowed: PerAccess<Option<Grant>>,
    pub(super) extensions: PerAccess<Option<AllowedExtensions>>,
    pub(super) allows: PatternSet,
    pub(super) allow_rules: Vec<Rule>,
    /// The questions on which nothing is allowed that this layer does not
    /// allow.
    pub(super) bounds: Questions,
    pub(super) exceptions: PatternSet,
}

/// One list of `[allowedPaths]`.
#[derive(Debug)]
pub(super) struct Grant {
    /// Line of the key.
    pub(super) line: u64,
    pub(super) patterns: PatternSet,
    /// Line of each pattern.
    pub(super) lines: Vec<u64>,
}

/// One list of `[extensions] allow`.
#[derive(Debug)]
pub(super) struct AllowedExtensions {
    pub(super) line: u64,
    pub(super) extensions: Vec<String>,
}

/// Where a secret name is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct SecretPlace {
    pub(super) layer: usize,
    /// Index in the list of its file.
    pub(super) index: usize,
    pub(super) line: u64,
}

/// One of `[[rules]]`, without its patterns.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) id: String,
    pub(super) layer: usize,
    pub(super) line: u64,
    pub(super) questions: Questions,
    pub(super) agents: Agents,
    pub(super) reason: Option<String>,
}

impl Policy {
    /// The name that the file gives itself, else the file's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version that the file gives itself, else 0.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether what nothing allows is denied, or only recorded.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The same policy as it enforces, whatever its mode: what its tests are
    /// about, and what is compared, replayed and learned from.
    #[must_use]
    pub fn enforcing(self) -> Self {
        Self { mode: Mode::Enforce, ..self }
    }

    /// Whether any rule asks a person.
    pub fn asks(&self) -> bool {
        !self.ask_rules.is_empty()
    }

    /// How many tests of the policy and of what it extends were run.
    pub fn tests(&self) -> usize {
        self.tests
    }

    /// How many of them are of the policy's own file.
    pub fn own_tests(&self) -> usize {
        self.own_tests
    }

    /// The texts of all files that make the policy, each after a comment line
    /// with its name and length.
    pub fn bundle(&self) -> &str {
        &self.bundle
    }

    /// SHA-256 of [`bundle`](Self::bundle), 64 hex digits.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// How many pre-images are kept.
    pub fn backups(&self) -> &Retention {
        &self.settings.backups
    }

    /// What one session may do in all by way of `door`.
    pub fn limits(&self, door: Door) -> &Limits {
        match door {
            Door::Mount => &self.mount_limits,
            Door::Cli | Door::Acp | Door::Mcp | Door::Files | Door::Serve => &self.limits,
        }
    }

    /// How long a person may take to answer.
    pub fn approval_timeout(&self) -> std::time::Duration {
        self.settings.approval_timeout.value
    }

    /// The rules about secrets in content; `None` when there are none.
    pub fn secrets(&self) -> Option<&Secrets> {
        self.content_secrets.as_ref()
    }

    /// Which directories of a mount are scratch; `None` when none is.
    pub fn scratch(&self) -> Option<&Scratch> {
        self.settings.scratch.as_ref()
    }

    /// What the confined agent process gets.
    pub fn agent(&self) -> &AgentAccess {
        &self.settings.agent
    }
}
