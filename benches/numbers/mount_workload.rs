//! The workload of files in a directory, in the mount or outside of it.
#![expect(clippy::disallowed_methods, reason = "uses files as any program does")]

use std::{
    fs::{self, File},
    hint::black_box,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use crate::{
    Outcome,
    measure::{each, nanoseconds},
    mount::ripgrep,
    workload,
    world::{self, CONTENT, FILES},
};

/// The tree through which passes go.
pub(crate) const DIRECTORIES: u32 = 40;
pub(crate) const PER_DIRECTORY: u32 = 50;

/// The name of one of its files.
pub(crate) fn module(directory: u32, file: u32) -> String {
    format!("tree/part_{:02}/module_{directory:02}/file_{file:02}.rs", directory % 8)
}

pub(crate) fn run(directory: &str) -> Outcome<()> {
    std::env::set_current_dir(directory)?;
    let mut written = 0;
    workload::serve(|task| match task {
        "open" => rounds(read_one),
        "stat" => rounds(|path| {
            black_box(fs::metadata(path)?);
            Ok(())
        }),
        "tree" => timed(|| pass(Path::new("tree")).map(drop)),
        "overwrite" => timed(|| {
            written += 1;
            overwrite(written)
        }),
        "rg" => program(ripgrep(), &["--no-ignore", "surely not there", "tree"], Some(1)),
        "git" => program("git".into(), &["status", "--porcelain"], Some(0)),
        other => Err(format!("`{other}`?").into()),
    })
}

fn timed(work: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let begun = Instant::now();
    work()?;
    Ok(nanoseconds(begun.elapsed()))
}

/// The mean over all small files, ten times each.
fn rounds(one: impl Fn(&Path) -> Outcome<()>) -> Outcome<f64> {
    let paths: Vec<PathBuf> = (0..FILES).map(|number| world::file(number).into()).collect();
    let mut next = paths.iter().cycle();
    each(u32::try_from(10 * FILES)?, || next.next().map_or(Ok(()), |path| one(path)))
}

fn read_one(path: &Path) -> Outcome<()> {
    let mut buffer = [0; CONTENT];
    File::open(path)?.read_exact(&mut buffer)?;
    black_box(&buffer);
    Ok(())
}

/// Lists a directory, looks at each entry and reads each file, as a search does.
fn pass(directory: &Path) -> Outcome<u32> {
    let mut files = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.metadata()?.is_dir() {
            files += pass(&entry.path())?;
        } else {
            read_one(&entry.path())?;
            files += 1;
        }
    }
    Ok(files)
}

fn overwrite(number: usize) -> Outcome<()> {
    let mut file = File::create(world::file(number % FILES))?;
    file.write_all(&world::text(number))?;
    // The error of close(2) would be lost.
    Ok(file.sync_all()?)
}

fn program(name: std::ffi::OsString, arguments: &[&str], code: Option<i32>) -> Outcome<f64> {
    let begun = Instant::now();
    let output = Command::new(&name).args(arguments).stdin(Stdio::null()).output()?;
    let time = nanoseconds(begun.elapsed());
    if output.status.code() != code || !output.stdout.is_empty() {
        let stderr = String::from_utf8_lossy(&output.stderr).replace('\n', " ");
        return Err(format!("{}: {} {stderr:.200}", name.display(), output.status).into());
    }
    Ok(time)
}
