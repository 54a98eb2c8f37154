//! Ten thousand edits of one source file of 1 MB: the size of the backup store
//! with all of its versions, and the processor time of packing them.
#![expect(clippy::disallowed_methods, reason = "looks at the disk behind the backup store's back")]

use std::{
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant},
};

use portcullis::{
    gateway::Client,
    model::{WorkspacePath, request::Write},
};

use crate::{
    Outcome,
    measure::{Bound, report},
    world::{self, World},
};

const EDITS: u64 = 10_000;
const BYTES: usize = 1_000_000;

/// Keeps every version, within a gigabyte.
const POLICY: &str = r#"
schema = 1
[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
[backups]
keep = { versions = 1000000, days = 30, size = "950MiB" }
"#;

pub(crate) fn run() -> Outcome<()> {
    let world = World::new()?;
    let (gateway, session) = (world.gateway_under(POLICY)?, world::session()?);
    let path = WorkspacePath::parse("src/large.rs")?;
    let mut content = source();
    let (mut packing, begun) = (Duration::ZERO, Instant::now());
    let mut pack = |always: bool| -> Outcome<()> {
        let started = Instant::now();
        let packed = match always {
            true => Some(gateway.maintenance().run(&mut |_, _| ())?.1),
            false => gateway.maintenance().pack_if_due()?,
        };
        packing += packed.map(|_| started.elapsed()).unwrap_or_default();
        Ok(())
    };
    for round in 0..=EDITS {
        edit(&mut content, round);
        let write = Write { path: path.clone(), content: content.clone(), mode: None };
        gateway.handle(&session, &write, Client::default())?;
        pack(false)?;
    }
    pack(true)?;
    let entries = gateway.backups().entries()?;
    if entries.entries.len() as u64 != EDITS || !entries.damaged.is_empty() {
        return Err(format!("{} versions are kept", entries.entries.len()).into());
    }
    for entry in entries.entries.iter().step_by(97) {
        gateway.backups().verify(entry)?;
    }
    let (bytes, blocks) = size(&world.state().join("backups"))?;
    let details = format!(
        "{EDITS} versions of {BYTES} bytes; {:.0} MB in blocks of the disk; packing took {:.1} ms \
         each, of {:.1} ms in all",
        blocks as f64 / 1e6,
        packing.as_secs_f64() * 1e3 / EDITS as f64,
        begun.elapsed().as_secs_f64() * 1e3 / EDITS as f64,
    );
    report("backup store", bytes as f64 / 1e6, "MB", Bound::AtMost(1000.0), &details);
    gateway.stop(&session)?;
    Ok(())
}

/// Text that compresses about as well as source code.
fn source() -> Vec<u8> {
    let words = ["let ", "fn ", "value", "return ", "match ", "index", "(", ");\n", " = ", "self."];
    let (mut text, mut state) = (Vec::with_capacity(BYTES + 32), 0x2545_f491_4f6c_dd1d_u64);
    while text.len() < BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let word = usize::try_from(state >> 33).unwrap_or(0) % words.len();
        text.extend_from_slice(words.get(word).copied().unwrap_or_default().as_bytes());
        if state.is_multiple_of(5) {
            text.extend_from_slice(format!("{:x}", state >> 40).as_bytes());
        }
    }
    text.truncate(BYTES);
    text
}

/// Replaces some 40 bytes somewhere, and now and then a line more.
fn edit(text: &mut Vec<u8>, round: u64) {
    let line = format!("/* the edit with number {round:>9} */\n");
    let place = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let at = usize::try_from(place).unwrap_or(0) % (BYTES - 100);
    let old = if round.is_multiple_of(10) { 0 } else { line.len() };
    text.splice(at..at + old, line.bytes());
}

/// Bytes in files, and in the blocks that they fill.
fn size(directory: &Path) -> Outcome<(u64, u64)> {
    let (mut bytes, mut blocks) = (0, 0);
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let facts = entry.metadata()?;
        if facts.is_dir() {
            let (more, more_blocks) = size(&entry.path())?;
            bytes += more;
            blocks += more_blocks;
        } else {
            bytes += facts.len();
            blocks += facts.blocks() * 512;
        }
    }
    Ok((bytes, blocks))
}
