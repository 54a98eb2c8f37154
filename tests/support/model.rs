//! A workspace in memory, with its own resolver that knows nothing of the gateway's, and the
//! random names, links and contents that the tests put into it and into a real one.

use std::{
    collections::{BTreeMap, VecDeque},
    path::Path,
};

use portcullis_core::ErrorKind;
use portcullis_policy::model::{
    Operation, WorkspacePath,
    request::{Append, Edit, Mkdir, Remove, Rename, Write},
};

#[path = "model/random.rs"]
mod random;

pub(crate) use random::plant;

pub(crate) const MODEL_POLICY: &str = r#"
schema = 1
[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["**"]
[[rules]]
id = "keys"
effect = "deny"
paths = ["secret/**"]
"#;

/// True for paths that the policy of these tests denies: the directory `secret`, in any case, and
/// everything beneath it.
pub(crate) fn is_denied(path: &[String]) -> bool {
    path.first().is_some_and(|name| name.to_lowercase() == "secret")
}

/// True for names that no client may give.
pub(crate) fn is_hidden(path: &[String]) -> bool {
    path.iter().any(|name| name.chars().any(|c| c.is_control() || c == '\u{202e}'))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    File(Vec<u8>),
    Directory(BTreeMap<String, Node>),
    Link(String),
}

/// The workspace as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tree(pub(crate) Node);

/// Result of resolving a path.
#[derive(Debug)]
pub(crate) struct Place {
    /// No links.
    pub(crate) path: Vec<String>,
    pub(crate) there: bool,
}

pub(crate) type Outcome = Result<String, ErrorKind>;

impl Tree {
    pub(crate) fn empty() -> Self {
        Self(Node::Directory(BTreeMap::new()))
    }

    /// The node with exactly this name; links are not followed.
    pub(crate) fn get(&self, path: &[String]) -> Option<&Node> {
        path.iter().try_fold(&self.0, |node, name| match node {
            Node::Directory(entries) => entries.get(name),
            _ => None,
        })
    }

    pub(crate) fn directory(&mut self, path: &[String]) -> &mut BTreeMap<String, Node> {
        let mut node = &mut self.0;
        for name in path {
            let Node::Directory(entries) = node else { panic!("{path:?}") };
            node = entries.entry(name.clone()).or_insert_with(|| Node::Directory(BTreeMap::new()));
        }
        let Node::Directory(entries) = node else { panic!("{path:?}") };
        entries
    }

    /// Puts a node at a path and makes the directories on the way.
    pub(crate) fn put(&mut self, path: &[String], node: Node) {
        let (name, parent) = path.split_last().unwrap();
        self.directory(parent).insert(name.clone(), node);
    }

    pub(crate) fn take(&mut self, path: &[String]) -> Node {
        let (name, parent) = path.split_last().unwrap();
        self.directory(parent).remove(name).unwrap()
    }

    /// Follows links as `path_resolution(7)` describes, with the gateway's exceptions: absolute
    /// targets lead outside whatever they name, and a name that is missing, or no directory, is
    /// passed as if it were one. So is a link to which another leads, and everything behind it,
    /// where only its name is needed for a denial. `links` were followed before.
    pub(crate) fn resolve(
        &self,
        path: &[String],
        follow_last: bool,
        links: usize,
        denied: &dyn Fn(&[String]) -> bool,
    ) -> Result<Place, ErrorKind> {
        self.follow_way(path, follow_last, links, denied).map_err(|_| ErrorKind::Denied)
    }

    fn follow_way(
        &self,
        path: &[String],
        follow_last: bool,
        mut links: usize,
        denied: &dyn Fn(&[String]) -> bool,
    ) -> Result<Place, Refusal> {
        let mut passed: Option<Vec<String>> = None;
        let mut rest: VecDeque<String> = path.iter().cloned().collect();
        let mut here: Vec<String> = Vec::new();
        while let Some(name) = rest.pop_front() {
            match name.as_str() {
                "" | "." => continue,
                ".." => {
                    here.pop().ok_or(Refusal::Outside)?;
                    continue;
                }
                _ => here.push(name),
            }
            if passed.as_ref().is_some_and(|passed| here.starts_with(passed)) {
                continue;
            }
            passed = None;
            let Some(Node::Link(target)) = self.get(&here) else { continue };
            if rest.is_empty() && !follow_last {
                continue;
            }
            if links > 0 && denied(&without(&here, &rest)) {
                passed = Some(here.clone());
                continue;
            }
            links += 1;
            if links > 40 {
                return Err(Refusal::Loop);
            }
            if target.starts_with('/') {
                return Err(Refusal::Outside);
            }
            here.pop();
            target.rsplit('/').for_each(|name| rest.push_front(name.to_owned()));
        }
        let is_passed = passed.is_some_and(|passed| here.starts_with(&passed));
        let there = !is_passed && self.get(&here).is_some();
        Ok(Place { path: here, there })
    }

    /// Decides on a path that an operation requests, and returns the result.
    pub(crate) fn ask(
        &self,
        path: &[String],
        write: bool,
        follow: bool,
    ) -> Result<Place, ErrorKind> {
        let denied = |path: &[String]| is_denied(path) || (write && is_hidden(path));
        if denied(path) {
            return Err(ErrorKind::Denied);
        }
        let place = self.resolve(path, follow, 0, &denied)?;
        if denied(&place.path) { Err(ErrorKind::Denied) } else { Ok(place) }
    }

    /// Checks that an entry can be made there: no file is on the way.
    pub(crate) fn can_make(&self, place: &Place) -> Result<(), ErrorKind> {
        if place.there {
            return Ok(());
        }
        let above = (0..place.path.len()).filter_map(|end| self.get(&place.path[..end]));
        if above.into_iter().all(|node| matches!(node, Node::Directory(_))) {
            Ok(())
        } else {
            Err(ErrorKind::NotADirectory)
        }
    }

    pub(crate) fn content(&self, place: &Place) -> Result<Vec<u8>, ErrorKind> {
        match self.get(&place.path) {
            Some(Node::File(content)) => Ok(content.clone()),
            Some(Node::Directory(_)) => Err(ErrorKind::IsADirectory),
            _ => Err(ErrorKind::NotFound),
        }
    }

    pub(crate) fn store(&mut self, place: &Place, content: Vec<u8>) -> Outcome {
        self.put(&place.path, Node::File(content));
        Ok("changed".to_owned())
    }

    pub(crate) fn apply(&mut self, operation: Operation<'_>) -> Outcome {
        let path = names(operation.path());
        match operation {
            Operation::Read(_) => {
                let place = self.ask(&path, false, true)?;
                Ok(String::from_utf8_lossy(&self.content(&place)?).into_owned())
            }
            Operation::Write(Write { content, .. }) => {
                let place = self.ask(&path, true, true)?;
                self.can_make(&place)?;
                match self.content(&place) {
                    Ok(_) | Err(ErrorKind::NotFound) => self.store(&place, content.clone()),
                    Err(other) => Err(other),
                }
            }
            Operation::Append(Append { content, .. }) => {
                let place = self.ask(&path, true, true)?;
                self.can_make(&place)?;
                let old = match self.content(&place) {
                    Err(ErrorKind::NotFound) => Vec::new(),
                    other => other?,
                };
                self.store(&place, [old, content.clone()].concat())
            }
            Operation::Edit(Edit { old, new, .. }) => {
                let place = self.ask(&path, true, true)?;
                let text = String::from_utf8(self.content(&place)?).unwrap();
                if text.matches(old.as_str()).count() != 1 {
                    return Err(ErrorKind::InvalidInput);
                }
                self.store(&place, text.replace(old.as_str(), new).into_bytes())
            }
            Operation::List(_) => {
                let place = self.ask(&path, false, true)?;
                match self.get(&place.path) {
                    Some(Node::Directory(entries)) => Ok(entries
                        .iter()
                        .filter(|(name, _)| {
                            !is_denied(&[place.path.clone(), vec![(*name).clone()]].concat())
                        })
                        .map(|(name, node)| format!("{name:?} {}\n", kind(node)))
                        .collect()),
                    Some(_) => Err(ErrorKind::NotADirectory),
                    None => Err(ErrorKind::NotFound),
                }
            }
            Operation::Stat(_) => {
                let place = self.ask(&path, false, true)?;
                match self.get(&place.path) {
                    Some(node) => Ok(kind(node)),
                    None => Err(ErrorKind::NotFound),
                }
            }
            Operation::Mkdir(Mkdir { recursive, .. }) => {
                let place = self.ask(&path, true, true)?;
                self.can_make(&place)?;
                match self.get(&place.path) {
                    Some(Node::Directory(_)) if *recursive => return Ok("changed".to_owned()),
                    Some(_) => return Err(ErrorKind::AlreadyExists),
                    None => {}
                }
                let parent = &place.path[..place.path.len() - 1];
                if !recursive && self.get(parent).is_none() {
                    return Err(ErrorKind::NotFound);
                }
                self.directory(&place.path);
                Ok("changed".to_owned())
            }
            Operation::Remove(Remove { recursive, .. }) => {
                let place = self.ask(&path, false, false)?;
                let node = self.get(&place.path);
                if let (Some(Node::Directory(_)), true) = (node, recursive) {
                    self.all_beneath(&place.path, &is_denied)?;
                }
                if place.path.is_empty() {
                    return Err(ErrorKind::InvalidInput);
                }
                match node {
                    None => Err(ErrorKind::NotFound),
                    Some(Node::Directory(entries)) if !recursive && !entries.is_empty() => {
                        Err(ErrorKind::NotEmpty)
                    }
                    Some(_) => {
                        self.take(&place.path);
                        Ok("changed".to_owned())
                    }
                }
            }
            Operation::Rename(Rename { to, replace, .. }) => {
                self.rename(&path, &names(to), *replace)
            }
            _ => unreachable!("{operation:?}"),
        }
    }

    pub(crate) fn rename(&mut self, from: &[String], to: &[String], replace: bool) -> Outcome {
        let from = self.ask(from, false, false)?;
        let to = self.ask(to, true, false)?;
        self.can_make(&to)?;
        let moving = self.get(&from.path).cloned();
        if let Some(Node::Directory(_)) = moving {
            self.all_may_move(&from.path, &to.path)?;
        }
        if let Some(moving) = &moving {
            self.keeps_in(moving, &from.path, &to.path)?;
        }
        if from.path.is_empty() || to.path.is_empty() {
            return Err(ErrorKind::InvalidInput);
        }
        let Some(moving) = moving else { return Err(ErrorKind::NotFound) };
        let is_directory = matches!(moving, Node::Directory(_));
        if is_directory && from.path != to.path && to.path.starts_with(&from.path) {
            return Err(ErrorKind::InvalidInput);
        }
        match self.get(&to.path) {
            Some(_) if from.path == to.path && replace => return Ok("changed".to_owned()),
            Some(Node::File(_) | Node::Link(_)) if !is_directory && replace => {}
            Some(Node::Directory(there)) if is_directory && replace && !there.is_empty() => {
                return Err(ErrorKind::NotEmpty);
            }
            Some(Node::Directory(_)) if is_directory && replace => {}
            Some(_) => return Err(ErrorKind::AlreadyExists),
            None => {}
        }
        let node = self.take(&from.path);
        self.put(&to.path, node);
        Ok("changed".to_owned())
    }

    /// Denied if a link could not be made at its new name, or one beneath a directory that moves up
    /// would lead out.
    pub(crate) fn keeps_in(
        &self,
        moving: &Node,
        from: &[String],
        to: &[String],
    ) -> Result<(), ErrorKind> {
        match moving {
            Node::File(_) => Ok(()),
            Node::Link(target) if climbs_later(target) || target.starts_with('/') => {
                Err(ErrorKind::Denied)
            }
            Node::Link(target) => {
                let way = |link: &[String]| -> Result<Vec<_>, ErrorKind> {
                    let (_, parent) = link.split_last().ok_or(ErrorKind::Denied)?;
                    Ok(parent.iter().cloned().chain(target.split('/').map(str::to_owned)).collect())
                };
                self.resolve(&way(to)?, true, 1, &is_denied)?;
                // Nobody could move it back.
                let before = self.follow_way(&way(from)?, true, 1, &is_denied);
                if before.err() == Some(Refusal::Outside) { Err(ErrorKind::Denied) } else { Ok(()) }
            }
            Node::Directory(entries) => match (from.split_last(), to.split_last()) {
                (Some((_, before)), Some((_, after))) if before != after => {
                    self.links_stay(entries, (from, from), (to, to))
                }
                // The root is in no directory.
                _ => Ok(()),
            },
        }
    }

    /// Denied if a link beneath a directory would come to lead out, or no longer would; `before` and
    /// `after` are the moved directory and the one of these entries.
    fn links_stay(
        &self,
        entries: &BTreeMap<String, Node>,
        before: (&[String], &[String]),
        after: (&[String], &[String]),
    ) -> Result<(), ErrorKind> {
        for (name, node) in entries {
            let inner = |at: &[String]| [at, std::slice::from_ref(name)].concat();
            match node {
                Node::Link(target) => {
                    let differs =
                        self.crosses_out(before, target) != self.crosses_out(after, target);
                    if climbs_later(target) || differs {
                        return Err(ErrorKind::Denied);
                    }
                }
                Node::Directory(entries) => self.links_stay(
                    entries,
                    (before.0, &inner(before.1)),
                    (after.0, &inner(after.1)),
                )?,
                Node::File(_) => {}
            }
        }
        Ok(())
    }

    /// True if the target of a link in the directory `at`, which is `top` or beneath it, leads out of
    /// the workspace. What is beneath `top` moves along.
    fn crosses_out(&self, (top, at): (&[String], &[String]), target: &str) -> bool {
        let names: Vec<_> = target
            .split('/')
            .filter(|name| !matches!(*name, "" | "."))
            .map(str::to_owned)
            .collect();
        let up = names.iter().take_while(|name| *name == "..").count();
        let (inside, Some((_, above))) = (at.len() - top.len() + 1, top.split_last()) else {
            return false;
        };
        if up > at.len() {
            return true;
        }
        if up < inside {
            return false;
        }
        let path = [above, &names[inside..]].concat();
        self.follow_way(&path, true, 1, &is_denied).err() == Some(Refusal::Outside)
    }

    /// Denied if anything beneath may not have its new name.
    pub(crate) fn all_may_move(&self, from: &[String], to: &[String]) -> Result<(), ErrorKind> {
        let new = |old: &[String]| [to, &old[from.len()..]].concat();
        let refused =
            |old: &[String]| is_denied(old) || is_denied(&new(old)) || is_hidden(&new(old));
        self.all_beneath(from, &refused)
    }

    /// Denied if anything beneath is refused.
    pub(crate) fn all_beneath(
        &self,
        path: &[String],
        refused: &dyn Fn(&[String]) -> bool,
    ) -> Result<(), ErrorKind> {
        if let Some(Node::Directory(entries)) = self.get(path) {
            for name in entries.keys() {
                let inner = [path, std::slice::from_ref(name)].concat();
                if refused(&inner) {
                    return Err(ErrorKind::Denied);
                }
                self.all_beneath(&inner, refused)?;
            }
        }
        Ok(())
    }
}

/// The reason why a way leads nowhere.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    Outside,
    Loop,
}

