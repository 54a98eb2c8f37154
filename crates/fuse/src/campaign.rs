//! Random requests, and what is sent in reply to them. `PORTCULLIS_TEST_BUDGET` multiplies their
//! number; `PORTCULLIS_TEST_SEED` repeats a campaign.

mod answers;
mod requests;
#[path = "../../../tests/integration/seeded_random.rs"]
mod seeded_random;

use std::{
    collections::BTreeMap,
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    io::{Errno, pread},
};
use zerocopy::FromBytes as _;

use self::{answers::Answers, requests::OPERATIONS, seeded_random::Random};
use crate::{
    Notifier,
    abi::{
        Attr, AttrOut, Dirent, EntryOut, GetxattrOut, InHeader, InvalEntryOut, InvalInodeOut,
        LseekOut, OpenOut, OutHeader, StatfsOut, WriteOut, notify, opcode,
    },
    deadline::Slots,
    dispatch,
    request::{Malformed, Operation, Request, forgotten},
    session::BUFFER,
    types::NodeId,
};

/// Returns a variable of the environment that is a number.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// Runs `each` for random requests, and names the seed if it panics.
fn campaign(requests: u64, mut each: impl FnMut(&mut Random)) {
    struct Seed(u64);
    impl Drop for Seed {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("PORTCULLIS_TEST_SEED={}", self.0);
            }
        }
    }
    let seed = Seed(number("PORTCULLIS_TEST_SEED", 1));
    let mut random = Random::new(seed.0.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (0..requests * number("PORTCULLIS_TEST_BUDGET", 1)).for_each(|_| each(&mut random));
}

/// Stands for the device, and keeps what is written to it.
struct Device(Arc<OwnedFd>);

impl Device {
    fn new() -> Self {
        Self(Arc::new(memfd_create("device", MemfdFlags::CLOEXEC).unwrap()))
    }

    /// Returns what was written since the last call.
    fn taken(&self) -> Vec<u8> {
        let size = rustix::fs::seek(&self.0, rustix::fs::SeekFrom::Current(0)).unwrap();
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        assert_eq!(pread(&self.0, &mut bytes, 0).unwrap(), bytes.len());
        ftruncate(&self.0, 0).unwrap();
        rustix::fs::seek(&self.0, rustix::fs::SeekFrom::Start(0)).unwrap();
        bytes
    }
}

#[test]
fn random_requests_are_parsed_or_refused() {
    let (mut parsed, mut largest) = (0, 0);
    campaign(200_000, |random| {
        let request = random.request();
        let cut = usize::try_from(random.below(request.len() as u64 + 1)).unwrap();
        for part in [&request[..], &request[..cut]] {
            match Request::parse(part) {
                Ok(Request { unique, operation, .. }) => {
                    assert_eq!((unique, part.len()), (requests::UNIQUE, request.len()));
                    if let Operation::BatchForget(nodes) = operation {
                        assert_eq!(forgotten(nodes).count() * 16, nodes.len());
                    }
                    (parsed, largest) = (parsed + 1, part.len().max(largest));
                }
                Err(Malformed::Header) => assert!(part.len() < size_of::<InHeader>()),
                Err(Malformed::Request { unique, .. }) => assert_eq!(unique, requests::UNIQUE),
            }
        }
    });
    // The generator knows the requests of the kernel, and the largest.
    assert!(parsed > 50_000 && largest > BUFFER / 2, "{parsed} {largest}");
}

#[test]
fn replies_to_random_requests_fit_what_was_asked() {
    let (device, answers) = (Device::new(), Answers::new(number("PORTCULLIS_TEST_SEED", 1)));
    let slots = Slots::new(1, Duration::from_secs(600));
    let mut results = BTreeMap::new();
    campaign(100_000, |random| {
        let request = random.request();
        dispatch::serve(device.0.as_fd(), &answers, &request, (&slots.all[0], &slots)).unwrap();
        let reply = device.taken();
        let parsed = match Request::parse(&request) {
            Err(Malformed::Header) => return assert_eq!(reply, []),
            Err(Malformed::Request { errno, .. }) => {
                return assert_eq!(body(&reply).unwrap_err(), errno.raw_os_error());
            }
            Ok(parsed) => parsed,
        };
        let code = u32::from_ne_bytes(request[4..8].try_into().unwrap());
        if matches!(parsed.operation, Operation::Forget(_) | Operation::BatchForget(_)) {
            return assert_eq!(reply, []);
        }
        let body = body(&reply);
        *results.entry((code, body.is_ok())).or_insert(0_u64) += 1;
        match body {
            Ok(body) => check(code, &parsed.operation, body),
            // The kernel would take it for success, and never ask again.
            Err(errno) if errno == Errno::NOSYS.raw_os_error() => assert!(!matches!(
                code,
                opcode::OPEN | opcode::OPENDIR | opcode::FLUSH | opcode::FSYNC | opcode::FSYNCDIR
            )),
            Err(_) => {}
        }
    });
    for code in OPERATIONS.iter().map(|(code, ..)| *code) {
        let is_replied = !matches!(code, opcode::FORGET | opcode::BATCH_FORGET);
        let succeeds = is_replied && !matches!(code, opcode::INIT | opcode::INTERRUPT);
        let fails =
            is_replied && !matches!(code, opcode::DESTROY | opcode::RELEASE | opcode::RELEASEDIR);
        for (result, expected) in [(true, succeeds), (false, fails)] {
            assert_eq!(
                results.contains_key(&(code, result)),
                expected,
                "{code} {result}: {results:?}"
            );
        }
    }
}

