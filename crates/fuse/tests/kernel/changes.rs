//! Changes that keep their threads, and others beside them.

use super::*;

/// Blocks each FSYNC until released, and counts opens and FSYNCs.
#[derive(Default)]
struct SlowFiles {
    memory: Memory,
    is_let_go: AtomicBool,
    opens: AtomicUsize,
    syncs: AtomicUsize,
}

impl FileSystem for SlowFiles {
    fn lookup(&self, caller: Caller, parent: NodeId, name: &OsStr) -> Result<Option<Entry>> {
        self.memory.lookup(caller, parent, name)
    }

    fn is_ending(&self, _: Caller) -> bool {
        true
    }

    fn attributes(
        &self,
        c: Caller,
        n: NodeId,
        h: Option<Handle>,
    ) -> Result<(Attributes, Duration)> {
        self.memory.attributes(c, n, h)
    }

    fn open(&self, caller: Caller, node: NodeId, flags: OFlags) -> Result<Opened> {
        self.opens.fetch_add(1, Ordering::SeqCst);
        self.memory.open(caller, node, flags)
    }

    fn read(&self, c: Caller, n: NodeId, h: Handle, offset: u64, size: u32) -> Result<Data> {
        self.memory.read(c, n, h, offset, size)
    }

    fn stores(&self, node: NodeId, _: Option<Handle>) -> bool {
        // The file that is read.
        node != NodeId(2)
    }

    fn flush(&self, _: Caller, _: NodeId, _: Handle) -> Result<()> {
        Ok(())
    }

    fn sync(&self, _: Caller, _: NodeId, _: Handle, _: bool) -> Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        while !self.is_let_go.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

const FLOOD: usize = 12;

/// Changes on every thread kept all other programs waiting.
#[test]
fn programs_read_while_many_changes_wait() {
    if !is_inside("changes::programs_read_while_many_changes_wait") {
        return;
    }
    let held = SlowFiles { memory: Memory::new(), ..SlowFiles::default() };
    let number = held.memory.make(FileType::RegularFile, 0o644, b"text");
    assert_eq!(number, 2);
    held.memory.named(NodeId::ROOT, OsStr::new("read"), number).unwrap();
    for i in 0..FLOOD {
        let number = held.memory.make(FileType::RegularFile, 0o644, b"");
        held.memory.named(NodeId::ROOT, OsStr::new(&format!("f{i}")), number).unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let session = mounted(directory.path());
    thread::scope(|scope| {
        let served = scope.spawn(|| session.run(&held, 4));
        let flood = |i| start(directory.path(), &format!(r#"exec sync "$M/f{i}""#));
        let mut users: Vec<_> = (0..FLOOD).map(flood).collect();
        while held.opens.load(Ordering::SeqCst) < FLOOD {
            thread::sleep(Duration::from_millis(5));
        }
        // Half of the threads have one each.
        while held.syncs.load(Ordering::SeqCst) < 2 {
            thread::sleep(Duration::from_millis(5));
        }
        // Each other one is about to send its FSYNC.
        thread::sleep(Duration::from_millis(200));
        let read = r#"cat "$M/read"; stat -c " %s" "$M/read"; ! stat "$M/none" 2>/dev/null"#;
        assert_eq!(done(directory.path(), read), "text 4\n");
        assert_eq!(held.syncs.load(Ordering::SeqCst), 2);
        // A change that waits ends with its program.
        for user in users.iter_mut().skip(2) {
            user.kill().unwrap();
            user.wait().unwrap();
        }
        held.is_let_go.store(true, Ordering::Release);
        for mut user in users.drain(..2) {
            assert!(user.wait().unwrap().success());
        }
        // The two that were under way, and the two that were not killed.
        let syncs = held.syncs.load(Ordering::SeqCst);
        assert!((2..=4).contains(&syncs), "{syncs}");
        // The threads are free again.
        done(directory.path(), r#"sync "$M/f0" "$M/f1""#);
        session.stopper().stop();
        served.join().unwrap().unwrap();
    });
    drop(session);
    rustix::mount::unmount(directory.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
}
