use super::*;

const FILE: ObjectKind = ObjectKind::File;
const DIRECTORY: ObjectKind = ObjectKind::Directory;

fn found(nodes: &mut Nodes, parent: u64, name: &str, kind: ObjectKind, inode: u64) -> u64 {
    let look = nodes.look();
    nodes.found(parent, name, (kind, inode), look).unwrap()
}

fn path(nodes: &Nodes, id: u64) -> String {
    nodes.path(id).unwrap().as_str().to_owned()
}

#[test]
fn a_child_follows_the_rename_of_its_parent() {
    let mut nodes = Nodes::new(100);
    let directory = found(&mut nodes, ROOT, "a", DIRECTORY, 10);
    let file = found(&mut nodes, directory, "f", FILE, 11);
    let other = found(&mut nodes, ROOT, "o", DIRECTORY, 12);
    nodes.rename((ROOT, "a"), (other, "b"));
    assert_eq!(path(&nodes, file), "o/b/f");
    assert_eq!(nodes.child(ROOT, "a"), None);
    assert_eq!(found(&mut nodes, directory, "f", FILE, 11), file);
}

#[test]
fn another_object_is_another_node() {
    let mut nodes = Nodes::new(100);
    let first = found(&mut nodes, ROOT, "f", FILE, 10);
    let second = found(&mut nodes, ROOT, "f", FILE, 11);
    assert_ne!(first, second);
    assert_eq!(nodes.path(first), Err(NoPath::Replaced));
    nodes.forget(first, 1);
    assert_eq!(nodes.path(first), Err(NoPath::Unknown));
    assert_eq!(path(&nodes, second), "f");
}

#[test]
fn during_a_change_nothing_is_judged() {
    let mut nodes = Nodes::new(100);
    let node = found(&mut nodes, ROOT, "f", FILE, 10);
    let look = nodes.look();
    nodes.begin_change();
    let during = nodes.look();
    nodes.get_mut(node).unwrap().inode = Some(11);
    nodes.end_change();
    for look in [look, during] {
        assert_eq!(nodes.found(ROOT, "f", (FILE, 10), look), Ok(node));
        nodes.missing(ROOT, "f", look);
    }
    assert_eq!(found(&mut nodes, ROOT, "f", FILE, 11), node);
    assert_ne!(found(&mut nodes, ROOT, "f", FILE, 10), node);
}

/// The new file used to take the name from any node.
#[test]
fn a_new_file_takes_its_name_from_nothing_that_is_there() {
    let mut nodes = Nodes::new(100);
    let there = found(&mut nodes, ROOT, "f", FILE, 10);
    assert_eq!(nodes.make_room(ROOT, "f"), Err(Errno::EXIST));
    assert_eq!(path(&nodes, there), "f");
    nodes.gone(ROOT, "f");
    assert_eq!(nodes.make_room(ROOT, "f"), Ok(()));
}

#[test]
fn an_open_node_outlives_its_name_and_the_kernels_references() {
    let mut nodes = Nodes::new(100);
    let node = found(&mut nodes, ROOT, "f", FILE, 10);
    nodes.open(node);
    nodes.unlink(ROOT, "f");
    nodes.forget(node, 1);
    assert_eq!(nodes.path(node), Err(NoPath::Unlinked));
    assert!(nodes.close(node));
    assert_eq!(nodes.path(node), Err(NoPath::Unknown));
}

#[test]
fn a_parent_is_forgotten_after_its_children() {
    let mut nodes = Nodes::new(100);
    let directory = found(&mut nodes, ROOT, "d", DIRECTORY, 10);
    let file = found(&mut nodes, directory, "f", FILE, 11);
    nodes.forget(directory, 1);
    assert_eq!(path(&nodes, file), "d/f");
    nodes.forget(file, 1);
    assert_eq!(nodes.all(), [ROOT]);
}

#[test]
fn a_rename_over_a_node_unlinks_it() {
    let mut nodes = Nodes::new(100);
    let (a, b) = (found(&mut nodes, ROOT, "a", FILE, 10), found(&mut nodes, ROOT, "b", FILE, 11));
    nodes.open(b);
    nodes.rename((ROOT, "a"), (ROOT, "b"));
    assert_eq!((path(&nodes, a).as_str(), nodes.path(b)), ("b", Err(NoPath::Unlinked)));
    nodes.rename((ROOT, "b"), (ROOT, "b"));
    assert_eq!(path(&nodes, a), "b");
}

#[test]
fn the_table_has_a_bound() {
    let mut nodes = Nodes::new(3);
    let node = found(&mut nodes, ROOT, "a", FILE, 10);
    found(&mut nodes, ROOT, "b", FILE, 11);
    let look = nodes.look();
    assert_eq!(nodes.found(ROOT, "c", (FILE, 12), look), Err(TableFull));
    nodes.forget(node, 1);
    let look = nodes.look();
    assert!(nodes.found(ROOT, "c", (FILE, 12), look).is_ok());
}

#[test]
fn a_table_that_stays_crowded_says_so_again() {
    let mut nodes = Nodes::new(8);
    let add = |nodes: &mut Nodes, n: u64| {
        let look = nodes.look();
        let _ = nodes.found(ROOT, &n.to_string(), (FILE, n), look);
        nodes.is_crowded()
    };
    // With the root: 6 of 8, 7, 8, and then whenever there is no room.
    let returned_attr: Vec<_> = (0..9).map(|n| add(&mut nodes, n)).collect();
    assert_eq!(returned_attr, [false, false, false, false, true, true, true, true, true]);
    for id in nodes.all().into_iter().filter(|id| *id != ROOT) {
        nodes.forget(id, 1);
    }
    assert!(!nodes.is_crowded());
    let returned_attr: Vec<_> = (10..15).map(|n| add(&mut nodes, n)).collect();
    assert_eq!(returned_attr, [false, false, false, false, true]);
}
