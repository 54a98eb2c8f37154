//! A second way to the same answer: a workspace in memory, with its own
//! resolver that knows nothing of the gate's. Random sequences of operations,
//! with hostile names and links, run through the gateway and through the
//! model, and nothing may differ: not the outcome, not the content, not a name
//! in the tree.

use std::{
    collections::{BTreeMap, VecDeque},
    os::unix::fs::symlink,
    path::Path,
};

use portcullis::{
    gateway::{Client, Entry, ErrorKind, Gateway, Request},
    model::{
        Encoding, LineRange, Operation, Session, WorkspacePath,
        request::{Append, Edit, List, Mkdir, Read, Remove, Rename, Stat, Write},
    },
};

use crate::{acp_rig, random::Random, requests::AnyRequest};

const SEQUENCES: u64 = 2_000;
const LENGTH: u64 = 30;

/// What the policy of these tests says no to, in the words of the model: the
/// directory `secret`, in whatever spelling of case, and all beneath it.
fn is_denied(path: &[String]) -> bool {
    path.first().is_some_and(|name| name.to_lowercase() == "secret")
}

/// Names that nobody may give.
fn is_hidden(path: &[String]) -> bool {
    path.iter().any(|name| name.chars().any(|c| c.is_control() || c == '\u{202e}'))
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    File(Vec<u8>),
    Directory(BTreeMap<String, Node>),
    Link(String),
}

/// The workspace as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tree(Node);

/// Where a path leads.
#[derive(Debug)]
struct Place {
    /// Without links.
    path: Vec<String>,
    there: bool,
}

type Outcome = Result<String, ErrorKind>;

impl Tree {
    fn empty() -> Self {
        Self(Node::Directory(BTreeMap::new()))
    }

    /// The node with exactly this name; links are not followed.
    fn get(&self, path: &[String]) -> Option<&Node> {
        path.iter().try_fold(&self.0, |node, name| match node {
            Node::Directory(entries) => entries.get(name),
            _ => None,
        })
    }

    fn directory(&mut self, path: &[String]) -> &mut BTreeMap<String, Node> {
        let mut node = &mut self.0;
        for name in path {
            let Node::Directory(entries) = node else { panic!("{path:?}") };
            node = entries.entry(name.clone()).or_insert_with(|| Node::Directory(BTreeMap::new()));
        }
        let Node::Directory(entries) = node else { panic!("{path:?}") };
        entries
    }

    /// Puts a node at a path and makes the directories on the way.
    fn put(&mut self, path: &[String], node: Node) {
        let (name, parent) = path.split_last().unwrap();
        self.directory(parent).insert(name.clone(), node);
    }

    fn take(&mut self, path: &[String]) -> Node {
        let (name, parent) = path.split_last().unwrap();
        self.directory(parent).remove(name).unwrap()
    }

    /// Follows links as `path_resolution(7)` says, but for what the gate says
    /// of itself: absolute targets lead outside whatever they name, and what is
    /// missing, or no directory, is passed as if it were one. So is a link to which
    /// another leads, and whatever would be behind it, where no more than the name of
    /// that is needed for a denial.
    fn resolve(
        &self,
        path: &[String],
        follow_last: bool,
        denied: &dyn Fn(&[String]) -> bool,
    ) -> Result<Place, ErrorKind> {
        self.walk((Vec::new(), path.iter().cloned().collect(), 0), follow_last, denied)
    }

