//! Recovery from states that a random kill hardly ever leaves: an intent without outcome is
//! written, and the workspace made as the gateway that died would have left it. Each was a bug.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt as _, chown},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::Command,
};

use cap_std::fs::Dir;
use portcullis::gateway::AuditLog;
use portcullis_audit::{Draft, Hash, Kind};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::{common::World, consistency, consistency::tree_hash, crash::POLICY};
mod exchange;
mod exchanged;

pub(crate) const TEMP: &str = ".portcullis-00000000000000000000000000000001.tmp";
const STAGED: &str = ".portcullis-55555555555555555555555555555554.tmp";
const DELETION_NAME: &str = ".portcullis-fffffffffffffffffffffffffffffffe.tmp";

/// A gateway that admits an intent and dies.
pub(crate) fn died_after(
    world: &World,
    op: &str,
    path: &str,
    before: Option<Hash>,
    after: Option<Hash>,
) {
    let (op, path) = (Some(op.to_owned()), Some(path.to_owned()));
    admitted(world, Draft { op, path, before, after, ..Draft::default() });
}

fn admitted(world: &World, draft: Draft) {
    let state = Dir::from_std_file(fs::File::open(world.state()).unwrap());
    let audit_log = AuditLog::open(&state).unwrap();
    let draft = Draft { decision: Some("allow".to_owned()), temp: Some(TEMP.to_owned()), ..draft };
    assert!(audit_log.note(Kind::Intent, draft, true).unwrap().durable);
}

fn world() -> World {
    let world = World::with_policy(POLICY);
    world.fs(&["ls"]).ok();
    world
}

