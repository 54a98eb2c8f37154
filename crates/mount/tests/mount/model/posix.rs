//! The results of system calls in the model's workspace, as `path_resolution(7)` and the manual
//! page of the call describe them: a denied entry is missing, and is not created.

use std::collections::VecDeque;

use portcullis_core::ErrorKind;
use portcullis_policy::model::WorkspacePath;

use super::tree::{Node, Tree, climbs_later, is_denied, is_hidden, kind};
use crate::seeded_random::Random;

/// The result of a call: a text, or the name of an error.
pub(crate) type Answer = Result<String, String>;

/// A call: `text` is a content, a target or a new path, `number` an offset, a size or flags.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) path: WorkspacePath,
    pub(crate) text: String,
    pub(crate) number: u64,
}

impl Call {
    /// Returns true if a given path has an invisible character.
    pub(crate) fn names_hidden(&self) -> bool {
        let new = if self.name == "rename" { self.text.as_str() } else { "" };
        is_hidden(&[self.path.as_str().to_owned(), new.to_owned()])
    }
}

type Step<T> = Result<T, &'static str>;

const NO_REPLACE: u64 = 1;
pub(crate) const EXCHANGE: u64 = 2;

impl Random {
    /// Returns a path, often of an existing entry or of one in it. With `files` it is for calls
    /// on files.
    fn path_in(&mut self, tree: &Tree, files: bool) -> WorkspacePath {
        let mut paths = vec![String::new()];
        tree.paths("", &mut paths);
        let is_file = |path: &str| {
            let names: Vec<String> = path.split('/').map(str::to_owned).collect();
            matches!(tree.shown(&names), Some(Node::File(_)))
        };
        if files && self.below(2) == 0 && paths.iter().any(|path| is_file(path)) {
            paths.retain(|path| is_file(path));
        }
        let there = &paths[usize::try_from(self.below(paths.len() as u64)).unwrap()];
        match self.below(4) {
            0 => self.path(),
            1 => {
                WorkspacePath::parse(format!("{there}/{}", self.name()).trim_matches('/')).unwrap()
            }
            _ => WorkspacePath::parse(there).unwrap(),
        }
    }

    pub(crate) fn call(&mut self, tree: &Tree) -> Call {
        let (mut text, mut number) = (self.text(), 0);
        let name = match self.below(26) {
            0 | 1 => "read",
            2 | 3 => "write",
            4 => "append",
            5 | 6 => "create",
            7 => "patch",
            8 => "truncate",
            9 | 10 => "list",
            11 => "stat",
            12 => "readlink",
            13 | 14 => "mkdir",
            15 => "rmdir",
            16 => "unlink",
            17 | 18 => "symlink",
            19 | 20 => "stage",
            _ => "rename",
        };
        let files = matches!(name, "read" | "write" | "append" | "patch" | "truncate");
        let mut path = self.path_in(tree, files);
        match name {
            "patch" | "truncate" => number = self.below(4),
            "symlink" => text = self.target(),
            "rename" => {
                number = [0, 0, NO_REPLACE, EXCHANGE][usize::try_from(self.below(4)).unwrap()]
            }
            _ => {}
        }
        // The root is a mount point, and the kernel refuses such a call itself.
        let is_named = matches!(name, "rmdir" | "unlink" | "rename");
        while is_named && path.is_root() {
            path = self.path_in(tree, false);
        }
        if name == "rename" {
            text = loop {
                let to = self.path_in(tree, false);
                if !to.is_root() {
                    break to.as_str().to_owned();
                }
            };
        }
        Call { name, path, text, number }
    }
}

fn refused(path: &[String]) -> bool {
    is_denied(path) || is_hidden(path)
}

fn is_directory(node: &Node) -> bool {
    matches!(node, Node::Directory(_))
}

impl Tree {
    /// Returns the result of a call, and its recorded changes.
    pub(crate) fn call(&mut self, call: &Call) -> (Answer, Vec<String>) {
        let before = self.clone();
        let answer = self.carry_out(call);
        // Storing the same content again is a change, too: the file gets another time. So is an
        // exchange of equal entries.
        let is_made = match call.name {
            "write" | "rename" => true,
            "patch" => !call.text.is_empty(),
            _ => before != *self,
        };
        let made = match &answer {
            Ok((_, change)) if is_made && !change.is_empty() => vec![change.clone()],
            _ => Vec::new(),
        };
        (answer.map(|(said, _)| said).map_err(str::to_owned), made)
    }

