//! `stat` of a file where each name must first be found in its directory, against
//! looking at it at once: on a file system over FUSE, with directories of several sizes.
#![expect(clippy::disallowed_methods, reason = "sets files up behind the gateway's back")]

use std::{
    fs,
    hint::black_box,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use portcullis::{gateway::Workspace, model::WorkspacePath};
use rustix::fs::{Mode, OFlags, fstat, openat};

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
        let root = fs::File::open(place.path())?;
        let pair = interleave(
            ROUNDS,
            || {
                each(BATCH, || {
                    black_box(workspace.view().stat(&path)?);
                    Ok(())
                })
            },
            || {
                each(BATCH, || {
                    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let found = openat(&root, path.as_str(), flags, Mode::empty())?;
                    black_box(fstat(found)?);
                    Ok(())
                })
            },
        )?;
        println!(
            "{:<10} {:>8.2} × a look at once, {entries} entries, {depth} deep; quartiles {}; {:.0} and {:.0} µs",
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
        let mut line = String::new();
        let output = server.stdout.take().ok_or("no output")?;
        let mounted = Self { place: place.to_owned(), server };
        BufReader::new(output).read_line(&mut line)?;
        if line == "ready\n" { Ok(mounted) } else { Err("it needs root, to mount".into()) }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.place).status();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