/// Returns the outcome by which the next start settled it.
fn settled(world: &World) -> String {
    world.fs(&["ls"]).ok();
    world.run(&["audit", "verify"]).ok();
    assert_eq!(consistency::leftovers(world), Vec::<PathBuf>::new());
    let records = world.records();
    let recovered = records.iter().rfind(|record| record["kind"] == "recovered").unwrap();
    recovered["result"].as_str().unwrap().to_owned()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A gateway died while it wrote its copy, and the same write was made again through another
/// gateway before any recovery: the half copy went to the place of the complete file.
#[test]
fn a_half_copy_never_takes_the_place_of_the_same_write_made_again() {
    let new = "new\n".repeat(1000);
    for before in [None, Some(Hash::of(b"old"))] {
        for half in ["", &new[..1500], &new] {
            let world = world();
            died_after(&world, "write", "a.txt", before, Some(Hash::of(new.as_bytes())));
            world.file(TEMP, half);
            world.file("a.txt", &new);
            assert_eq!(settled(&world), "committed");
            assert_eq!(world.read("a.txt"), new);
            assert_eq!(names(&world.root()), ["a.txt"]);
        }
    }
}

/// A file that another process had put there a moment before the exchange goes back to its place:
/// also one that it had just emptied, which once was taken for a half copy.
#[test]
fn what_an_exchange_brought_out_goes_back() {
    for theirs in ["of another process", "", "ne"] {
        let world = world();
        died_after(&world, "write", "a.txt", Some(Hash::of(b"old")), Some(Hash::of(b"new")));
        world.file(STAGED, theirs);
        world.file("a.txt", "new");
        assert_eq!(settled(&world), "superseded");
        assert_eq!(world.read("a.txt"), theirs);
        assert_eq!(names(&world.root()), ["a.txt"]);
    }
}

/// Every start computed its hash, and none came to an end: another process had put it in the place
/// of a file, and an exchange had brought it out.
#[test]
fn a_huge_sparse_file_that_came_in_between_keeps_no_gateway_from_starting() {
    let world = world();
    died_after(&world, "write", "a.txt", Some(Hash::of(b"old")), Some(Hash::of(b"new")));
    world.file("a.txt", "new");
    fs::File::create(world.path(STAGED)).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(settled(&world), "superseded");
    assert_eq!(fs::metadata(world.path("a.txt")).unwrap().len(), 1 << 40);
}

/// A gateway that dies while it undoes an exchange may hold the newest object of another process
/// under its own name: that was deleted as if it were a half copy.
#[test]
fn what_an_undo_held_when_it_died_is_kept() {
    for inside in ["", "/x.txt"] {
        let world = world();
        died_after(&world, "write", "a.txt", Some(Hash::of(b"old")), Some(Hash::of(b"new")));
        world.file(&format!("{STAGED}{inside}"), "newest of another process");
        world.file("a.txt", "of another process");
        assert_eq!(settled(&world), "superseded");
        assert_eq!(world.read("a.txt"), "of another process");
        let names = names(&world.root());
        let [_, beside] = names.as_slice() else { panic!("not kept: {names:?}") };
        assert!(beside.starts_with("a.txt.conflict-"), "{names:?}");
        assert_eq!(world.read(&format!("{beside}{inside}")), "newest of another process");
    }
}

/// An object that the gateway moved is its own or in the backup store: it is deleted, and the file
/// at the name stays.
#[test]
fn what_is_known_goes_whatever_has_its_name() {
    let (old, new) = ("old", "new");
    for held in [old, new] {
        for (there, result) in [
            (Some(old), "rolledBack"),
            (Some(new), "committed"),
            (Some("of another process"), "superseded"),
            (None, "superseded"),
        ] {
            let world = world();
            let hash = |text: &str| Some(Hash::of(text.as_bytes()));
            died_after(&world, "write", "a.txt", hash(old), hash(new));
            world.file(STAGED, held);
            there.map(|there| world.file("a.txt", there));
            assert_eq!(settled(&world), result, "held {held}, there {there:?}");
            let left = names(&world.root());
            assert_eq!(left, there.map(|_| "a.txt".to_owned()).into_iter().collect::<Vec<_>>());
            if let Some(there) = there {
                assert_eq!(world.read("a.txt"), there);
            }
        }
    }
}

/// Names and what they hold.
type Files<'a> = &'a [(&'a str, &'a str)];

/// A rename over a file that was cut short, at each of its steps: the moved file is at one of its
/// names, the replaced one is there or deleted, and an unknown one is kept where no client is
/// served it.
#[test]
fn a_rename_over_a_file_is_finished_or_undone() {
    let (moving, replaced) = ("moving", "replaced");
    let cases: [(Files<'_>, &str, Files<'_>); 6] = [
        (
            &[(TEMP, moving), ("to.txt", replaced)],
            "rolledBack",
            &[("from.txt", moving), ("to.txt", replaced)],
        ),
        (
            &[(STAGED, moving), ("to.txt", replaced)],
            "rolledBack",
            &[("from.txt", moving), ("to.txt", replaced)],
        ),
        (&[(STAGED, replaced), ("to.txt", moving)], "committed", &[("to.txt", moving)]),
        (&[("to.txt", moving)], "committed", &[("to.txt", moving)]),
        (
            &[(STAGED, moving), ("to.txt", "of another")],
            "superseded",
            &[("from.txt", moving), ("to.txt", "of another")],
        ),
        (
            &[(STAGED, "of another"), ("to.txt", moving)],
            "superseded",
            &[("to.txt", moving), ("to.txt.conflict-", "of another")],
        ),
    ];
    for (left, result, expected) in cases {
        let world = world();
        world.file("d/other.txt", "");
        let hash = |text: &str| Some(Hash::of(text.as_bytes()));
        admitted(
            &world,
            Draft {
                op: Some("rename".to_owned()),
                path: Some("from.txt".to_owned()),
                to: Some("d/to.txt".to_owned()),
                before: hash(replaced),
                after: hash(moving),
                ..Draft::default()
            },
        );
        for (name, content) in left {
            world.file(&format!("d/{name}"), content);
        }
        assert_eq!(settled(&world), result, "{left:?}");
        let found: Vec<_> = [(world.root(), "from.txt"), (world.path("d"), "to.txt")]
            .into_iter()
            .flat_map(|(directory, prefix)| {
                let names = names(&directory).into_iter().filter(move |n| n.starts_with(prefix));
                names.map(move |name| {
                    let content = fs::read_to_string(directory.join(&name)).unwrap();
                    let known = name.split_inclusive(".conflict-").next().unwrap().to_owned();
                    (known, content)
                })
            })
            .collect();
        let found: Vec<_> = found.iter().map(|(n, c)| (n.as_str(), c.as_str())).collect();
        assert_eq!(found, expected, "{left:?}");
    }
}

/// The same for a tree: the half restored one took the place of the whole one,
/// or stayed.
#[test]
fn a_half_restored_tree_never_takes_the_place_of_a_whole_one() {
    for before in [None, Some(Hash::of(b"a tree"))] {
        let world = world();
        world.file("tree/a.txt", "a");
        world.file("tree/b.txt", "b");
        let whole = tree_hash(&world, "tree");
        died_after(&world, "restore", "tree", before, Some(whole));
        world.file(&format!("{TEMP}/a.txt"), "a");
        assert_eq!(settled(&world), "committed");
        assert_eq!(names(&world.path("tree")), ["a.txt", "b.txt"]);
        assert_eq!(names(&world.root()), ["tree"]);
    }
}

/// Names that a gateway gave while it removed a tree were in the way of the next one with the same
/// process id, as in a container, and it never started.
#[test]
fn a_removal_that_died_is_finished_under_the_same_process_id() {
    let world = world();
    died_after(&world, "remove", "tree", Some(Hash::of(b"a tree")), None);
    for number in 1..4 {
        for descriptor in 3..64 {
            world.file(&format!("{DELETION_NAME}/1-{number}-{descriptor}/x/file"), "x");
        }
    }
    let gateway = world.command(&["fs", "ls"]);
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(gateway.get_program())
        .args(gateway.get_args())
        .env_clear()
        .envs(gateway.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(settled(&world), "committed");
    assert_eq!(names(&world.root()), Vec::<String>::new());
}

/// A gateway took back what it had kept for a removal that it did not make, and the power failed
/// before the file's end was recorded: that the file had gone by then was taken for the removal.
#[test]
fn a_change_whose_backup_was_taken_back_was_not_made() {
    let world = world();
    let draft = Draft {
        op: Some("remove".to_owned()),
        path: Some("gone".to_owned()),
        before: Some(Hash::of(b"old")),
        backup: Some("20261121T164119853692Z-0843b129".to_owned()),
        ..Draft::default()
    };
    admitted(&world, draft);
    assert_eq!(settled(&world), "superseded");
    consistency::check(&world);
}

/// Copies that gateways were making when they died stayed for ever.
#[test]
fn what_dead_gateways_were_writing_in_the_state_directory_goes() {
    let world = world();
    let quarantine = world.state().join("audit/quarantine");
    fs::create_dir(&quarantine).unwrap();
    fs::write(quarantine.join("incoming-0123"), "half").unwrap();
    let kept = names(&world.state().join("policies"));
    fs::write(world.state().join(format!("policies/{}.12.tmp", kept[0])), "half").unwrap();
    fs::write(world.state().join("backups/tmp/0123"), "half").unwrap();
    world.fs(&["ls"]).ok();
    assert_eq!(consistency::leftovers(&world), Vec::<PathBuf>::new());
    assert_eq!(names(&world.state().join("policies")), kept);
}

/// An intent that makes no sense is no gateway's: its author may have written more.
#[test]
fn a_gateway_that_cannot_understand_an_intent_does_not_start() {
    let world = world();
    died_after(&world, "write", "../a.txt", None, None);
    for _ in 0..2 {
        let done = world.fs(&["ls"]);
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.stderr.contains("cannot recover: the intent"), "{done:?}");
    }
}

/// A user who is not the gateway's.
const STRANGER: Option<u32> = Some(65534);

/// Gives it to another user. The gateway has given up the capabilities by which root has access
/// anyway.
fn give_away(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    chown(path, STRANGER, STRANGER).unwrap();
}

fn fifo(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
}

#[test]
fn a_rename_that_was_refused_keeps_no_gateway_from_starting() {
    let world = world();
    give_away(&world.file("f", "unreadable"), 0o600);
    give_away(&world.file("d/f", "unreadable"), 0o600);
    fs::create_dir(world.path("theirs")).unwrap();
    give_away(&world.path("theirs"), 0o755);
    for name in ["f", "d"] {
        let done = world.fs(&["mv", name, &format!("theirs/{name}")]);
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.stderr.contains("permission denied"), "{done:?}");
        assert_eq!(world.last()["kind"], "outcome");
        assert!(world.path(name).exists());
    }
    world.fs(&["ls"]).ok();
    assert!(world.records().iter().all(|record| record["kind"] != "recovered"));
}

