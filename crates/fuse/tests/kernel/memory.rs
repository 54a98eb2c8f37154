//! A small file system in memory.

use super::*;

#[derive(Clone)]
struct Node {
    kind: FileType,
    mode: u32,
    bytes: Arc<[u8]>,
}

/// Nodes by number, and names by directory.
#[derive(Default)]
pub(super) struct Memory {
    nodes: Mutex<BTreeMap<u64, Node>>,
    pub(super) names: Mutex<BTreeMap<(u64, OsString), u64>>,
    pub(super) no_open: AtomicBool,
    pub(super) keeps_missing: AtomicBool,
}

impl Memory {
    pub(super) fn new() -> Self {
        let memory = Self::default();
        memory.make(FileType::Directory, 0o755, b"");
        memory
    }

    pub(super) fn make(&self, kind: FileType, mode: u32, bytes: &[u8]) -> u64 {
        let mut nodes = self.nodes.lock().unwrap();
        let number = nodes.keys().last().copied().unwrap_or(0) + 1;
        nodes.insert(number, Node { kind, mode, bytes: bytes.into() });
        number
    }

    fn node(&self, node: NodeId) -> Result<Node> {
        self.nodes.lock().unwrap().get(&node.0).cloned().ok_or(Errno::NOENT)
    }

    pub(super) fn change(&self, node: NodeId, change: impl FnOnce(&mut Vec<u8>)) {
        let mut nodes = self.nodes.lock().unwrap();
        let node = nodes.get_mut(&node.0).unwrap();
        let mut bytes = node.bytes.to_vec();
        change(&mut bytes);
        node.bytes = bytes.into();
    }

    fn facts(&self, node: NodeId) -> Result<Attributes> {
        let Node { kind, mode, bytes } = self.node(node)?;
        let (size, at) = (bytes.len() as u64, (1, 0));
        let (inode, links, uid, gid, block_size) = (node.0, 1, 0, 0, 4096);
        let (accessed, modified, changed) = (at, at, at);
        Ok(Attributes {
            inode,
            kind,
            mode,
            links,
            uid,
            gid,
            size,
            block_size,
            accessed,
            modified,
            changed,
        })
    }

    fn entry(&self, number: u64) -> Result<Entry> {
        let node = NodeId(number);
        let (attribute_timeout, entry_timeout) = (LONG, LONG);
        let attributes = self.facts(node)?;
        Ok(Entry { node, generation: 0, attributes, attribute_timeout, entry_timeout })
    }

    pub(super) fn named(&self, parent: NodeId, name: &OsStr, number: u64) -> Result<Entry> {
        self.names.lock().unwrap().insert((parent.0, name.into()), number);
        self.entry(number)
    }
}

impl FileSystem for Memory {
    fn lookup(&self, _: Caller, parent: NodeId, name: &OsStr) -> Result<Option<Entry>> {
        let number = self.names.lock().unwrap().get(&(parent.0, name.into())).copied();
        number.map(|number| self.entry(number)).transpose()
    }

    fn missing_timeout(&self, _: NodeId) -> Duration {
        if self.keeps_missing.load(Ordering::Relaxed) { LONG } else { Duration::ZERO }
    }

    fn attributes(
        &self,
        _: Caller,
        n: NodeId,
        _: Option<Handle>,
    ) -> Result<(Attributes, Duration)> {
        Ok((self.facts(n)?, LONG))
    }

    fn set_attributes(
        &self,
        _: Caller,
        n: NodeId,
        set: SetAttributes,
    ) -> Result<(Attributes, Duration)> {
        if let Some(size) = set.size {
            self.change(n, |bytes| bytes.resize(size as usize, 0));
        }
        if let Some(mode) = set.mode {
            self.nodes.lock().unwrap().get_mut(&n.0).unwrap().mode = mode;
        }
        Ok((self.facts(n)?, LONG))
    }

    fn read_link(&self, _: Caller, node: NodeId) -> Result<OsString> {
        Ok(String::from_utf8(self.node(node)?.bytes.to_vec()).unwrap().into())
    }

    fn symlink(&self, _: Caller, p: NodeId, name: &OsStr, target: &OsStr) -> Result<Entry> {
        self.named(p, name, self.make(FileType::Symlink, 0o777, target.as_encoded_bytes()))
    }

