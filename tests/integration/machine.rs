//! Commands on machines that offer less than this one.

use std::{path::Path, process::Command};

use crate::common::{Done, World, done};

/// What is missing.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Without {
    /// No user namespace can be made, and the user, who is not root, has no
    /// privileges.
    Namespaces,
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
                let forbid = "echo 0 >/proc/sys/user/max_user_namespaces && \
                    exec setpriv --inh-caps=-all --ambient-caps=-all \"$@\"";
                let mut command = Command::new("unshare");
                command.args(["--user", "--map-user=4321", "--map-group=4321", "--keep-caps"]);
                command.args(["sh", "-c", forbid, "sh"]);
                command
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
