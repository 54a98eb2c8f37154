//! Completions, manual pages and help: what a user sees of the command line,
//! and what must not be seen.

use std::{
    collections::BTreeSet,
    io::Write as _,
    process::{Command, Stdio},
};

use crate::common::World;

/// The words that start inner processes.
const HIDDEN: [&str; 4] = ["demo-agent", "doctor-probe", "gateway-process", "sandbox-stage"];

const SHELLS: [&str; 5] = ["bash", "elvish", "fish", "powershell", "zsh"];

/// Every visible command, as `--help` names them, depth first.
fn commands(world: &World, words: &[String], found: &mut Vec<Vec<String>>) {
    found.push(words.to_vec());
    let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
    args.push("--help");
    let help = world.run(&args).ok();
    for word in HIDDEN {
        assert!(!help.text().contains(word), "{args:?} shows `{word}`");
    }
    let listed = help.text().lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help");
    for name in names {
        commands(world, &[words, &[name.to_owned()]].concat(), found);
    }
}

fn all_commands(world: &World) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    commands(world, &[], &mut found);
    assert!(found.len() > 25, "{found:?}");
    found
}

#[test]
fn the_hidden_words_are_the_ones_in_use() {
    // Otherwise this file would look for words that are not used.
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let files = [
        "src/cli/demo/agent.rs",
        "src/cli/doctor/probe.rs",
        "src/cli/agent/gateway_process.rs",
        "crates/sandbox/src/stage.rs",
    ];
    for (word, file) in HIDDEN.iter().zip(files) {
        assert!(read(file).contains(&format!("\"{word}\"")), "`{word}` is not in {file}");
    }
}

#[test]
fn every_help_has_examples() {
    let world = World::new();
    for words in all_commands(&world) {
        let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
        args.push("--help");
        let help = world.run(&args).ok();
        let example = format!("portcullis {}", words.join(" "));
        assert!(help.text().contains("Examples:"), "{args:?}");
        assert!(help.text().contains(example.trim_end()), "{args:?}");
    }
}

#[test]
fn every_command_has_a_manual_page_with_its_examples() {
    let world = World::new();
    let pages = world.base().join("man");
    world.run(&["man", "-o", pages.to_str().unwrap()]).ok();
    let written: BTreeSet<_> = std::fs::read_dir(&pages)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let expected: BTreeSet<_> = all_commands(&world)
        .iter()
        .map(|words| [&["portcullis".to_owned()], words.as_slice()].concat().join("-") + ".1")
        .collect();
    assert_eq!(written, expected);
    for name in &written {
        let page = std::fs::read_to_string(pages.join(name)).unwrap();
        assert!(page.contains(".SH NAME") && page.contains("Examples:"), "{name}");
        for word in HIDDEN {
            let roff = word.replace('-', "\\-");
            assert!(!page.contains(word) && !page.contains(&roff), "{name} shows `{word}`");
        }
    }
    let printed = world.run(&["man"]).ok();
    assert_eq!(printed.text(), std::fs::read_to_string(pages.join("portcullis.1")).unwrap());
}

/// Nothing was offered for a preset, and no file for a policy.
#[test]
fn presets_and_policies_are_completed() {
    let world = World::new();
    let of = |shell: &str| world.run(&["completions", shell]).ok().text().to_owned();
    let names = "aider claude-code codex fast-agent gemini-cli opencode qwen-code";
    let (bash, zsh, fish) = (of("bash"), of("zsh"), of("fish"));
    assert!(bash.contains(&format!("compgen -W \"{names}\"")), "{bash}");
    assert!(zsh.contains(&format!(":NAME|FILE:({names})")), "{zsh}");
    assert!(zsh.contains(":FILE|NAME:_files"), "{zsh}");
    let preset =
        fish.lines().find(|line| line.contains("subcommand run") && line.contains("-l preset"));
    assert!(preset.is_some_and(|line| line.contains("-a \"aider")), "{preset:?}");
    let help = world.run(&["run", "--help"]).ok();
    assert!(!help.text().contains("possible values: aider"), "{help:?}");
}

/// The directory was made through a link, and then refused.
#[test]
fn no_directory_for_manual_pages_is_made_through_a_link() {
    let world = World::new();
    let (out, link) = (world.base().join("out"), world.path("link"));
    std::fs::create_dir(&out).unwrap();
    std::os::unix::fs::symlink(&out, &link).unwrap();
    for directory in [link.join("new"), link] {
        assert_eq!(world.run(&["man", "-o", directory.to_str().unwrap()]).code, 1);
        assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
    }
}

#[test]
fn every_shell_completes_the_visible_commands_only() {
    let world = World::new();
    for shell in SHELLS {
        let script = world.run(&["completions", shell]).ok();
        for word in ["demo", "doctor", "restore", "allow-partial"] {
            assert!(script.text().contains(word), "{shell} does not know `{word}`");
        }
        for word in HIDDEN {
            assert!(!script.text().contains(word), "{shell} shows `{word}`");
        }
    }
    assert_eq!(world.run(&["completions", "tcsh"]).code, 2);
}

#[test]
fn bash_completes_with_the_script() {
    let world = World::new();
    let script = world.run(&["completions", "bash"]).ok();
    let ask = "\nCOMP_WORDS=(portcullis do); COMP_CWORD=1; _portcullis portcullis do portcullis\n\
        echo \"${COMPREPLY[@]}\"\n";
    let mut bash = Command::new("bash")
        .args(["--norc", "-s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = bash.stdin.take().unwrap();
    input.write_all(script.text().as_bytes()).unwrap();
    input.write_all(ask.as_bytes()).unwrap();
    drop(input);
    let output = bash.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "doctor");
}
