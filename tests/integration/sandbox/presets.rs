//! `--preset`: what it gives an agent, and what it does not.

use std::os::unix::fs::symlink;

use serde_json::json;

use super::*;

impl SandboxWorld {
    /// Installs an agent as npm does and returns the directory of its program's link.
    fn install(&self, name: &str, script: &str) -> String {
        let package = self.base().join("tools/node_modules/package");
        std::fs::create_dir_all(&package).unwrap();
        std::fs::write(package.join("data"), "its own data\n").unwrap();
        let program = package.join("main.sh");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        set_mode(&program, 0o755);
        let links = self.base().join("tools/node_modules/.bin");
        std::fs::create_dir_all(&links).unwrap();
        symlink("../package/main.sh", links.join(name)).unwrap();
        self.give_away_if_root();
        links.to_str().unwrap().to_owned()
    }

    /// `portcullis run ARGS…` with a directory of programs before the others.
    fn run_in_path(&self, programs: &str, args: &[&str]) -> AgentOutput {
        let mut command = self.command(&[&["run"], args].concat());
        command.env("PATH", format!("{programs}:/usr/bin:/bin"));
        command.env("OPENAI_API_KEY", "the-key").env("OTHER_KEY", "another");
        end(command.spawn().unwrap())
    }
}

#[test]
fn an_agent_needs_nothing_but_its_preset() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let data = world.at("tools/node_modules/package/data");
        let script = format!(r#"cat {data} && echo "$OPENAI_API_KEY.$OTHER_KEY $*""#);
        let programs = world.install("codex-acp", &script);
        let ended = world.run_in_path(&programs, &["--preset", "codex"]);
        assert_eq!(ended.code, 0, "{ended:?}");
        assert!(ended.stderr.contains("agent: its own data"), "{ended:?}");
        let said = "agent: the-key. -c sandbox_mode=\"danger-full-access\"";
        assert!(ended.stderr.contains(said), "{ended:?}");
        // The policy denies all connections, and there was no message that the preset allows them.
        assert!(ended.stderr.contains("the preset lets the agent connect to"), "{ended:?}");
        let facts = world.facts();
        assert_eq!(facts["preset"], "codex");
        assert_eq!(facts["agentNetwork"], "none", "{facts}");
        let hosts = facts["presetHosts"].as_array().unwrap();
        assert!(hosts.contains(&json!("api.openai.com:443")), "{facts}");
        let agents: Vec<_> = world.records().iter().map(|r| r["agent"].clone()).collect();
        assert!(agents.contains(&json!("codex")), "{agents:?}");
    }
}

/// The token of a package registry lies beside the programs, and a project beside its packages.
#[test]
fn a_preset_gave_all_that_lies_beside_the_program() {
    for who in users() {
        for (directory, program, private) in [
            ("home/.cargo/bin", "home/.cargo/bin/codex-acp", "home/.cargo/credentials.toml"),
            ("proj/node_modules/.bin", "proj/node_modules/x/codex-acp", "proj/.env"),
        ] {
            let world = SandboxWorld::new(who);
            let (directory, program) = (world.base().join(directory), world.base().join(program));
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::create_dir_all(program.parent().unwrap()).unwrap();
            std::fs::write(world.base().join(private), "token").unwrap();
            let script = format!("#!/bin/sh\ncat {} || echo nothing there\n", world.at(private));
            std::fs::write(&program, script).unwrap();
            set_mode(&program, 0o755);
            if !program.starts_with(&directory) {
                symlink("../x/codex-acp", directory.join("codex-acp")).unwrap();
            }
            world.give_away_if_root();
            let ended = world.run_in_path(directory.to_str().unwrap(), &["--preset", "codex"]);
            assert_eq!(ended.code, 0, "{ended:?}");
            assert!(ended.stderr.contains("agent: nothing there"), "{ended:?}");
            assert!(ended.stderr.contains("the preset `codex` lets the agent read"), "{ended:?}");
        }
    }
}