/// A file that could not be read for its hash stopped every gateway for ever, also where its hash
/// did not matter.
#[test]
fn what_cannot_be_read_is_what_somebody_else_put_there() {
    let rename = |world: &World| {
        let text = |text: &str| Some(text.to_owned());
        let draft =
            Draft { op: text("rename"), path: text("d"), to: text("e"), ..Draft::default() };
        admitted(world, draft);
    };
    type Case<'a> = (&'a str, &'a dyn Fn(&World), &'a str);
    let write = |world: &World| died_after(world, "write", "x", None, Some(Hash::of(b"new")));
    let remove = |world: &World| died_after(world, "remove", "x", Some(Hash::of(b"old")), None);
    let mkdir = |world: &World| died_after(world, "mkdir", "x", None, None);
    let cases: [Case<'_>; 9] = [
        ("a rename that was not made", &|w| (rename(w), fifo(&w.path("d/fifo"))).1, "rolledBack"),
        ("a rename that was made", &|w| (rename(w), fifo(&w.path("e/fifo"))).1, "committed"),
        (
            "a directory with a socket",
            &|w| {
                mkdir(w);
                fs::create_dir(w.path("x")).unwrap();
                UnixListener::bind(w.path("x/socket")).unwrap();
            },
            "committed",
        ),
        ("no directory", &|w| (mkdir(w), fifo(&w.path("x"))).1, "superseded"),
        ("a FIFO in it", &|w| (write(w), fifo(&w.path("x/fifo"))).1, "superseded"),
        (
            "an odd name in it",
            &|w| {
                write(w);
                w.file("x/y", "");
                fs::write(w.path("x").join(OsStr::from_bytes(b"\xff")), "").unwrap();
            },
            "superseded",
        ),
        (
            "an unreadable file in it",
            &|w| (write(w), give_away(&w.file("x/y", ""), 0o600)).1,
            "superseded",
        ),
        ("unreadable", &|w| (write(w), give_away(&w.file("x", ""), 0o600)).1, "superseded"),
        (
            "an unreadable one that was moved aside",
            &|w| (remove(w), give_away(&w.file(TEMP, ""), 0o600)).1,
            "superseded",
        ),
    ];
    for (what, make, result) in cases {
        let world = world();
        make(&world);
        assert_eq!(settled(&world), result, "{what}");
    }
}

