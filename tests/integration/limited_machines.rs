//! Commands on machines that offer less than this one.

use std::{path::Path, process::Command};

use crate::common::{Done, World, done};

/// A missing feature.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Without {
    /// No user namespace can be made, and the user, who is not root, has no
    /// privileges.
    Namespaces,
    /// None can be made by root either, who is the only user there is, as in a
    /// container that maps one.
    OtherUsers,
    /// Nor has root any capability.
    Capabilities,
    /// A kernel without these system calls.
    Calls(&'static str),
}

/// landlock_create_ruleset and what belongs to it.
pub(crate) const LANDLOCK: Without = Without::Calls("444,445,446");
pub(crate) const OPENAT2: Without = Without::Calls("437");

impl World {
    /// `portcullis ARGS…` on such a machine.
    pub(crate) fn run_without(&self, what: Without, args: &[&str]) -> Done {
        let own = self.command(args);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/without.py");
        let mut command = match what {
            Without::Namespaces => {
                alone("4321", "exec setpriv --inh-caps=-all --ambient-caps=-all \"$@\"")
            }
            Without::OtherUsers => alone("0", "exec \"$@\""),
            Without::Capabilities => {
                let none = "exec setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all \
                    \"$@\"";
                alone("0", none)
            }
            Without::Calls(numbers) => {
                let mut command = Command::new("python3");
                command.arg(script).arg(numbers);
                command
            }
        };
        command.arg(own.get_program()).args(own.get_args()).env_clear();
        command.current_dir(own.get_current_dir().unwrap());
        command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
        done(command.output().unwrap())
    }
}

/// A shell in a user namespace with one user, where no further one can be made.
fn alone(user: &str, script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--keep-caps"]);
    command.args([format!("--map-user={user}"), format!("--map-group={user}")]);
    command.args(["sh", "-c"]);
    command.arg(format!("echo 0 >/proc/sys/user/max_user_namespaces && {script}")).arg("sh");
    command
}
