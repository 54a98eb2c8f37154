//! Directories that an agent may change contain nothing that the product trusts, now or at its next
//! start, and no name on the way to it.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use super::*;
use crate::common::World;

/// A place with directories and links, owned by the user that runs.
pub(super) fn world(directories: &[&str], links: &[(&str, &str)]) -> SandboxWorld {
    let world = SandboxWorld::new(users()[0]);
    for name in directories {
        std::fs::create_dir_all(world.base().join(name)).unwrap();
    }
    for (says, name) in links {
        symlink(says, world.base().join(name)).unwrap();
    }
    world
}

/// A policy that may be enforced.
fn put_policy(world: &SandboxWorld, name: &str) {
    std::fs::create_dir_all(world.base().join(name).parent().unwrap()).unwrap();
    std::fs::write(world.base().join(name), "schema = 1\nname = \"test\"\nversion = 1\n").unwrap();
}

/// Checks that `portcullis ARGS…` does not start, and that its error names `path`.
#[track_caller]
pub(super) fn refused(command: &mut Command, path: &Path) {
    let ended = end(command.spawn().unwrap());
    assert_eq!(ended.code, 1, "{ended:?}");
    let named = format!("`{}`", path.display());
    assert!(ended.stderr.contains(&named), "{named}: {ended:?}");
}

/// The commands: an agent in a sandbox, one call, an MCP client that is not confined.
fn transports<'a>(options: &[&'a str]) -> [Vec<&'a str>; 3] {
    let run = [&["run"], options, &["--", "/bin/true"]].concat();
    let fs = [&["fs", "ls"], options].concat();
    [run, fs, [&["mcp"], options].concat()]
}

#[track_caller]
pub(super) fn refused_at_every_transport(world: &SandboxWorld, options: &[&str], path: &str) {
    for command in transports(options) {
        refused(&mut world.command(&command), &world.base().join(path));
    }
}

#[track_caller]
pub(super) fn starts(world: &SandboxWorld, options: &[&str]) {
    let ended = world.run(options, &["/bin/true"]);
    assert_eq!(ended.code, 0, "{options:?}: {ended:?}");
}

/// An agent made it, and its `signer` ran at the next start.
#[test]
fn a_place_where_the_configuration_would_be_looked_for_is_no_agents() {
    let file = "home/.config/portcullis/portcullis.toml";
    for workspace in ["home/.config", "home/.config/portcullis", "home"] {
        let world = world(&[workspace, "other"], &[]);
        refused_at_every_transport(&world, &["--workspace", &world.at(workspace)], file);
        let (state, given) = (world.at("elsewhere"), world.at(workspace));
        let ended = world.run(&["--state", &state, "--agent-write", &given], &["/bin/true"]);
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(!world.base().join("elsewhere/audit").exists());
    }
    // The directory is a link, as it is for operators who keep such files in a repository.
    let world = world(&["dotfiles/config", "home"], &[("../dotfiles/config", "home/.config")]);
    refused_at_every_transport(&world, &["--workspace", &world.at("dotfiles")], file);
    let world = self::world(&["xdg", "home/work", "home/.config/tool"], &[]);
    for command in transports(&["--workspace", &world.at("xdg")]) {
        let mut command = world.command(&command);
        let file = world.base().join("xdg/portcullis/portcullis.toml");
        refused(command.env("XDG_CONFIG_HOME", world.base().join("xdg")), &file);
    }
    // Where there can be no such directory, nothing is trusted.
    std::fs::write(world.base().join("empty.toml"), "").unwrap();
    for home in ["/dev/null", "/nonexistent"] {
        let config = world.at("empty.toml");
        let mut list = world.command(&["fs", "ls", "--config", &config]);
        let listed = list.env("HOME", home).output().unwrap();
        assert_eq!(listed.status.code(), Some(0), "{listed:?}");
    }
    // Files beside it are not affected.
    for workspace in ["home/work", "home/.config/tool"] {
        let state = world.at(&format!("state-{}", workspace.replace('/', "-")));
        starts(&world, &["--workspace", &world.at(workspace), "--state", &state]);
    }
}

/// The same for state and homes: a later start trusts what it finds there.
#[test]
fn places_of_other_workspaces_states_and_homes_are_no_agents() {
    for name in ["home/.local/state", "home/.local/state/portcullis/x-0123456789abcdef/ws"] {
        let world = world(&[name], &[]);
        refused_at_every_transport(
            &world,
            &["--workspace", &world.at(name)],
            "home/.local/state/portcullis",
        );
    }
    for name in ["home/.local/share", "home/.local/share/portcullis/homes/x-01/agent/ws"] {
        let world = world(&[name], &[]);
        refused_at_every_transport(
            &world,
            &["--workspace", &world.at(name)],
            "home/.local/share/portcullis/homes",
        );
    }
}

