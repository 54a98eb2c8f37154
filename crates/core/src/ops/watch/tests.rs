#![expect(clippy::disallowed_methods, reason = "tests make files behind the gateway's back")]

use std::{
    fs,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use portcullis_search::watch::{Directories, EventKind, Notice, Unwatched, WatchId};

use super::{system::System, *};
use crate::{
    model::Transport,
    policy::{PolicySource, compile},
};

/// The directories of a workspace, where `removed` goes before `a` is watched for the third time.
struct Changing {
    system: System,
    watched: AtomicUsize,
    removed: PathBuf,
}

impl Directories for Changing {
    type Opened = OwnedFd;
    type Error = WatchError;

    fn watch(&self, path: &WorkspacePath) -> Result<(OwnedFd, WatchId), Unwatched<WatchError>> {
        if path.as_str() == "a" && self.watched.fetch_add(1, Ordering::SeqCst) == 2 {
            fs::remove_dir(&self.removed).unwrap();
        }
        self.system.watch(path)
    }

    fn unwatch(&self, watch: WatchId) {
        self.system.unwatch(watch);
    }

    fn names(&self, directory: OwnedFd, visit: &mut dyn FnMut(&str, Option<ObjectKind>)) -> bool {
        self.system.names(directory, visit)
    }

    fn kind(&self, path: &WorkspacePath) -> Option<ObjectKind> {
        self.system.kind(path)
    }

    fn is_temporary(&self, name: &str) -> bool {
        self.system.is_temporary(name)
    }

    fn read(&self, notices: &mut Vec<Notice>, most: usize) -> Result<bool, WatchError> {
        self.system.read(notices, most)
    }

    fn more_comes(&self, within: Duration) -> bool {
        self.system.more_comes(within)
    }

    fn wait(&self) -> Result<(), WatchError> {
        self.system.wait()
    }

    fn wake(&self) {
        self.system.wake();
    }
}

/// A directory was found under its new name before the notice of its rename was read. It was watched
/// anew then, and what had been removed from it in between was never reported.
#[test]
fn a_removal_beneath_a_directory_that_was_found_before_its_rename_was_lost() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    fs::create_dir(at("a")).unwrap();
    fs::create_dir_all(at("x/n")).unwrap();
    let system = System::new(Workspace::open(temp.path()).unwrap()).unwrap();
    let hub = Hub::new(
        Changing { system, watched: AtomicUsize::new(0), removed: at("a/n") },
        Arc::new(
            compile(&PolicySource::from_text(
                "test",
                "schema = 1\n[allowedPaths]\nlist = ['**']\n",
            ))
            .unwrap(),
        ),
    );
    let agent = "agent".parse().unwrap();
    let query = WatchQuery::new(WorkspacePath::root());
    let subscribe = || {
        let session = Session {
            id: "s".into(),
            agent: "agent".parse().unwrap(),
            user: "u".into(),
            transport: Transport::Cli,
            acp: None,
        };
        let queue = Arc::new(Queue::new(session, WorkspacePath::root()));
        hub.subscribe(&agent, &query, Arc::clone(&queue)).unwrap();
        queue
    };
    let queue = subscribe();
    fs::rename(at("a"), at("c")).unwrap();
    fs::rename(at("x"), at("a")).unwrap();
    // A further subscription has the notices processed.
    subscribe();
    assert!(!at("a/n").exists());
    let mut is_known = false;
    while let Some(change) = queue.next(Duration::ZERO).unwrap() {
        match (change.what, change.path.as_str()) {
            (EventKind::Created, "a/n") => is_known = true,
            (EventKind::Deleted, "a" | "a/n") | (EventKind::Rescan, "." | "a" | "a/n" | "") => {
                is_known = false
            }
            _ => {}
        }
    }
    assert!(!is_known);
}
