//! A throw-away workspace with a gateway in front of it.
#![expect(clippy::disallowed_methods, reason = "sets files up behind the gateway's back")]

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use cap_std::fs::Dir;
use portcullis::{
    gateway::{AuditLog, Gateway, Workspace},
    model::{Session, Transport, WorkspacePath},
    policy::{Policy, PolicySource, SecretKey, compile},
};
use tempfile::TempDir;

use crate::Outcome;

/// Bytes of content in every file that is read or replaced.
pub(crate) const CONTENT: usize = 4096;

/// Number of files that are used in turn.
pub(crate) const FILES: usize = 64;

/// A workspace of text files and a state directory beside it.
pub(crate) struct World {
    base: PathBuf,
    _dir: Option<TempDir>,
}

impl World {
    /// Makes a world that is removed on drop.
    pub(crate) fn new() -> Outcome<Self> {
        let dir = tempfile::tempdir()?;
        let base = dir.path().canonicalize()?;
        let world = Self { base, _dir: Some(dir) };
        world.fill()?;
        Ok(world)
    }

    /// Makes a world in an existing directory, which stays.
    pub(crate) fn at(base: &Path) -> Outcome<Self> {
        let world = Self { base: base.canonicalize()?, _dir: None };
        world.fill()?;
        Ok(world)
    }

    fn fill(&self) -> Outcome<()> {
        std::fs::create_dir_all(self.root().join("src"))?;
        // An agent that root starts runs as another user.
        std::fs::set_permissions(&self.base, PermissionsExt::from_mode(0o755))?;
        std::fs::create_dir_all(self.state())?;
        std::fs::set_permissions(self.state(), PermissionsExt::from_mode(0o700))?;
        for number in 0..FILES {
            std::fs::write(self.root().join(file(number)), text(number))?;
        }
        Ok(())
    }

    pub(crate) fn base(&self) -> &Path {
        &self.base
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.base.join("ws")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.base.join("state")
    }

    /// Returns a gateway in this process under the policy `default`.
    pub(crate) fn gateway(&self) -> Outcome<Gateway> {
        self.gateway_with(default_policy()?)
    }

    /// The same without rules about content.
    pub(crate) fn gateway_without_rules(&self) -> Outcome<Gateway> {
        let baseline = include_str!("../../policies/baseline.toml");
        let (head, tail) =
            baseline.split_once("extends = [\"secrets\"]").ok_or("`baseline` has changed")?;
        let allowed = "[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\n\
            remove = [\"**\"]\n";
        // Some of its tests are about content.
        let rules: Vec<_> =
            tail.split("\n\n").filter(|part| !part.trim_start().starts_with("[[tests]]")).collect();
        self.gateway_under(&format!("{head}{}\n{allowed}", rules.join("\n\n")))
    }

    /// The same under the policy with this text.
    pub(crate) fn gateway_under(&self, text: &str) -> Outcome<Gateway> {
        let source = PolicySource::from_text("benchmark.toml", text);
        self.gateway_with(compile(&source).map_err(|diagnostics| diagnostics.to_string())?)
    }

    fn gateway_with(&self, policy: Policy) -> Outcome<Gateway> {
        let state = Dir::from_std_file(std::fs::File::open(self.state())?);
        let workspace = Workspace::open(&self.root())?;
        let key = SecretKey::new(&[0; SecretKey::LENGTH]);
        Ok(Gateway::open(workspace, Arc::new(policy), AuditLog::open(&state)?, &state, key)?)
    }

    /// `portcullis ARGS…` on this workspace.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.base.join("home"))
            .env("PORTCULLIS_WORKSPACE", self.root())
            .env("PORTCULLIS_STATE", self.state());
        command
    }
}

/// The policy that people get unless they name one.
pub(crate) fn default_policy() -> Outcome<Policy> {
    let source = PolicySource::embedded("default").ok_or("there is no policy `default`")?;
    Ok(compile(&source).map_err(|diagnostics| diagnostics.to_string())?)
}

/// The name of one of the files.
pub(crate) fn file(number: usize) -> String {
    format!("src/module_{number:02}.rs")
}

pub(crate) fn path(number: usize) -> Outcome<WorkspacePath> {
    Ok(WorkspacePath::parse(&file(number))?)
}

/// Text of the right length that differs from number to number.
pub(crate) fn text(number: usize) -> Vec<u8> {
    let line = format!("let line_{number:08} = \"what a source file may hold\";\n");
    line.bytes().cycle().take(CONTENT).collect()
}

pub(crate) fn session() -> Outcome<Session> {
    Ok(Session {
        id: "5e".repeat(16),
        agent: "benchmark".parse().map_err(|_| "no agent name")?,
        user: "somebody".to_owned(),
        transport: Transport::Acp,
        acp: None,
    })
}