    /// The same from a directory on, behind so many links.
    fn walk(
        &self,
        (mut here, mut rest, mut links): (Vec<String>, VecDeque<String>, usize),
        follow_last: bool,
        denied: &dyn Fn(&[String]) -> bool,
    ) -> Result<Place, ErrorKind> {
        let mut passed: Option<Vec<String>> = None;
        while let Some(name) = rest.pop_front() {
            match name.as_str() {
                "" | "." => continue,
                ".." => {
                    here.pop().ok_or(ErrorKind::Denied)?;
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
            if links > 40 || target.starts_with('/') {
                return Err(ErrorKind::Denied);
            }
            here.pop();
            target.rsplit('/').for_each(|name| rest.push_front(name.to_owned()));
        }
        let is_passed = passed.is_some_and(|passed| here.starts_with(&passed));
        let there = !is_passed && self.get(&here).is_some();
        Ok(Place { path: here, there })
    }

    /// A path that an operation asks for, after all that is decided about it.
    fn ask(&self, path: &[String], write: bool, follow: bool) -> Result<Place, ErrorKind> {
        let denied = |path: &[String]| is_denied(path) || (write && is_hidden(path));
        if denied(path) {
            return Err(ErrorKind::Denied);
        }
        let place = self.resolve(path, follow, &denied)?;
        if denied(&place.path) { Err(ErrorKind::Denied) } else { Ok(place) }
    }

    /// Whether something can be made there: no file is on the way.
    fn can_make(&self, place: &Place) -> Result<(), ErrorKind> {
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

    fn content(&self, place: &Place) -> Result<Vec<u8>, ErrorKind> {
        match self.get(&place.path) {
            Some(Node::File(content)) => Ok(content.clone()),
            Some(Node::Directory(_)) => Err(ErrorKind::IsADirectory),
            _ => Err(ErrorKind::NotFound),
        }
    }

    fn store(&mut self, place: &Place, content: Vec<u8>) -> Outcome {
        self.put(&place.path, Node::File(content));
        Ok("changed".to_owned())
    }

    fn apply(&mut self, operation: Operation<'_>) -> Outcome {
        let path = names(operation.path());
        match operation {
            Operation::Read(_) => {
                let place = self.ask(&path, false, true)?;
                Ok(String::from_utf8(self.content(&place)?).unwrap())
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

    fn rename(&mut self, from: &[String], to: &[String], replace: bool) -> Outcome {
        let from = self.ask(from, false, false)?;
        let to = self.ask(to, true, false)?;
        self.can_make(&to)?;
        let moving = self.get(&from.path).cloned();
        if let Some(Node::Directory(_)) = moving {
            let new = |old: &[String]| [&to.path, &old[from.path.len()..]].concat();
            let refused =
                |old: &[String]| is_denied(old) || is_denied(&new(old)) || is_hidden(&new(old));
            self.all_beneath(&from.path, &refused)?;
        }
        if let Some(Node::Link(target)) = &moving {
            // As if it were made there: it leads inside, and stays so whatever the names on its
            // way become.
            let names = target.split('/').filter(|name| !matches!(*name, "" | "."));
            let climbs = names.skip_while(|name| *name == "..").any(|name| name == "..");
            if climbs || target.starts_with('/') {
                return Err(ErrorKind::Denied);
            }
            let (_, here) = to.path.split_last().ok_or(ErrorKind::Denied)?;
            let names = target.split('/').map(str::to_owned).collect();
            self.walk((here.to_vec(), names, 1), true, &|path| is_denied(path))?;
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

    /// Denied if anything beneath is refused.
    fn all_beneath(
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

/// Where the rest of a way leads if nothing is here; `here` if that is elsewhere.
fn without(here: &[String], rest: &VecDeque<String>) -> Vec<String> {
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

fn kind(node: &Node) -> String {
    match node {
        Node::File(content) => format!("file {}", content.len()),
        Node::Directory(_) => "directory".to_owned(),
        Node::Link(_) => "symlink".to_owned(),
    }
}

fn names(path: &WorkspacePath) -> Vec<String> {
    path.components().map(str::to_owned).collect()
}

/// What is on the disk.
fn on_disk(path: &Path) -> Node {
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

/// An entry in the words of the model.
fn entry(entry: &Entry) -> String {
    match entry.size {
        Some(size) => format!("file {size}"),
        None => entry.kind.as_str().to_owned(),
    }
}

/// What a sequence is made of.
impl Random {
    fn one_of<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[usize::try_from(self.below(list.len() as u64)).unwrap()]
    }

    /// Few names, so that they meet; some of them hostile.
    fn name(&mut self) -> &'static str {
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

    fn path(&mut self) -> WorkspacePath {
        let depth = self.one_of(&[&0, &1, &1, &1, &2, &2, &2, &3, &4]);
        let names: Vec<_> = (0..*depth).map(|_| self.name()).collect();
        let joint = self.one_of(&["/", "/", "//", "/./"]);
        let end = self.one_of(&["", "", "/", "/."]);
        WorkspacePath::parse(format!("{}{end}", names.join(joint)).trim_start_matches('/')).unwrap()
    }

    fn target(&mut self) -> String {
        let start = self.one_of(&["", "", "", "", "../", "../../", "./", "/", "secret/", "a/../"]);
        let depth = self.below(3);
        let mut names: Vec<_> = (0..depth).map(|_| self.name()).collect();
        if names.is_empty() || self.below(8) == 0 {
            names.push(self.one_of(&["..", "b", "missing/../a", "d.txt/../b", "."]));
        }
        format!("{start}{}", names.join("/"))
    }

    fn text(&mut self) -> String {
        self.one_of(&["", "x", "xx", "one\ntwo\n", "żółć", "x y"]).to_owned()
    }

    fn request(&mut self) -> Box<dyn AnyRequest> {
        let path = self.path();
        match self.below(13) {
            0 | 1 => {
                let (range, encoding) = (LineRange::default(), Encoding::Text);
                Box::new(Read { path, range, encoding })
            }
            2..=4 => Box::new(Write { path, content: self.text().into_bytes(), mode: None }),
            5 => Box::new(Append { path, content: self.text().into_bytes() }),
            6 => Box::new(Edit { path, old: "x".into(), new: self.text() }),
            7 => Box::new(List { path }),
            8 => Box::new(Stat { path }),
            9 => Box::new(Mkdir { path, recursive: self.below(2) == 0 }),
            10 => Box::new(Remove { path, recursive: self.below(2) == 0 }),
            _ => {
                let (to, replace) = (self.path(), self.below(4) > 0);
                Box::new(Rename { from: path, to, replace })
            }
        }
    }
}

/// Somebody else plants a file, a directory or a link.
fn plant(root: &Path, tree: &mut Tree, random: &mut Random) -> String {
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

struct Rig {
    gateway: Gateway,
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        // In memory where that is possible: thousands of syncs wait for nothing.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        std::fs::create_dir(dir.path().join("ws")).unwrap();
        std::fs::write(dir.path().join("outside"), "OUTSIDE").unwrap();
        let gateway = acp_rig::gateway_under(MODEL_POLICY, &dir.path().join("ws"), dir.path());
        Self { gateway, dir }
    }

    /// The gate's answer in the words of the model.
    fn ask(&self, session: &Session, operation: Operation<'_>) -> Outcome {
        let changed = |_| "changed".to_owned();
        match operation {
            Operation::Read(read) => {
                self.put(session, read, |content| String::from_utf8(content.bytes).unwrap())
            }
            Operation::List(list) => self.put(session, list, |list| {
                let name =
                    |one: &Entry| format!("{:?} {}\n", one.path.file_name().unwrap(), entry(one));
                list.entries.iter().map(name).collect()
            }),
            Operation::Stat(stat) => self.put(session, stat, |one| entry(&one)),
            Operation::Write(write) => self.put(session, write, changed),
            Operation::Append(append) => self.put(session, append, changed),
            Operation::Edit(edit) => self.put(session, edit, changed),
            Operation::Mkdir(mkdir) => self.put(session, mkdir, changed),
            Operation::Remove(remove) => self.put(session, remove, changed),
            Operation::Rename(rename) => self.put(session, rename, changed),
            _ => unreachable!("{operation:?}"),
        }
    }

    fn put<R: Request>(
        &self,
        session: &Session,
        request: &R,
        say: impl FnOnce(R::Output) -> String,
    ) -> Outcome {
        match self.gateway.handle(session, request, Client::default()) {
            Ok(reply) => Ok(say(reply.output)),
            Err(error) => Err(error.kind()),
        }
    }

    /// Runs one sequence and counts its outcomes.
    fn sequence(&self, seed: u64, met: &mut BTreeMap<String, u64>) {
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let root = self.dir.path().join("ws");
        for entry in std::fs::read_dir(&root).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                std::fs::remove_dir_all(path).unwrap();
            } else {
                std::fs::remove_file(path).unwrap();
            }
        }
        let mut tree = Tree::empty();
        let mut history: Vec<String> =
            (0..8).map(|_| plant(&root, &mut tree, &mut random)).collect();
        let session = acp_rig::connection();
        for _ in 0..LENGTH {
            if random.below(6) == 0 {
                history.push(plant(&root, &mut tree, &mut random));
            }
            let request = random.request();
            let operation = request.as_operation();
            history.push(format!("{operation:?}"));
            let tell = || format!("seed {seed}:\n{}", history.join("\n"));
            let before = tree.clone();
            let expected = tree.apply(operation);
            let got = self.ask(&session, operation);
            assert_eq!(got, expected, "{}\nin {before:#?}", tell());
            assert_eq!(on_disk(&root), tree.0, "{}\nin {before:#?}", tell());
            let outcome = got.map_or_else(|kind| kind.as_str(), |_| "ok");
            *met.entry(format!("{} {outcome}", operation.kind())).or_default() += 1;
        }
    }
}

const MODEL_POLICY: &str = r#"
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

/// `PORTCULLIS_TEST_SEED` runs one sequence alone.
#[test]
fn the_gate_does_what_the_model_does() {
    let rig = Rig::new();
    let mut met = BTreeMap::new();
    if let Ok(seed) = std::env::var("PORTCULLIS_TEST_SEED") {
        rig.sequence(seed.parse().unwrap(), &mut met);
        return;
    }
    for seed in 0..SEQUENCES {
        rig.sequence(seed, &mut met);
    }
    // Every outcome that a quiet workspace can give was met, and not by luck.
    for (operation, outcomes) in [
        ("read", "ok denied notFound isADirectory"),
        ("write", "ok denied isADirectory notADirectory"),
        ("append", "ok denied isADirectory notADirectory"),
        ("edit", "ok denied notFound isADirectory invalidInput"),
        ("list", "ok denied notFound notADirectory"),
        ("stat", "ok denied notFound"),
        ("mkdir", "ok denied notFound alreadyExists notADirectory"),
        ("remove", "ok denied notFound notEmpty invalidInput"),
        ("rename", "ok denied notFound alreadyExists notADirectory invalidInput"),
    ] {
        for outcome in outcomes.split(' ') {
            let times = met.get(&format!("{operation} {outcome}")).copied().unwrap_or_default();
            assert!(times >= 10, "`{operation}` was `{outcome}` {times} times: {met:#?}");
        }
    }
    assert_eq!(std::fs::read_to_string(rig.dir.path().join("outside")).unwrap(), "OUTSIDE");
}
