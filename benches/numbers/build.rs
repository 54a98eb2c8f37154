//! A release build from nothing, on two cores, and the binary that it makes:
//! of the default features and of all.
#![expect(clippy::disallowed_methods, reason = "looks at the build's result")]

use std::{
    process::{Command, Stdio},
    time::Instant,
};

use crate::{Outcome, client::children_spent};

/// The features of a build, and the names of its time and its binary's size.
const BUILDS: [(&[&str], [&str; 2]); 2] =
    [(&[], ["build", "size"]), (&["--features", "full"], ["build full", "size full"])];

pub(crate) fn run() -> Outcome<()> {
    BUILDS.iter().try_for_each(|(features, names)| build(features, names))
}

fn build(features: &[&str], names: &[&str; 2]) -> Outcome<()> {
    let target = tempfile::tempdir()?;
    let (start, before) = (Instant::now(), children_spent()?);
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "--offline", "--jobs", "2", "--bin", "portcullis"])
        .args(features)
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(target.path())
        .stderr(Stdio::null())
        .status()?;
    if !status.success() {
        return Err(format!("cargo build: {status}").into());
    }
    let minutes = start.elapsed().as_secs_f64() / 60.0;
    let busy = (children_spent()? - before) / 60e9;
    let binary = target.path().join("release/portcullis").metadata()?.len();
    // On a machine with other work the clock would measure that work too.
    let details =
        format!("{busy:.2} minutes of processor time: {:.2} on two idle cores at best", busy / 2.0);
    println!("{}: {minutes:.2} minutes, cold ({details})", names[0]);
    let size = f64::from(u32::try_from(binary)?) / f64::from(1 << 20);
    println!("{}: {size:.1} MiB, with symbols", names[1]);
    Ok(())
}
