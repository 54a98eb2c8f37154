//! An agent that may change its own program names a needed file in its first line.

use super::*;

const NEVER: &str = "the agent ran";

/// A place whose `tools` the agent may change, and whose log has a start already.
fn world(who: As) -> SandboxWorld {
    let world = SandboxWorld::new(who);
    for name in ["tools", "own", "private-4711"] {
        std::fs::create_dir(world.base().join(name)).unwrap();
    }
    std::os::unix::fs::symlink("private-4711", world.base().join("current")).unwrap();
    std::fs::create_dir(world.base().join("ws/there")).unwrap();
    if is_root() && who != As::Root {
        world.give_away();
    }
    set_mode(&world.base().join("tools"), 0o777);
    assert_eq!(start(&world, "/bin/true").code, 0);
    world
}

fn start(world: &SandboxWorld, agent: &str) -> AgentOutput {
    let (tools, own) = (world.at("tools"), world.at("own"));
    let options = ["--allow-partial", "--agent-write", &tools, "--agent-read", &own];
    let mut command = world.command(&[&["run"], &options[..], &["--", agent]].concat());
    command.env("PATH", format!("{tools}:/usr/bin:/bin"));
    end(command.spawn().unwrap())
}

fn script(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    set_mode(path, 0o755);
}

/// A link in `/proc` was to be made in the sandbox. That failed, which counted as
/// namespaces that the machine forbids.
#[test]
fn a_first_line_made_the_next_start_partial() {
    for who in users() {
        let world = world(who);
        let (agent, own) = (world.base().join("tools/agent"), world.base().join("own/agent"));
        script(&own, "#!/usr/bin/env tool\n");
        let plain = "#!/proc/self/root/usr/bin/env sh\n".to_owned();
        let named = format!("#!{} /proc/self/root/usr/bin/env\n", world.at("tools/env"));
        script(&world.base().join("tools/env"), "#!/bin/sh\n");
        for line in [plain, named] {
            script(&agent, &line);
            start(&world, agent.to_str().unwrap());
            script(&world.base().join("tools/tool"), &line);
            start(&world, own.to_str().unwrap());
        }
        let records = world.records();
        let facts = records.iter().filter_map(|record| record["facts"].get("enforcement"));
        let enforcement: Vec<_> = facts.collect();
        assert!(!enforcement.is_empty());
        assert!(enforcement.iter().all(|word| *word == "full"), "{who:?} {enforcement:?}");
    }
}

/// A link on the way to the file that the agent named was made again in its sandbox, with its
/// target.
#[test]
fn a_first_line_showed_what_links_of_the_host_say() {
    for who in users() {
        let world = world(who);
        let up = "../".repeat(12);
        let looks = format!("#!/bin/sh\nreadlink {} >&2\nexit 0\n", world.at("current"));
        script(&world.base().join("tools/env"), &looks);
        let agent = world.base().join("tools/agent");
        for name in ["current", "ws/there", "ws/missing"] {
            let line = format!("#!{} {}/{up}usr/bin/true\n", world.at("tools/env"), world.at(name));
            script(&agent, &line);
            let ended = start(&world, agent.to_str().unwrap());
            assert_eq!(ended.code, 0, "{who:?} {name} {ended:?}");
            assert!(!ended.stderr.contains("private-4711"), "{who:?} {name} {ended:?}");
        }
    }
}

/// A first line disclosed whether a directory exists, by the error of the start.
#[test]
fn a_first_line_told_what_is_there() {
    for who in users() {
        let world = world(who);
        let up = "../".repeat(12);
        let agent = world.base().join("tools/agent");
        let told = |name: &str| {
            script(&agent, &format!("#!{}/{up}bin/echo {NEVER}\n", world.at(name)));
            let ended = start(&world, agent.to_str().unwrap());
            assert_eq!(ended.code, 126, "{who:?} {name} {ended:?}");
            ended.stderr.replace(name, "NAME")
        };
        assert_eq!(told("ws/there"), told("ws/missing"), "{who:?}");
        // Also by a link that the agent puts in the place of its program.
        let linked = |name: &str| {
            std::fs::remove_file(&agent).unwrap();
            let target = format!("{}/{up}bin/true", world.at(name));
            std::os::unix::fs::symlink(target, &agent).unwrap();
            let ended = start(&world, agent.to_str().unwrap());
            assert_eq!(ended.code, 126, "{who:?} {name} {ended:?}");
            ended.stderr.replace(name, "NAME")
        };
        assert_eq!(linked("ws/there"), linked("ws/missing"), "{who:?}");
    }
}

/// The programs that a self-updating agent may have still start.
#[test]
fn an_agent_that_may_change_its_program_starts() {
    for who in users() {
        let world = world(who);
        let agent = world.base().join("tools/agent");
        for line in ["#!/bin/sh\nexit 7\n", "#!/usr/bin/env sh\nexit 7\n"] {
            std::fs::create_dir_all(world.base().join("tools/lib")).unwrap();
            script(&world.base().join("tools/lib/agent"), line);
            let _ = std::fs::remove_file(&agent);
            std::os::unix::fs::symlink("lib/agent", &agent).unwrap();
            let ended = start(&world, agent.to_str().unwrap());
            assert_eq!(ended.code, 7, "{who:?} {line} {ended:?}");
        }
    }
}
