//! A release build from nothing, on two cores, and the binary that it makes.
#![expect(clippy::disallowed_methods, reason = "looks at the build's result")]

use std::{
    process::{Command, Stdio},
    time::Instant,
};

use crate::{
    Outcome,
    client::children_spent,
    measure::{Bound, report},
};

pub(crate) fn run() -> Outcome<()> {
    let target = tempfile::tempdir()?;
    let (start, before) = (Instant::now(), children_spent()?);
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "--offline", "--jobs", "2", "--bin", "portcullis"])
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
    // On a machine with other work the clock tells of that work too.
    let details =
        format!("{busy:.2} minutes of processor time: {:.2} on two idle cores at best", busy / 2.0);
    report("build", minutes, "minutes, cold", Bound::AtMost(3.0), &details);
    let size = f64::from(u32::try_from(binary)?) / f64::from(1 << 20);
    report("size", size, "MiB, binary", Bound::AtMost(15.0), "thin LTO, stripped");
    Ok(())
}
