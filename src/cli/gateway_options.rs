//! Command lines that are printed for the operator. The shell in which one is pasted has another
//! working directory, other variables and other defaults, so each names everything that leads to
//! the same gateway.

use std::{fmt::Display, path::Path};

use crate::{
    app::{bootstrap::Started, connection_notices::ExplainOptions, opened::Opened},
    model::{AgentName, for_shell},
};

/// The options that lead to the same workspace, state directory, policy and configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct GatewayOptions {
    /// The options of commands that decide.
    all: String,
    /// The options of commands that read the log, or answer a gateway.
    log: String,
    /// The policy, as programs may see it: without a path of the host.
    shown_policy: String,
}

impl GatewayOptions {
    /// Returns the options of these files.
    pub(crate) fn of(opened: &Opened) -> Self {
        let log = log_options(&opened.state_path, opened.operator.shown_path());
        let workspace = for_shell(opened.workspace.root());
        // Without a file it is the name of an embedded policy.
        let policy = opened.texts.entry_path().unwrap_or(Path::new(opened.texts.reference()));
        let all = format!("--workspace {workspace} --policy {} {log}", for_shell(policy));
        let shown_policy = match opened.texts.entry_path() {
            Some(_) => "FILE".to_owned(),
            None => for_shell(policy),
        };
        Self { all, log, shown_policy }
    }

    /// Returns the options with which `portcullis policy explain` explains decisions on connections
    /// of a session.
    pub(crate) fn explain(&self, agent: &AgentName, preset: Option<&str>) -> ExplainOptions {
        let session = |preset: Option<&str>| {
            let preset = preset.map(|preset| format!(" --preset {}", for_shell(Path::new(preset))));
            format!(" --agent {agent}{}", preset.unwrap_or_default())
        };
        let shown = preset.map(|preset| if preset.contains('/') { "FILE" } else { preset });
        ExplainOptions {
            operator: format!("{} {}", session(preset), self.all),
            program: format!("{} --policy {}", session(shown), self.shown_policy),
        }
    }

    /// Returns `portcullis COMMAND` with the options, for a command that decides.
    pub(crate) fn command(&self, command: impl Display) -> String {
        format!("portcullis {command} {}", self.all)
    }

    /// Returns it for a command that reads the log, for which the policy has no meaning.
    pub(crate) fn log_command(&self, command: impl Display) -> String {
        format!("portcullis {command} {}", self.log)
    }
}

/// Returns the options that lead to the state directory under the same configuration.
pub(crate) fn log_options(state: &Path, config: Option<&Path>) -> String {
    let config = config.map(|config| format!(" --config {}", absolute(config)));
    format!("--state {}{}", absolute(state), config.unwrap_or_default())
}

/// Returns a path, made absolute, for a shell.
pub(crate) fn absolute(path: &Path) -> String {
    // Without a working directory it stays as it was given.
    std::path::absolute(path).map_or_else(|_| for_shell(path), |path| for_shell(&path))
}

/// Returns them for a gateway.
pub(crate) fn log_options_of(started: &Started) -> String {
    log_options(&started.state_path, started.config.as_deref())
}
