#![expect(clippy::disallowed_methods, reason = "tests make files behind the gateway's back")]

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
    gateway::{Changed, Error as Refused, ErrorKind, Reply, Request, record},
    ledger::AuditLog,
    model::{
        Door,
        request::{List, Mkdir, SetAttributes, Stat as StatRequest, Symlink, Write},
    },
    ops::Committed,
    policy::{PolicySource, SecretKey, compile},
    workspace::Workspace,
};

const OPEN: &str =
    "[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\nremove = [\"**\"]\n";

/// A gateway over a new workspace.
struct House {
    dir: TempDir,
    gateway: Gateway,
}

fn session(door: Door) -> Session {
    let (id, user) = ("ab".repeat(16), "user".to_owned());
    Session { id, agent: "agent".parse().unwrap(), user, door }
}

fn path(text: &str) -> WorkspacePath {
    if text == "." { WorkspacePath::root() } else { WorkspacePath::parse(text).unwrap() }
}

fn open(dir: &TempDir, policy: &str) -> Gateway {
    let policy = format!("schema = 1\nversion = 1\n{policy}");
    let policy = compile(&PolicySource::from_text("test", &policy)).unwrap();
    let state = Dir::from_std_file(fs::File::open(dir.path().join("state")).unwrap());
    let workspace = Workspace::open(&dir.path().join("ws")).unwrap();
    let ledger = AuditLog::open(&state).unwrap();
    let key = SecretKey::new(&[7; SecretKey::LENGTH]);
    let gateway = Gateway::open(workspace, Arc::new(policy), ledger, &state, key).unwrap();
    gateway.start(&session(Door::Acp), BTreeMap::new()).unwrap();
    gateway
}

impl House {
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

    fn ask<R: Request>(&self, door: Door, request: &R) -> Result<Reply<R::Output>, Refused> {
        self.gateway.handle(&session(door), request, Client::default())
    }

    #[track_caller]
    fn does(&self, request: &dyn Request<Output = Changed>) -> Changed {
        self.gateway.handle(&session(Door::Mount), request, Client::default()).unwrap().output
    }

    #[track_caller]
    fn fails(&self, request: &dyn Request<Output = Changed>) -> Refused {
        self.gateway.handle(&session(Door::Mount), request, Client::default()).unwrap_err()
    }

    fn see(&self, name: &str) -> Option<Seen> {
        self.gateway.mount_view(&session(Door::Mount)).lookup(&path(name)).unwrap()
    }