    fn carry_out(&mut self, call: &Call) -> Step<(String, String)> {
        let path: Vec<String> = call.path.components().map(str::to_owned).collect();
        let follows = matches!(
            call.name,
            "read" | "write" | "append" | "patch" | "truncate" | "list" | "stat"
        );
        let at = self.walk(&path, follows)?;
        let changed = |operation: &str, at: &[String]| {
            ("changed".to_owned(), format!("{operation} {} -", at.join("/")))
        };
        let there = self.shown(&at).cloned();
        if call.name == "rename" {
            // Both directories are looked up before their entries.
            let names: Vec<String> = call.text.split('/').map(str::to_owned).collect();
            let to = self.walk(&names, false)?;
            return self.rename_call(call.number, &at, &to);
        }
        let said = match (call.name, there) {
            ("create" | "stage" | "mkdir" | "symlink", Some(_)) => return Err("EEXIST"),
            ("create" | "stage" | "write" | "append", None) => {
                self.make(&at, Node::File(call.text.clone().into_bytes()))?;
                return Ok(changed("write", &at));
            }
            ("mkdir", None) => {
                self.make(&at, Node::Directory(Default::default()))?;
                return Ok(changed("mkdir", &at));
            }
            ("symlink", None) => {
                if refused(&at) || climbs_later(&call.text) || self.leads_out(&at, &call.text) {
                    return Err("EACCES");
                }
                self.make(&at, Node::Link(call.text.clone()))?;
                return Ok(changed("symlink", &at));
            }
            (_, None) => return Err("ENOENT"),
            ("stat", Some(node)) => kind(&node),
            ("list", Some(Node::Directory(entries))) => entries
                .iter()
                .filter(|(name, _)| !is_denied(&[at.clone(), vec![(*name).clone()]].concat()))
                .map(|(name, node)| format!("{name:?} {}\n", kind(node)))
                .collect(),
            ("list", Some(_)) => return Err("ENOTDIR"),
            ("readlink", Some(Node::Link(target))) => {
                self.check_link(&at, &target)?;
                target
            }
            ("readlink", Some(_)) => return Err("EINVAL"),
            ("rmdir", Some(Node::Directory(entries))) if !entries.is_empty() => {
                return Err("ENOTEMPTY");
            }
            ("rmdir", Some(Node::File(_) | Node::Link(_))) => return Err("ENOTDIR"),
            ("unlink", Some(Node::Directory(_))) => return Err("EISDIR"),
            ("rmdir" | "unlink", Some(_)) => {
                self.take(&at);
                return Ok(changed("remove", &at));
            }
            (_, Some(Node::Directory(_))) => return Err("EISDIR"),
            ("read", Some(Node::File(content))) => {
                // A call may have cut a character.
                String::from_utf8_lossy(&content).into_owned()
            }
            (name, Some(Node::File(content))) => {
                let content = written(name, content, call);
                self.make(&at, Node::File(content))?;
                return Ok(changed("write", &at));
            }
            (_, Some(Node::Link(_))) => unreachable!("{call:?}"),
        };
        Ok((said, String::new()))
    }

    /// Returns the paths of all entries beneath a directory.
    fn paths(&self, directory: &str, paths: &mut Vec<String>) {
        let names: Vec<String> =
            directory.split('/').filter(|n| !n.is_empty()).map(str::to_owned).collect();
        let Some(Node::Directory(entries)) = self.get(&names) else { return };
        for name in entries.keys() {
            let path = format!("{directory}/{name}").trim_start_matches('/').to_owned();
            self.paths(&path, paths);
            paths.push(path);
        }
    }

    fn shown(&self, path: &[String]) -> Option<&Node> {
        if is_denied(path) { None } else { self.get(path) }
    }

    fn make(&mut self, at: &[String], node: Node) -> Step<()> {
        if refused(at) {
            return Err("EACCES");
        }
        self.put(at, node);
        Ok(())
    }

