//! Operations that ACP does not have, in a gateway of this process, while names are exchanged.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use portcullis::{
    gateway::ErrorKind,
    model::{
        Encoding, LineRange,
        request::{Append, Edit, List, Mkdir, Read, Remove, Rename, Stat, Write},
    },
};

use super::{RunningMount, is_clean, is_untouched, names, path, rounds, while_exchanging};
use crate::{common::Stop, requests::AnyRequest};

/// Every operation, on `a/…` while `a` is a directory or a link to outside.
#[test]
fn no_operation_leaves_the_workspace_while_a_directory_becomes_a_link() {
    let inside = RunningMount::new();
    let root = inside.root();
    std::fs::create_dir_all(root.join("a/b")).unwrap();
    std::fs::write(root.join("a/b/k"), "INSIDE").unwrap();
    symlink("../outside", root.join("link")).unwrap();
    let (read, write) = (
        |text: &str| -> Box<dyn AnyRequest> {
            let (range, encoding) = (LineRange::default(), Encoding::Text);
            Box::new(Read { path: path(text), range, encoding })
        },
        |text: &str| Box::new(Write { path: path(text), content: b"INSIDE".to_vec(), mode: None }),
    );
    let cycle: Vec<Box<dyn AnyRequest>> = vec![
        read("a/b/k"),
        Box::new(List { path: path("a") }),
        Box::new(List { path: path("a/b") }),
        Box::new(Stat { path: path("a/b/k") }),
        write("a/b/k"),
        read("a/k"),
        Box::new(Append { path: path("a/b/k"), content: b"+".to_vec() }),
        Box::new(Edit { path: path("a/b/k"), old: "+".into(), new: "-".into() }),
        Box::new(List { path: path("a/b") }),
        Box::new(Mkdir { path: path("a/made/deep"), recursive: true, mode: None }),
        Box::new(Rename { from: path("a/b/k"), to: path("a/b/l"), replace: true }),
        Box::new(Stat { path: path("a/k") }),
        Box::new(Rename { from: path("a/b/l"), to: path("a/b/k"), replace: true }),
        Box::new(Remove { path: path("a/made"), recursive: true }),
        Box::new(Rename { from: path("a/b"), to: path("a/c"), replace: true }),
        read("a/b/k"),
        Box::new(Rename { from: path("a/c"), to: path("a/b"), replace: true }),
        Box::new(Remove { path: path("a/k"), recursive: false }),
        Box::new(Remove { path: path("a/b"), recursive: true }),
        write("a/b/k"),
    ];
    let (mut done, mut denied) = (0, 0);
    while_exchanging(root.join("a"), root.join("link"), |_| {
        for round in 0..rounds() {
            match inside.handle(&*cycle[round % cycle.len()]) {
                Ok(_) => done += 1,
                Err(ErrorKind::Denied) => denied += 1,
                Err(
                    ErrorKind::NotFound
                    | ErrorKind::Conflict
                    | ErrorKind::AlreadyExists
                    | ErrorKind::NotEmpty
                    | ErrorKind::NotADirectory
                    | ErrorKind::InvalidInput,
                ) => {}
                Err(other) => panic!("{:?}: {other:?}", cycle[round % cycle.len()]),
            }
        }
    });
    assert!(
        done > rounds() / 100 && denied > rounds() / 100,
        "no race: {done} done, {denied} denied"
    );
    is_untouched(&inside.dir.path().join("outside"));
    is_clean(&root);
}

/// Entries that another process puts into a tree while it is being removed were
/// not decided on when the tree was walked through, and were removed with it.
#[test]
fn a_recursive_remove_takes_nothing_that_it_was_denied() {
    const POLICY: &str = r#"
schema = 1
[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["**"]
[[rules]]
id = "keep"
effect = "deny"
operations = ["remove"]
paths = ["**/*.keep"]
"#;
    let inside = RunningMount::under(POLICY);
    let root = inside.root();
    std::fs::create_dir(root.join("aside")).unwrap();
    std::fs::write(root.join("aside/a.keep"), "KEEP").unwrap();
    symlink("../../outside", root.join("aside/link")).unwrap();
    let stop = AtomicBool::new(false);
    let (mut removed, mut denied, mut moves) = (0, 0, 0);
    thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let mut moves = 0_u64;
            let both = [("a.keep", "tree/sub/a.keep"), ("link", "tree/link")];
            while !stop.load(Ordering::Relaxed) {
                for (aside, tree) in both {
                    let (aside, tree) = (root.join("aside").join(aside), root.join(tree));
                    moves += u64::from(std::fs::rename(&aside, &tree).is_ok());
                    thread::yield_now();
                    let _ = std::fs::rename(&tree, &aside);
                }
            }
            moves
        });
        let over = Stop(&stop);
        let remove = Remove { path: path("tree"), recursive: true };
        for _ in 0..rounds() / 20 {
            std::fs::create_dir_all(root.join("tree/sub")).unwrap();
            std::fs::write(root.join("tree/sub/k"), "INSIDE").unwrap();
            match inside.handle(&remove) {
                Ok(_) => removed += 1,
                Err(ErrorKind::Denied) => denied += 1,
                Err(ErrorKind::Conflict | ErrorKind::NotFound) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        drop(over);
        moves = mover.join().unwrap();
    });
    assert!(removed > 0 && denied > 0 && moves > 0, "{removed} {denied} {moves}");
    is_untouched(&inside.dir.path().join("outside"));
    is_clean(&root);
    let everything = everything(&root);
    let kept = everything.iter().filter(|path| path.ends_with("a.keep")).count();
    assert_eq!(kept, 1, "{everything:?}");
}

fn everything(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in names(directory) {
        let path = directory.join(name);
        if path.symlink_metadata().unwrap().is_dir() {
            found.extend(everything(&path));
        }
        found.push(path);
    }
    found
}