/// One intent that could not be settled stopped every gateway for ever.
#[test]
fn what_cannot_be_settled_now_is_settled_when_it_can_be() {
    let world = world();
    died_after(&world, "write", "d/a.txt", None, Some(Hash::of(b"new")));
    world.file(&format!("d/{TEMP}"), "ne");
    give_away(&world.path("d"), 0o700);
    for _ in 0..2 {
        let done = world.fs(&["ls"]).ok();
        assert!(done.stderr.contains("cannot be settled"), "{done:?}");
        let done = world.run(&["audit", "verify"]).ok();
        let said = done.text().to_owned() + &done.stderr;
        assert!(said.contains("missing-outcome"), "{done:?}");
    }
    chown(world.path("d"), Some(0), Some(0)).unwrap();
    assert_eq!(settled(&world), "rolledBack");
    assert_eq!(names(&world.path("d")), Vec::<String>::new());
}

/// Half of a tree went, the other half was hidden, and no gateway started again.
#[test]
fn a_tree_of_which_a_part_may_not_be_removed_stays_whole() {
    let world = world();
    let check = |goes: bool| {
        let before = consistency::snapshot(&world.root());
        let done = world.fs(&["rm", "-r", "d"]);
        assert_eq!(done.code, i32::from(!goes), "{done:?}");
        match goes {
            true => assert!(!world.path("d").exists()),
            false => assert_eq!(consistency::snapshot(&world.root()), before),
        }
        consistency::check(&world);
    };
    let (kept, given) = (0, 1);
    for (mode, owner, goes) in
        [(0o755, kept, false), (0o777, given, true), (0o1777, kept, true), (0o1777, given, false)]
    {
        world.file("d/a", "a");
        let file = world.file("d/x/sub/f", "f");
        if owner == given {
            give_away(&file, 0o644);
        }
        give_away(&world.path("d/x/sub"), mode);
        check(goes);
    }
    fs::remove_dir_all(world.path("d")).unwrap();
    // An empty one takes no more than its own place.
    fs::create_dir_all(world.path("d/x/sub")).unwrap();
    give_away(&world.path("d/x/sub"), 0o755);
    check(true);
}

/// The same for a removal that an older gateway had begun.
#[test]
fn what_may_not_be_deleted_of_a_removal_keeps_no_gateway_from_starting() {
    let world = world();
    died_after(&world, "remove", "tree", Some(Hash::of(b"a tree")), None);
    world.file(&format!("{DELETION_NAME}/sub/f"), "f");
    give_away(&world.path(DELETION_NAME).join("sub"), 0o755);
    let done = world.fs(&["ls"]).ok();
    assert!(done.stderr.contains("cannot be deleted") && !done.text().contains("tmp"), "{done:?}");
    assert_eq!(
        world.records().iter().rfind(|r| r["kind"] == "recovered").unwrap()["result"],
        "committed"
    );
    assert!(!world.fs(&["ls"]).ok().stderr.contains("deleted"));
    assert_eq!(names(&world.root()), [DELETION_NAME]);
}

/// One change of a batch was settled as another process's by now: the others stayed.
#[test]
fn a_batch_is_taken_back_too_when_another_process_had_a_part_in_it() {
    let world = world();
    let facts = [("batch", "00".into()), ("batchSize", 2.into())];
    let facts: std::collections::BTreeMap<_, _> =
        facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let draft = |path: &str| Draft {
        op: Some("write".to_owned()),
        path: Some(path.to_owned()),
        agent: Some("someone".to_owned()),
        after: Some(Hash::of(b"new")),
        facts: Some(facts.clone()),
        decision: Some("allow".to_owned()),
        ..Draft::default()
    };
    let state = Dir::from_std_file(fs::File::open(world.state()).unwrap());
    let audit_log = AuditLog::open(&state).unwrap();
    for name in ["a.txt", "b.txt"] {
        assert!(audit_log.note(Kind::Intent, draft(name), true).unwrap().durable);
    }
    drop(audit_log);
    world.file("a.txt", "new");
    world.file("b.txt", "of another process");
    world.fs(&["ls"]).ok();
    assert_eq!(names(&world.root()), ["b.txt"]);
    consistency::check(&world);
}
