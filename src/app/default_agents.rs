//! The names that agents have without `--agent`.

use crate::config::PRESETS;

/// The agent of `fs` and `backup`.
pub(crate) const FS: &str = "cli";
/// The agent of `exec` and `shell`.
pub(crate) const EXEC: &str = "exec";
/// The agent of `mcp`.
pub(crate) const MCP: &str = "mcp-client";
/// The agent of `run` without a preset, if its program has a name that no agent can have.
pub(crate) const RUN: &str = "agent";
/// The agent of `serve` without a configuration.
pub(crate) const SERVE: &str = "client";

/// The names besides those of presets.
pub(crate) const NAMES: [&str; 5] = [RUN, FS, SERVE, EXEC, MCP];

/// Returns commands and presets, each with the name of its agent.
pub(crate) fn all() -> Vec<(&'static str, &'static str)> {
    let commands =
        [("exec", EXEC), ("fs", FS), ("mcp", MCP), ("run", RUN), ("serve", SERVE), ("shell", EXEC)];
    commands.into_iter().chain(PRESETS.iter().map(|(name, _)| (*name, *name))).collect()
}
