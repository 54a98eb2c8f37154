//! The host's devices in the sandbox.

use super::*;

/// Their inodes are the host's. Where the agent stayed root, it changed their modes, too.
#[test]
fn an_agent_changed_the_times_of_the_hosts_devices() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let script = "for d in null zero full random urandom tty; do touch -c /dev/$d && echo $d; done; \
            echo x >/dev/null && head -c 4 /dev/zero | wc -c && cat /proc/self/comm";
        let ended = world.exec(&[], script);
        assert_eq!((ended.code, ended.stdout.as_str()), (0, "4\ncat\n"), "{ended:?}");
        assert!(ended.stderr.contains("Read-only file system"), "{ended:?}");
    }
}
