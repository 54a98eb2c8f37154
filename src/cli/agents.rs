//! `portcullis agents`: the presets and their content.

use std::{path::Path, process::ExitCode};

use serde_json::{Value, json};

use super::rows::table;
use crate::{
    app::{
        failure::Failure,
        presets::{self, Preset, PresetParser},
    },
    model::{Escaped, for_shell},
};

/// List the agents that `--preset` knows, and the options that it sets
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis agents\n  \
    portcullis agents codex\n  \
    portcullis run --preset codex")]
pub(crate) struct Args {
    /// Print what this preset gives: a name of the list, or a preset file, whose path has a `/`
    #[arg(value_name = "NAME|FILE", value_parser = PresetParser, hide_possible_values = true)]
    preset: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let presets = match &args.preset {
        Some(reference) => vec![presets::load(reference)?.0],
        None => presets::embedded()?,
    };
    if args.json {
        let presets: Vec<_> = presets.iter().map(object).collect();
        outjson!(json!({ "presets": presets }));
    } else if args.preset.is_some() {
        presets.iter().for_each(print);
    } else {
        let rows = presets.iter().map(|preset| {
            let is_installed = preset.programs.iter().any(|program| is_in_path(program));
            let installed = if is_installed { "installed" } else { "not in PATH" };
            vec![preset.name.clone(), preset.title.clone(), installed.to_owned()]
        });
        outln!("{}", table(["preset", "agent", ""], rows, |_| false).join("\n"));
    }
    Ok(ExitCode::SUCCESS)
}

fn is_in_path(program: &str) -> bool {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |path: &Path| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    std::env::split_paths(&directories).any(|directory| is_there(&directory.join(program)))
}

fn object(preset: &Preset) -> Value {
    json!({
        "name": preset.name,
        "title": preset.title,
        "programs": preset.programs,
        "acp": preset.acp,
        "terminal": preset.terminal,
        "login": preset.login,
        "source": preset.source,
        "env": preset.env,
        "set": preset.set,
        "hosts": preset.hosts,
        "hostsFrom": preset.hosts_from,
        "credential": preset.credential.as_ref().map(|credential| json!({
            "host": credential.host,
            "header": credential.header,
            "prefix": credential.prefix,
            "env": credential.env,
            "baseUrl": credential.base_url,
            "basePath": credential.base_path,
            "methods": credential.methods,
            "paths": credential.paths,
        })),
        "installed": preset.programs.iter().any(|program| is_in_path(program)),
    })
}

/// Prints the preset as options of `run`.
fn print(preset: &Preset) {
    outln!("{}: {}", Escaped(&preset.name), Escaped(&preset.title));
    outln!("  --agent-read   its program, with its packages (`node_modules`) or libraries (`lib`)");
    let options = [("--agent-env", &preset.env), ("--agent-env", &preset.set)];
    for (option, value) in options {
        for value in value {
            outln!("  {option} {}", for_shell(Path::new(value)));
        }
    }
    for host in &preset.hosts {
        outln!("  connect to     {}", Escaped(host));
    }
    for name in &preset.hosts_from {
        outln!("  connect to     the host of the URL in {}, if it is set", Escaped(name));
    }
    if let Some(credential) = &preset.credential {
        outln!(
            "  credential     a phantom in {} for a key of {}, if `[[credentials]]` has it",
            Escaped(&credential.env),
            Escaped(&credential.host)
        );
    }
    if let Some(source) = &preset.source {
        outln!("  --source {}", for_shell(Path::new(source)));
    }
    let commands =
        [("ACP", &preset.acp), ("on a terminal", &preset.terminal), ("login", &preset.login)];
    for (what, command) in commands.into_iter().filter(|(_, command)| !command.is_empty()) {
        let words = command.iter().map(|word| for_shell(Path::new(word)));
        outln!("  -- {} ({what})", words.collect::<Vec<_>>().join(" "));
    }
}