/// True if a link's target goes up behind another name.
pub(crate) fn climbs_later(target: &str) -> bool {
    let names = target.split('/').filter(|name| !matches!(*name, "" | "."));
    names.skip_while(|name| *name == "..").any(|name| name == "..")
}

/// Returns the end of the rest of a way if nothing is here; `here` if that is elsewhere.
pub(crate) fn without(here: &[String], rest: &VecDeque<String>) -> Vec<String> {
    let mut at = here.to_vec();
    for name in rest.iter().filter(|name| !matches!(name.as_str(), "" | ".")) {
        if name == ".." {
            at.pop();
        } else {
            at.push(name.clone());
        }
        if !at.starts_with(here) {
            return here.to_vec();
        }
    }
    at
}

pub(crate) fn kind(node: &Node) -> String {
    match node {
        Node::File(content) => format!("file {}", content.len()),
        Node::Directory(_) => "directory".to_owned(),
        Node::Link(_) => "symlink".to_owned(),
    }
}

pub(crate) fn names(path: &WorkspacePath) -> Vec<String> {
    path.components().map(str::to_owned).collect()
}

/// Returns the tree on the disk.
pub(crate) fn on_disk(path: &Path) -> Node {
    let meta = path.symlink_metadata().unwrap();
    if meta.is_symlink() {
        return Node::Link(std::fs::read_link(path).unwrap().to_str().unwrap().to_owned());
    }
    if !meta.is_dir() {
        return Node::File(std::fs::read(path).unwrap());
    }
    let entries = std::fs::read_dir(path).unwrap().map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), on_disk(&entry.path()))
    });
    Node::Directory(entries.collect())
}
