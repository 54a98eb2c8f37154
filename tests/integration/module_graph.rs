//! Files of a crate use each other one way: no circle of more than two files. An edge is
//! what a file uses of another; `mod` lines and re-exports are none.

pub(crate) mod reading;
mod type_names;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use reading::Graph;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The libraries of the workspace.
fn libraries(root: &Path) -> Vec<PathBuf> {
    let crates = std::fs::read_dir(root.join("crates")).unwrap();
    let members = crates.map(|member| member.unwrap().path());
    let members = members.chain([root.to_owned(), root.join("audit")]);
    members.map(|member| member.join("src/lib.rs")).collect()
}

/// The strongly connected components of a graph that have more than two files: those of
/// which each is reached from each.
fn circles(graph: &Graph) -> BTreeSet<BTreeSet<PathBuf>> {
    let reached: BTreeMap<&Path, BTreeSet<&Path>> =
        graph.keys().map(|file| (file.as_path(), reachable(graph, file))).collect();
    let circle = |file: &Path| -> BTreeSet<PathBuf> {
        let other = reached[file].iter().filter(|other| reached[**other].contains(file));
        other.map(|other| other.to_path_buf()).collect()
    };
    graph.keys().map(|file| circle(file)).filter(|circle| circle.len() > 2).collect()
}

fn reachable<'a>(graph: &'a Graph, from: &'a Path) -> BTreeSet<&'a Path> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(file) = next.pop() {
        next.extend(graph[file].keys().map(PathBuf::as_path).filter(|file| found.insert(*file)));
    }
    found
}

/// An edge of each file to another of the circle.
fn described(circle: &BTreeSet<PathBuf>, graph: &Graph) -> String {
    let mut lines = vec![format!("a circle of {} files:", circle.len())];
    for file in circle {
        let (other, path) = graph[file].iter().find(|(other, _)| circle.contains(*other)).unwrap();
        lines.push(format!("  {} uses `{path}` of {}", named(file), named(other)));
    }
    lines.join("\n")
}

fn named(file: &Path) -> String {
    file.strip_prefix(root()).unwrap_or(file).display().to_string()
}

#[test]
fn files_use_each_other_one_way() {
    let (mut wrong, mut edges) = (Vec::new(), 0);
    for library in libraries(root()) {
        let graph = reading::graph(&library);
        edges += graph.values().map(BTreeMap::len).sum::<usize>();
        wrong.extend(circles(&graph).iter().map(|circle| described(circle, &graph)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(edges > 1000, "the sources were not found");
}

/// A crate in a directory of its own, by the paths and texts of its files.
fn graph_of(files: &[(&str, &str)]) -> (tempfile::TempDir, Graph) {
    let directory = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let graph = reading::graph(&directory.path().join("lib.rs"));
    (directory, graph)
}

/// The edges, as `FROM TO`.
fn edges(files: &[(&str, &str)]) -> Vec<String> {
    let (directory, graph) = graph_of(files);
    let name = |file: &Path| file.strip_prefix(&directory).unwrap().display().to_string();
    let edges = graph.iter().flat_map(|(from, to)| to.keys().map(move |to| (from, to)));
    edges.map(|(from, to)| format!("{} {}", name(from), name(to))).collect()
}

#[test]
fn an_edge_goes_to_the_file_that_defines_what_is_used() {
    let files = [
        (
            "lib.rs",
            "mod a; mod b; mod c; mod d; mod e; mod f; pub use b::inner::Deep; pub use std::fs::File;",
        ),
        ("a.rs", "use crate::{Deep, File}; fn f(_: Deep) -> File { todo!() }"),
        (
            "b/mod.rs",
            "pub mod inner; pub(crate) use inner::*; pub(crate) struct Shallow; pub fn inner() {}",
        ),
        ("b/inner.rs", "use super::Shallow as S; pub struct Deep(S);"),
        ("c.rs", "use crate::b; fn f() -> String { format!(\"{:?}\", [1, b::inner::Deep(x.y)]) }"),
        ("d.rs", "#[arg(parser = crate::c::f)] struct A; fn f() { a.b::<super::b::Shallow>() }"),
        ("e.rs", "macro_rules! shown { () => { crate::b::Shallow } } "),
        ("f.rs", "fn f() { let c = 1; shown!(c) }"),
    ];
    let expected = [
        "a.rs b/inner.rs",
        "b/inner.rs b/mod.rs",
        "c.rs b/inner.rs",
        "d.rs b/mod.rs",
        "d.rs c.rs",
        "e.rs b/mod.rs",
        "f.rs e.rs",
    ];
    assert_eq!(edges(&files), expected);
}

#[test]
fn modules_reexports_and_tests_are_no_edges() {
    let files = [
        ("lib.rs", "mod a; mod b; pub use a::A; pub(crate) use b::B;"),
        ("a.rs", "use super::b; pub struct A; #[cfg(test)] mod tests { use crate::B; }"),
        ("b.rs", "mod inside { use super::B; } pub struct B; #[cfg(test)] use crate::A;"),
    ];
    assert_eq!(edges(&files), [""; 0]);
}

#[test]
fn paths_of_the_crate_are_named_from_its_root() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("lib.rs", "mod a; pub use other as b;");
    std::fs::create_dir(directory.path().join("a")).unwrap();
    let items = "pub use super::super::{b::B, c}; fn f() { g!(self::D) } /// [`crate::e`]\nmod h;";
    write("a.rs", "use crate::{b::{self, A}, f::*}; mod inner { use super::super::c; } mod deep;");
    write("a/deep.rs", items);
    std::fs::create_dir(directory.path().join("a/deep")).unwrap();
    write("a/deep/h.rs", "#[cfg(test)] use crate::i; use std::fs;");
    let paths = reading::paths(&directory.path().join("lib.rs"));
    let of = |name: &str| -> Vec<String> {
        paths[&directory.path().join(name)].iter().map(|path| path.join("::")).collect()
    };
    assert_eq!(of("a.rs"), ["crate::b", "crate::b::A", "crate::c", "crate::f"]);
    let deep = ["crate::a::deep::D", "crate::b::B", "crate::c", "g", "g!"];
    assert_eq!(of("a/deep.rs"), deep);
    assert_eq!(of("a/deep/h.rs"), ["std::fs"]);
}

#[test]
fn a_circle_needs_three_files() {
    let pair = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; pub struct A(B);"),
        ("b.rs", "use crate::a::A; pub struct B(A);"),
        ("c.rs", "pub struct C(crate::a::A);"),
    ];
    assert_eq!(circles(&graph_of(&pair).1).len(), 0);
    let mut three = pair;
    three[2].1 = "use crate::c::C; pub struct B(C);";
    let (_directory, graph) = graph_of(&three);
    let found = circles(&graph);
    assert_eq!(found.len(), 1);
    let text = described(found.first().unwrap(), &graph);
    assert!(text.contains("a circle of 3 files") && text.contains("uses `B` of"), "{text}");
}
