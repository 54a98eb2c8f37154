//! The default build says of each thing that it leaves out which build has it.

#![cfg(not(feature = "full"))]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and make files of their own"
)]

use std::{fs, path::Path, process::Command};

use tempfile::TempDir;

/// Runs the program with a workspace and a state directory of its own, after one read of `a`; gives
/// exit code and standard error.
fn run(place: &Path, args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_portcullis"))
        .args(args)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", place)
        .env("XDG_CONFIG_HOME", place.join("config"))
        .env("PORTCULLIS_WORKSPACE", place.join("workspace"))
        .env("PORTCULLIS_STATE", place.join("state"))
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn place() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("workspace")).unwrap();
    fs::write(place.path().join("workspace/a"), "x").unwrap();
    let (code, stderr) = run(place.path(), &["fs", "read", "a"]);
    assert_eq!(code, Some(0), "{stderr}");
    place
}

#[cfg(not(feature = "parquet"))]
#[test]
fn a_build_without_parquet_says_so() {
    let place = place();
    let file = place.path().join("log.parquet");
    let args = ["audit", "export", "--format", "parquet", "-o", file.to_str().unwrap()];
    let (code, stderr) = run(place.path(), &args);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("--features parquet"), "{stderr}");
    assert!(!file.exists());
}

#[test]
fn a_build_that_copies_to_directories_only_says_so() {
    let place = place();
    let config = place.path().join("config/portcullis");
    fs::create_dir_all(&config).unwrap();
    let text = "[audit]\nship = [{ to = \"s3://bucket/log\" }]\n";
    fs::write(config.join("portcullis.toml"), text).unwrap();
    for args in [&["audit", "ship"][..], &["run", "--", "/bin/true"]] {
        let (code, stderr) = run(place.path(), args);
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains("--features") && stderr.contains("full"), "{stderr}");
    }
}

#[test]
fn a_build_without_webhooks_says_so() {
    let place = place();
    let config = place.path().join("config/portcullis");
    fs::create_dir_all(&config).unwrap();
    let text = "[approvals.notify]\nwebhook = \"https://ntfy.example/topic\"\n";
    fs::write(config.join("portcullis.toml"), text).unwrap();
    let (code, stderr) = run(place.path(), &["fs", "read", "a"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("sends no webhooks"), "{stderr}");
    assert!(stderr.contains("--features webhooks"), "{stderr}");
}