/// The directory of a virtual environment and of npm's programs is in `PATH` while an operator
/// works in a project. A link there, or one that leads there, determined which project the agent
/// could read.
#[test]
fn a_repository_chose_what_a_preset_lets_an_agent_read() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let of_agent = "home/.local/share/portcullis/homes/w/other/bin";
        for directory in ["other/bin", "other/lib", "ws/.bin", "ws/tools", "bin", of_agent] {
            std::fs::create_dir_all(world.base().join(directory)).unwrap();
        }
        let console = world.at("other/bin/console");
        for (name, text) in [
            ("other/bin/console", "#!/bin/sh\n"),
            ("other/lib/private", "private\n"),
            ("other/.env", "private\n"),
            ("other/pyvenv.cfg", ""),
            ("ws/tools/script", &*format!("#!{console}\n")),
        ] {
            std::fs::write(world.at(name), text).unwrap();
            set_mode(Path::new(&world.at(name)), 0o755);
        }
        for (says, name) in [
            ("../../other/bin/console", "ws/.bin/linked"),
            (&console, "ws/tools/global"),
            ("../ws/tools/global", "bin/global"),
            ("../ws/tools/script", "bin/script"),
            (&console, &*format!("{of_agent}/kept")),
        ] {
            symlink(says, world.at(name)).unwrap();
        }
        let installed = world.install("linked", "exit 0");
        let preset = "name = \"mine\"\ntitle = \"Mine\"\n\
            programs = [\"linked\", \"global\", \"script\", \"kept\"]\n";
        std::fs::write(world.at("mine.toml"), preset).unwrap();
        world.give_away_if_root();
        let directories = ["ws/.bin", "bin", of_agent].map(|name| world.at(name)).join(":");
        let run = |command: &[&str]| {
            let preset = world.at("mine.toml");
            let options = ["--preset", &preset, "--"];
            let path = format!("{directories}:{installed}");
            world.run_in_path(&path, &[&options, command].concat())
        };
        let ended = run(&[
            "/bin/sh",
            "-c",
            r#"cat "$@" 2>&1; exit 0"#,
            "sh",
            &world.at("other/.env"),
            &world.at("other/lib/private"),
            &world.at("tools/node_modules/package/data"),
        ]);
        assert_eq!(ended.code, 0, "{who:?} {ended:?}");
        assert!(!ended.stderr.contains("agent: private"), "{who:?} {ended:?}");
        assert!(ended.stderr.contains("agent: its own data"), "{who:?} {ended:?}");
        assert_eq!(ended.stderr.matches("skips a program").count(), 4, "{who:?} {ended:?}");
        // As the command itself none of them is started.
        for command in ["linked", "global", "script", "kept"] {
            let ended = run(&[command]);
            assert_eq!(ended.code, 1, "{who:?} {command} {ended:?}");
            assert!(!ended.stderr.contains("lets the agent read"), "{who:?} {command} {ended:?}");
        }
    }
}

/// Only the command itself was found, and a script could not start the agent.
#[test]
fn a_shell_did_not_find_the_agent_of_its_preset() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let programs = world.install("codex-acp", "echo it started");
        // By a link from elsewhere, too, as installers put it there.
        let bin = world.base().join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        symlink("../tools/node_modules/.bin/codex-acp", bin.join("codex-acp")).unwrap();
        for directory in [programs.as_str(), bin.to_str().unwrap()] {
            let command = ["--preset", "codex", "--", "/bin/sh", "-c", "codex-acp"];
            let ended = world.run_in_path(directory, &command);
            assert_eq!(ended.code, 0, "{ended:?}");
            assert!(ended.stderr.contains("agent: it started"), "{ended:?}");
        }
    }
}

