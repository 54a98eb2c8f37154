//! Keys of the machine beside the certificates that every agent gets.

use super::*;

/// `portcullis run` as root of a user namespace with one user, as in many containers,
/// where `/etc/ssl` is a directory of our own.
fn run(world: &SandboxWorld, before: &str, options: &[&str]) -> AgentOutput {
    let look = "cat /etc/ssl/certs/a.pem /etc/ssl/private/machine.key /etc/ssl/other/b.pem >&2; \
        touch /etc/ssl/private/new && echo made >&2; exit 0";
    let inner = world.command(&[&["run"], options, &["--", "/bin/sh", "-c", look]].concat());
    let script = format!("mount --bind \"$0/ssl\" /etc/ssl && {{ {before}; }} && exec \"$@\"");
    let ended = wrapped("unshare", &["-Urm", "sh", "-c", &script], world, &inner);
    assert_eq!(ended.code, 0, "{ended:?}");
    ended
}

/// A user that is root for the kernel, or in the keys' group, read them.
#[test]
fn an_agent_that_was_roots_own_user_read_the_machines_private_keys() {
    if !is_root() {
        return;
    }
    let without = "echo 0 >/proc/sys/user/max_user_namespaces";
    for (before, options) in [("true", &[][..]), (without, &["--allow-partial"])] {
        let world = SandboxWorld::new(As::Root);
        for name in ["ssl", "ssl/certs", "ssl/private", "ssl/other"] {
            std::fs::create_dir(world.base().join(name)).unwrap();
        }
        for (name, text) in [
            ("certs/a.pem", "CERTIFICATE"),
            ("private/machine.key", "SECRET"),
            ("other/b.pem", "OTHER"),
        ] {
            std::fs::write(world.base().join("ssl").join(name), text.to_owned() + "\n").unwrap();
        }
        set_mode(&world.base().join("ssl/private/machine.key"), 0o600);
        let ended = run(&world, before, options);
        assert!(ended.stderr.contains("agent: CERTIFICATE"), "{ended:?}");
        assert!(ended.stderr.contains("agent: OTHER"), "{ended:?}");
        assert!(!ended.stderr.contains("SECRET"), "{ended:?}");
        assert!(!world.base().join("ssl/private/new").exists());
        let gaps = world.facts()["gaps"].to_string();
        // Only for a partial sandbox did the record state that.
        assert!(gaps.contains("stays root"), "{gaps}");

        // An operator who names them grants them.
        let named = [options, &["--agent-read", "/etc/ssl/private"]].concat();
        let ended = run(&world, before, &named);
        assert!(ended.stderr.contains("agent: SECRET"), "{ended:?}");
    }
}

/// The directory of the machine's certificates, which every agent gets, overlapped the key.
#[test]
fn a_service_whose_key_lies_among_the_machines_kept_agents_from_starting() {
    let world = SandboxWorld::new(users()[0]);
    for name in ["ssl", "ssl/private", "served"] {
        std::fs::create_dir(world.base().join(name)).unwrap();
    }
    let hash = "0".repeat(64);
    for (key, code) in [("/etc/ssl/private/s.key", 0), ("/etc/ssl/s.key", 1)] {
        let config = format!(
            "[serve]\ntls = {{ certificate = \"/etc/ssl/s.pem\", key = \"{key}\" }}\n\
             [[workspaces]]\nname = \"shop\"\nroot = \"{}\"\n\
             [[agents]]\nname = \"ci\"\ntokenHash = \"sha256:{hash}\"\nworkspaces = [\"shop\"]\n",
            world.base().join("served").display()
        );
        std::fs::write(world.base().join("serve.toml"), config).unwrap();
        let inner = world.command(&["run", "--config", &world.at("serve.toml"), "--", "/bin/true"]);
        let script = "mount --bind \"$0/ssl\" /etc/ssl && exec \"$@\"";
        let ended = wrapped("unshare", &["-Urm", "sh", "-c", script], &world, &inner);
        assert_eq!(ended.code, code, "{key}: {ended:?}");
    }
}
