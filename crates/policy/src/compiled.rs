//! A policy as it is compiled: what evaluation asks.

use std::collections::HashMap;

use super::{
    Effect,
    index::PatternSet,
    limits::Limits,
    mode::Mode,
    network::Network,
    pattern::Pattern,
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
    pub(super) deny_rules: Vec<CompiledRule>,
    pub(super) asks: PatternSet,
    pub(super) ask_rules: Vec<CompiledRule>,
    pub(super) mode: Mode,
    pub(super) settings: Settings,
    pub(super) limits: Limits,
    pub(super) mount_limits: Limits,
    pub(super) content_secrets: Option<Secrets>,
    pub(super) network: Network,
}

/// What one file allows, and what its exceptions are.
#[derive(Debug)]
pub struct Layer {
    pub(super) file: String,
    /// Its `[allowedPaths]`.
    pub allowed: PerAccess<Option<Grant>>,
    /// Its `[extensions] allow`.
    pub extensions: PerAccess<Option<AllowedExtensions>>,
    pub(super) allows: PatternSet,
    /// Its rules that allow.
    pub allow_rules: Vec<CompiledRule>,
    /// The questions on which nothing is allowed that this layer does not
    /// allow.
    pub bounds: Questions,
    pub(super) exceptions: PatternSet,
}

/// One list of `[allowedPaths]`.
#[derive(Debug)]
pub struct Grant {
    /// Line of the key.
    pub(super) line: u64,
    /// What it has.
    pub patterns: PatternSet,
    /// Line of each pattern.
    pub(super) lines: Vec<u64>,
}

/// One list of `[extensions] allow`.
#[derive(Debug)]
pub struct AllowedExtensions {
    pub(super) line: u64,
    /// What it has.
    pub extensions: Vec<String>,
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
pub struct CompiledRule {
    pub(super) id: String,
    pub(super) layer: usize,
    pub(super) line: u64,
    /// What it is about.
    pub questions: Questions,
    /// Whom it is about.
    pub agents: Agents,
    /// Why it is there.
    pub reason: Option<String>,
}

impl Layer {
    /// The file as the operator named it, or an embedded policy's name.
    pub(super) fn file(&self) -> &str {
        &self.file
    }
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
        let network = Network { mode: Mode::Enforce, ..self.network };
        Self { mode: Mode::Enforce, network, ..self }
    }

    /// Whether any rule asks a person.
    pub fn asks(&self) -> bool {
        !self.ask_rules.is_empty() || self.network.rules().any(|rule| rule.effect == Effect::Ask)
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
            Door::Mount | Door::Proxy => &self.mount_limits,
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

    /// What each of its files allows, the policy's own first.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The rules that deny, each standing for an entry of
    /// [`denied_paths`](Self::denied_paths).
    pub fn deny_rules(&self) -> &[CompiledRule] {
        &self.deny_rules
    }

    /// What these rules are about.
    pub fn denied_paths(&self) -> &PatternSet {
        &self.denials
    }

    /// The extensions that no file may have, in no order.
    pub fn denied_extensions(&self) -> impl Iterator<Item = &str> {
        self.denied_extensions.keys().map(String::as_str)
    }

    /// The alternatives of each of `[secrets] names`, of all files.
    pub fn secret_patterns(&self) -> impl Iterator<Item = impl Iterator<Item = &Pattern>> {
        (0..).take(self.secret_places.len()).map(|entry| self.secrets.of(entry))
    }

    /// The settings that are values.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What the confined agent process gets.
    pub fn agent(&self) -> &AgentAccess {
        &self.settings.agent
    }
}
