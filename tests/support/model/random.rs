//! Random names, links and contents.

use std::{collections::BTreeMap, os::unix::fs::symlink, path::Path};

use portcullis_policy::model::WorkspacePath;

use super::{Node, Tree, names};
use crate::seeded_random::Random;

/// Parts of a random sequence.
impl Random {
    pub(crate) fn one_of<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[usize::try_from(self.below(list.len() as u64)).unwrap()]
    }

    /// Few names, so that they meet; some of them hostile.
    pub(crate) fn name(&mut self) -> &'static str {
        self.one_of(&[
            "a",
            "a",
            "b",
            "b",
            "c",
            "d.txt",
            "l",
            "l",
            "m",
            "secret",
            "SECRET",
            "żółć",
            "zo\u{301}",
            "sp ace",
            "-rf",
            "...",
            "%2e%2e",
            "a\\b",
            "$(id)",
            "'\"",
            "esc\u{1b}[2J",
            "nl\nx",
            "\u{202e}txt",
            "~",
        ])
    }

    pub(crate) fn path(&mut self) -> WorkspacePath {
        let depth = self.one_of(&[&0, &1, &1, &1, &2, &2, &2, &3, &4]);
        let names: Vec<_> = (0..*depth).map(|_| self.name()).collect();
        let joint = self.one_of(&["/", "/", "//", "/./"]);
        let end = self.one_of(&["", "", "/", "/."]);
        WorkspacePath::parse(format!("{}{end}", names.join(joint)).trim_start_matches('/')).unwrap()
    }

    pub(crate) fn target(&mut self) -> String {
        let start = self.one_of(&["", "", "", "", "../", "../../", "./", "/", "secret/", "a/../"]);
        let depth = self.below(3);
        let mut names: Vec<_> = (0..depth).map(|_| self.name()).collect();
        if names.is_empty() || self.below(8) == 0 {
            names.push(self.one_of(&["..", "b", "missing/../a", "d.txt/../b", "."]));
        }
        format!("{start}{}", names.join("/"))
    }

    pub(crate) fn text(&mut self) -> String {
        self.one_of(&["", "x", "xx", "one\ntwo\n", "żółć", "x y"]).to_owned()
    }
}

/// Has another process plant a file, a directory or a link.
pub(crate) fn plant(root: &Path, tree: &mut Tree, random: &mut Random) -> String {
    let path = names(&random.path());
    let above = (1..path.len()).map(|end| tree.get(&path[..end]));
    let open = above.into_iter().all(|node| matches!(node, None | Some(Node::Directory(_))));
    if path.is_empty() || tree.get(&path).is_some() || !open {
        return "nothing planted".to_owned();
    }
    let node = match random.below(5) {
        0 => Node::Directory(BTreeMap::new()),
        1 => Node::File(random.text().into_bytes()),
        _ => Node::Link(random.target()),
    };
    let place = root.join(path.join("/"));
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    match &node {
        Node::Directory(_) => std::fs::create_dir(&place).unwrap(),
        Node::File(content) => std::fs::write(&place, content).unwrap(),
        Node::Link(target) => symlink(target, &place).unwrap(),
    }
    let said = format!("planted {path:?}: {node:?}");
    tree.put(&path, node);
    said
}
