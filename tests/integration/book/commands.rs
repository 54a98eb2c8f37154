//! The commands of the book: the program parses each of them, and blocks of `sh` run as they stand.

use std::{fs::Permissions, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use super::page::{Block, Page, pages, root};
use crate::common::{Done, ON_TERMINAL, World, done};

/// Splits a script into its simple commands, and these into words. Knows quotes, continued lines,
/// comments and redirections; substitutions stay as they are.
fn commands(script: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut redirected = false;
    let mut chars = script.chars().peekable();
    while let Some(char) = chars.next() {
        let ends = matches!(char, ' ' | '\t' | '\n' | '|' | '&' | ';' | '<' | '>' | '(' | ')');
        if ends
            && let Some(word) = word.take()
            && !std::mem::take(&mut redirected)
        {
            commands.last_mut().unwrap().push(word);
        }
        match char {
            '\\' if chars.next_if_eq(&'\n').is_some() => {}
            '\\' => word.get_or_insert_default().extend(chars.next()),
            quote @ ('\'' | '"') => {
                let word = word.get_or_insert_default();
                while let Some(char) = chars.next().filter(|&char| char != quote) {
                    let escaped = char == '\\' && quote == '"';
                    word.extend(if escaped { chars.next() } else { Some(char) });
                }
            }
            '#' if word.is_none() => while chars.next_if(|&char| char != '\n').is_some() {},
            ' ' | '\t' => {}
            '<' | '>' => redirected = true,
            _ if ends => commands.push(Vec::new()),
            char => word.get_or_insert_default().push(char),
        }
    }
    commands
}

/// The commands of a block with output.
fn typed(console: &str) -> String {
    console.lines().filter_map(|line| line.strip_prefix("$ ")).collect::<Vec<_>>().join("\n")
}

/// The commands of the program in blocks of a page.
fn own_commands(page: &Page) -> Vec<Vec<String>> {
    let mut own = Vec::new();
    for block in page.blocks() {
        let script = match block.info.split(' ').next().unwrap() {
            "sh" => block.text,
            "console" => typed(&block.text),
            _ => continue,
        };
        let is_own =
            |command: &Vec<String>| command.first().is_some_and(|word| word == "portcullis");
        own.extend(commands(&(script + "\n")).into_iter().filter(is_own));
    }
    // The output of a command stands for a number.
    for word in own.iter_mut().flatten().filter(|word| word.starts_with("$(")) {
        *word = "1".to_owned();
    }
    own
}

#[test]
fn the_program_parses_every_command() {
    let (mut parsed, mut refused) = (0, Vec::new());
    for page in pages().iter().chain([&Page::read("README.md")]) {
        for command in own_commands(page) {
            parsed += 1;
            match portcullis::cli::command().try_get_matches_from(&command) {
                // Help and version are errors of this kind.
                Err(error) if error.exit_code() != 0 => {
                    refused.push(format!("{}: {}\n{error}", page.path, command.join(" ")));
                }
                _ => {}
            }
        }
        // Within the text, arguments may be left out.
        for code in page.code().iter().filter(|code| code.starts_with("portcullis ")) {
            parsed += 1;
            let command =
                commands(&format!("{code}\n")).remove(0).into_iter().chain(["--help".to_owned()]);
            match portcullis::cli::command().try_get_matches_from(command) {
                Err(error) if error.exit_code() != 0 => {
                    refused.push(format!("{}: {code}\n{error}", page.path));
                }
                _ => {}
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(parsed > 100, "only {parsed} commands were found");
}

#[test]
fn every_command_is_in_the_table() {
    let table = Page::read("docs/commands.md").text;
    for command in portcullis::cli::command().get_subcommands() {
        let name = command.get_name();
        let named = ["`", " "].iter().any(|end| table.contains(&format!("`{name}{end}")));
        assert!(named, "docs/commands.md does not have `{name}`");
    }
}

/// A workspace with the files, programs and records that the pages speak of.
fn reader() -> World {
    let mut world = World::new();
    for (path, content) in [
        ("Cargo.toml", "[package]\nname = \"shop\"\nversion = \"0.1.0\"\n"),
        ("Makefile", "test:\n\ttrue\n"),
        ("data/customers.csv", "name\n"),
        ("new.rs", "fn main() { todo!() }\n"),
        ("src/a.ts", "export {}\n"),
        ("src/main.rs", "fn main() {}\n"),
    ] {
        world.file(path, content);
    }
    let home = world.base().join("home");
    let programs = home.join("bin");
    for directory in [&programs, &home.join("docs"), &home.join("lib"), &home.join("policies")] {
        std::fs::create_dir_all(directory).unwrap();
    }
    for name in [
        "AGENT",
        "aider",
        "cargo",
        "claude",
        "claude-agent-acp",
        "codex",
        "codex-acp",
        "fast-agent",
        "fast-agent-acp",
        "gemini",
        "make",
        "my-agent",
        "npm",
        "opencode",
        "qwen",
        "vim",
    ] {
        let program = programs.join(name);
        std::fs::write(&program, "#!/bin/sh\nexit 0\n").unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    }
    let link = programs.join("portcullis");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_portcullis"), link).unwrap();
    let policy = |name: &str, more: &str| {
        format!(
            "schema = 1\nname = {name:?}\nextends = [\"default\"]\n[agent]\nread = [\"/usr\", \"/bin\", \"/lib\", \"/lib64\", {programs:?}]\n\
             {more}[[tests]]\noperation = \"read\"\npath = \"a\"\nexpect = {{ effect = \"allow\" }}\n"
        )
    };
    world.set_policy(&policy(
        "reader",
        "[[network.rules]]\nid = \"registry\"\neffect = \"allow\"\nhosts = [\"registry.npmjs.org\"]\nports = [443]\n",
    ));
    for file in ["docs.toml", "shop.toml", "home/policies/shop.toml"] {
        std::fs::write(world.base().join(file), policy("shop", "")).unwrap();
    }
    world
}

/// Runs a script in a directory, as its reader would.
fn run(world: &World, directory: &Path, script: &str) -> Done {
    run_by(world, directory, &["sh", "-ec", script])
}

fn run_by(world: &World, directory: &Path, arguments: &[&str]) -> Done {
    let home = world.base().join("home");
    let inherited = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("timeout");
    shell
        .arg("600")
        .args(arguments)
        .env_clear()
        .envs(world.command(&[]).get_envs().filter_map(|(name, value)| Some((name, value?))));
    // The state directory is the default one, so that a workspace that a page makes has its own.
    shell.env_remove("PORTCULLIS_WORKSPACE").env_remove("PORTCULLIS_STATE");
    shell.env("PATH", format!("{}:{inherited}", home.join("bin").display()));
    shell.env("TMPDIR", world.base()).env("SHELL", home.join("bin/AGENT"));
    done(shell.current_dir(directory).stdin(std::process::Stdio::null()).output().unwrap())
}

/// Something on record, which pages about the log read.
const HISTORY: &str = "portcullis fs write src/main.rs <new.rs
    portcullis fs write src/main.rs <Cargo.toml
    portcullis audit checkpoint >checkpoint-of-last-week
    portcullis fs read src/main.rs --json >session.jsonl
    ! portcullis fs read .env
    portcullis exec --quiet -- sh -c 'echo 1 >src/made'
    portcullis audit key >log.vkey";

/// The reasons of blocks that are not run: they take minutes to build, reach other machines, run
/// until they are stopped, need a container, root, a person's reply, the reader's repository or a
/// witness.
const REASONS: [&str; 8] =
    ["build", "container", "network", "question", "repository", "root", "service", "witness"];

#[test]
fn every_block_that_is_not_run_has_its_reason() {
    let mut reasons = std::collections::BTreeSet::new();
    for page in pages().iter().chain([&Page::read("README.md")]) {
        for block in page.blocks().iter().filter(|block| block.info.starts_with("sh ")) {
            match block.info.strip_prefix("sh not-run: ") {
                Some(reason) => drop(reasons.insert(reason.to_owned())),
                None => assert_eq!(block.info, "sh terminal", "{}", page.path),
            }
        }
    }
    assert!(reasons.iter().eq(REASONS), "{reasons:?}");
}

/// True for blocks that run, on a terminal of their own or without one.
fn is_run(block: &Block) -> bool {
    matches!(&*block.info, "sh" | "sh terminal")
}

fn run_page(path: &str) {
    let page = Page::read(path);
    let blocks: Vec<_> = page.blocks().into_iter().filter(is_run).collect();
    assert!(!blocks.is_empty(), "{path} has no block to run: leave it out");
    let world = reader();
    std::os::unix::fs::symlink(root().join("audit"), world.path("audit")).unwrap();
    run(&world, &world.root(), HISTORY).ok();
    let status = run(&world, &world.root(), "portcullis status --json").ok().json();
    let state = format!("STATE='{}'\n", status["state"].as_str().unwrap());
    for block in blocks {
        let script = state.clone() + &block.text;
        let shell = ["sh", "-ec", &*script];
        let result = match &*block.info {
            "sh" => run_by(&world, &world.root(), &shell),
            _ => {
                let python = ["python3", "-c", ON_TERMINAL];
                run_by(&world, &world.root(), &[&python[..], &shell].concat())
            }
        };
        assert_eq!(result.code, 0, "{path}:\n{}\n{}{}", block.text, result.text(), result.stderr);
    }
}

/// The requests of the agent of the guide to policies, under the mode of the step before.
const OBSERVED: &str = "sed -i 's/^version = 1/mode = \"observe\"\\n&/' policies/similar.toml
    for path in tests/algorithms.rs tests/deadline.rs tests/inline.rs scripts/release.sh src/x.rs; do
        echo '// text' | portcullis fs write $path --agent coder \\
            --workspace similar --policy policies/similar.toml
    done";

#[test]
fn the_guide_to_policies() {
    let mut world = reader();
    world.use_policy("default");
    for file in ["Cargo.toml", "Makefile", "README.md", "benches/b.rs", "src/lib.rs"] {
        let path = world.base().join("similar").join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "# text\n").unwrap();
    }
    std::fs::create_dir(world.base().join("policies")).unwrap();
    // The program of the reader's agent lies where programs lie, which the policies of the guide show.
    let agent = world.base().join("home/bin/my-agent");
    std::fs::remove_file(&agent).unwrap();
    std::os::unix::fs::symlink("/bin/true", agent).unwrap();
    let page = Page::read("docs/authoring.md");
    let blocks = page.blocks();
    let tests = blocks.iter().find(|block| block.text.starts_with("# policies/next.test.toml"));
    std::fs::write(world.base().join("policies/next.test.toml"), &tests.unwrap().text).unwrap();
    let mut steps: Vec<_> = blocks
        .iter()
        .filter(|block| block.info == "console")
        .map(|block| typed(&block.text))
        .collect();
    steps.insert(1, OBSERVED.to_owned());
    assert!(steps.len() > 8, "{steps:?}");
    for step in steps {
        let result = run(&world, world.base(), &step);
        assert_eq!(result.code, 0, "{step}\n{}{}", result.text(), result.stderr);
    }
}

/// The pages with blocks to run, so that each is a test of its own.
macro_rules! pages_that_run {
    ($($name:ident: $path:literal;)*) => {
        $(#[test]
        fn $name() {
            run_page($path);
        })*

        #[test]
        fn no_page_to_run_is_left_out() {
            for page in pages().iter().chain([&Page::read("README.md")]) {
                let runs = page.blocks().iter().any(is_run);
                assert_eq!(runs, [$($path),*].contains(&page.path.as_str()), "{}", page.path);
            }
        }
    };
}

pages_that_run! {
    the_readme: "README.md";
    agents: "docs/agents.md";
    aider: "docs/agents/aider.md";
    claude_code: "docs/agents/claude-code.md";
    codex: "docs/agents/codex.md";
    fast_agent: "docs/agents/fast-agent.md";
    gemini_cli: "docs/agents/gemini-cli.md";
    opencode: "docs/agents/opencode.md";
    qwen_code: "docs/agents/qwen-code.md";
    audit: "docs/audit.md";
    auditing: "docs/auditing.md";
    configuration: "docs/configuration.md";
    first_steps: "docs/getting-started.md";
    installing: "docs/installing.md";
    mount: "docs/mount.md";
    network: "docs/network.md";
    operating: "docs/operating.md";
    policy: "docs/policy.md";
    proof: "docs/proof.md";
    serve: "docs/serve.md";
    shell: "docs/shell.md";
}
