//! The compiled form of a policy, which evaluation uses.

use std::collections::HashMap;

use super::{
    Effect,
    action_set::{ActionSet, PerAccess},
    index::PatternSet,
    labels::Labels,
    limits::Limits,
    mode::Mode,
    network::Network,
    pattern::Pattern,
    scratch::Scratch,
    secrets::{SecretSettings, Secrets},
    settings::{AgentAccess, Retention, Settings},
    statements::Agents,
};
use crate::model::Transport;

/// A compiled policy. Only [`compile`](super::compile()) makes one.
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
    pub(super) secret_locations: Vec<SecretPosition>,
    pub(super) denials: PatternSet,
    pub(super) deny_rules: Vec<CompiledRule>,
    pub(super) asks: PatternSet,
    pub(super) ask_rules: Vec<CompiledRule>,
    pub(super) mode: Mode,
    pub(super) settings: Settings,
    pub(super) limits: Limits,
    pub(super) mount_limits: Limits,
    pub(super) secret_bounds: SecretSettings,
    pub(super) content_secrets: Option<Secrets>,
    pub(super) network: Network,
    pub(super) labels: Labels,
}

/// The allowances and the exceptions of one file.
#[derive(Debug)]
pub struct Layer {
    pub(super) file: String,
    /// Its `[allowedPaths]`.
    pub allowed: PerAccess<Option<Grant>>,
    /// Its `[extensions] allow`.
    pub extensions: PerAccess<Option<AllowedExtensions>>,
    pub(super) allows: PatternSet,
    /// Its `allow` rules.
    pub allow_rules: Vec<CompiledRule>,
    /// The actions that this layer bounds: nothing is allowed of them that the layer does not
    /// allow.
    pub bounds: ActionSet,
    pub(super) exceptions: PatternSet,
}

/// One list of `[allowedPaths]`.
#[derive(Debug)]
pub struct Grant {
    /// The line of the key.
    pub(super) line: u64,
    /// Its patterns.
    pub patterns: PatternSet,
    /// The line of each pattern.
    pub(super) lines: Vec<u64>,
}

/// One list of `[extensions] allow`.
#[derive(Debug)]
pub struct AllowedExtensions {
    pub(super) line: u64,
    /// Its extensions.
    pub extensions: Vec<String>,
}

/// The place of a secret name.
#[derive(Debug, Clone, Copy)]
pub(super) struct SecretPosition {
    pub(super) layer: usize,
    /// The index in the list of its file.
    pub(super) index: usize,
    pub(super) line: u64,
}

/// One of `[[rules]]`, without its patterns.
#[derive(Debug)]
pub struct CompiledRule {
    pub(super) id: String,
    pub(super) layer: usize,
    pub(super) line: u64,
    /// The actions that it is about.
    pub actions: ActionSet,
    /// The agents that it is about.
    pub agents: Agents,
    /// The reason that its author states.
    pub reason: Option<String>,
}

impl Layer {
    /// Returns the file as the operator named it, or an embedded policy's name.
    pub(super) fn file(&self) -> &str {
        &self.file
    }
}

impl Policy {
    /// Returns the name in the file, or that of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the version in the file, or 0.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the policy as it enforces, whatever its mode, for tests, comparison, replay and
    /// learning.
    #[must_use]
    pub fn enforcing(self) -> Self {
        let network = Network { mode: Mode::Enforce, ..self.network };
        Self { mode: Mode::Enforce, network, ..self }
    }

    /// True if any rule asks the operator.
    pub fn asks(&self) -> bool {
        !self.ask_rules.is_empty() || self.network.rules().any(|rule| rule.effect == Effect::Ask)
    }

    /// Returns the number of tests that were run, of the policy and of those that it extends.
    pub fn tests(&self) -> usize {
        self.tests
    }

    /// Returns the number of tests in the policy's own file.
    pub fn own_tests(&self) -> usize {
        self.own_tests
    }

    /// Returns the texts of all files of the policy, each after a comment line with its name and
    /// length.
    pub fn bundle(&self) -> &str {
        &self.bundle
    }

    /// Returns the SHA-256 of [`bundle`](Self::bundle), 64 hex digits.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Returns the retention of backups.
    pub fn backups(&self) -> &Retention {
        &self.settings.backups
    }

    /// Returns the limits of one session by way of `transport`.
    pub fn limits(&self, transport: Transport) -> &Limits {
        match transport {
            Transport::Mount | Transport::Proxy => &self.mount_limits,
            Transport::Cli
            | Transport::Acp
            | Transport::Mcp
            | Transport::Files
            | Transport::Serve => &self.limits,
        }
    }

    /// Returns the time in which an approval must be given, if there is one.
    pub fn approval_timeout(&self) -> Option<std::time::Duration> {
        self.settings.approval_timeout.map(|layered| layered.value)
    }

    /// Returns the rules about secrets in content; `None` if there are none.
    pub fn secrets(&self) -> Option<&Secrets> {
        self.content_secrets.as_ref()
    }

    /// Returns the settings for findings of such rules, as bounds of policies that extend this one.
    pub fn secret_bounds(&self) -> SecretSettings {
        self.secret_bounds
    }

    /// Returns the scratch directories of a mount; `None` if there are none.
    pub fn scratch(&self) -> Option<&Scratch> {
        self.settings.scratch.as_ref()
    }

    /// Returns the allowances of each of its files, the policy's own first.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Returns the rules that deny, each for an entry of [`denied_paths`](Self::denied_paths).
    pub fn deny_rules(&self) -> &[CompiledRule] {
        &self.deny_rules
    }

    /// Returns the rules that ask.
    pub fn ask_rules(&self) -> &[CompiledRule] {
        &self.ask_rules
    }

    /// Returns the patterns of the rules that deny.
    pub fn denied_paths(&self) -> &PatternSet {
        &self.denials
    }

    /// Returns the extensions that are denied, in no order.
    pub fn denied_extensions(&self) -> impl Iterator<Item = &str> {
        self.denied_extensions.keys().map(String::as_str)
    }

    /// Returns the alternatives of each of `[secrets] names`, of all files.
    pub fn secret_patterns(&self) -> impl Iterator<Item = impl Iterator<Item = &Pattern>> {
        (0..).take(self.secret_locations.len()).map(|entry| self.secrets.of(entry))
    }

    /// Returns the settings that are values.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the labels of content by its path.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Returns the access of the confined agent process.
    pub fn agent(&self) -> &AgentAccess {
        &self.settings.agent
    }
}