/// The agent exchanged the link for another one of the repository, and the next
/// start gave it `~/.ssh`.
#[test]
fn a_grant_named_through_the_workspace_is_refused() {
    let links = [
        ("../tools", "ws/result"),
        ("ws/result", "outer"),
        ("tools", "plain"),
        ("../tools/deep/..", "ws/up"),
    ];
    let world = world(&["tools/deep", "ws/sub", "cache"], &links);
    for name in ["ws/result", "outer", "ws/sub/../../tools", "ws/result/deep", "ws/up"] {
        for option in ["--agent-read", "--agent-write"] {
            let ended = world.run(&[option, &world.at(name)], &["/bin/true"]);
            assert_eq!(ended.code, 1, "{option} {name}: {ended:?}");
            assert!(ended.stderr.contains(&format!("`{}`", world.at(name))), "{ended:?}");
        }
    }
    starts(&world, &["--agent-read", &world.at("plain"), "--agent-write", &world.at("cache")]);
    starts(&world, &["--agent-write", &world.at("ws/../plain")]);
    // A policy's own grants.
    let text = format!(
        "schema = 1\nname = \"t\"\nversion = 2\n[agent]\nread = [\"{}\"]\n",
        world.at("ws/result")
    );
    std::fs::write(world.base().join("policies/grants.toml"), text).unwrap();
    let ended = world.run(&["--policy", &world.at("policies/grants.toml")], &["/bin/true"]);
    assert_eq!(ended.code, 1, "{ended:?}");
}

#[test]
fn a_home_named_through_the_workspace_is_refused() {
    let world = world(&["data"], &[("../data", "ws/data")]);
    let mut command = world.command(&["run", "--", "/bin/true"]);
    command.env("XDG_DATA_HOME", world.base().join("ws/data"));
    let ended = end(command.spawn().unwrap());
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(!world.base().join("data/portcullis").exists());
}

/// Only the last name of the path was looked at.
#[test]
fn policy_configuration_and_state_named_through_a_directory_link_are_refused() {
    let world = world(&["real/sub", "ws/deep", "cache"], &[]);
    put_policy(&world, "real/sub/p.toml");
    std::fs::write(world.base().join("real/sub/portcullis.toml"), "").unwrap();
    symlink("../real", world.base().join("ws/link")).unwrap();
    symlink("../ws/link", world.base().join("cache/outer")).unwrap();
    for through in ["ws/link", "cache/outer", "ws/deep/../../real"] {
        let at = |name: &str| world.at(&format!("{through}/{name}"));
        for (option, name) in [
            ("--policy", "sub/p.toml"),
            ("--config", "sub/portcullis.toml"),
            ("--state", "sub/state/not/yet"),
        ] {
            refused_at_every_transport(&world, &[option, &at(name)], &format!("{through}/{name}"));
        }
        assert!(!world.base().join("real/sub/state").exists());
    }
    let real = |name: &str| world.at(&format!("real/{name}"));
    starts(&world, &["--policy", &real("sub/p.toml"), "--config", &real("sub/portcullis.toml")]);
    // In a directory that the agent may write it is as bad.
    symlink("../real", world.base().join("cache/link")).unwrap();
    let write = ["--agent-write", &world.at("cache")];
    for (option, name) in [
        ("--policy", "cache/link/sub/p.toml"),
        ("--config", "cache/link/sub/portcullis.toml"),
        ("--state", "cache/link/sub/state"),
    ] {
        let named = world.at(name);
        let options = [&["run", option, &named][..], &write, &["--", "/bin/true"]].concat();
        refused(&mut world.command(&options), Path::new(&named));
    }
}

/// A file that a policy extends is named by the policy.
#[test]
fn a_policy_that_extends_through_the_workspace_is_refused() {
    let world = world(&["real"], &[("../real", "ws/link")]);
    put_policy(&world, "real/base.toml");
    let text = "schema = 1\nname = \"t\"\nversion = 1\nextends = [\"../ws/link/base.toml\"]\n";
    std::fs::write(world.base().join("policies/policy.toml"), text).unwrap();
    let policy = world.at("policies/policy.toml");
    for command in transports(&["--policy", &policy]) {
        let ended = end(world.command(&command).spawn().unwrap());
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(ended.stderr.contains("ws/link/base.toml`"), "{ended:?}");
    }
}

