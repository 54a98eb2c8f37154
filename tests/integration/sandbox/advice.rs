//! Advice of a start that was refused or ended early.

use super::*;

/// The printed options named other paths when they were pasted.
#[test]
fn printed_options_quoted_no_path() {
    let world = SandboxWorld::new(users()[0]);
    let script = world.at("my tool/bin/agent");
    std::fs::create_dir_all(Path::new(&script).parent().unwrap()).unwrap();
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    set_mode(Path::new(&script), 0o755);
    let ended = world.run(&[], &[&script]);
    let option = format!("`--agent-read '{script}'`");
    assert!(ended.code == 126 && ended.stderr.contains(&option), "{ended:?}");
    let ended = world.run(&[], &["/bin/sh", "-c", "exit 1", &script]);
    assert!(ended.stderr.contains(&option), "{ended:?}");
    let hooks = world.at("home/.claude/my hooks");
    std::fs::create_dir_all(&hooks).unwrap();
    let ended = world.run(&["--agent-write", &hooks], &["/bin/true"]);
    let option = format!("`--accept-agent-config '{hooks}'`");
    assert!(ended.code == 1 && ended.stderr.contains(&option), "{ended:?}");
}

/// The advice was to let the agent read the directory, with all other keys in it.
#[test]
fn the_advice_about_one_file_gave_all_files_beside_it() {
    let world = SandboxWorld::new(users()[0]);
    std::fs::create_dir(world.base().join("keys")).unwrap();
    let (named, beside) = (world.at("keys/named"), world.at("keys/beside"));
    for (key, text) in [(&named, "of named\n"), (&beside, "of beside\n")] {
        std::fs::write(key, text).unwrap();
        set_mode(Path::new(key), 0o644);
    }
    let ended = world.run(&[], &["/bin/cat", &named]);
    let advice: Vec<_> = ended.stderr.split("`--agent-read ").skip(1).collect();
    let advice: Vec<_> = advice.iter().filter_map(|text| Some(text.split_once('`')?.0)).collect();
    assert_eq!(advice, [&named], "{ended:?}");
    let ended = world.run(&["--agent-read", &named], &["/bin/cat", &named, &beside]);
    assert!(ended.code == 1 && !ended.stdout.contains("of beside"), "{ended:?}");
    // A script to execute is a file as well.
    let script = world.at("keys/script");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    set_mode(Path::new(&script), 0o755);
    let ended = world.run(&[], &[&script]);
    assert_eq!(ended.code, 126, "{ended:?}");
    assert!(ended.stderr.contains(&format!("`--agent-read {script}`")), "{ended:?}");
}

/// The advice was to let the agent read all of a project or prefix, with its `.env` and tokens.
#[test]
fn the_advice_about_a_program_gave_the_project_around_it() {
    let world = SandboxWorld::new(users()[0]);
    let file = |path: &str, text: &str| {
        let path = world.at(path);
        std::fs::create_dir_all(Path::new(&path).parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        set_mode(Path::new(&path), 0o755);
        path
    };
    let link = |target: &str, name: &str| {
        let name = world.at(name);
        std::fs::create_dir_all(Path::new(&name).parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, &name).unwrap();
        name
    };
    let run = |prefix: &str, beside: &str| {
        let secret = world.at(&format!("{prefix}/.env"));
        format!("#!/bin/sh\ncat {beside} && ! cat {secret}\n")
    };
    for (prefix, packages) in [("app", "app/node_modules"), ("npm", "npm/lib/node_modules")] {
        let sibling = file(&format!("{packages}/@scope/agent-linux/data"), "data\n");
        file(&format!("{packages}/@scope/agent/cli"), &run(prefix, &sibling));
    }
    let library = file("tool/lib/data", "data\n");
    let installed = [
        ("app", link("../@scope/agent/cli", "app/node_modules/.bin/agent")),
        ("npm", link("../lib/node_modules/@scope/agent/cli", "npm/bin/agent")),
        ("tool", file("tool/bin/agent", &run("tool", &library))),
        ("cargo", file("cargo/bin/agent", &run("cargo", "/dev/null"))),
    ];
    for (prefix, program) in installed {
        file(&format!("{prefix}/.env"), "secret\n");
        let ended = world.run(&[], &[&program]);
        assert_eq!(ended.code, 126, "{ended:?}");
        let advice = ended.stderr.split("`--agent-read ").nth(1).unwrap();
        let paths = advice.split_once('`').unwrap().0.split(" --agent-read ");
        let options: Vec<_> = paths.flat_map(|path| ["--agent-read", path]).collect();
        let ended = world.run(&options, &[&program]);
        assert_eq!(ended.code, 0, "{options:?}: {ended:?}");
    }
}
