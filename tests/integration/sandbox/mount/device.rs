//! Machines on which a mount is not possible.

use super::*;

/// Leaves everything in `/dev` that a sandbox needs but FUSE's device.
const NO_DEVICE: &str = r#"mkdir -p "$0/dev" && cd "$0/dev" && for d in null zero full random urandom tty; do
        touch $d && mount --bind /dev/$d $d || exit 9; done &&
    mkdir -p pts shm && mount --bind /dev/pts pts && mount --bind /dev/shm shm &&
    ln -sfn /proc/self/fd fd && mount --rbind "$0/dev" /dev && cd / && exec "$@""#;

/// A device that others may not open.
const CLOSED_DEVICE: &str = r#"rm -f "$0/fuse" && mknod "$0/fuse" c 10 229 && chmod 0600 "$0/fuse" &&
    mount --bind "$0/fuse" /dev/fuse && exec "$@""#;

#[track_caller]
fn refused(world: &SandboxWorld, script: &str, words: &[&str]) {
    let (run, exec) = (["run", "--mount"], ["exec"]);
    for (command, leave_out) in [(&run[..], true), (&exec[..], false)] {
        let marked = ["--", "sh", "-c", "echo ran >&2"];
        let child = world.limited_after(script, &[command, &marked].concat()).spawn().unwrap();
        let ended = end(child);
        assert_eq!(ended.code, 1, "{ended:?}");
        for word in words {
            assert!(ended.stderr.contains(word), "{word}: {ended:?}");
        }
        assert_eq!(ended.stderr.contains("leave `--mount` out"), leave_out, "{ended:?}");
        assert!(!ended.stderr.contains("ran\n"), "{ended:?}");
        let log = world.base().join("state/audit");
        assert!(!log.exists() || world.records().is_empty(), "{ended:?}");
    }
    world.untouched();
    // Where none is required, a message names that, and the agent runs.
    let marked = ["run", "--", "sh", "-c", "ls -A >&2; echo ran >&2"];
    let ended = end(world.limited_after(script, &marked).spawn().unwrap());
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(
        ended.stderr.contains("agent: ran\n") && !ended.stderr.contains("file.txt"),
        "{ended:?}"
    );
    let note = "note: the agent's programs do not see the workspace as files: ";
    for word in words.iter().chain([&note, &"leave it out with `--no-mount`"]) {
        assert!(ended.stderr.contains(word), "{word}: {ended:?}");
    }
    let facts = world.facts();
    assert!(facts["mountUnavailable"].as_str().unwrap().contains("/dev/fuse"), "{facts}");
    assert_eq!((&facts["enforcement"], &facts["mount"]), (&"full".into(), &Value::Null));
}

impl SandboxWorld {
    fn doctor(&self, script: &str) -> Value {
        let ended = end(self.limited_after(script, &["doctor", "--json"]).spawn().unwrap());
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == "mount").unwrap().clone()
    }
}

#[test]
fn without_a_device_there_is_a_message() {
    if !is_root() {
        return;
    }
    for who in users() {
        let world = SandboxWorld::new(who);
        refused(&world, NO_DEVICE, &["this machine has no `/dev/fuse`", "modprobe fuse"]);
    }
    let mount = SandboxWorld::new(As::User).doctor(NO_DEVICE);
    assert_eq!((&mount["status"], &mount["facts"]["possible"]), (&"warning".into(), &false.into()));
    assert!(mount["help"].as_str().unwrap().contains("modprobe fuse"));
}

#[test]
fn a_device_that_may_not_be_opened_is_told_with_its_mode() {
    if !is_root() {
        return;
    }
    let world = SandboxWorld::new(As::User);
    refused(&world, CLOSED_DEVICE, &["of mode 0600, cannot be opened", "chmod 0666 /dev/fuse"]);
    let mount = SandboxWorld::new(As::User).doctor(CLOSED_DEVICE);
    assert_eq!(mount["facts"]["possible"], false);
}

#[test]
fn without_namespaces_there_is_no_mount() {
    let world = SandboxWorld::new(As::UserWithoutNamespaces);
    let script = if is_root() { OPEN_DEVICE } else { r#"exec "$@""# };
    let args = ["run", "--mount", "--allow-partial", "--", "sh", "-c", "true"];
    let ended = end(world.limited_after(script, &args).spawn().unwrap());
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("there is no user namespace to mount in"), "{ended:?}");
    assert!(ended.stderr.contains("leave `--mount` out"), "{ended:?}");
}

/// The host's root needs no namespaces for its sandbox, but for the mount in it.
#[test]
fn root_without_user_namespaces_has_no_mount() {
    if !is_root() {
        return;
    }
    let script = r#"echo 0 >/proc/sys/user/max_user_namespaces && exec "$@""#;
    let world = SandboxWorld::new(As::Root);
    let inner = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"];
    let nested = format!("exec {} \"$@\"", inner.map(|word| format!("'{word}'")).join(" "));
    let args = ["run", "--mount", "--", "sh", "-c", "true"];
    let ended = end(world.limited_after(&nested, &args).spawn().unwrap());
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("namespace"), "{ended:?}");
}

#[test]
fn doctor_says_that_a_mount_is_possible() {
    for who in users() {
        let script = if is_root() && who != As::Root { OPEN_DEVICE } else { r#"exec "$@""# };
        let mount = SandboxWorld::new(who).doctor(script);
        assert_eq!((&mount["status"], &mount["facts"]["possible"]), (&"ok".into(), &true.into()));
    }
}
