#![expect(clippy::disallowed_methods, reason = "tests make files behind the gateway's back")]

mod links;
mod requests;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::PathBuf,
    sync::Arc,
};

use cap_std::fs::Dir;
use portcullis_audit::{AuditRecord, Directory, Hash, Kind, Reader};
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::{
    audit_log::AuditLog,
    gateway::{
        Changed, Error as Refused, ErrorKind, Import, Reply, Request, approvals::NoApprover, record,
    },
    model::{
        Transport,
        request::{List, Mkdir, Rename, SetAttributes, Stat as StatRequest, Symlink, Write},
    },
    ops::{Committed, NoFollower},
    policy::{PolicySource, SecretKey, compile},
    workspace::Workspace,
};

const OPEN: &str =
    "[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\nremove = [\"**\"]\n";

/// A gateway over a new workspace.
struct Fixture {
    dir: TempDir,
    gateway: Gateway,
}

fn session(transport: Transport) -> Session {
    let (id, user) = ("ab".repeat(16), "user".to_owned());
    Session { id, agent: "agent".parse().unwrap(), user, transport, acp: None }
}

fn path(text: &str) -> WorkspacePath {
    if text == "." { WorkspacePath::root() } else { WorkspacePath::parse(text).unwrap() }
}

fn open(dir: &TempDir, policy: &str) -> Gateway {
    let policy = format!("schema = 1\nversion = 1\n{policy}");
    let policy = compile(&PolicySource::from_text("test", &policy)).unwrap();
    let state = Dir::from_std_file(fs::File::open(dir.path().join("state")).unwrap());
    let workspace = Workspace::open(&dir.path().join("ws")).unwrap();
    let audit_log = AuditLog::open(&state).unwrap();
    let key = SecretKey::new(&[7; SecretKey::LENGTH]);
    let gateway = Gateway::open(workspace, Arc::new(policy), audit_log, &state, key).unwrap();
    gateway.start(&session(Transport::Acp), BTreeMap::new()).unwrap();
    gateway
}

impl Fixture {
    fn new(policy: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["ws", "state"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let gateway = open(&dir, policy);
        Self { dir, gateway }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join("ws").join(name)
    }

    fn file(&self, name: &str, content: &str) {
        fs::create_dir_all(self.at(name).parent().unwrap()).unwrap();
        fs::write(self.at(name), content).unwrap();
    }

    fn ask<R: Request>(
        &self,
        transport: Transport,
        request: &R,
    ) -> Result<Reply<R::Output>, Refused> {
        self.gateway.handle(&session(transport), request, Client::default())
    }

    #[track_caller]
    fn does(&self, request: &dyn Request<Output = Changed>) -> Changed {
        self.gateway.handle(&session(Transport::Mount), request, Client::default()).unwrap().output
    }

    #[track_caller]
    fn fails(&self, request: &dyn Request<Output = Changed>) -> Refused {
        self.gateway.handle(&session(Transport::Mount), request, Client::default()).unwrap_err()
    }

    fn admits<R: Request>(&self, request: &R, at: &str) -> bool {
        let mount = session(Transport::Mount);
        self.gateway.mount_view(&mount).admit(request, &path(at), None, BTreeMap::new).is_ok()
    }

    fn see(&self, name: &str) -> Option<VisibleEntry> {
        self.gateway.mount_view(&session(Transport::Mount)).lookup(&path(name)).unwrap()
    }

    fn names(&self, name: &str) -> Option<String> {
        let list = self
            .gateway
            .mount_view(&session(Transport::Mount))
            .list(&path(name), |_| true)
            .unwrap();
        list.map(|list| list.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" "))
    }

    fn records(&self) -> Vec<AuditRecord> {
        let source = Directory::new(self.dir.path().join("state/audit"));
        let (mut reader, mut records) = (Reader::new(&source, 0), Vec::new());
        while let Some(entry) = reader.next().unwrap() {
            records.push(AuditRecord::parse(&entry.bytes).unwrap());
        }
        records
    }

