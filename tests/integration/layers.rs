//! Imports run one way: `cli → app → acp, serve → mcp → policy-tools → review → config → core →
//! policy`, and within the core `gateway → ops, view → backup → workspace → audit_log`. Between
//! crates the compiler sees to it. The other crates name all that the core exports `gateway`.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::module_graph::reading;

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
const HELPERS: [&str; 14] = [
    "agent",
    "agent_notices",
    "announcer",
    "command_summary",
    "confirmation",
    "connect",
    "gateway_options",
    "generated",
    "import_report",
    "launch_failure",
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

/// The files of the crate whose sources are in `directory`, each with the paths that it names. The
/// crate's root is left out, because it names all modules.
fn named_in(directory: &str) -> Vec<(PathBuf, BTreeSet<Vec<String>>)> {
    let src = root().join(directory);
    let paths = reading::paths(&src.join("lib.rs")).into_iter();
    let files = paths.map(|(file, paths)| (file.strip_prefix(&src).unwrap().to_owned(), paths));
    let files: Vec<_> = files.filter(|(file, _)| file != Path::new("lib.rs")).collect();
    assert!(files.len() > 20, "the sources were not found");
    files
}

/// The module of the crate's root, or of `cli`, to which a file belongs.
fn module(file: &Path) -> &str {
    file.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs")
}

/// The names in the crate's module `parent` that the paths lead to.
fn names<'a>(paths: &'a BTreeSet<Vec<String>>, parent: &[&str]) -> BTreeSet<&'a str> {
    let inside = paths.iter().filter(|path| path.iter().zip(parent).all(|(a, b)| a == b));
    inside.filter_map(|path| path.get(parent.len()).map(String::as_str)).collect()
}

#[test]
fn imports_go_one_way() {
    let mut wrong = Vec::new();
    for directory in ["src", "crates/core/src"] {
        for (file, paths) in named_in(directory) {
            let module = module(&file);
            for other in paths.iter().filter(|path| OTHERS.contains(&path[0].as_str())) {
                wrong.push(format!("{} does not say `crate::` for {}", file.display(), other[0]));
            }
            for import in names(&paths, &["crate"]) {
                let allowed = match (module, import) {
                    (module, import) if module == import => true,
                    (module, "sandbox") => matches!(module, "app" | "cli"),
                    (module, import) => match (height(module), height(import)) {
                        (Some(module), Some(import)) => import < module,
                        _ => false,
                    },
                };
                if !allowed {
                    wrong.push(format!("{} imports {import}", file.display()));
                }
            }
        }
    }
    for (file, paths) in named_in("crates/policy/src") {
        let names = names(&paths, &["crate"]);
        if file.starts_with("model") && names.iter().any(|name| *name != "model") {
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
    for (file, paths) in named_in("src") {
        let Ok(inside) = file.strip_prefix("cli") else { continue };
        let command = module(inside);
        if command == "mod" {
            continue;
        }
        let mut names = names(&paths, &["crate", "cli"]);
        names.retain(|name| *name != command && !HELPERS.contains(name));
        names.retain(|name| src.join(format!("{name}.rs")).exists() || src.join(name).is_dir());
        wrong.extend(names.into_iter().map(|name| format!("{} imports {name}", file.display())));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
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
    let files = found(&root().join("crates/egress/src"), 10);
    for file in files.iter().filter(|file| !file.ends_with("tests.rs")) {
        let text = std::fs::read_to_string(file).unwrap();
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
