//! Presets: what the sandboxes of agents need that many people use, as data.
//!
//! A preset grants nothing by itself: it stands for options of the command line, which the
//! operator asks for by its name.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use serde::Deserialize;

use super::{
    failure::{Exit, Failure},
    preset_hosts,
};
use crate::{
    config::{PRESETS, PresetCredential, read_file, why_unreadable},
    policy::{MAX_FILE, nearest},
};

/// Parses the name of a preset or of a file. Completions offer the names.
#[derive(Debug, Clone)]
pub(crate) struct PresetParser;

impl TypedValueParser for PresetParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(PRESETS.iter().map(|(name, _)| PossibleValue::new(*name))))
    }
}

/// A preset: the needs of one agent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Preset {
    /// The name on the command line; also the agent's name in policy and log, where no other one
    /// was given.
    pub(crate) name: String,
    /// The name for people.
    pub(crate) title: String,
    /// File names of its programs: a command that begins with one is this agent's.
    #[serde(default)]
    pub(crate) programs: Vec<String>,
    /// The command that speaks ACP; empty for an agent that does not.
    #[serde(default)]
    pub(crate) acp: Vec<String>,
    /// The command that is interactive on a terminal.
    #[serde(default)]
    pub(crate) terminal: Vec<String>,
    /// The command that stores credentials in the agent's home.
    #[serde(default)]
    pub(crate) login: Vec<String>,
    /// Variables that it gets from the environment of the command, where they are set.
    #[serde(default)]
    pub(crate) env: Vec<String>,
    /// Variables with their values, as `NAME=VALUE`.
    #[serde(default)]
    pub(crate) set: Vec<String>,
    /// The hosts that it reaches: `HOST` or `HOST:PORT`, as in rules of `[network]`.
    #[serde(default)]
    pub(crate) hosts: Vec<String>,
    /// Variables whose URLs name further ones, where they are set.
    #[serde(default, rename = "hostsFrom")]
    pub(crate) hosts_from: Vec<String>,
    /// The credential that it can use, as `[[credentials]]` of the configuration.
    pub(crate) credential: Option<PresetCredential>,
    /// The form of the argument of `run --source`.
    pub(crate) source: Option<String>,
}

/// Returns the presets that come with the program, by name.
///
/// # Errors
/// When one cannot be read: a mistake in the program.
pub(crate) fn embedded() -> Result<Vec<Preset>, Failure> {
    PRESETS.iter().map(|(name, text)| parse(text, name)).collect()
}

/// Returns the preset that `reference` names: one of the program's, or a file, which has a `/` in
/// its name. Returns the file as well.
///
/// # Errors
/// When there is no such preset, or it cannot be read.
pub(crate) fn load(reference: &str) -> Result<(Preset, Option<PathBuf>), Failure> {
    if reference.contains('/') {
        let path = Path::new(reference);
        let text = read_file(path).map_err(|error| wrong(reference, &why_unreadable(&error)))?;
        if text.len() > MAX_FILE {
            return Err(wrong(reference, "it is too large"));
        }
        let text = String::from_utf8(text).map_err(|_utf8| wrong(reference, "it is not UTF-8"))?;
        return Ok((parse(&text, reference)?, Some(path.to_owned())));
    }
    let all = embedded()?;
    let names: Vec<_> = all.iter().map(|preset| preset.name.clone()).collect();
    let found = all.into_iter().find(|preset| preset.name == reference);
    let preset = found.ok_or_else(|| {
        let failure =
            Failure::new(format_args!("there is no preset `{reference}`")).exit(Exit::Usage);
        match nearest(reference, names.iter().map(String::as_str)) {
            Some(near) => failure.help(format_args!("did you mean `{near}`?")),
            None => failure.help(format_args!(
                "expected {}, or a file with a `/` in its name",
                names.join(", ")
            )),
        }
    })?;
    Ok((preset, None))
}

/// Returns the embedded preset for a program of this file name.
pub(crate) fn for_program(program: &Path) -> Option<Preset> {
    let name = program.file_name()?.to_str()?;
    embedded().ok()?.into_iter().find(|preset| preset.programs.iter().any(|known| known == name))
}

fn parse(text: &str, shown: &str) -> Result<Preset, Failure> {
    let preset: Preset = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        wrong(shown, &format!("line {line}: {}", error.message()))
    })?;
    for entry in &preset.hosts {
        preset_hosts::parse(entry).map_err(|reason| wrong(shown, &reason))?;
    }
    Ok(preset)
}

fn wrong(shown: &str, reason: &str) -> Failure {
    Failure::new(format_args!("the preset `{shown}` cannot be used: {reason}")).exit(Exit::Usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_preset_can_be_named_by_its_programs() {
        let all = embedded().unwrap();
        assert!(all.is_sorted_by(|a, b| a.name < b.name), "{all:?}");
        for (preset, (name, _)) in all.iter().zip(PRESETS) {
            assert_eq!(preset.name, name);
            // Where the policy is silent, programs may connect to it.
            let host = preset.credential.as_ref().map(|credential| &credential.host);
            assert!(host.is_none_or(|host| preset.hosts.contains(host)), "{preset:?}");
            let found = |program: &str| for_program(Path::new(program)).map(|found| found.name);
            for program in &preset.programs {
                assert_eq!(found(program).as_ref(), Some(&preset.name));
            }
            if let Some(program) = preset.acp.first() {
                assert_eq!(found(program).as_ref(), Some(&preset.name));
            }
        }
        assert_eq!(for_program(Path::new("/usr/bin/cat")), None);
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        let wrong = |text: &str| parse(text, "p").unwrap_err().message().to_owned();
        assert!(wrong("name = \"x\"\ntitle = \"X\"\nnetwrk = []\n").contains("line 3"));
        assert!(wrong("name = 1\n").contains("line 1"));
        assert!(wrong("name = \"x\"\ntitle = \"X\"\nhosts = [\"a b\"]\n").contains("`a b`"));
    }
}