#[test]
fn options_hold_besides_and_instead_of_a_preset() {
    let world = SandboxWorld::new(users()[0]);
    let programs = world.install("codex-acp", r#"echo "$OPENAI_API_KEY.$OTHER_KEY $*""#);
    let options = ["--preset", "codex", "--agent-network", "none", "--agent-env", "OTHER_KEY"];
    let variable = ["--agent-env", "OPENAI_API_KEY=mine", "--", "codex-acp", "x"];
    let ended = world.run_in_path(&programs, &[&options[..], &variable].concat());
    assert!(ended.stderr.contains("agent: mine.another x"), "{ended:?}");
    assert_eq!(world.facts()["agentNetwork"], "none");
    assert_eq!(world.facts().get("presetHosts"), None);
}

/// A weaker sandbox is asked for by name, never derived from a command.
#[test]
fn a_known_command_alone_gets_nothing() {
    let world = SandboxWorld::new(users()[0]);
    let programs = world.install("codex-acp", "exit 7");
    let ended = world.run_in_path(&programs, &["--", "codex-acp"]);
    assert_eq!(ended.code, 126, "{ended:?}");
    assert!(ended.stderr.contains("--preset codex"), "{ended:?}");
    assert!(ended.stderr.contains("does not show it its own program"), "{ended:?}");
}

#[test]
fn a_preset_is_a_file_that_no_agent_may_change() {
    let world = SandboxWorld::new(users()[0]);
    let text = "name = \"mine\"\ntitle = \"Mine\"\nacp = [\"/bin/true\"]\n";
    for (name, text, code) in [
        ("mine.toml", text, 0),
        ("ws/mine.toml", text, 1),
        ("wrong.toml", "name = \"mine\"\nnetwrk = []\n", 2),
        ("hosts.toml", &*format!("{text}hosts = [\"https://example.com\"]\n"), 2),
    ] {
        std::fs::write(world.base().join(name), text).unwrap();
        world.give_away_if_root();
        let ended = end(world.command(&["run", "--preset", &world.at(name)]).spawn().unwrap());
        assert_eq!(ended.code, code, "{name}: {ended:?}");
    }
    assert_eq!(world.facts()["preset"], "mine");
    for reference in ["none-such", "./none-such"] {
        let ended = end(world.command(&["run", "--preset", reference]).spawn().unwrap());
        assert_eq!(ended.code, 2, "{ended:?}");
    }
}

/// It hid what it gives, and set the clipboard.
#[test]
fn a_preset_wrote_to_the_operators_terminal() {
    let world = SandboxWorld::new(users()[0]);
    let text = r#"name = "mine"
        title = "Mine\u001b]52;c;YQ==\u0007"
        env = ["NAME\u001b[8m"]
        set = ["NAME=\u202evalue"]
        hostsFrom = ["URL\u001b[1A"]
        source = "\u001b[J"
        terminal = ["sh", "\u009b2A"]
        acp = ["\u001b[8m"]"#;
    std::fs::write(world.at("mine.toml"), text).unwrap();
    world.give_away_if_root();
    let ended = end(world.command(&["agents", &world.at("mine.toml")]).spawn().unwrap());
    assert_eq!(ended.code, 0, "{ended:?}");
    let is_hidden = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
    assert!(!ended.stdout.contains(is_hidden), "{ended:?}");
    assert!(ended.stdout.contains("--agent-env"), "{ended:?}");
}

#[test]
fn presets_are_listed() {
    let world = SandboxWorld::new(users()[0]);
    let listed = |args: &[&str]| {
        let ended = end(world.command(&[&["agents", "--json"], args].concat()).spawn().unwrap());
        assert_eq!(ended.code, 0, "{ended:?}");
        let value: Value = serde_json::from_str(&ended.stdout).unwrap();
        value["presets"].as_array().unwrap().clone()
    };
    let all = listed(&[]);
    assert!(all.len() >= 6, "{all:?}");
    for preset in all {
        let name = preset["name"].as_str().unwrap();
        assert_eq!(listed(&[name]), std::slice::from_ref(&preset));
    }
    let ended = end(world.command(&["agents", "opencode"]).spawn().unwrap());
    assert!(ended.stdout.contains("api.anthropic.com"), "{ended:?}");
    let ended = end(world.command(&["agents", "none-such"]).spawn().unwrap());
    assert_eq!(ended.code, 2, "{ended:?}");
}