/// The agent chose which directory it got next.
#[test]
fn a_workspace_named_through_itself_or_a_grant_is_refused() {
    let links = [("..", "ws/p/up"), ("../work", "cache/link")];
    let world = world(&["ws/p", "cache", "work"], &[]);
    for (says, name) in links {
        symlink(says, world.base().join(name)).unwrap();
    }
    for command in transports(&["--workspace", &world.at("ws/p/up/p")]) {
        refused(&mut world.command(&command), Path::new(&world.at("ws/p/up/p")));
    }
    let workspace = world.at("cache/link");
    let options = ["--workspace", &workspace, "--agent-write", &world.at("cache")];
    assert_eq!(world.run(&options, &["/bin/true"]).code, 1);
    starts(&world, &["--workspace", &workspace]);
}

/// A copy of the program, which every user may execute.
fn program(world: &SandboxWorld, directory: &str) -> PathBuf {
    let directory = world.base().join(directory);
    std::fs::create_dir_all(&directory).unwrap();
    let copy = directory.join("portcullis");
    copy_program(env!("CARGO_BIN_EXE_portcullis"), &copy);
    for above in [world.base(), &directory, directory.parent().unwrap()] {
        set_mode(above, 0o755);
    }
    copy
}

/// The same command as that of a place, by another program.
fn by(program: &Path, world: &SandboxWorld, args: &[&str]) -> Command {
    let inner = world.command(args);
    let mut command = Command::new(program);
    command.args(args).env_clear();
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The agent replaced it, and the operator started what it had put there.
#[test]
fn the_products_own_program_lies_where_no_agent_may_change_it() {
    let world = world(&[], &[]);
    let inside = program(&world, "ws/bin");
    for command in transports(&[]) {
        refused(&mut by(&inside, &world, &command), &inside);
    }
    // A link to it is as good.
    let installed = program(&world, "cargo/bin");
    std::fs::remove_file(&inside).unwrap();
    symlink(&installed, &inside).unwrap();
    for command in transports(&[]) {
        refused(&mut by(&inside, &world, &command), &inside);
    }
    let found = by(Path::new("sh"), &world, &["-c", "exec portcullis fs ls"])
        .env("PATH", format!("{}:/usr/bin:/bin", inside.parent().unwrap().display()))
        .output()
        .unwrap();
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    let run = |option: &str, given: &str| {
        let given = world.at(given);
        let args = ["run", option, &given, "--", "/bin/true"];
        end(by(&installed, &world, &args).spawn().unwrap())
    };
    for given in ["cargo", "cargo/bin", "cargo/bin/portcullis"] {
        let ended = run("--agent-write", given);
        assert_eq!(ended.code, 1, "{ended:?}");
        let ended = run("--agent-read", given);
        assert_eq!(ended.code, 0, "{given}: {ended:?}");
    }
}

/// Mounts hide where a directory really lies.
#[test]
fn a_grant_named_through_a_mount_of_the_workspace_is_refused() {
    let world = world(&["tools", "mounted"], &[("../tools", "ws/result")]);
    let grant = world.at("mounted/result");
    let inner = world.command(&["run", "--agent-read", &grant, "--", "/bin/true"]);
    let script = "mount --bind \"$0/ws\" \"$0/mounted\" && exec \"$@\"";
    let ended =
        wrapped("unshare", &["--mount", "--map-root-user", "sh", "-c", script], &world, &inner);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains(&format!("`{grant}`")), "{ended:?}");
}

/// Its key file, whose holder's signatures count, and the directory for copies
/// were forgotten unless they were there.
#[test]
fn files_that_the_configuration_names_lie_where_no_agent_may_change_them() {
    let world = world(&["tools"], &[]);
    let key = "example.com/log-1+8b4c54b3+AYqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c";
    for name in ["ws/log.vkey", "tools/log.vkey"] {
        std::fs::write(world.base().join(name), key).unwrap();
    }
    symlink("/usr/bin/cat", world.base().join("ws/sign")).unwrap();
    let config = world.at("portcullis.toml");
    for (text, path) in [
        ("ship = [{ to = 'BASE/ws/copies' }]".to_owned(), "ws/copies"),
        ("signer = ['/bin/cat']\npublicKey = 'BASE/ws/log.vkey'".to_owned(), "ws/log.vkey"),
        (format!("signer = ['BASE/ws/sign']\npublicKey = '{key}'"), "ws/sign"),
        (format!("signer = ['/bin/cat', 'BASE/ws/none']\npublicKey = '{key}'"), "ws/none"),
        (format!("signer = ['/bin/cat', '--in=BASE/ws/x']\npublicKey = '{key}'"), "ws/x"),
        (format!("signer = ['/bin/cat', '-kBASE/ws/x']\npublicKey = '{key}'"), "ws/x"),
        (format!("signer = ['/bin/cat', '--key=x=BASE/ws/x']\npublicKey = '{key}'"), "ws/x"),
        (format!("signer = ['/bin/cat', 'file://BASE/ws/x']\npublicKey = '{key}'"), "ws/x"),
    ] {
        let text = text.replace("BASE", world.base().to_str().unwrap());
        std::fs::write(&config, format!("[audit]\n{text}\n")).unwrap();
        refused_at_every_transport(&world, &["--config", &config], path);
    }
}

