//! An agent gives a path to a link while an editor is asked for it.

use std::{
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use portcullis::{
    gateway::{BufferError, Buffers, Client, Gateway, Request, Source},
    model::{
        Encoding, LineRange, WorkspacePath,
        request::{Read, Rename, Write},
    },
};

use super::path;
use crate::acp_rig;

/// Time in which a rename that is not blocked would be made.
const HEADSTART: Duration = Duration::from_millis(300);

/// An editor that follows links, as editors do; before it opens a file another client has time to
/// rename.
struct Editor {
    root: PathBuf,
    asked: Mutex<mpsc::Sender<()>>,
}

impl Editor {
    fn open(&self, path: &WorkspacePath) -> PathBuf {
        let _ = self.asked.lock().unwrap().send(());
        thread::sleep(HEADSTART);
        self.root.join(path.as_str())
    }
}

impl Buffers for Editor {
    fn read(&self, path: &WorkspacePath) -> Result<Option<Vec<u8>>, BufferError> {
        Ok(fs::read(self.open(path)).ok().map(|mut text| {
            text.extend_from_slice(b" unsaved");
            text
        }))
    }

    fn write(&self, path: &WorkspacePath, content: &[u8]) -> Result<(), BufferError> {
        fs::write(self.open(path), content).map_err(|_| BufferError::Refused(1))
    }
}

/// Carries `request` out by the editor while another gateway, whose agent is the same, renames a
/// link that leads outside over `file`; returns the result of the request and the text outside.
fn race<R: Request + Sync>(request: &R, at: usize) -> (Option<R::Output>, String) {
    let temp = tempfile::tempdir().unwrap();
    let (root, outside) = (temp.path().join("ws"), temp.path().join("outside"));
    fs::create_dir(&root).unwrap();
    fs::write(&outside, "OUTSIDE").unwrap();
    fs::write(root.join("file"), "inside").unwrap();
    symlink(&outside, root.join("evil")).unwrap();
    // By another name of the directory, too.
    symlink(".", root.join("via")).unwrap();
    let session = acp_rig::connection();
    let (one, other): (Gateway, Gateway) =
        (acp_rig::gateway(&root, temp.path()), acp_rig::gateway(&root, temp.path()));
    let (sender, asked) = mpsc::channel();
    let editor = Editor { root: root.clone(), asked: Mutex::new(sender) };
    let done = AtomicBool::new(false);
    let reply = thread::scope(|scope| {
        let (other, session, done) = (&other, &session, &done);
        scope.spawn(move || {
            for _ in 0..at {
                asked.recv().unwrap();
            }
            let to = path("via/file");
            let rename = Rename { from: path("evil"), to, replace: true };
            // It may find that the file was written meanwhile.
            let _ = other.handle(session, &rename, Client::default());
            done.store(true, Ordering::SeqCst);
        });
        let reply = one.handle(
            session,
            request,
            Client { source: Source::Auto(&editor), ..Client::default() },
        );
        // It was blocked, and for no longer than that.
        reply.ok().map(|reply| reply.output)
    });
    assert!(done.load(Ordering::SeqCst));
    (reply, fs::read_to_string(outside).unwrap())
}

/// A confined agent had the editor read any file of the user.
#[test]
fn an_editor_reads_what_was_decided_on_whatever_is_renamed_meanwhile() {
    let (range, encoding) = (LineRange::default(), Encoding::Text);
    let read = Read { path: path("file"), range, encoding };
    let content = race(&read, 1).0.unwrap();
    assert_eq!(String::from_utf8_lossy(&content.bytes), "inside unsaved");
}

/// A confined agent had the editor write over any file of the user.
#[test]
fn an_editor_writes_where_it_was_decided_whatever_is_renamed_meanwhile() {
    let write = Write { path: path("file"), content: b"agent's".to_vec(), mode: None };
    // At the first call it is asked for its buffer, at the second it writes.
    for at in [1, 2] {
        let (_, outside) = race(&write, at);
        assert_eq!(outside, "OUTSIDE", "at call {at}");
    }
}