    /// Resolves a path as the kernel does: all names but the last must exist.
    fn walk(&self, path: &[String], follow_last: bool) -> Step<Vec<String>> {
        let mut rest: VecDeque<String> = path.iter().cloned().collect();
        let mut here: Vec<String> = Vec::new();
        while let Some(name) = rest.pop_front() {
            match self.shown(&here) {
                _ if name.is_empty() => continue,
                Some(Node::Directory(_)) => {}
                Some(_) => return Err("ENOTDIR"),
                None => return Err("ENOENT"),
            }
            match name.as_str() {
                "." => continue,
                ".." => {
                    here.pop();
                    continue;
                }
                _ => here.push(name),
            }
            let Some(Node::Link(target)) = self.shown(&here) else { continue };
            if rest.is_empty() && !follow_last {
                continue;
            }
            self.check_link(&here, target)?;
            here.pop();
            target.rsplit('/').for_each(|name| rest.push_front(name.to_owned()));
        }
        Ok(here)
    }

    /// Checks a link as the mount does before it returns the target.
    fn check_link(&self, link: &[String], target: &str) -> Step<()> {
        if self.leads_out(link, target) { Err("EACCES") } else { Ok(()) }
    }

    fn leads_out(&self, link: &[String], target: &str) -> bool {
        let names = link.iter().take(link.len() - 1).cloned();
        let path: Vec<_> = names.chain(target.split('/').map(str::to_owned)).collect();
        target.starts_with('/') || self.resolve(&path, true, 1, &is_denied).is_err()
    }

    /// Exchanges two existing entries.
    fn exchange(&mut self, one: &[String], other: &[String]) -> Result<String, ErrorKind> {
        for (from, to) in [(one, other), (other, one)] {
            if is_denied(from) || is_hidden(from) {
                return Err(ErrorKind::Denied);
            }
            self.all_may_move(from, to)?;
            self.keeps_in(self.get(from).unwrap(), from, to)?;
        }
        let (first, second) = (self.take(one), self.take(other));
        self.put(one, second);
        self.put(other, first);
        Ok("changed".to_owned())
    }

    fn rename_call(
        &mut self,
        flags: u64,
        from: &[String],
        to: &[String],
    ) -> Step<(String, String)> {
        let moving = self.shown(from).ok_or("ENOENT")?;
        let there = self.shown(to);
        match there {
            Some(_) if flags == NO_REPLACE => return Err("EEXIST"),
            None if flags == EXCHANGE => return Err("ENOENT"),
            // The kernel does not send this to the mount.
            _ if from == to => return Ok(("changed".to_owned(), String::new())),
            _ if to.starts_with(from) => return Err("EINVAL"),
            _ if from.starts_with(to) => {
                return Err(if flags == EXCHANGE { "EINVAL" } else { "ENOTEMPTY" });
            }
            _ if flags == EXCHANGE => {}
            Some(there) if is_directory(moving) && !is_directory(there) => return Err("ENOTDIR"),
            Some(there) if !is_directory(moving) && is_directory(there) => return Err("EISDIR"),
            _ => {}
        }
        let renamed = match flags {
            EXCHANGE => self.exchange(from, to),
            number => self.rename(from, to, number != NO_REPLACE),
        };
        match renamed {
            Ok(said) => Ok((said, format!("rename {} {}", from.join("/"), to.join("/")))),
            Err(ErrorKind::Denied) => Err("EACCES"),
            Err(ErrorKind::NotEmpty) => Err("ENOTEMPTY"),
            Err(other) => panic!("{from:?} {to:?}: {other:?}"),
        }
    }
}

/// Returns the content of an existing file after a call.
fn written(name: &str, mut content: Vec<u8>, call: &Call) -> Vec<u8> {
    let (text, number) = (call.text.as_bytes(), usize::try_from(call.number).unwrap());
    match name {
        "write" => text.to_vec(),
        "append" => [&content, text].concat(),
        "patch" if text.is_empty() => content,
        "patch" => {
            let end = content.len().max(number + text.len());
            content.resize(end, 0);
            content[number..number + text.len()].copy_from_slice(text);
            content
        }
        _ => {
            content.resize(number, 0);
            content
        }
    }
}