/// Checks the header of a reply; returns its body, or the error.
fn body(reply: &[u8]) -> Result<&[u8], i32> {
    let (header, body) = OutHeader::read_from_prefix(reply).unwrap();
    assert_eq!((header.unique, header.len as usize), (requests::UNIQUE, reply.len()));
    assert!((-511..=0).contains(&header.error), "{}", header.error);
    if header.error == 0 {
        return Ok(body);
    }
    assert!(body.is_empty(), "an error has no body");
    Err(-header.error)
}

/// Checks the body of a successful reply.
fn check(code: u32, operation: &Operation<'_>, body: &[u8]) {
    let exactly = match operation {
        Operation::Read { size, .. } => return assert!(body.len() <= *size as usize),
        Operation::ReadDirectory { size, is_plus, .. } => {
            assert!(body.len() <= *size as usize);
            return check_entries(body, *is_plus);
        }
        Operation::GetExtended { size: 0, .. } | Operation::ListExtended { size: 0 } => {
            size_of::<GetxattrOut>()
        }
        Operation::GetExtended { size, .. } | Operation::ListExtended { size } => {
            return assert!(body.len() <= *size as usize);
        }
        Operation::ReadLink => return,
        Operation::Lookup(_)
        | Operation::Symlink { .. }
        | Operation::MakeNode { .. }
        | Operation::MakeDirectory { .. }
        | Operation::Link { .. } => {
            check_entry(body, code == opcode::LOOKUP);
            size_of::<EntryOut>()
        }
        Operation::Create { .. } | Operation::Temporary { .. } => {
            check_entry(body, false);
            size_of::<EntryOut>() + size_of::<OpenOut>()
        }
        Operation::GetAttributes(_) | Operation::SetAttributes(_) => size_of::<AttrOut>(),
        Operation::Open(_) | Operation::OpenDirectory(_) => size_of::<OpenOut>(),
        Operation::Write { .. } => size_of::<WriteOut>(),
        Operation::Seek { .. } => size_of::<LseekOut>(),
        Operation::Statistics => size_of::<StatfsOut>(),
        _ => 0,
    };
    assert_eq!(body.len(), exactly, "{code}");
}

/// Checks an entry: the kernel aborts on another root and refuses special files.
fn check_entry(bytes: &[u8], may_miss: bool) {
    let (entry, _) = EntryOut::read_from_prefix(bytes).unwrap();
    assert!(entry.entry_valid_nsec < 1_000_000_000 && entry.attr_valid_nsec < 1_000_000_000);
    if entry.nodeid == 0 {
        return assert!(may_miss);
    }
    assert_ne!(entry.nodeid, NodeId::ROOT.0);
    let Attr { mode, .. } = entry.attr;
    assert!(matches!(mode & 0o170_000, 0o040_000 | 0o100_000 | 0o120_000), "{mode:o}");
}

/// Checks the entries of a directory as the kernel does.
fn check_entries(mut bytes: &[u8], is_plus: bool) {
    while !bytes.is_empty() {
        if is_plus {
            bytes = &bytes[size_of::<EntryOut>()..];
        }
        let (entry, rest) = Dirent::read_from_prefix(bytes).unwrap();
        let name = &rest[..entry.namelen as usize];
        assert!(!name.is_empty() && name.len() <= 1024 && !name.contains(&b'/'), "{name:?}");
        bytes = &bytes[(size_of::<Dirent>() + name.len()).next_multiple_of(8)..];
    }
}

#[test]
fn random_notifications_are_well_formed() {
    let device = Device::new();
    let notifier = Notifier::new(Arc::downgrade(&device.0));
    campaign(20_000, |random| {
        let node = NodeId(random.below(u64::MAX));
        let name = random.text(2_000);
        let (code, length) = match random.below(2) {
            0 => {
                notifier.invalidate_node(node).unwrap();
                (notify::INVAL_INODE, size_of::<InvalInodeOut>())
            }
            _ => {
                notifier.invalidate_entry(node, &name).unwrap();
                (notify::INVAL_ENTRY, size_of::<InvalEntryOut>() + name.len() + 1)
            }
        };
        let sent = device.taken();
        let (header, body) = OutHeader::read_from_prefix(&sent).unwrap();
        assert_eq!((header.unique, header.error, header.len as usize), (0, code, sent.len()));
        assert_eq!(body.len(), length);
        if code != notify::INVAL_INODE {
            let end = [name.as_encoded_bytes(), b"\0"].concat();
            assert!(body.ends_with(&end));
            assert_eq!(body[8..12], u32::try_from(name.len()).unwrap().to_ne_bytes());
        }
    });
    drop(device);
    assert_eq!(notifier.invalidate_node(NodeId::ROOT), Err(Errno::NODEV));
}
