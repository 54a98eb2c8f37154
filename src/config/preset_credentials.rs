//! The presets of agents, as far as they say how an agent takes a key that it does not have.

use serde::Deserialize;

/// The presets that come with the program, by their names.
pub(crate) const PRESETS: [(&str, &str); 7] = [
    ("aider", include_str!("../../presets/aider.toml")),
    ("claude-code", include_str!("../../presets/claude-code.toml")),
    ("codex", include_str!("../../presets/codex.toml")),
    ("fast-agent", include_str!("../../presets/fast-agent.toml")),
    ("gemini-cli", include_str!("../../presets/gemini-cli.toml")),
    ("opencode", include_str!("../../presets/opencode.toml")),
    ("qwen-code", include_str!("../../presets/qwen-code.toml")),
];

/// `[credential]` of a preset: the keys of `[[credentials]]` that do not depend on the operator.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PresetCredential {
    pub(crate) host: String,
    pub(crate) header: String,
    #[serde(default)]
    pub(crate) prefix: String,
    pub(crate) env: String,
    pub(crate) base_url: String,
    pub(crate) base_path: Option<String>,
    pub(crate) methods: Vec<String>,
    pub(crate) paths: Vec<String>,
}

/// The part of a preset that is read here.
#[derive(Deserialize)]
struct PresetFile {
    credential: Option<PresetCredential>,
}

/// Returns the credential of the preset of that name, if there is one.
pub(super) fn of(name: &str) -> Option<PresetCredential> {
    let (_, text) = PRESETS.iter().find(|(known, _)| *known == name)?;
    toml::from_str::<PresetFile>(text).ok()?.credential
}

/// Returns the names of the presets with a credential.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name).filter(|name| of(name).is_some())
}
