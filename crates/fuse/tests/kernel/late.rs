//! Requests to which a file system does not reply in time.

use super::*;

/// Serves a lookup and an open that block until released, and notes what the kernel makes
/// undone.
#[derive(Default)]
struct Slow {
    memory: Memory,
    is_let_go: AtomicBool,
    undone: Mutex<Vec<&'static str>>,
}

impl Slow {
    fn wait(&self) {
        while !self.is_let_go.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl FileSystem for Slow {
    fn lookup(&self, caller: Caller, parent: NodeId, name: &OsStr) -> Result<Option<Entry>> {
        if name == "slow" {
            self.wait();
        }
        self.memory.lookup(caller, parent, name)
    }

    fn attributes(
        &self,
        c: Caller,
        n: NodeId,
        h: Option<Handle>,
    ) -> Result<(Attributes, Duration)> {
        self.memory.attributes(c, n, h)
    }

    fn open(&self, _: Caller, _: NodeId, _: OFlags) -> Result<Opened> {
        self.wait();
        Ok(Opened::new(Handle(7)))
    }

    fn release(&self, _: NodeId, _: Handle) {
        self.undone.lock().unwrap().push("release");
    }

    fn forget(&self, _: NodeId, _: u64) {
        self.undone.lock().unwrap().push("forget");
    }
}

/// Such a request used to wait in the kernel, and could not be killed.
#[test]
fn a_request_that_takes_too_long_is_answered() {
    if !is_inside("late::a_request_that_takes_too_long_is_answered") {
        return;
    }
    let slow = Slow { memory: Memory::new(), ..Slow::default() };
    for name in ["slow", "opens"] {
        let number = slow.memory.make(FileType::RegularFile, 0o644, b"text");
        slow.memory.named(NodeId::ROOT, OsStr::new(name), number).unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let session = mounted(directory.path()).with_timeout(Duration::from_secs(2));
    thread::scope(|scope| {
        let served = scope.spawn(|| session.run(&slow, 4));
        let begun = Instant::now();
        for script in [r#"LC_ALL=C stat "$M/slow""#, r#"LC_ALL=C cat "$M/opens""#] {
            let said = start(directory.path(), script).wait_with_output().unwrap();
            let said = String::from_utf8(said.stderr).unwrap();
            assert!(said.contains("timed out"), "{said}");
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        // References of earlier lookups stay; those of the late replies are released.
        assert!(slow.undone.lock().unwrap().is_empty());
        slow.is_let_go.store(true, Ordering::Release);
        let deadline = Instant::now() + Duration::from_secs(60);
        while slow.undone.lock().unwrap().len() < 2 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(500));
        let mut undone = slow.undone.lock().unwrap().clone();
        undone.sort_unstable();
        assert_eq!(undone, ["forget", "release"]);
        assert_eq!(done(directory.path(), r#"stat -c %s "$M/slow""#), "4\n");
        session.stopper().stop();
        served.join().unwrap().unwrap();
    });
    drop(session);
    rustix::mount::unmount(directory.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
}
