//! The speed of verification per thread, compared with the speed of hashing the same lines:
//! `cargo bench -p portcullis-audit`. Measured in processor time, so that other programs on the
//! machine matter little.
#![expect(clippy::print_stdout, reason = "prints what was measured")]

use std::{collections::BTreeMap, hint::black_box, io, time::Instant};

use portcullis_audit::{
    Chain, Checkpoint, Draft, FileEntry, Hash, Kind, Note, Prepared, PrivateKey, Segment, Source,
    Verifier, tree::Frontier,
};
use sha2::{Digest, Sha256};

const RECORDS: u64 = 400_000;

/// A log in memory, so that no disk is measured.
struct Memory(BTreeMap<String, Vec<u8>>);

impl<'a> Source for &'a Memory {
    type File = io::Cursor<&'a [u8]>;

    fn list(&self) -> io::Result<Vec<FileEntry>> {
        let entry = |(name, bytes): (&String, &Vec<u8>)| FileEntry {
            name: name.clone(),
            length: bytes.len() as u64,
            regular: true,
            directory: false,
        };
        Ok(self.0.iter().map(entry).collect())
    }

    fn history(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn open(&self, name: &str) -> io::Result<Self::File> {
        let bytes = self.0.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(io::Cursor::new(bytes))
    }
}

/// Makes the record of a read as a gateway writes it.
fn draft(seq: u64) -> Draft {
    let text = |text: &str| Some(text.to_owned());
    Draft {
        boot: text("00112233445566778899aabbccddeeff"),
        session: text("33a804a17e9dcdcf68da8b24c5e91c46"),
        agent: text("coder"),
        user: text("alice"),
        transport: text("acp"),
        op: text("read"),
        path: Some(format!("src/gateway/file-{}.rs", seq % 977)),
        decision: text("allow"),
        rule: text("allowedPaths.read"),
        policy: text("default"),
        policy_sha256: Some(Hash::of(b"policy").to_string()),
        line: Some(12),
        bytes: Some(4096),
        before: Some(Hash::of(&seq.to_be_bytes())),
        result: text("ok"),
        ..Draft::default()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let key = PrivateKey::from_seed("example.com/log", [1; 32])?;
    let (mut chain, mut tree) = (Chain::new(), Frontier::new());
    let mut log = Memory(BTreeMap::new());
    for seq in 0..RECORDS {
        let record = Prepared::new(Kind::Decision, &draft(seq), u128::from(seq).to_be_bytes())?;
        let file = log.0.entry(Segment::of(seq).to_string()).or_default();
        tree.push(chain.append(&record, "2026-11-21T08:00:00.000000Z", file).leaf);
    }
    let root = tree.root();
    let text = Checkpoint { origin: "example.com/log".to_owned(), size: RECORDS, root }.to_string();
    let note = Note::assemble(&text, &key.sign(&text))?.to_string();
    let bytes: usize = log.0.values().map(Vec::len).sum();
    log.0.insert("checkpoint".to_owned(), note.into_bytes());
    log.0.insert("key.vkey".to_owned(), format!("{}\n", key.public()).into_bytes());
    println!("{RECORDS} records of {} bytes", bytes as u64 / RECORDS);
    let threads: usize = std::env::var("THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    for _ in 0..5 {
        let before = processor_time();
        for (name, bytes) in &log.0 {
            if name.starts_with("seg-") {
                for line in bytes.split(|byte| *byte == b'\n') {
                    black_box(Sha256::new().chain_update([0]).chain_update(line).finalize());
                }
            }
        }
        let hashing = processor_time() - before;
        let before = processor_time();
        let start = Instant::now();
        let report = Verifier::new(&&log).threads(threads).run()?;
        let (verifying, used) = (start.elapsed(), processor_time() - before);
        if !report.is_valid() || report.signed.records != RECORDS {
            return Err("the log does not verify".into());
        }
        println!(
            "of processors: hashing {hashing:.0} ms, verifying {used:.0} ms ({:.0} ms on the \
             clock): {:.2} times the speed of hashing per processor",
            verifying.as_secs_f64() * 1e3,
            hashing / used
        );
    }
    Ok(())
}

/// Returns the processor time of this process in milliseconds.
fn processor_time() -> f64 {
    let stat = io::read_to_string(open("/proc/self/stat")).unwrap_or_default();
    let fields: Vec<_> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0);
    // User and system time, in hundredths of a second.
    (ticks(11) + ticks(12)) * 10.0
}

#[expect(clippy::disallowed_methods, reason = "what the kernel says of this process")]
fn open(path: &str) -> Box<dyn io::Read> {
    match std::fs::File::open(path) {
        Ok(file) => Box::new(file),
        Err(_none) => Box::new(io::empty()),
    }
}
