//! Agent paths and workspaces that let an agent change its own configuration on this machine.
//!
//! Agents read hooks, MCP servers and permissions from directories in the user's home. A hook
//! that a confined agent writes there is executed outside the sandbox the next time the user
//! starts that agent without Portcullis.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use etcetera::BaseStrategy as _;
use serde_json::Value;

use crate::{
    app::failure::Failure,
    model::for_shell,
    sandbox::{SandboxSpec, canonicalize_missing},
};

/// Locations of agents' configuration, relative to the user's home.
const PLACES: [&str; 55] = [
    ".agent",
    ".agents",
    ".aiassistant",
    ".aider.conf.yml",
    ".amazonq",
    ".amp",
    ".augment",
    ".aws/amazonq",
    ".claude",
    ".claude.json",
    ".cline",
    ".codebuddy",
    ".codeium",
    ".codex",
    ".cody",
    ".config/Claude",
    ".config/amp",
    ".config/crush",
    ".config/cursor",
    ".config/github-copilot",
    ".config/goose",
    ".config/kilo",
    ".config/opencode",
    ".config/zed",
    ".continue",
    ".copilot",
    ".crush",
    ".cursor",
    ".devin",
    ".factory",
    ".fast-agent",
    ".forge",
    ".gemini",
    ".goose",
    ".grok",
    ".iflow",
    ".junie",
    ".kilocode",
    ".kimi",
    ".kiro",
    ".lingma",
    ".local/share/claude",
    ".local/share/opencode",
    ".opencode",
    ".openhands",
    ".pi",
    ".qoder",
    ".qwen",
    ".roo",
    ".rovodev",
    ".tabnine",
    ".trae",
    ".vibe",
    ".warp",
    ".windsurf",
];
/// Locations of agents' configuration for all users of a machine.
const SYSTEM_PLACES: [&str; 5] =
    ["/etc/claude-code", "/etc/codex", "/etc/gemini-cli", "/etc/opencode", "/etc/qwen-code"];
/// The name of agents' working trees beneath such a location, which are no configuration.
const WORKING_TREES: &str = "worktrees";

/// The directories among them that `$XDG_CONFIG_HOME` and `$XDG_DATA_HOME` replace.
const CONFIG: &str = ".config";
const DATA: &str = ".local/share";

/// Environment variables that name such a location elsewhere.
const VARIABLES: [&str; 11] = [
    "CLAUDE_CONFIG_DIR",
    "CODEX_HOME",
    "COPILOT_HOME",
    "CURSOR_CONFIG_DIR",
    "FAST_AGENT_HOME",
    "GEMINI_CLI_HOME",
    "KIMI_HOME",
    "OPENCODE_CONFIG",
    "OPENCODE_CONFIG_DIR",
    "QWEN_HOME",
    "VIBE_HOME",
];

/// Refuses a writable path that is, lies in, or contains the configuration of an agent, unless
/// it is among the `accepted`.
///
/// # Errors
/// When there is one.
pub(in crate::cli) fn refuse(spec: &SandboxSpec, accepted: &[PathBuf]) -> Result<(), Failure> {
    let accepted: Vec<_> = accepted.iter().map(|path| real(path)).collect();
    let granted = spec.write.iter().map(|grant| grant.path.clone());
    match among(granted).into_iter().find(|path| !accepted.contains(&real(path))) {
        None => Ok(()),
        Some(path) => Err(Failure::new(format_args!(
            "`{}` may not be changed by the agent: it is, contains or lies in an agent's \
             own configuration, and a hook there runs outside the sandbox",
            path.display()
        ))
        .help(format_args!(
            "leave it out, for the agent has a home of its own (`portcullis login` logs it in \
             there); or name it again: `--accept-agent-config {}`",
            for_shell(&path)
        ))),
    }
}

