//! The demo's temporary directory: a workspace with everything that an agent must
//! not reach, with state directory, policy and the agent's program.
//!
//! Only files created by this module are ever changed by it.

use std::{
    io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, FileType, Mode, StatVfsMountFlags, mknodat, statvfs};

use super::attempts::{EDITED, UNDONE};
use crate::{
    app::{
        failure::{Context as _, Exit, Failure},
        session::random_id,
        state_directory,
    },
    model::{for_shell, quoted},
    operator_files,
    sandbox::own_program,
};

/// The name of the demo's agent in policy and log.
pub(super) const AGENT: &str = "rude-agent";

/// The source file before the agent's edit.
const SOURCE: &str = "fn main() {\n    println!(\"hello\");\n}\n";
const README: &str = "# A throw-away project\n";

/// The embedded `default`, but with a limit that is easily exceeded.
const POLICY: &str = r#"# What `portcullis demo` shows. Change it, then: portcullis policy check FILE
schema = 1
name = "demo"
version = 1
extends = ["default"]   # read and write everything but secrets and hooks

[files]
maxReadSize = "64KiB"
maxWriteSize = "64KiB"

[[tests]]
operation = "write"
path = "src/main.rs"
expect = { effect = "allow" }

[[tests]]
operation = "read"
path = ".env"
expect = { effect = "deny" }
"#;

/// The locations of the demo's files.
#[derive(Debug)]
pub(super) struct DemoDirectory {
    pub(super) root: PathBuf,
    /// A random string that no refused attempt may disclose.
    canary: String,
}

impl DemoDirectory {
    /// Creates everything, in `chosen` or in a new temporary directory.
    pub(super) fn make(chosen: Option<&Path>) -> Result<Self, Failure> {
        let canary = format!("canary-{}", random_id()?);
        let root = match chosen {
            Some(path) => std::path::absolute(path).or_fail("cannot look up the directory")?,
            None => std::env::temp_dir().join(format!("portcullis-demo-{}", random_id()?)),
        };
        let shown = root.display().to_string();
        if chosen.is_some()
            && operator_files::read_dir(&root).is_ok_and(|mut inside| inside.next().is_some())
        {
            return Err(Failure::new(format_args!("the directory `{shown}` is not empty"))
                .exit(Exit::Usage)
                .help("name one that is new or empty with --keep DIR"));
        }
        // Other users cannot list it, and its directories are closed except those
        // that an agent of another user traverses.
        let made =
            if chosen.is_some() { operator_files::create_dir_all(&root) } else { directory(&root) };
        made.and_then(|()| mode(&root, 0o711))
            .or_fail(format_args!("cannot make the directory `{shown}`"))?;
        let root = operator_files::canonicalize(&root).or_fail("cannot resolve the directory")?;
        let directory = Self { root, canary };
        directory.fill().or_fail(format_args!("cannot fill the directory `{shown}`"))?;
        Ok(directory)
    }

    pub(super) fn workspace(&self) -> PathBuf {
        self.root.join("workspace")
    }

    pub(super) fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    pub(super) fn policy(&self) -> PathBuf {
        self.root.join("policy/demo.toml")
    }

    /// Returns the replacement of `$XDG_DATA_HOME`, which contains the agents'
    /// homes.
    pub(super) fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// Returns the file with shell settings for the demo's workspace.
    pub(super) fn shell_settings(&self) -> PathBuf {
        self.root.join("env")
    }

    /// Returns the agent's program: a copy of this one that every user can execute,
    /// or this one itself if temporary files cannot be executed.
    pub(super) fn agent_program(&self) -> Result<PathBuf, Failure> {
        let own = own_program().or_fail("cannot find this program")?;
        let no_programs =
            statvfs(&self.root).is_ok_and(|facts| facts.f_flag.contains(StatVfsMountFlags::NOEXEC));
        if no_programs {
            return Ok(own);
        }
        let copy = self.agent_directory().join(AGENT);
        operator_files::copy("/proc/self/exe", &copy)
            .and_then(|_| mode(&copy, 0o755))
            .or_fail("cannot copy this program for the agent")?;
        Ok(copy)
    }

    /// Removes the copy of the program, which is large.
    pub(super) fn tidy(&self) {
        // A remainder is removed with the rest.
        let _ = operator_files::remove_dir_all(self.agent_directory());
    }

    fn agent_directory(&self) -> PathBuf {
        self.root.join("agent")
    }

