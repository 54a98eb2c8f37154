//! The demo's throw-away directory: a workspace with everything that an agent
//! should not get at, and room for state, policy and the agent's program.
//!
//! Only what this module made is ever changed by it.

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
    cli::render::{for_shell, quoted},
    operator_files,
    sandbox::own_program,
};

/// The name under which policy and log know the demo's agent.
pub(super) const AGENT: &str = "rude-agent";

/// The source file before the agent comes.
const SOURCE: &str = "fn main() {\n    println!(\"hello\");\n}\n";
const README: &str = "# A throw-away project\n";

/// The embedded `default`, but with a limit that is easily passed.
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

/// Where everything lies.
#[derive(Debug)]
pub(super) struct DemoPlace {
    pub(super) root: PathBuf,
    /// Strings that no refused attempt may disclose; new ones every time.
    canary: String,
}

impl DemoPlace {
    /// Makes everything, in `chosen` or in a new temporary directory.
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
        // Nobody else can list it, and every directory in it but those that an
        // agent of another user passes through is closed.
        let made =
            if chosen.is_some() { operator_files::create_dir_all(&root) } else { directory(&root) };
        made.and_then(|()| mode(&root, 0o711))
            .or_fail(format_args!("cannot make the directory `{shown}`"))?;
        let root = operator_files::canonicalize(&root).or_fail("cannot resolve the directory")?;
        let place = Self { root, canary };
        place.fill().or_fail(format_args!("cannot fill the directory `{shown}`"))?;
        Ok(place)
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

    /// What stands for `$XDG_DATA_HOME`, where agents have their homes.
    pub(super) fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// The file that sets a shell up for a look around.
    pub(super) fn shell_settings(&self) -> PathBuf {
        self.root.join("env")
    }

    /// The agent's program: a copy of this one that every user can execute,
    /// or this one itself where temporary files cannot be executed.
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

    /// Removes the copy of the program, which is large and of no interest.
    pub(super) fn tidy(&self) {
        // What stays is removed with the rest.
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
        let homes =
            self.data().join("portcullis/homes").join(state_directory::slug(&self.workspace()));
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

    /// Whether a text that reached the agent holds what it must not see.
    pub(super) fn discloses(&self, text: &str) -> bool {
        text.contains(&self.canary)
    }

    /// What is on the disk and should not be, or the other way round, once
    /// the agent is done: everything that a refused attempt would have changed.
    pub(super) fn surprises(&self) -> Vec<String> {
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

    /// Whether the file that the agent edited holds the agent's words.
    pub(super) fn is_edited(&self) -> bool {
        self.undone_holds(EDITED)
    }

    /// Whether it holds what it held before.
    pub(super) fn is_undone(&self) -> bool {
        self.undone_holds(SOURCE)
    }

    fn undone_holds(&self, content: &str) -> bool {
        operator_files::read_to_string(self.workspace().join(UNDONE))
            .is_ok_and(|text| text == content)
    }

    /// Whether a directory of the workspace is gone.
    pub(super) fn is_gone(&self, name: &str) -> bool {
        !operator_files::exists(self.workspace().join(name))
    }

    /// Writes what a shell needs for a look around.
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

    /// A path without the demo's directory.
    fn short(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}

/// Makes one directory, closed to others.
fn directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(path)
}

fn mode(path: &Path, mode: u32) -> io::Result<()> {
    operator_files::set_permissions(path, std::fs::Permissions::from_mode(mode))
}
