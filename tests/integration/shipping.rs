//! Copies of the log elsewhere: over HTTP to a place that goes wrong, and to a
//! real S3 server.

#[cfg(not(feature = "full"))]
use crate::common::World;

#[cfg(feature = "full")]
mod remote;

#[cfg(not(feature = "full"))]
#[test]
fn a_build_that_copies_to_directories_only_says_so() {
    let world = World::new();
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    let config = world.base().join("portcullis.toml");
    std::fs::write(&config, "[audit]\nship = [{ to = \"s3://bucket/log\" }]\n").unwrap();
    for args in [&["audit", "ship"][..], &["run", "--", "/bin/true"]] {
        let output = world.command(args).env("PORTCULLIS_CONFIG", &config).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("--features") && said.contains("full"), "{said}");
    }
}
