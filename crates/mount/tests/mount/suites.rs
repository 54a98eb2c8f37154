//! Test suites for file systems by other projects. `tests/run.sh setup` installs them.

use std::path::PathBuf;

use crate::rig::{ALL, Done, with};

/// Returns the path of a program that `tests/run.sh` installed.
fn tool(name: &str) -> String {
    let tools = std::env::var_os("PORTCULLIS_TEST_TOOLS").map(PathBuf::from);
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.tools/bin"));
    let path = tools.unwrap_or(root).join(name);
    assert!(path.exists(), "{} is missing: run tests/run.sh setup", path.display());
    path.to_str().unwrap().to_owned()
}

/// Returns a number from the environment, which long campaigns set.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn fsx_finds_no_byte_that_was_not_written() {
    let operations = 10_000 * number("PORTCULLIS_TEST_BUDGET", 1);
    let seed = number("PORTCULLIS_TEST_SEED", 1);
    with(
        ALL,
        |_| (),
        |rig| {
            let config = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mount/fsx.toml");
            let (operations, number) = (operations.to_string(), seed.to_string());
            // Directory for the files that it leaves for an analysis.
            let left = rig.host("../home");
            let mut fsx =
                rig.command_within(6000, &tool("fsx"), &["-N", &operations, "-S", &number]);
            fsx.args(["-f", config, "-P"]).arg(left).arg("file");
            let done = Done::from(fsx.output().unwrap());
            assert_eq!(done.code, 0, "seed {seed}: {done:?}");
        },
    );
}

/// Test that passes or fails. The kernel sends `O_TRUNC` of an open(2) for reading before it finds
/// that the file runs, and the program that lost its bytes may end before the kernel looks.
const UNDECIDED: &str = "open::etxtbsy";

/// `pjdfstest.toml` lists the known failures, with reasons.
#[test]
fn pjdfstest_fails_where_that_is_known() {
    with(
        ALL,
        |_| (),
        |rig| {
            let config = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mount/pjdfstest.toml");
            let mut suite =
                rig.command_within(6000, &tool("pjdfstest"), &["-c", config, "-p", "."]);
            let done = Done::from(suite.output().unwrap());
            let wrong = |line: &&str| {
                line.ends_with(" FAILED") && !line.starts_with(UNDECIDED)
                    || line.ends_with(" PASSED UNEXPECTEDLY")
            };
            let wrong: Vec<_> = done.stdout.lines().filter(wrong).collect();
            assert!(wrong.is_empty(), "{wrong:#?}\n{}\n{}", done.stdout, done.stderr);
            assert!(done.stdout.contains("\nSummary: "), "{}\n{}", done.stdout, done.stderr);
        },
    );
}
