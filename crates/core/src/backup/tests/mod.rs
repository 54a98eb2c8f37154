//! The backup store with real files.
#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the disk behind the backup store's back"
)]

mod crash;
mod limits;
mod pack;
mod race;
mod save;
mod tree;
mod unfinished;

use std::{
    fs::{self, File},
    os::fd::AsFd,
    path::Path,
};

use portcullis_audit::Hash;
use tempfile::TempDir;

use super::*;
use crate::{
    model::{Access, OperationKind, Session, Transport, WorkspacePath},
    policy::{PolicySource, Query, Retention, compile},
    workspace::{Follow, Permit, Workspace},
};

pub(super) const ROOMY: Retention = Retention { versions: 20, days: 30, size: 1 << 30 };
pub(super) const DAY: i64 = 24 * 60 * 60 * 1_000_000;

/// A state directory and a workspace beside it.
pub(super) struct Fixture {
    pub(super) temp: TempDir,
    pub(super) session: Session,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let temp = TempDir::new().unwrap();
        fs::create_dir(temp.path().join("state")).unwrap();
        fs::create_dir(temp.path().join("ws")).unwrap();
        Self { temp, session: session("one") }
    }

    pub(super) fn backup_store(&self, retention: Retention) -> BackupStore {
        open(&self.temp.path().join("state"), retention).unwrap()
    }

    pub(super) fn ws(&self, path: &str) -> std::path::PathBuf {
        self.temp.path().join("ws").join(path)
    }

    pub(super) fn save(&self, backup_store: &BackupStore, path: &str) -> Result<Saved, Error> {
        let mut saved = self.save_loose(backup_store, path)?;
        backup_store.settle(&mut saved)?;
        Ok(saved)
    }

    /// Saves and does not settle.
    pub(super) fn save_loose(
        &self,
        backup_store: &BackupStore,
        path: &str,
    ) -> Result<Saved, Error> {
        let file = File::open(self.ws(path)).unwrap();
        let origin = match file.metadata().unwrap().is_dir() {
            true => Origin::Tree(file.as_fd()),
            false => Origin::File(file.as_fd()),
        };
        backup_store.save(&self.permit(path), &self.meta(), origin)
    }

    pub(super) fn save_bytes(
        &self,
        backup_store: &BackupStore,
        path: &str,
        bytes: &[u8],
    ) -> Result<Saved, Error> {
        self.settled(backup_store, path, Origin::Bytes(bytes))
    }

    pub(super) fn settled(
        &self,
        backup_store: &BackupStore,
        path: &str,
        origin: Origin<'_>,
    ) -> Result<Saved, Error> {
        let mut saved = backup_store.save(&self.permit(path), &self.meta(), origin)?;
        backup_store.settle(&mut saved)?;
        Ok(saved)
    }

    /// Backs up what a change of the session replaces, which stores `after` itself.
    pub(super) fn change(
        &self,
        backup_store: &BackupStore,
        path: &str,
        before: impl AsRef<[u8]>,
        after: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        let meta = Meta { after: Some(Hash::of(after.as_ref())), ..self.meta() };
        let mut saved =
            backup_store.save(&self.permit(path), &meta, Origin::Bytes(before.as_ref()))?;
        backup_store.settle(&mut saved)?;
        backup_store.keep(saved)
    }

    pub(super) fn permit(&self, text: &str) -> Permit {
        let workspace = Workspace::open(&self.ws("")).unwrap();
        let resolved = workspace.resolve(&path(text), Follow::No).unwrap();
        let policy =
            PolicySource::from_text("test", "schema = 1\n[allowedPaths]\nwrite = [\"**\"]\n");
        let query = Query {
            agent: &self.session.agent,
            operation: OperationKind::Write,
            access: Access::Write,
            path: &path(text),
        };
        Permit::new(resolved, compile(&policy).unwrap().evaluate(&query)).unwrap()
    }

    pub(super) fn meta(&self) -> Meta<'_> {
        Meta {
            session: &self.session,
            operation: OperationKind::Write,
            after: None,
            beyond_size: false,
        }
    }

    /// Returns the names of files in the store, with temporary files, without the account.
    pub(super) fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        for dir in fs::read_dir(self.temp.path().join("state/backups")).unwrap() {
            let dir = dir.unwrap();
            if dir.file_type().unwrap().is_dir() {
                for file in fs::read_dir(dir.path()).unwrap() {
                    files.push(file.unwrap().file_name().into_string().unwrap());
                }
            }
        }
        files
    }
}

pub(super) fn open(state: &Path, retention: Retention) -> Result<BackupStore, Error> {
    let authority = cap_std::ambient_authority();
    let state = cap_std::fs::Dir::open_ambient_dir(state, authority).unwrap();
    BackupStore::open(&state, retention)
}

pub(super) fn session(id: &str) -> Session {
    let agent = "tester".parse().unwrap();
    Session {
        id: id.to_owned(),
        agent,
        user: "user".to_owned(),
        transport: Transport::Acp,
        acp: None,
    }
}

pub(super) fn path(text: &str) -> WorkspacePath {
    WorkspacePath::parse(text).unwrap()
}

pub(super) fn text(backup_store: &BackupStore, entry: &Backup) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut backup_store.content(entry).unwrap(), &mut bytes).unwrap();
    assert_eq!(Hash::of(&bytes), entry.sha256);
    bytes
}

/// Runs the same test again in another process, which sees `role`.
pub(super) fn again(test: &str, role: &str, directory: &Path) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("BACKUP_TEST_ROLE", role);
    command.env("BACKUP_TEST_DIR", directory);
    command
}

/// Runs the test as [`again`], with a file system of 1 MiB mounted at the directory.
pub(super) fn again_with_tmpfs(test: &str, directory: &Path) {
    let script = "mount -t tmpfs -o size=1m tmpfs \"$BACKUP_TEST_DIR\" && exec \"$@\"";
    let test = again(test, "tmpfs", directory);
    let output = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(test.get_program())
        .args(test.get_args())
        .envs(test.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

/// The role that [`again`] gave this process, and its directory.
pub(super) fn role() -> Option<(String, std::path::PathBuf)> {
    let role = std::env::var("BACKUP_TEST_ROLE").ok()?;
    Some((role, std::env::var_os("BACKUP_TEST_DIR").unwrap().into()))
}

/// Sets a flag at the end of a test, also when it fails: other threads that wait for it must end.
pub(super) struct Raised<'a>(pub(super) &'a std::sync::atomic::AtomicBool);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}