    fn names(&self, name: &str) -> Option<String> {
        let list = self.gateway.mount_view(&session(Door::Mount)).list(&path(name)).unwrap();
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
    let house = House::new(
        "[allowedPaths]\nlist = [\"src/**\", \"a/*/c.txt\"]\nread = [\"**\"]\n\
         [[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"src/no/**\"]\n\
         [[rules]]\nid = \"q\"\neffect = \"ask\"\npaths = [\"src/asked\"]\n",
    );
    for name in ["src/x", "src/no/x", "src/asked", "a/b/c.txt", "a/b/d.txt", "a/x", "other/x"] {
        house.file(name, "x");
    }
    let temp = TempName::new().unwrap();
    house.file(&format!("src/{}", temp.as_str()), "x");
    symlink("x", house.at("src/link")).unwrap();
    symlink("b", house.at("a/link")).unwrap();

    assert_eq!(house.names(".").unwrap(), "a src");
    assert_eq!(house.names("src").unwrap(), "link x");
    assert_eq!(house.names("a").unwrap(), "b");
    assert_eq!(house.names("a/b").unwrap(), "c.txt");
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
        assert_eq!((house.see(hidden), house.names(hidden)), (None, None), "{hidden}");
    }
    assert_eq!(house.see(&format!("src/{}", temp.as_str())), None);
    // A link is shown as what it is, and leads nowhere by itself.
    assert_eq!(house.see("src/link").unwrap().stat.kind, ObjectKind::Symlink);
    assert_eq!(house.see("a/link/c.txt"), None);
    let traverse = ["a", "a/b", "src"].map(|name| house.see(name).unwrap().traverse);
    assert_eq!(traverse, [true, true, true]);
    assert!(!house.see("src/x").unwrap().traverse && house.see(".").unwrap().traverse);
    assert!(house.requests().is_empty());
}

/// The same answers as requests get.
#[test]
fn a_lookup_is_decided_as_a_request() {
    for mode in ["", "mode = \"observe\"\n"] {
        let house = House::new(&format!(
            "{mode}[allowedPaths]\nlist = [\"a/**\"]\n[extensions]\ndeny = [\"pem\"]\n\
             allow = {{ list = [\"rs\"] }}\n[secrets]\nnames = [\"*.key\"]\n"
        ));
        for name in ["a/x.rs", "a/x.txt", "a/b.pem", "a/.key", "a/d.txt/x.rs", "b/x.rs"] {
            house.file(name, "x");
        }
        for name in ["a/x.rs", "a/x.txt", "a/b.pem", "a/.key", "a/d.txt", "a/d.txt/x.rs", "b/x.rs"]
        {
            let (own, above) = (path(name), path(name).parent().unwrap());
            let seen = house.see(name).filter(|seen| !seen.traverse);
            let is_listed = match house.ask(Door::Mount, &List { path: above.clone() }) {
                Ok(listed) => listed.output.entries.iter().any(|entry| entry.path == own),
                Err(_) => seen.is_some(),
            };
            assert_eq!(is_listed, seen.is_some(), "{mode}{name}");
            let names = house.names(above.as_str()).unwrap_or_default();
            let is_named = names.split(' ').any(|one| Some(one) == own.file_name());
            assert_eq!(is_named, seen.is_some(), "{mode}{name}");
            // Of a name alone nobody knows that it is a directory's.
            let stat = house.ask(Door::Mount, &StatRequest { path: own });
            assert!(stat.is_ok() == seen.is_some() || name == "a/d.txt", "{mode}{name}");
        }
    }
}

#[test]
fn a_link_that_leads_out_is_not_read() {
    let house = House::new(&format!(
        "{OPEN}[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"no/**\"]\n"
    ));
    house.file("d/x", "x");
    house.file("no/x", "x");
    let read = |name: &str| house.gateway.mount_view(&session(Door::Mount)).read_link(&path(name));
    for target in ["x", "../d/x", "missing", "../no/x", "..", "./d/../x"] {
        symlink(target, house.at("d/link")).unwrap();
        assert_eq!(read("d/link"), Ok(Some(target.to_owned())), "{target}");
        fs::remove_file(house.at("d/link")).unwrap();
    }
    let absolute = house.at("d/x");
    for target in ["../..", "../../ws/d/x", "/etc/passwd", absolute.to_str().unwrap()] {
        symlink(target, house.at("d/link")).unwrap();
        assert_eq!(read("d/link"), Err(Error::Outside), "{target}");
        fs::remove_file(house.at("d/link")).unwrap();
    }
    symlink("link", house.at("d/link")).unwrap();
    assert_eq!(read("d/link"), Err(Error::Loop));
    symlink("x", house.at("no/link")).unwrap();
    assert_eq!((read("no/link"), read("d/none")), (Ok(None), Ok(None)));
    assert_eq!(read("d/x"), Err(Error::NotFound));
}

#[test]
fn a_view_has_the_length_of_what_a_read_gives() {
    let secrets = "[secrets]\nonRead = \"redact\"\n[[secrets.rules]]\nid = \"k\"\nregex = 'tok_[a-z]{8}'\n\
                   keywords = [\"tok_\"]\n[mount]\nmaxReadSize = \"64B\"\n";
    let house = House::new(&format!(
        "{OPEN}{secrets}[[rules]]\nid = \"no\"\neffect = \"deny\"\noperations = [\"read\"]\npaths = [\"no\"]\n"
    ));
    let view = session(Door::Mount);
    let view = house.gateway.mount_view(&view);
    for (name, content) in [("a", "x tok_abcdefgh y\n"), ("b", "plain\n"), ("empty", "")] {
        house.file(name, content);
        let stat = house.see(name).unwrap().stat;
        let size = view.view_size(&path(name), &stat).unwrap();
        let read = house.ask(Door::Mount, &read(name)).unwrap().output;
        assert_eq!(size, read.bytes.len() as u64, "{name}");
        assert_eq!(read.redacted, size != stat.size, "{name}");
        fs::write(house.at(name), "changed").unwrap();
        assert_eq!(view.view_size(&path(name), &stat), Err(Error::Moved), "{name}");
    }
    house.file("no", "x tok_abcdefgh y\n");
    house.file("large", &"x tok_abcdefgh y\n".repeat(9));
    for name in ["no", "large"] {
        let stat = house.see(name).unwrap().stat;
        assert_eq!(view.view_size(&path(name), &stat), Ok(stat.size), "{name}");
        assert!(house.ask(Door::Mount, &read(name)).is_err(), "{name}");
        // What nobody was disclosed has no record.
    }
    assert_eq!(house.requests().len(), 5);
}

#[test]
fn a_repeated_read_is_decided_and_counted() {
    let house = House::new(&format!(
        "{OPEN}[mount]\noperationsPerSecond = 2\n[[rules]]\nid = \"no\"\neffect = \"deny\"\n\
         operations = [\"read\"]\npaths = [\"no\"]\n"
    ));
    house.file("a", "x");
    house.file("no", "x");
    house.file("twice", "x");
    fs::hard_link(house.at("twice"), house.at("again")).unwrap();
    fs::create_dir(house.at("d")).unwrap();
    let mount = session(Door::Mount);
    let repeat = |name: &str| {
        let stat = house.see(name).unwrap().stat;
        house.gateway.mount_view(&mount).repeat(&path(name), &stat)
    };
    assert_eq!(["no", "twice", "d"].map(repeat), [false, false, false]);
    assert_eq!(["a", "a", "a"].map(repeat), [true, true, false]);
    let haste = house.ask(Door::Mount, &read("a")).unwrap_err();
    assert_eq!(haste.rule(), Some("mount.operationsPerSecond"));
    // Another door of the same session is none of its business.
    house.ask(Door::Acp, &read("a")).unwrap();
}

#[test]
fn a_mount_has_limits_of_its_own() {
    let house = House::new(&format!(
        "{OPEN}[files]\nmaxReadSize = \"4B\"\nmaxWriteSize = \"4B\"\n[limits]\nbytesWritten = \"6B\"\n\
         [mount]\nmaxWriteSize = \"16B\"\nfilesRemoved = 0\ndenials = 2\n\
         [[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"no\"]\n"
    ));
    let put = |door, content: &[u8]| house.ask(door, &write("a", content)).map(drop);
    put(Door::Mount, b"\0\xff34567890").unwrap();
    assert_eq!(house.ask(Door::Mount, &read("a")).unwrap().output.bytes.len(), 10);
    let small = house.ask(Door::Acp, &read("a")).unwrap_err();
    assert_eq!(small.rule(), Some("files.maxReadSize"));
    put(Door::Acp, b"1234").unwrap();
    assert_eq!(put(Door::Acp, b"123").unwrap_err().rule(), Some("limits.bytesWritten"));
    assert_eq!(put(Door::Mount, &[b'x'; 17]).unwrap_err().rule(), Some("mount.maxWriteSize"));
    let remove = crate::model::request::Remove { path: path("a"), recursive: false };
    let kept = house.ask(Door::Mount, &remove).unwrap_err();
    assert_eq!(kept.rule(), Some("mount.filesRemoved"));
    // Two denials: the mount is closed, and shows nothing; the session goes on elsewhere.
    assert_eq!(house.ask(Door::Mount, &read("a")).unwrap_err().rule(), Some("mount.denials"));
    assert_eq!((house.see("a"), house.names(".").unwrap()), (None, String::new()));
    house.ask(Door::Acp, &read("a")).unwrap();
    house.gateway.end_session(&session(Door::Acp));
    assert!(house.see("a").is_some());
}

#[test]
fn the_mount_never_waits_for_a_person() {
    struct Never;
    impl crate::gateway::Approver for Never {
        fn ask(&self, _: &Arc<crate::gateway::Ticket>) {
            panic!("asked");
        }

        fn over(&self, _: &crate::gateway::Ticket) {}
    }
    let house = House::new(&format!(
        "{OPEN}[[rules]]\nid = \"q\"\neffect = \"ask\"\npaths = [\"asked\"]\n"
    ));
    house.file("asked", "x");
    let facts = BTreeMap::from([("process".to_owned(), json!({ "pid": 42, "name": "cc" }))]);
    let client = Client { facts: &facts, ..Client::asking(&Never) };
    let refused = house.gateway.handle(&session(Door::Mount), &read("asked"), client).unwrap_err();
    assert_eq!((refused.kind(), refused.rule()), (ErrorKind::Denied, Some("q")));
    assert!(refused.reason().unwrap().contains("approved for the session"), "{refused}");
    let records = house.requests();
    let [record] = &records[..] else { panic!("{records:?}") };
    assert_eq!(record.draft.decision.as_deref(), Some("deny"));
    assert_eq!(record.draft.door.as_deref(), Some("mount"));
    assert_eq!(record.draft.facts.as_ref().unwrap()["process"], facts["process"]);
    assert!(
        !house
            .gateway
            .mount_view(&session(Door::Mount))
            .may_create(&path("asked"), OperationKind::Write)
    );
}

#[test]
fn a_name_alone_says_what_may_be_made() {
    let house = House::new(
        "[allowedPaths]\nwrite = [\"a/**\"]\n[[rules]]\nid = \"no\"\neffect = \"deny\"\n\
         operations = [\"symlink\"]\npaths = [\"a/no\"]\n",
    );
    house.file("a/x", "x");
    let mount = session(Door::Mount);
    let may =
        |name: &str, operation| house.gateway.mount_view(&mount).may_create(&path(name), operation);
    assert!(may("a/x", OperationKind::Write) && may("a/y/z", OperationKind::Mkdir));
    assert!(!may("b", OperationKind::Write) && !may("a/no", OperationKind::Symlink));
    assert!(may("a/no", OperationKind::Write));
    assert!(!may(&format!("a/{}", TempName::new().unwrap().as_str()), OperationKind::Write));
}

#[test]
fn versions_tell_states_apart() {
    let house = House::new(OPEN);
    house.file("a", "x");
    let version = || house.see("a").unwrap().stat.version();
    let first = version();
    assert_eq!(first, version());
    let stat = house.see("a").unwrap().stat;
    assert_eq!(stat.inode(), fs::metadata(house.at("a")).unwrap().ino());
    assert!(!stat.is_settled());
    std::thread::sleep(std::time::Duration::from_millis(40));
    assert!(stat.is_settled());
    fs::set_permissions(house.at("a"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_ne!(first, version());
}

#[test]
fn a_new_file_has_the_mode_that_was_asked_for() {
    let house = House::new(OPEN);
    let create = |name: &str, mode| Write { mode, ..write(name, b"x") };
    let mode = |name: &str| fs::metadata(house.at(name)).unwrap().mode() & 0o7777;
    for (name, wanted) in [("a", 0o755), ("b", 0o400), ("c", 0o666)] {
        house.does(&create(name, Some(wanted)));
        assert_eq!(mode(name), wanted, "{name}");
    }
    let intents = house.requests();
    assert_eq!(intents[0].draft.facts.as_ref().unwrap()["attributes"], json!({ "mode": "0755" }));
    // A file that is there keeps its own.
    house.does(&create("b", Some(0o777)));
    assert_eq!(mode("b"), 0o400);
    let refused = house.fails(&create("e", Some(0o4755)));
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(!house.at("e").exists());
}

#[test]
fn attributes_are_set_and_recorded() {
    let house = House::new(&format!(
        "{OPEN}[[rules]]\nid = \"no\"\neffect = \"deny\"\noperations = [\"setattr\"]\npaths = [\"no\"]\n"
    ));
    house.file("a", "x");
    house.file("no", "x");
    fs::set_permissions(house.at("a"), fs::Permissions::from_mode(0o644)).unwrap();
    house.does(&Mkdir { path: path("d"), recursive: false });
    symlink("a", house.at("link")).unwrap();
    let meta = |name: &str| fs::symlink_metadata(house.at(name)).unwrap();

    assert_eq!(house.does(&set("a", Some(0o700), Some((1, 2)))).committed, Committed::Stored);
    assert_eq!(
        (meta("a").mode() & 0o7777, meta("a").mtime(), meta("a").mtime_nsec()),
        (0o700, 1, 2)
    );
    let records = house.requests();
    let [.., intent, outcome] = &records[..] else { panic!("{records:?}") };
    let facts = intent.draft.facts.as_ref().unwrap();
    assert_eq!(intent.kind, Kind::Intent);
    assert_eq!(intent.draft.op.as_deref(), Some("setattr"));
    let set_to = json!({ "mode": "0700", "modified": 1, "modifiedNanoseconds": 2 });
    assert_eq!(facts["attributes"], set_to);
    assert_eq!(facts["attributesBefore"]["mode"], "0644");
    assert_eq!(outcome.draft.result.as_deref(), Some("ok"));
    assert_eq!(house.does(&set("a", Some(0o700), None)).committed, Committed::Unchanged);

    house.does(&set("d", Some(0o711), Some((-5, 0))));
    assert_eq!((meta("d").mode() & 0o7777, meta("d").mtime()), (0o711, -5));
    // Of a link its own time, which is none of what it leads to.
    house.does(&set("link", None, Some((9, 0))));
    assert_eq!((meta("link").mtime(), meta("a").mtime()), (9, 1));
    for refused in [
        set("link", Some(0o777), None),
        set("a", Some(0o4700), None),
        set("a", None, Some((0, 1_000_000_000))),
        set("a", Some(0o277), None),
        set("d", Some(0o677), None),
        set(".", Some(0o700), None),
    ] {
        assert_eq!(house.fails(&refused).kind(), ErrorKind::InvalidInput, "{refused:?}");
    }
    assert_eq!(house.fails(&set("none", Some(0o700), None)).kind(), ErrorKind::NotFound);
    assert_eq!(house.fails(&set("no", Some(0o700), None)).rule(), Some("no"));
    assert_eq!(meta("a").mode() & 0o7777, 0o700);
}

#[test]
fn a_link_is_made_only_where_it_stays_inside() {
    let house = House::new(&format!(
        "{OPEN}[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"no/**\"]\n"
    ));
    house.file("d/x", "x");
    house.file("no/x", "x");
    symlink("../..", house.at("d/out")).unwrap();
    let target = |name: &str| fs::read_link(house.at(name)).unwrap().to_str().unwrap().to_owned();

    house.does(&link("d/link", "../d/x"));
    assert_eq!(target("d/link"), "../d/x");
    let records = house.requests();
    assert_eq!(records[0].draft.facts.as_ref().unwrap()["target"], "../d/x");
    assert_eq!(records[0].draft.op.as_deref(), Some("symlink"));
    house.does(&link("new/dir/link", "nowhere/../yet"));
    assert_eq!(target("new/dir/link"), "nowhere/../yet");
    // It may lead to what is hidden, and is read as if that were missing.
    house.does(&link("d/hidden", "../no/x"));
    for outside in ["..", "/", "../../d/x", "/etc/passwd", "d/../../..", "d/out/x"] {
        let refused = house.fails(&link("escape", outside));
        assert_eq!(refused.kind(), ErrorKind::Denied, "{outside}: {refused}");
        assert!(!house.at("escape").is_symlink());
    }
    assert_eq!(house.fails(&link("d/link", "x")).kind(), ErrorKind::AlreadyExists);
    assert_eq!(house.fails(&link("no/link", "x")).rule(), Some("no"));
    for bad in ["", "a\0b", &"x".repeat(5000)] {
        assert!(house.fails(&link("bad", bad)).kind() == ErrorKind::InvalidInput);
    }
    let names: Vec<_> = fs::read_dir(house.dir.path().join("ws")).unwrap().collect();
    assert_eq!(names.len(), 3, "{names:?}");
}

#[test]
fn no_link_is_made_where_none_is_followed() {
    let house = House::new(&format!("{OPEN}[files]\nsymlinks = \"deny\"\n"));
    house.file("x", "x");
    assert_eq!(house.fails(&link("link", "x")).rule(), Some("files.symlinks"));
}

/// A gateway died between the intent and the outcome.
#[test]
fn what_a_dead_gateway_began_is_settled() {
    let attributes = |mode: &str| json!({ "mode": mode });
    for (mode, result) in [(0o600, "committed"), (0o644, "rolledBack"), (0o755, "superseded")] {
        let house = House::new(OPEN);
        house.file("a", "x");
        fs::set_permissions(house.at("a"), fs::Permissions::from_mode(mode)).unwrap();
        symlink("x", house.at("link")).unwrap();
        let begun = |request: &dyn Request<Output = Changed>, draft: Draft| {
            let policy = house.gateway.policy();
            let named = record::operation(&session(Door::Mount), &policy, request.as_operation());
            let draft = Draft { op: named.op, path: named.path, session: named.session, ..draft };
            drop(house.gateway.ledger.admit(draft, &crate::ledger::Seal::new()).unwrap());
        };
        let facts = [("attributes", attributes("0600")), ("attributesBefore", attributes("0644"))];
        let facts = facts.map(|(name, value)| (name.to_owned(), value));
        let facts = Some(BTreeMap::from(facts));
        begun(&set("a", Some(0o600), None), Draft { facts, ..Draft::default() });
        let (temp, after) = (TempName::new().unwrap(), Some(Hash::of(b"y")));
        symlink("y", house.at(temp.as_str())).unwrap();
        let temp = Some(temp.as_str().to_owned());
        begun(&link("other", "y"), Draft { temp, after, ..Draft::default() });
        begun(&link("link", "x"), Draft { after: Some(Hash::of(b"x")), ..Draft::default() });

        let House { dir, gateway } = house;
        drop(gateway);
        let house = House { gateway: open(&dir, OPEN), dir };
        let records = house.records();
        let settled = records.iter().filter(|record| record.kind == Kind::Recovered);
        let results: Vec<_> = settled.map(|record| record.draft.result.clone().unwrap()).collect();
        assert_eq!(results, [result, "rolledBack", "committed"]);
        assert_eq!(fs::metadata(house.at("a")).unwrap().mode() & 0o777, mode);
        assert_eq!(fs::read_dir(house.dir.path().join("ws")).unwrap().count(), 2);
    }
}