    fn fill(&self) -> io::Result<()> {
        for name in ["workspace", "state", "policy", "outside"] {
            directory(&self.root.join(name))?;
        }
        for name in ["agent", "data", "data/portcullis", "data/portcullis/homes"] {
            directory(&self.root.join(name))?;
            mode(&self.root.join(name), 0o711)?;
        }
        let data_name = state_directory::agent_data_name(&self.workspace(), &self.state());
        let homes = self.data().join("portcullis/homes").join(data_name);
        directory(&homes)?;
        mode(&homes, 0o711)?;
        operator_files::write(self.policy(), POLICY)?;

        let canary = &self.canary;
        operator_files::write(self.root.join("outside/secret.txt"), format!("{canary}\n"))?;
        let workspace = self.workspace();
        for name in ["src", ".git", ".git/hooks", "old", "old/2019"] {
            directory(&workspace.join(name))?;
        }
        let rows = format!("id,name,note\n1,somebody,{canary}\n").repeat(4096);
        let secret = format!("API_KEY={canary}\n");
        let image = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice(), canary.as_bytes()].concat();
        let files: [(&str, &[u8]); 9] = [
            (UNDONE, SOURCE.as_bytes()),
            ("README.md", README.as_bytes()),
            (".env", secret.as_bytes()),
            (".git/HEAD", b"ref: refs/heads/main\n"),
            (".git/config", b"[core]\n\trepositoryformatversion = 0\n"),
            ("logo.png", &image),
            ("export.csv", rows.as_bytes()),
            ("old/notes.md", b"nobody needs this\n"),
            ("old/2019/report.md", b"nor this\n"),
        ];
        for (name, content) in files {
            operator_files::write(workspace.join(name), content)?;
        }
        symlink("../outside/secret.txt", workspace.join("notes.txt"))?;
        mknodat(CWD, workspace.join("queue"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        Ok(())
    }

    /// Returns true if a text that reached the agent contains the secret string.
    pub(super) fn discloses(&self, text: &str) -> bool {
        text.contains(&self.canary)
    }

    /// Returns the unexpected state of files that refused attempts would have
    /// changed.
    pub(super) fn unexpected(&self) -> Vec<String> {
        let workspace = self.workspace();
        let secret = format!("{}\n", self.canary);
        let expected = [
            (workspace.join("README.md"), Some(README)),
            (workspace.join(".git/HEAD"), Some("ref: refs/heads/main\n")),
            (workspace.join(".git/hooks/pre-commit"), None),
            (self.root.join("outside/secret.txt"), Some(secret.as_str())),
        ];
        let mut surprises: Vec<_> = expected
            .into_iter()
            .filter(|(path, content)| {
                operator_files::read_to_string(path).ok().as_deref() != *content
            })
            .map(|(path, _)| format!("`{}` was changed", self.short(&path)))
            .collect();
        if !operator_files::symlink_metadata(workspace.join("notes.txt"))
            .is_ok_and(|look| look.is_symlink())
        {
            surprises.push("`workspace/notes.txt` was replaced".to_owned());
        }
        surprises
    }

    /// Returns true if the edited file has the agent's content.
    pub(super) fn is_edited(&self) -> bool {
        self.undone_holds(EDITED)
    }

    /// Returns true if it has its former content.
    pub(super) fn is_undone(&self) -> bool {
        self.undone_holds(SOURCE)
    }

    fn undone_holds(&self, content: &str) -> bool {
        operator_files::read_to_string(self.workspace().join(UNDONE))
            .is_ok_and(|text| text == content)
    }

    /// Returns true if a directory of the workspace is gone.
    pub(super) fn is_gone(&self, name: &str) -> bool {
        !operator_files::exists(self.workspace().join(name))
    }

    /// Writes shell settings for the demo's workspace.
    pub(super) fn write_shell_settings(&self, policy: &str) -> Result<(), Failure> {
        let own = own_program().or_fail("cannot find this program")?;
        let text = format!(
            "# For a POSIX shell: `. {file}`\n\
             export PORTCULLIS_WORKSPACE={workspace}\n\
             export PORTCULLIS_STATE={state}\n\
             export PORTCULLIS_POLICY={policy}\n\
             export XDG_DATA_HOME={data}\n\
             portcullis() {{ {own} \"$@\"; }}\n",
            file = for_shell(&self.shell_settings()),
            workspace = quoted(&self.workspace()),
            state = quoted(&self.state()),
            policy = quoted(Path::new(policy)),
            data = quoted(&self.data()),
            own = quoted(&own),
        );
        operator_files::write(self.shell_settings(), text)
            .or_fail("cannot write the shell's settings")
    }

    /// Returns a path relative to the demo's directory.
    fn short(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}

/// Creates a directory, inaccessible to others.
fn directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(path)
}

fn mode(path: &Path, mode: u32) -> io::Result<()> {
    operator_files::set_permissions(path, std::fs::Permissions::from_mode(mode))
}
