//! A release build from nothing, on two cores, and the binary that it makes.
#![expect(clippy::disallowed_methods, reason = "looks at the build's result")]

use std::{
    process::{Command, Stdio},
    time::Instant,
};

use crate::{
    Outcome,
    measure::{Bound, report},
};

pub(crate) fn run() -> Outcome<()> {
    let target = tempfile::tempdir()?;
    let start = Instant::now();
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
    let binary = target.path().join("release/portcullis").metadata()?.len();
    report("build", minutes, "minutes, cold", Bound::AtMost(3.0), "thin LTO, stripped, 2 jobs");
    let size = f64::from(u32::try_from(binary)?) / f64::from(1 << 20);
    report("size", size, "MiB, binary", Bound::AtMost(15.0), "");
    Ok(())
}
