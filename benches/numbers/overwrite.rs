//! Replacements of 4 KiB with backup, record and all syncs, against the same system
//! calls made bare, on an ext4 with a journal.
#![expect(clippy::disallowed_methods, reason = "mounts a file system to measure on")]

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use portcullis::{gateway::Client, model::request::Write};
use tempfile::TempDir;

use crate::{
    Outcome,
    bare::Bare,
    measure::{Bound, each, interleave, report},
    world::{self, FILES, World},
};

/// Rounds in which every file is replaced once by each: fewer than the
/// versions that a policy keeps, so that nothing is pruned.
const ROUNDS: usize = 9 * FILES;
/// Bytes of the file system.
const SIZE: u64 = 1024 * 1024 * 1024;
/// Journal of the size that a file system of 32 to 64 GiB has. That of so small
/// a file system, 16 MiB, is full soon and stays so: each change then waits
/// until space is freed.
const JOURNAL: &str = "size=256";

pub(crate) fn run() -> Outcome<()> {
    on("overwrite", &std::env::temp_dir())?;
    // Where syncs cost next to nothing, more of the difference shows.
    on("in memory", Path::new("/dev/shm"))
}

fn on(subject: &str, directory: &Path) -> Outcome<()> {
    let mount = Mount::new(directory)?;
    let (ours, other) = (mount.world("gateway")?, mount.world("bare")?);
    let (gateway, session) = (ours.gateway()?, world::session()?);
    let mut bare = Bare::open(&other)?;
    let (mut one, mut two) = (0, 0);
    let mut replace = || {
        each(1, || {
            one += 1;
            gateway.handle(&session, &write(one)?, Client::default())?;
            Ok(())
        })
    };
    let mut replace_bare = || {
        each(1, || {
            two += 1;
            bare.replace(&world::file(two % FILES), &world::text(two))
        })
    };
    // The first change of each path makes directories.
    interleave(FILES, &mut replace, &mut replace_bare)?;
    let pair = interleave(ROUNDS, &mut replace, &mut replace_bare)?;
    let ratio = pair.ours.median() / pair.bare.median();
    let details = format!(
        "round by round {:.2} ({}); gateway {:.0} µs, bare {:.0} µs",
        pair.ratio.median(),
        pair.ratio.quartiles(1.0),
        pair.ours.median() / 1e3,
        pair.bare.median() / 1e3
    );
    report(subject, ratio, "× the same calls", Bound::AtMost(1.25), &details);
    gateway.stop(&session)?;
    Ok(())
}

/// Replaces a few files in `directory`, first through the gateway, then bare,
/// for a trace by `strace`: the two must make the same calls.
pub(crate) fn once(directory: &Path) -> Outcome<()> {
    let world = |name: &str| -> Outcome<World> {
        let base = directory.join(name);
        std::fs::create_dir_all(&base)?;
        World::at(&base)
    };
    let (ours, other) = (world("gateway")?, world("bare")?);
    let (gateway, session) = (ours.gateway()?, world::session()?);
    let mut bare = Bare::open(&other)?;
    let sign = |text: &str| File::open(text).map(drop).map_or((), drop);
    for number in 0..3 {
        sign("/the/gateway/begins");
        gateway.handle(&session, &write(number * FILES)?, Client::default())?;
        sign("/bare/begins");
        bare.replace(&world::file(0), &world::text(number * FILES))?;
        sign("/the/end");
    }
    Ok(())
}

/// A request to replace one of the files.
pub(crate) fn write(number: usize) -> Outcome<Write> {
    Ok(Write { path: world::path(number % FILES)?, content: world::text(number), mode: None })
}

/// A file system of its own, unmounted when dropped.
pub(crate) struct Mount {
    at: PathBuf,
    _dir: TempDir,
}

impl Mount {
    /// The image lies in `directory`.
    pub(crate) fn new(directory: &Path) -> Outcome<Self> {
        let dir = tempfile::tempdir_in(directory)?;
        let (image, at) = (dir.path().join("image"), dir.path().join("mounted"));
        // Written, since a hole would be filled when the journal first uses it.
        let mut file = File::create(&image)?;
        std::io::copy(&mut std::io::repeat(0).take(SIZE), &mut file)?;
        file.sync_all()?;
        std::fs::create_dir(&at)?;
        let made = ["-q", "-F", "-J", JOURNAL, "-E", "nodiscard,lazy_journal_init=1"];
        run_tool(Command::new("mkfs.ext4").args(made).arg(&image))?;
        run_tool(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at))?;
        Ok(Self { at, _dir: dir })
    }

    pub(crate) fn world(&self, name: &str) -> Outcome<World> {
        let base = self.at.join(name);
        std::fs::create_dir(&base)?;
        World::at(&base)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = run_tool(Command::new("umount").arg("-l").arg(&self.at)) {
            eprintln!("{}: {error}", self.at.display());
        }
    }
}

fn run_tool(command: &mut Command) -> Outcome<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("{:?} failed: {}", command.get_program(), stderr.trim()).into())
}
