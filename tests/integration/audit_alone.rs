//! The audit crate can be built, read and trusted without the rest.

use std::{collections::BTreeSet, process::Command};

/// Maximum number of crates to review, with our own.
const MAX_CRATES: usize = 25;

#[test]
fn the_audit_crate_needs_few_others_and_none_that_act() {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "-p", "portcullis-audit", "--prefix", "none"])
        .args(["-e", "normal,build,no-proc-macro"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    // Cargo marks what it has listed before with ` (*)`.
    let lines: BTreeSet<_> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    assert!(lines.len() <= MAX_CRATES, "{lines:#?}");
    let names: BTreeSet<_> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains("portcullis-audit") && names.contains("sha2"), "{names:?}");
    for unwanted in ["portcullis", "tokio", "cap-std", "rustix", "libc"] {
        assert!(!names.contains(unwanted), "{names:?}");
    }
}