    /// The records after the start.
    fn requests(&self) -> Vec<AuditRecord> {
        self.records().into_iter().filter(|record| record.kind != Kind::Start).collect()
    }
}

fn read(name: &str) -> Read {
    Read { path: path(name), range: LineRange::default(), encoding: Encoding::Base64 }
}

fn write(name: &str, content: &[u8]) -> Write {
    Write { path: path(name), content: content.to_vec(), mode: None }
}

fn set(name: &str, mode: Option<u32>, modified: Option<(i64, u32)>) -> SetAttributes {
    SetAttributes { path: path(name), mode, modified }
}

fn link(name: &str, target: &str) -> Symlink {
    Symlink { path: path(name), target: target.to_owned() }
}

#[test]
fn what_may_not_be_listed_is_missing() {
    let fixture = Fixture::new(
        "[allowedPaths]\nlist = [\"src/**\", \"a/*/c.txt\"]\nread = [\"**\"]\n\
         [[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"src/no/**\"]\n\
         [[rules]]\nid = \"q\"\neffect = \"ask\"\npaths = [\"src/asked\"]\n",
    );
    for name in ["src/x", "src/no/x", "src/asked", "a/b/c.txt", "a/b/d.txt", "a/x", "other/x"] {
        fixture.file(name, "x");
    }
    let temp = TempName::new().unwrap();
    fixture.file(&format!("src/{}", temp.as_str()), "x");
    symlink("x", fixture.at("src/link")).unwrap();
    symlink("b", fixture.at("a/link")).unwrap();

    assert_eq!(fixture.names(".").unwrap(), "a src");
    assert_eq!(fixture.names("src").unwrap(), "link x");
    assert_eq!(fixture.names("a").unwrap(), "b");
    assert_eq!(fixture.names("a/b").unwrap(), "c.txt");
    for hidden in [
        "src/no",
        "src/no/x",
        "src/none",
        "src/asked",
        "other",
        "other/x",
        "a/x",
        "a/link",
        "a/b/d.txt",
    ] {
        assert_eq!((fixture.see(hidden), fixture.names(hidden)), (None, None), "{hidden}");
    }
    assert_eq!(fixture.see(&format!("src/{}", temp.as_str())), None);
    // A link is shown as a link, and not followed.
    assert_eq!(fixture.see("src/link").unwrap().stat.kind, ObjectKind::Symlink);
    assert_eq!(fixture.see("a/link/c.txt"), None);
    let traverse = ["a", "a/b", "src"].map(|name| fixture.see(name).unwrap().traverse);
    assert_eq!(traverse, [true, true, true]);
    assert!(!fixture.see("src/x").unwrap().traverse && fixture.see(".").unwrap().traverse);
    assert!(fixture.requests().is_empty());
}

/// Lookups are decided as requests are.
#[test]
fn a_lookup_is_decided_as_a_request() {
    for mode in ["", "mode = \"observe\"\n"] {
        let fixture = Fixture::new(&format!(
            "{mode}[allowedPaths]\nlist = [\"a/**\"]\n[extensions]\ndeny = [\"pem\"]\n\
             allow = {{ list = [\"rs\"] }}\n[secrets]\nnames = [\"*.key\"]\n"
        ));
        for name in ["a/x.rs", "a/x.txt", "a/b.pem", "a/.key", "a/d.txt/x.rs", "b/x.rs"] {
            fixture.file(name, "x");
        }
        for name in ["a/x.rs", "a/x.txt", "a/b.pem", "a/.key", "a/d.txt", "a/d.txt/x.rs", "b/x.rs"]
        {
            let (own, above) = (path(name), path(name).parent().unwrap());
            let seen = fixture.see(name).filter(|seen| !seen.traverse);
            let is_listed = match fixture.ask(Transport::Mount, &List { path: above.clone() }) {
                Ok(listed) => listed.output.entries.iter().any(|entry| entry.path == own),
                Err(_) => seen.is_some(),
            };
            assert_eq!(is_listed, seen.is_some(), "{mode}{name}");
            let names = fixture.names(above.as_str()).unwrap_or_default();
            let is_named = names.split(' ').any(|one| Some(one) == own.file_name());
            assert_eq!(is_named, seen.is_some(), "{mode}{name}");
            // A name alone does not reveal that it is a directory's.
            let stat = fixture.ask(Transport::Mount, &StatRequest { path: own });
            assert!(stat.is_ok() == seen.is_some() || name == "a/d.txt", "{mode}{name}");
        }
    }
}

/// An error would reveal whether the name exists.
#[test]
fn a_name_that_may_not_be_listed_is_not_made() {
    let fixture =
        Fixture::new("[allowedPaths]\nlist = [\"seen/**\"]\nwrite = [\"**\"]\nread = [\"**\"]\n");
    fixture.file("seen/x", "x");
    fixture.file("drop/x", "x");
    let made = |name: &str| fixture.admits(&write(name, b""), name);
    assert_eq!(["seen/y", "drop/x", "drop/y"].map(made), [true, false, false]);
    assert_eq!(fixture.requests().len(), 2, "each denial has a record");
}

#[test]
fn a_redacted_read_has_the_hash_of_what_was_shown() {
    let fixture = Fixture::new(&format!(
        "{OPEN}[secrets]\nonRead = \"redact\"\n[[secrets.rules]]\nid = \"k\"\nregex = 'tok_[a-z]{{8}}'\n\
         keywords = [\"tok_\"]\n"
    ));
    fixture.file("a", "x tok_abcdefgh y\n");
    let shown = fixture.ask(Transport::Mount, &read("a")).unwrap().output.bytes;
    let record = fixture.requests().pop().unwrap();
    let hash = portcullis_audit::Hash::of(&shown).to_string();
    assert_eq!(record.draft.facts.unwrap()["shown"], json!(hash));
    assert_eq!(record.draft.before, Some(portcullis_audit::Hash::of(b"x tok_abcdefgh y\n")));
}

/// Names, lists, links and contents that had been read were shown on when no record could be written.
#[test]
fn a_log_that_takes_no_records_left_the_mount_open() {
    let fixture = Fixture::new(OPEN);
    fixture.file("d/x", "x");
    symlink("x", fixture.at("d/link")).unwrap();
    let mount = session(Transport::Mount);
    let view = fixture.gateway.mount_view(&mount);
    let stat = view.lookup(&path("d/x")).unwrap().unwrap().stat;
    let shown = || {
        [
            view.lookup(&path("d/x")).is_ok(),
            view.list(&path("d"), |_| true).is_ok(),
            view.repeat(&path("d/x"), &stat),
            view.read_link(&path("d/link"), |_| false, &BTreeMap::new).is_ok(),
        ]
    };
    assert_eq!(shown(), [true; 4]);
    fixture.gateway.stop_shared(&mount).unwrap();
    assert_eq!(shown(), [false; 4]);
}

#[test]
fn a_view_has_the_length_of_what_a_read_gives() {
    let secrets = "[secrets]\nonRead = \"redact\"\n[[secrets.rules]]\nid = \"k\"\nregex = 'tok_[a-z]{8}'\n\
                   keywords = [\"tok_\"]\n[mount]\nmaxReadSize = \"64B\"\n";
    let fixture = Fixture::new(&format!(
        "{OPEN}{secrets}[[rules]]\nid = \"no\"\neffect = \"deny\"\noperations = [\"read\"]\npaths = [\"no\"]\n"
    ));
    let view = session(Transport::Mount);
    let view = fixture.gateway.mount_view(&view);
    for (name, content) in [("a", "x tok_abcdefgh y\n"), ("b", "plain\n"), ("empty", "")] {
        fixture.file(name, content);
        let stat = fixture.see(name).unwrap().stat;
        let size = view.view_size(&path(name), &stat, &NoFollower).unwrap();
        let read = fixture.ask(Transport::Mount, &read(name)).unwrap().output;
        assert_eq!(size, read.bytes.len() as u64, "{name}");
        assert_eq!(read.redacted, size != stat.size, "{name}");
        fs::write(fixture.at(name), "changed").unwrap();
        assert_eq!(view.view_size(&path(name), &stat, &NoFollower), Err(Error::Moved), "{name}");
    }
    fixture.file("no", "x tok_abcdefgh y\n");
    fixture.file("large", &"x tok_abcdefgh y\n".repeat(9));
    for name in ["no", "large"] {
        let stat = fixture.see(name).unwrap().stat;
        assert_eq!(view.view_size(&path(name), &stat, &NoFollower), Ok(stat.size), "{name}");
        assert!(fixture.ask(Transport::Mount, &read(name)).is_err(), "{name}");
        // Nothing was disclosed, so there is no record.
    }
    assert_eq!(fixture.requests().len(), 5);
}

#[test]
fn a_repeated_read_is_decided_and_counted() {
    let fixture = Fixture::new(&format!(
        "{OPEN}[mount]\noperationsPerSecond = 2\n[[rules]]\nid = \"no\"\neffect = \"deny\"\n\
         operations = [\"read\"]\npaths = [\"no\"]\n"
    ));
    fixture.file("a", "x");
    fixture.file("no", "x");
    fixture.file("twice", "x");
    fs::hard_link(fixture.at("twice"), fixture.at("again")).unwrap();
    fs::create_dir(fixture.at("d")).unwrap();
    let mount = session(Transport::Mount);
    let repeat = |name: &str| {
        let stat = fixture.see(name).unwrap().stat;
        fixture.gateway.mount_view(&mount).repeat(&path(name), &stat)
    };
    assert_eq!(["no", "twice", "d"].map(repeat), [false, false, false]);
    assert_eq!(["a", "a", "a"].map(repeat), [true, true, false]);
    let haste = fixture.ask(Transport::Mount, &read("a")).unwrap_err();
    assert_eq!(haste.rule(), Some("mount.operationsPerSecond"));
    // Another transport of the same session has limits of its own.
    fixture.ask(Transport::Acp, &read("a")).unwrap();
}

#[test]
fn a_mount_has_limits_of_its_own() {
    let fixture = Fixture::new(&format!(
        "{OPEN}[files]\nmaxReadSize = \"4B\"\nmaxWriteSize = \"4B\"\n[limits]\nbytesWritten = \"6B\"\n\
         [mount]\nmaxWriteSize = \"16B\"\nfilesRemoved = 0\ndenials = 2\n\
         [[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"no\"]\n"
    ));
    let put = |transport, content: &[u8]| fixture.ask(transport, &write("a", content)).map(drop);
    put(Transport::Mount, b"\0\xff34567890").unwrap();
    assert_eq!(fixture.ask(Transport::Mount, &read("a")).unwrap().output.bytes.len(), 10);
    let small = fixture.ask(Transport::Acp, &read("a")).unwrap_err();
    assert_eq!(small.rule(), Some("files.maxReadSize"));
    put(Transport::Acp, b"1234").unwrap();
    assert_eq!(put(Transport::Acp, b"123").unwrap_err().rule(), Some("limits.bytesWritten"));
    assert_eq!(put(Transport::Mount, &[b'x'; 17]).unwrap_err().rule(), Some("mount.maxWriteSize"));
    let remove = crate::model::request::Remove { path: path("a"), recursive: false };
    let kept = fixture.ask(Transport::Mount, &remove).unwrap_err();
    assert_eq!(kept.rule(), Some("mount.filesRemoved"));
    // Two denials: the mount is closed and shows nothing; the session continues elsewhere.
    assert_eq!(
        fixture.ask(Transport::Mount, &read("a")).unwrap_err().rule(),
        Some("mount.denials")
    );
    assert_eq!((fixture.see("a"), fixture.names(".").unwrap()), (None, String::new()));
    fixture.ask(Transport::Acp, &read("a")).unwrap();
    fixture.gateway.end_session(&session(Transport::Acp));
    assert!(fixture.see("a").is_some());
}

#[test]
fn the_mount_never_waits_for_a_person() {
    let fixture = Fixture::new(&format!(
        "{OPEN}[[rules]]\nid = \"q\"\neffect = \"ask\"\npaths = [\"asked\"]\n"
    ));
    fixture.file("asked", "x");
    let facts = BTreeMap::from([("process".to_owned(), json!({ "pid": 42, "name": "cc" }))]);
    let client = Client { facts: &facts, ..Client::default() };
    let refused =
        fixture.gateway.handle(&session(Transport::Mount), &read("asked"), client).unwrap_err();
    assert_eq!((refused.kind(), refused.rule()), (ErrorKind::Denied, Some("q")));
    assert!(refused.reason().unwrap().starts_with("a person is asked; "), "{refused}");
    let records = fixture.requests();
    let decided: Vec<_> = records.iter().map(|record| record.draft.decision.as_deref()).collect();
    assert_eq!(decided, [Some("ask"), Some("deny")]);
    for record in &records {
        assert_eq!(record.draft.transport.as_deref(), Some("mount"));
        assert_eq!(record.draft.facts.as_ref().unwrap()["process"], facts["process"]);
    }
}

#[test]
fn a_name_alone_says_what_may_be_made() {
    let fixture = Fixture::new(
        "[allowedPaths]\nwrite = [\"a/**\"]\nlist = [\"**\"]\n[[rules]]\nid = \"no\"\neffect = \"deny\"\n\
         operations = [\"symlink\"]\npaths = [\"a/no\"]\n",
    );
    fixture.file("a/x", "x");
    assert!(fixture.admits(&write("a/x", b""), "a/x"));
    let mkdir = |name: &str| Mkdir { path: path(name), recursive: false, mode: None };
    assert!(fixture.admits(&mkdir("a/y/z"), "a/y/z") && !fixture.admits(&write("b", b""), "b"));
    assert!(
        !fixture.admits(&link("a/no", "x"), "a/no") && fixture.admits(&write("a/no", b""), "a/no")
    );
    let reserved = format!("a/{}", TempName::new().unwrap().as_str());
    assert!(!fixture.admits(&write(&reserved, b""), &reserved));
}

/// Regression: each program that asked read a whole directory, and its names were counted
/// afterwards.
#[test]
fn a_directory_is_read_no_further_than_there_is_room() {
    let fixture = Fixture::new(OPEN);
    for name in 0..100 {
        fixture.file(&format!("{name:03}"), "");
    }
    let mut asked = Vec::new();
    let room = |length| {
        asked.push(length);
        asked.len() <= 10
    };
    let listed = fixture.gateway.mount_view(&session(Transport::Mount)).list(&path("."), room);
    assert!(matches!(listed, Err(crate::workspace::Error::TooLarge)));
    assert_eq!(asked, [3; 11]);
}

#[test]
fn versions_tell_states_apart() {
    let fixture = Fixture::new(OPEN);
    fixture.file("a", "x");
    let version = || fixture.see("a").unwrap().stat.version();
    let first = version();
    assert_eq!(first, version());
    let stat = fixture.see("a").unwrap().stat;
    assert_eq!(stat.inode(), fs::metadata(fixture.at("a")).unwrap().ino());
    std::thread::sleep(std::time::Duration::from_millis(40));
    fs::set_permissions(fixture.at("a"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_ne!(first, version());
}
