//! A tree with changes at some of its paths.

use std::{
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

use super::{
    Entry, Error, Format, Mode, Object, ObjectId, ObjectKind, Source, Tree, tree::MAX_TREE,
};

/// Maximum number of bytes of trees that are stored parsed.
const MAX_PARSED: usize = 64 << 20;

/// A source together with the objects that a replay adds to it.
pub(super) struct Overlay<'a> {
    source: &'a mut dyn Source,
    added: &'a HashMap<ObjectId, Object>,
    /// The objects made for the current commit.
    pub(super) made: HashMap<ObjectId, Object>,
    /// A cache of trees: most paths of a commit are in few directories.
    parsed: HashMap<ObjectId, Rc<Tree>>,
    /// Number of bytes of those.
    bytes: usize,
    /// Number of objects, and of bytes of them, that may still be made.
    left: (usize, usize),
}

impl<'a> Overlay<'a> {
    /// Combines the objects of `source` with those that were `added`. At most `left` objects and
    /// bytes of them are made.
    pub(super) fn new(
        source: &'a mut dyn Source,
        added: &'a HashMap<ObjectId, Object>,
        left: (usize, usize),
    ) -> Self {
        Self { source, added, made: HashMap::new(), parsed: HashMap::new(), bytes: 0, left }
    }

    /// Returns the numbers of objects and bytes that may still be made.
    pub(super) fn left(&self) -> (usize, usize) {
        self.left
    }

    /// Adds an object.
    ///
    /// # Errors
    /// If too many objects are made.
    pub(super) fn add(&mut self, object: Object) -> Result<ObjectId, Error> {
        let id = object.id.clone();
        if !self.made.contains_key(&id) {
            let (objects, bytes) = self.left;
            let left = objects.checked_sub(1).zip(bytes.checked_sub(object.bytes.len()));
            self.left = left.ok_or(Error::Budget)?;
            self.made.insert(id.clone(), object);
        }
        Ok(id)
    }

    /// Reads a tree.
    fn tree(&mut self, id: &ObjectId) -> Result<Rc<Tree>, Error> {
        if let Some(tree) = self.parsed.get(id) {
            return Ok(Rc::clone(tree));
        }
        let bytes = self.read(id, ObjectKind::Tree, MAX_TREE)?;
        let tree = Rc::new(Tree::parse(id.format(), &bytes)?);
        self.bytes += bytes.len();
        if self.bytes > MAX_PARSED {
            self.parsed.clear();
            self.bytes = bytes.len();
        }
        self.parsed.insert(id.clone(), Rc::clone(&tree));
        Ok(tree)
    }

    /// Returns the entry at a path beneath a tree, if there is one.
    pub(super) fn entry_at(&mut self, tree: &ObjectId, path: &str) -> Result<Option<Entry>, Error> {
        let mut found = Entry { mode: Mode::Directory, id: tree.clone() };
        for name in path.split('/') {
            if found.mode != Mode::Directory {
                return Ok(None);
            }
            match self.tree(&found.id)?.0.get(name.as_bytes()) {
                Some(entry) => found = entry.clone(),
                None => return Ok(None),
            }
        }
        Ok(Some(found))
    }
}

impl Source for Overlay<'_> {
    fn read(&mut self, id: &ObjectId, kind: ObjectKind, max: u64) -> Result<Vec<u8>, Error> {
        match self.made.get(id).or_else(|| self.added.get(id)) {
            Some(object) if object.kind == kind => Ok(object.bytes.clone()),
            Some(_) => Err(Error::Kind(id.clone(), kind)),
            None => self.source.read(id, kind, max),
        }
    }
}

/// The change of one name in a directory.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// The new entry, or `None` inside if it is removed.
    leaf: Option<Option<Entry>>,
    /// The changes beneath it.
    beneath: BTreeMap<Vec<u8>, Node>,
}

impl Node {
    /// Sets the new entry of `path`.
    pub(super) fn set(&mut self, path: &str, entry: Option<Entry>) {
        let mut node = self;
        for name in path.split('/') {
            node = node.beneath.entry(name.as_bytes().to_vec()).or_default();
        }
        node.leaf = Some(entry);
    }

    /// Applies the changes to `tree`; returns `None` if no entries remain.
    ///
    /// # Errors
    /// If another entry is in the way, a tree cannot be read, or too many are made.
    pub(super) fn apply(
        &self,
        overlay: &mut Overlay<'_>,
        format: Format,
        tree: Option<&ObjectId>,
    ) -> Result<Option<ObjectId>, Error> {
        let mut entries = match tree {
            Some(tree) => Tree::clone(&*overlay.tree(tree)?),
            None => Tree::default(),
        };
        for (name, node) in &self.beneath {
            if node.leaf == Some(None) {
                entries.0.remove(name);
            }
            if !node.beneath.is_empty() {
                let below = match entries.0.get(name) {
                    None => None,
                    Some(Entry { mode: Mode::Directory, id }) => Some(id.clone()),
                    Some(_) => {
                        return Err(Error::path(name, "a file is where a directory would be"));
                    }
                };
                match node.apply(overlay, format, below.as_ref())? {
                    Some(id) => entries.0.insert(name.clone(), Entry { mode: Mode::Directory, id }),
                    None => entries.0.remove(name),
                };
            }
            if let Some(Some(entry)) = &node.leaf {
                if entries.0.get(name).is_some_and(|there| there.mode == Mode::Directory) {
                    let reason = "a directory with other files is where the file would be";
                    return Err(Error::path(name, reason));
                }
                entries.0.insert(name.clone(), entry.clone());
            }
        }
        if entries.0.is_empty() {
            return Ok(None);
        }
        overlay.add(entries.object(format)).map(Some)
    }
}
