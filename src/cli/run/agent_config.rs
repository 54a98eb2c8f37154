//! Grants that let an agent change its own configuration on this machine.
//!
//! Agents read hooks, MCP servers and permissions from directories in the user's
//! home. A hook that a confined agent writes there is executed outside the sandbox
//! the next time the user starts that agent without Portcullis.

#![expect(
    clippy::disallowed_methods,
    reason = "the operator's own directories, by the operator's words"
)]

use std::path::{Path, PathBuf};

/// Where agents keep their configuration, relative to the user's home.
const PLACES: [&str; 15] = [
    ".aider.conf.yml",
    ".claude",
    ".claude.json",
    ".cline",
    ".codex",
    ".config/goose",
    ".config/opencode",
    ".continue",
    ".copilot",
    ".cursor",
    ".fast-agent",
    ".gemini",
    ".kimi",
    ".qwen",
    ".vibe",
];

/// Environment variables that name such a directory elsewhere.
const VARIABLES: [&str; 6] =
    ["CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "KIMI_HOME", "QWEN_HOME", "VIBE_HOME"];

/// The write grants that lie in, are, or hold the configuration of an agent.
pub(super) fn among(write: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let home = std::env::home_dir().unwrap_or_default();
    let named = VARIABLES.iter().filter_map(std::env::var_os).map(PathBuf::from);
    let places: Vec<_> = PLACES.iter().map(|place| home.join(place)).chain(named).collect();
    write.filter(|grant| concerns(grant, &places)).collect()
}

fn concerns(grant: &Path, places: &[PathBuf]) -> bool {
    let real = grant.canonicalize().unwrap_or_else(|_| grant.to_owned());
    // A copy of such a directory, or another user's, has the same name.
    let by_name = |path: &Path| PLACES.iter().any(|place| path.ends_with(place));
    let by_place = |place: &PathBuf| {
        place.canonicalize().is_ok_and(|place| place.starts_with(&real) || real.starts_with(place))
    };
    real.ancestors().any(by_name) || places.iter().any(by_place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_that_is_in_or_holds_a_configuration_is_found() {
        let base = tempfile::tempdir().unwrap();
        let home = base.path().canonicalize().unwrap();
        let places = [home.join("elsewhere")];
        for name in [".claude/hooks", "elsewhere/inner", "other"] {
            std::fs::create_dir_all(home.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(home.join(".claude"), home.join("link")).unwrap();
        for found in [".claude", ".claude/hooks", "link", "elsewhere/inner", "."] {
            assert!(concerns(&home.join(found), &places), "{found}");
        }
        assert!(!concerns(&home.join("other"), &places));
    }
}