/// Warns of workspaces and writable paths that are, lie in, or contain the configuration of an
/// agent, and adds them to the facts of the `start` record.
pub(in crate::cli) fn warn(spec: &SandboxSpec, facts: &mut BTreeMap<String, Value>) {
    let further = spec.further.iter().map(|workspace| workspace.root.clone());
    let workspaces: Vec<_> = std::iter::once(spec.workspace.clone()).chain(further).collect();
    let granted = spec.write.iter().map(|grant| grant.path.clone());
    let found = among(workspaces.iter().cloned().chain(granted));
    for path in &found {
        errln!(
            "portcullis: warning: `{}`, which the agent may change, has the place of an agent's own \
             configuration: a hook that the agent puts there runs outside the sandbox, the next \
             time that you start it without Portcullis",
            path.display()
        );
        errln!(
            "{}",
            match workspaces.contains(path) {
                true =>
                    "  help: serve a copy of it; or deny the files with the hooks in the policy",
                false => {
                    "  help: leave the grant out, for the agent has a home of its own; or give it a \
                     copy"
                }
            }
        );
    }
    if !found.is_empty() {
        let found: Vec<_> = found.iter().map(|path| path.to_string_lossy()).collect();
        facts.insert("agentConfig".to_owned(), Value::from(found));
    }
}

fn among(changeable: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let places = places();
    changeable.filter(|path| concerns(path, &places)).collect()
}

/// Returns the locations of this user's and the machine's agents; none need exist yet.
fn places() -> Vec<PathBuf> {
    let variables = VARIABLES.iter().filter_map(std::env::var_os);
    let mut found: Vec<_> =
        variables.chain(SYSTEM_PLACES.map(Into::into)).map(PathBuf::from).collect();
    if let Ok(user) = etcetera::base_strategy::Xdg::new() {
        found.extend(PLACES.iter().map(|place| user.home_dir().join(place)));
        for (base, directory) in [(CONFIG, user.config_dir()), (DATA, user.data_dir())] {
            let within = PLACES.iter().filter_map(|place| Path::new(place).strip_prefix(base).ok());
            found.extend(within.map(|place| directory.join(place)));
        }
    }
    found.iter().filter(|place| !place.as_os_str().is_empty()).map(|place| real(place)).collect()
}

/// Returns the path without links, also where it does not exist yet.
fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    canonicalize_missing(&path).unwrap_or(path)
}

fn concerns(path: &Path, places: &[PathBuf]) -> bool {
    let real = real(path);
    let lies_in =
        |place: &Path| real.strip_prefix(place).is_ok_and(|rest| !rest.starts_with(WORKING_TREES));
    // A copy of such a directory, or another user's, has the same name.
    let by_name = |path: &Path| PLACES.iter().any(|place| path.ends_with(place)) && lies_in(path);
    let by_place = |place: &PathBuf| place.starts_with(&real) || lies_in(place);
    real.ancestors().any(by_name) || places.iter().any(by_place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator_files;

    /// The policy denies them in a workspace, and the list did not know all of them.
    #[test]
    fn every_agent_that_the_baseline_knows_is_known() {
        let baseline = include_str!("../../../policies/baseline.toml");
        let rule = baseline.split("id = \"agents\"").nth(1).unwrap();
        let (_, names) = rule.split_once("**/.{").unwrap();
        let names: Vec<_> = names.split_once("}/**").unwrap().0.split(',').collect();
        assert!(names.contains(&"claude") && names.len() > 20, "{names:?}");
        // These have a place in projects alone.
        let in_projects = ["clinerules", "claude-plugin"];
        for name in names.into_iter().filter(|name| !in_projects.contains(name)) {
            assert!(concerns(Path::new(&format!("/home/a/.{name}")), &[]), "{name}");
        }
    }

    #[test]
    fn a_grant_that_is_in_or_holds_a_configuration_is_found() {
        let base = tempfile::tempdir().unwrap();
        let home = operator_files::canonicalize(base.path()).unwrap();
        let places = [home.join("elsewhere")];
        for name in [".claude/hooks", ".claude/worktrees/a/.claude", "elsewhere/inner", "other"] {
            operator_files::create_dir_all(home.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(home.join(".claude"), home.join("link")).unwrap();
        let found = [
            ".claude",
            ".claude/hooks",
            "link",
            "elsewhere/inner",
            ".",
            "link/worktrees/a/.claude",
        ];
        for found in found {
            assert!(concerns(&home.join(found), &places), "{found}");
        }
        for other in ["other", ".claude/worktrees/a"] {
            assert!(!concerns(&home.join(other), &places), "{other}");
        }
    }
}
