//! Imports run one way: `cli → app → acp, serve → mcp → policy-tools → review → config → core →
//! policy`, and within the core `gateway → ops, view → backup → workspace → audit_log`. Between
//! crates the compiler sees to it. The other crates name all that the core exports `gateway`.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// The layers, lowest first; modules on one line may not import each other.
const LAYERS: &[&[&str]] = &[
    &["model"],
    &["policy"],
    &["random", "fuse", "git"],
    &["audit_log"],
    &["workspace"],
    &["backup"],
    &["ops", "view"],
    &["gateway"],
    &["change"],
    &["operator_files"],
    &["config"],
    &["review", "undo", "commands"],
    &["policy_tools"],
    &["mcp"],
    &["acp", "egress", "mount", "serve"],
    &["app"],
    &["cli"],
];

/// Modules of `cli` that are no commands.
const HELPERS: [&str; 11] = [
    "agent",
    "announcer",
    "command_summary",
    "confirmation",
    "connect",
    "gateway_options",
    "generated",
    "local_gateway",
    "render",
    "rows",
    "session_name",
];

/// Crates whose modules a library re-exports; everything else names these.
const OTHERS: [&str; 13] = [
    "portcullis_commands",
    "portcullis_policy",
    "portcullis_policy_tools",
    "portcullis_core",
    "portcullis_review",
    "portcullis_acp",
    "portcullis_egress",
    "portcullis_fuse",
    "portcullis_git",
    "portcullis_mount",
    "portcullis_mcp",
    "portcullis_serve",
    "portcullis_sandbox",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The sources in a directory, which are more than `expected`.
fn found(directory: &Path, expected: usize) -> Vec<PathBuf> {
    let mut files = Vec::new();
    sources(directory, &mut files);
    assert!(files.len() > expected, "the sources were not found");
    files
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn height(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// The modules of this crate that a source file names, as `crate::NAME` or in
/// a group `crate::{NAME::…, NAME::…}`.
fn imports(source: &str) -> BTreeSet<String> {
    named_after("crate::", source)
}

/// The names that follow `prefix`, alone or in a group.
fn named_after(prefix: &str, source: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in source.match_indices(prefix) {
        let rest = &source[at + prefix.len()..];
        match rest.strip_prefix('{') {
            None => {
                names.insert(
                    rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect(),
                );
            }
            Some(group) => {
                let (mut depth, mut name, mut at_start) = (0, String::new(), true);
                for c in group.chars() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => at_start = true,
                        ':' if depth == 0 => at_start = false,
                        c if depth == 0 && at_start && (c.is_alphanumeric() || c == '_') => {
                            name.push(c);
                            continue;
                        }
                        _ => {}
                    }
                    if !name.is_empty() {
                        names.insert(std::mem::take(&mut name));
                    }
                }
                names.insert(name);
            }
        }
    }
    names.remove("");
    names
}

#[test]
fn imports_go_one_way() {
    let mut wrong = Vec::new();
    for (directory, expected) in [("src", 20), ("crates/core/src", 20)] {
        let src = root().join(directory);
        for file in found(&src, expected) {
            let inside = file.strip_prefix(&src).unwrap();
            let module = inside.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
            if matches!(module, "lib" | "main") {
                continue;
            }
            let text = std::fs::read_to_string(&file).unwrap();
            for other in OTHERS {
                if text.contains(&format!("{other}::")) {
                    wrong.push(format!("{} does not say `crate::` for {other}", inside.display()));
                }
            }
            for import in imports(&text) {
                let allowed = match (module, import.as_str()) {
                    (module, import) if module == import => true,
                    (module, "sandbox") => matches!(module, "app" | "cli"),
                    (module, import) => match (height(module), height(import)) {
                        (Some(module), Some(import)) => import < module,
                        _ => false,
                    },
                };
                if !allowed {
                    wrong.push(format!("{} imports {import}", inside.display()));
                }
            }
        }
    }
    for file in found(&root().join("crates/policy/src/model"), 5) {
        let names = imports(&std::fs::read_to_string(&file).unwrap());
        if names.iter().any(|name| name != "model") {
            wrong.push(format!("{} imports {names:?}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The table of ARCHITECTURE.md had `search` above the core that uses it.
#[test]
fn crates_depend_on_lower_rows_of_the_map() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').nth(2));
    let rows: Vec<_> = rows.filter(|place| root().join(place).is_dir()).collect();
    let mut checked = 0;
    for directory in &rows {
        let manifest = root().join(directory).join("Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap();
        let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
        let dependencies = dependencies.split("\n[").next().unwrap().lines();
        let last = rows.iter().rposition(|row| row == directory).unwrap();
        for name in dependencies.filter_map(|line| line.strip_prefix("portcullis-")) {
            let name = name.split(['.', ' ']).next().unwrap();
            let of = |row: &&str| *row == name || row.strip_prefix("crates/") == Some(name);
            let first = rows.iter().position(of).unwrap();
            assert!(last < first, "{directory} depends on {name}, which is no lower row");
            checked += 1;
        }
    }
    assert!(checked > 30, "only {checked} dependencies were found");
}

#[test]
fn commands_import_no_other_command() {
    let src = root().join("src/cli");
    let mut wrong = Vec::new();
    for file in found(&src, 20) {
        let inside = file.strip_prefix(&src).unwrap();
        let command = inside.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        if command == "mod" {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        let mut names = named_after("cli::", &text);
        if inside.iter().count() == 1 {
            names.extend(named_after("use super::", &text));
        }
        names.retain(|name| name != command && !HELPERS.contains(&name.as_str()));
        names.retain(|name| src.join(format!("{name}.rs")).exists() || src.join(name).is_dir());
        wrong.extend(names.into_iter().map(|name| format!("{} imports {name}", inside.display())));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_import_reader_sees_groups_and_single_names() {
    let source = "use crate::{model::{A, B}, policy::C, ops}; fn f() { crate::audit_log::g() }";
    let expected = ["audit_log", "model", "ops", "policy"].map(str::to_owned);
    assert_eq!(imports(source), BTreeSet::from(expected));
}

#[test]
fn rpc_imports_no_other_crate() {
    let manifest = std::fs::read_to_string(root().join("crates/rpc/Cargo.toml")).unwrap();
    let (_, dependencies) = manifest.split_once("[dependencies]").unwrap();
    assert!(!dependencies.contains("portcullis-"), "{dependencies}");
}

/// It speaks a protocol over a descriptor that it is given.
#[test]
fn fuse_opens_nothing_and_imports_no_other_crate() {
    let manifest = std::fs::read_to_string(root().join("crates/fuse/Cargo.toml")).unwrap();
    let (_, dependencies) = manifest.split_once("[dependencies]").unwrap();
    assert!(!dependencies.contains("portcullis-"), "{dependencies}");
    for file in found(&root().join("crates/fuse/src"), 8) {
        let text = std::fs::read_to_string(&file).unwrap();
        for word in ["std::fs", "std::net", "std::process", "fs::open", "openat", "rustix::mount"] {
            assert!(!text.contains(word), "{} uses {word}", file.display());
        }
    }
}

/// Objects of an agent's repository are parsed by it, and were written by no trusted program.
#[test]
fn git_opens_nothing_starts_nothing_and_imports_no_other_crate() {
    let manifest = std::fs::read_to_string(root().join("crates/git/Cargo.toml")).unwrap();
    let (_, dependencies) = manifest.split_once("[dependencies]").unwrap();
    for word in ["portcullis-", "rustix", "nix", "cap-std"] {
        assert!(!dependencies.contains(word), "{dependencies}");
    }
    for file in found(&root().join("crates/git/src"), 8) {
        let text = std::fs::read_to_string(&file).unwrap();
        for word in ["std::fs", "std::net", "std::process", "std::os"] {
            assert!(!text.contains(word), "{} uses {word}", file.display());
        }
    }
}

/// The mount shows and changes files through the core, but for scratch directories, which are
/// opened in one file.
#[test]
fn mount_opens_only_what_proc_says_of_programs() {
    let manifest = std::fs::read_to_string(root().join("crates/mount/Cargo.toml")).unwrap();
    let (_, dependencies) = manifest.split_once("[dependencies]").unwrap();
    let (dependencies, _) = dependencies.split_once("[dev-dependencies]").unwrap();
    let own = dependencies.lines().filter(|line| line.starts_with("portcullis-"));
    let own: Vec<_> = own.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(own, ["portcullis-core", "portcullis-fuse", "portcullis-policy"]);
    for file in found(&root().join("crates/mount/src"), 15) {
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        for word in
            ["std::fs::{", "std::net", "std::process", "fs::open", "rustix::mount", "openat"]
        {
            let is_claim = file.ends_with("process_info.rs") && word == "openat";
            let is_place = file.ends_with("scratch/beneath.rs") && word == "openat";
            assert!(is_claim || is_place || !text.contains(word), "{} uses {word}", file.display());
        }
    }
}

/// The one file that makes sockets is the connector's; the others work with what they are given.
#[test]
fn egress_connects_in_one_file_and_opens_nothing() {
    for file in found(&root().join("crates/egress/src"), 10) {
        let text = std::fs::read_to_string(&file).unwrap();
        for word in
            ["std::fs", "std::process", "fs::open", "openat", "connect_timeout", "UdpSocket"]
        {
            let is_connector = file.ends_with("connector.rs") && !word.contains("fs");
            assert!(is_connector || !text.contains(word), "{} uses {word}", file.display());
        }
    }
}

/// A search sees a workspace through the core.
#[test]
fn search_opens_nothing_and_imports_policy_alone() {
    let manifest = std::fs::read_to_string(root().join("crates/search/Cargo.toml")).unwrap();
    let (_, dependencies) = manifest.split_once("[dependencies]").unwrap();
    let own = dependencies.lines().filter(|line| line.starts_with("portcullis-"));
    assert_eq!(own.collect::<Vec<_>>(), ["portcullis-policy = { workspace = true }"]);
    for word in ["cap-std", "libc", "nix", "rustix", "tempfile"] {
        assert!(!dependencies.contains(word), "{dependencies}");
    }
    for file in found(&root().join("crates/search/src"), 8) {
        let text = std::fs::read_to_string(&file).unwrap();
        for word in [
            "std::fs",
            "std::net",
            "std::os",
            "std::process",
            "AsFd",
            "OwnedFd",
            // Of the libraries that match.
            "search_file",
            "search_path",
            "WalkBuilder",
            "Gitignore::new",
            "Gitignore::global",
            "builder.add(",
        ] {
            assert!(!text.contains(word), "{} uses {word}", file.display());
        }
    }
}

#[test]
fn model_and_policy_do_no_io_and_read_no_clock() {
    for file in found(&root().join("crates/policy/src"), 20) {
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        for word in [
            "std::fs",
            "std::io",
            "std::net",
            "rustix::",
            "SystemTime",
            "Timestamp::now",
            "Instant::now",
            "async fn",
        ] {
            assert!(!text.contains(word), "{} uses {word}", file.display());
        }
    }
}

/// A filter that named a module before its renaming selected no test.
#[test]
fn filters_of_the_test_runner_name_modules() {
    let read = |path| std::fs::read_to_string(root().join(path)).unwrap();
    let modules =
        ["tests/integration/main.rs", "crates/mount/tests/mount/main.rs", "crates/fuse/src/lib.rs"];
    let modules = modules.map(read).concat();
    let script = read("tests/run.sh");
    let filters: Vec<_> =
        script.split_whitespace().filter_map(|word| word.split_once("::")).collect();
    assert!(filters.len() > 10, "the filters were not found");
    for (module, _) in filters {
        assert!(modules.contains(&format!("\nmod {module};")), "no test is in `{module}`");
    }
}