/// Its key could be granted for reading like its program.
#[test]
fn of_a_signer_an_agent_may_read_the_program_only() {
    let world = world(&["tools", "keys"], &[]);
    let config = world.at("portcullis.toml");
    let key = "example.com/log-1+8b4c54b3+AYqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c";
    for argument in ["BASE/keys/log.key", "-kBASE/keys/log.key", "file://BASE/keys/log.key"] {
        let text = format!("signer = ['BASE/tools/sign', '{argument}']\npublicKey = '{key}'");
        let text = text.replace("BASE", world.base().to_str().unwrap());
        std::fs::write(&config, format!("[audit]\n{text}\n")).unwrap();
        let with = |granted: &str| world.run(&["--config", &config, granted], &["/bin/true"]);
        let ended = with(&format!("--agent-read={}", world.at("keys")));
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(ended.stderr.contains(&format!("`{}`", world.at("keys/log.key"))), "{ended:?}");
        let ended = with(&format!("--agent-read={}", world.at("tools")));
        assert_eq!(ended.code, 0, "{ended:?}");
    }
}

/// The agent had made another name of its draft, and changed by it what the operator
/// had moved and put in force.
#[test]
fn a_trusted_file_with_another_name_is_refused_until_it_is_copied() {
    for who in users() {
        let world = SandboxWorld::new(who);
        std::fs::create_dir(world.base().join("drafts")).unwrap();
        put_policy(&world, "drafts/proposal.toml");
        let (drafts, policy) = (world.base().join("drafts"), world.at("policies/p.toml"));
        std::fs::hard_link(drafts.join("proposal.toml"), drafts.join(".keep")).unwrap();
        std::fs::rename(drafts.join("proposal.toml"), &policy).unwrap();
        let given = ["--policy", &policy, "--agent-write", drafts.to_str().unwrap()];
        if who == users()[0] {
            refused_at_every_transport(&world, &given[..2], "policies/p.toml");
            let ended = world.run(&given, &["/bin/true"]);
            assert!(ended.code == 1 && ended.stderr.contains("hard link"), "{ended:?}");
            std::fs::copy(&policy, format!("{policy}.copy")).unwrap();
            std::fs::rename(format!("{policy}.copy"), &policy).unwrap();
            starts(&world, &given);
        } else {
            // Of another user, as the files of a package are.
            starts(&world, &given[..2]);
        }
    }
}

/// A copy of the state directory had links in place of files, and lay where an agent could read: it
/// had the key that signs the log.
#[test]
fn a_file_of_the_state_directory_with_another_name_is_refused_where_an_agent_reaches_it() {
    let world = world(&["copy", "empty"], &[]);
    let options = ["--agent-read", &world.at("copy")];
    starts(&world, &options);
    let state = world.base().join("state");
    let entries = ["keys", "audit"].map(|name| std::fs::read_dir(state.join(name)).unwrap());
    let mut files: Vec<_> = entries.into_iter().flatten().map(|e| e.unwrap().path()).collect();
    files.retain(|file| file.is_file());
    assert!(files.len() >= 2, "{files:?}");
    for own in files {
        let (file, other) = (own.to_str().unwrap(), world.base().join("copy/other"));
        std::fs::hard_link(&own, &other).unwrap();
        for grant in ["--agent-read", "--agent-write"] {
            let ended = world.run(&[grant, &world.at("copy")], &["/bin/true"]);
            assert_eq!(ended.code, 1, "{file} {ended:?}");
            assert!(ended.stderr.contains(file), "{file} {ended:?}");
        }
        let ended = world.run(&[], &["/bin/true"]);
        assert_eq!(ended.code, 1, "the workspace is on the same file system: {ended:?}");
        std::fs::remove_file(&other).unwrap();
        starts(&world, &options);
    }
}

