//! Opening a file where each name must first be found in its directory, against
//! opening it at once: on a file system over FUSE, with directories of several sizes.
#![expect(clippy::disallowed_methods, reason = "sets files up behind the gate's back")]

use std::{
    fs,
    hint::black_box,
    io::{BufRead as _, BufReader},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use portcullis::{
    model::WorkspacePath,
    workspace::{self, Workspace},
};
use rustix::fs::OFlags;

use crate::{
    Outcome,
    measure::{each, interleave},
};

const ROUNDS: usize = 60;
const BATCH: u32 = 10;
/// Entries of the directory that holds the file, and how deep it lies.
const DIRECTORIES: [(usize, usize); 4] = [(10, 1), (10, 5), (100, 1), (1000, 1)];

pub(crate) fn run() -> Outcome<()> {
    let place = tempfile::tempdir()?;
    let mounted = Mounted::at(place.path())?;
    for (entries, depth) in DIRECTORIES {
        let mut name = format!("{entries}-{depth}");
        for level in 1..depth {
            name += &format!("/{level}");
        }
        let directory = mounted.place.join(&name);
        fs::create_dir_all(&directory)?;
        for number in 0..entries {
            fs::write(directory.join(format!("file-{number}.txt")), "content")?;
        }
        let workspace = Workspace::open(place.path())?;
        // Neither the first nor the last that a list has.
        let path = WorkspacePath::parse(&format!("{name}/file-{}.txt", entries / 2))?;
        let opened = |file: Result<OwnedFd, workspace::Error>| {
            black_box(file?);
            Ok(())
        };
        let pair = interleave(
            ROUNDS,
            || each(BATCH, || opened(workspace.open_at(&path, OFlags::RDONLY))),
            || each(BATCH, || opened(workspace.open_listed(&path, OFlags::RDONLY))),
        )?;
        println!(
            "{:<10} {:>8.2} × an open at once, {entries} entries, {depth} deep; quartiles {}; {:.0} and {:.0} µs",
            "names",
            pair.ratio.median(),
            pair.ratio.quartiles(1.0),
            pair.ours.median() / 1e3,
            pair.bare.median() / 1e3
        );
    }
    Ok(())
}

/// The file system that the tests have for this.
struct Mounted {
    place: PathBuf,
    server: Child,
}

impl Mounted {
    fn at(place: &Path) -> Outcome<Self> {
        let mut server = Command::new("/usr/bin/python3")
            .args(["-c", include_str!("../../tests/integration/alias_fs.py")])
            .arg(place)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = String::new();
        let output = server.stdout.take().ok_or("no output")?;
        let mounted = Self { place: place.to_owned(), server };
        BufReader::new(output).read_line(&mut said)?;
        if said == "ready\n" { Ok(mounted) } else { Err("it needs root, to mount".into()) }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.place).status();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