    fn make_file(&self, _: Caller, p: NodeId, name: &OsStr, mode: u32) -> Result<Entry> {
        self.named(p, name, self.make(FileType::RegularFile, mode, b""))
    }

    fn make_directory(&self, _: Caller, p: NodeId, name: &OsStr, mode: u32) -> Result<Entry> {
        self.named(p, name, self.make(FileType::Directory, mode, b""))
    }

    fn unlink(&self, _: Caller, parent: NodeId, name: &OsStr) -> Result<()> {
        let removed = self.names.lock().unwrap().remove(&(parent.0, name.into()));
        removed.map(drop).ok_or(Errno::NOENT)
    }

    fn remove_directory(&self, caller: Caller, parent: NodeId, name: &OsStr) -> Result<()> {
        self.unlink(caller, parent, name)
    }

    fn rename(
        &self,
        _: Caller,
        from: (NodeId, &OsStr),
        to: (NodeId, &OsStr),
        mode: RenameMode,
    ) -> Result<()> {
        let mut names = self.names.lock().unwrap();
        let to = (to.0.0, to.1.to_owned());
        if mode == RenameMode::NoReplace && names.contains_key(&to) {
            return Err(Errno::EXIST);
        }
        let number = names.remove(&(from.0.0, from.1.into())).ok_or(Errno::NOENT)?;
        names.insert(to, number);
        Ok(())
    }

    fn open(&self, _: Caller, node: NodeId, flags: OFlags) -> Result<Opened> {
        if self.no_open.load(Ordering::Relaxed) {
            return Err(Errno::NOSYS);
        }
        if flags.contains(OFlags::TRUNC) {
            self.change(node, Vec::clear);
        }
        Ok(Opened { keep_cache: true, ..Opened::new(Handle(0)) })
    }

    fn create(
        &self,
        caller: Caller,
        p: NodeId,
        name: &OsStr,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Opened)> {
        let entry = self.make_file(caller, p, name, mode)?;
        Ok((entry, self.open(caller, entry.node, flags)?))
    }

    fn read(&self, _: Caller, node: NodeId, _: Handle, offset: u64, size: u32) -> Result<Data> {
        let bytes = self.node(node)?.bytes;
        let start = (offset as usize).min(bytes.len());
        let end = (start + size as usize).min(bytes.len());
        Ok(Data::Shared(bytes, start..end))
    }

    fn write(
        &self,
        _: Caller,
        node: NodeId,
        _: Handle,
        offset: u64,
        data: &[u8],
        _: portcullis_fuse::WriteFrom,
    ) -> Result<u32> {
        let (start, end) = (offset as usize, offset as usize + data.len());
        self.change(node, |bytes| {
            bytes.resize(bytes.len().max(end), 0);
            bytes[start..end].copy_from_slice(data);
        });
        Ok(data.len() as u32)
    }

    fn flush(&self, _: Caller, _: NodeId, _: Handle) -> Result<()> {
        Ok(())
    }

    fn sync(&self, _: Caller, _: NodeId, _: Handle, _: bool) -> Result<()> {
        Ok(())
    }

    fn open_directory(&self, _: Caller, _: NodeId, _: OFlags) -> Result<Opened> {
        Ok(Opened::new(Handle(0)))
    }

    fn read_directory(
        &self,
        _: Caller,
        node: NodeId,
        _: Handle,
        offset: u64,
        directory: &mut Directory<'_>,
    ) -> Result<()> {
        let names = self.names.lock().unwrap().clone();
        let names = names.into_iter().filter(|((parent, _), _)| *parent == node.0);
        for (at, ((_, name), number)) in (1..).zip(names).skip(offset as usize) {
            let is_added = if directory.is_plus() {
                directory.add_entry(&name, at, || self.entry(number).ok())
            } else {
                directory.add(&name, number, self.node(NodeId(number))?.kind, at)
            };
            if !is_added {
                break;
            }
        }
        Ok(())
    }

    fn statistics(&self, _: NodeId) -> Result<Statistics> {
        let (blocks, blocks_free, blocks_available, files) = (7, 6, 5, 4);
        let (files_free, block_size, name_length) = (3, 4096, 255);
        Ok(Statistics {
            blocks,
            blocks_free,
            blocks_available,
            files,
            files_free,
            block_size,
            name_length,
        })
    }
}