/// `run` examined workspace and state first, and made directories that it then refused; as root at
/// a path of the agent's choice.
#[test]
fn a_start_that_is_refused_for_a_grant_has_made_nothing() {
    let world = world(&["cache", "victim"], &[("../victim", "cache/link")]);
    let grant = world.at("cache");
    for state in ["cache/state", "cache/link/state"] {
        let (state_option, command) = (world.at(state), "/bin/true");
        let args = ["run", "--state", &state_option, "--agent-write", &grant, "--", command];
        refused(&mut world.command(&args), &world.base().join(state));
        assert!(!world.base().join(state).exists(), "{state}");
    }
    assert_eq!(std::fs::read_dir(world.base().join("victim")).unwrap().count(), 0);
}

/// Only `run` looked at what the policy lets an agent write.
#[test]
fn a_state_directory_in_a_grant_of_the_policy_or_among_homes_is_refused_by_every_command() {
    let world = world(&["cache", "home/.local/share/portcullis/homes/ws/agent"], &[]);
    let policy = format!("schema = 1\n[agent]\nwrite = [\"{}\"]\n", world.at("cache"));
    std::fs::write(world.base().join("policy.toml"), policy).unwrap();
    let policy = world.at("policy.toml");
    let state = world.at("cache/state");
    refused_at_every_transport(&world, &["--policy", &policy, "--state", &state], "cache/state");
    let home = "home/.local/share/portcullis/homes/ws/agent/state";
    refused_at_every_transport(&world, &["--state", &world.at(home)], home);
}

/// They read a log, and a configuration with the keys of witnesses, that an agent had chosen.
#[test]
fn commands_that_read_refuse_a_state_directory_that_an_agent_could_choose() {
    let world = world(&["real", "out"], &[("../real", "ws/link")]);
    std::fs::write(world.base().join("ws/a.txt"), "a").unwrap();
    let (good, bad) = (world.at("real/state"), world.at("ws/link/state"));
    let (workspace, report) = (world.at("ws"), world.at("out/report.json"));
    let receipts = world.at("out/receipts");
    let own = |args: &[&str], state: &str| {
        let options = ["--workspace", &workspace, "--state", state];
        world.command(&[args, &options].concat()).output().unwrap()
    };
    let read = own(&["fs", "read", "a.txt"], &good);
    assert_eq!(read.status.code(), Some(0), "{read:?}");
    std::fs::write(&receipts, &read.stderr).unwrap();
    let signed = own(&["audit", "checkpoint"], &good);
    assert_eq!(signed.status.code(), Some(0), "{signed:?}");
    let bundle = world.at("out/bundle.zip");
    for args in [
        &["audit", "verify"][..],
        &["audit", "verify", "--policies"],
        &["audit", "key"],
        &["audit", "show"],
        &["audit", "query"],
        &["audit", "blame", "a.txt"],
        &["audit", "session"],
        &["audit", "report", "-o", &report],
        &["audit", "export", "--format", "csv"],
        &["audit", "bundle", "-o", &bundle],
        &["audit", "prove", "0"],
        &["audit", "check-receipts", &receipts],
        &["backup", "list"],
        &["backup", "verify"],
        &["policy", "replay", "default"],
        &["policy", "explain", "--record", "1"],
        &["policy", "learn"],
        &["policy", "diff", "default", "strict", "--log"],
    ] {
        let done = own(args, &good);
        assert_eq!(done.status.code(), Some(0), "{args:?}: {done:?}");
        let done = own(args, &bad);
        assert_eq!(done.status.code(), Some(1), "{args:?}: {done:?}");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(said.contains(&format!("`{bad}`")), "{args:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
    // The command needs no owner, and trusts only the log itself.
    let log = format!("{bad}/audit");
    let done = world.command(&["audit", "verify", "--dir", &log]).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    // The keys of witnesses stand in the configuration.
    std::fs::write(world.base().join("real/portcullis.toml"), "").unwrap();
    let config = world.at("ws/link/portcullis.toml");
    let done = own(&["audit", "verify", "--config", &config], &good);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
}

/// Regression: the state directory was made before the start with an agent's preset was refused.
#[test]
fn a_refused_preset_made_a_state_directory() {
    let world = World::new();
    let preset =
        world.file("preset.toml", "name = \"mine\"\ntitle = \"mine\"\nprograms = [\"true\"]\n");
    let refused = world.run(&["run", "--preset", preset.to_str().unwrap(), "--", "/bin/true"]);
    assert!(refused.code == 1 && refused.stderr.contains("preset.toml`"), "{refused:?}");
    assert!(!world.state().exists(), "{refused:?}");
}
