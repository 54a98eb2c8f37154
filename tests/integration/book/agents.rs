//! The pages about agents: the versions that they name.

use std::path::Path;

use serde_json::Value;

use super::page::pages;

/// The version of a package in the lock files of the agents that tests run.
fn locked(package: &str) -> Option<String> {
    let read = |file: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(file);
        std::fs::read_to_string(path).unwrap()
    };
    let of_npm = |file: &str| {
        let lock: Value = serde_json::from_str(&read(file)).unwrap();
        let found = &lock["packages"][format!("node_modules/{package}")]["version"];
        found.as_str().map(str::to_owned)
    };
    let of_python = |file: &str| {
        let start = format!("{package}==");
        let text = read(file);
        let found = text.lines().find_map(|line| line.strip_prefix(&start));
        found.and_then(|rest| rest.split_whitespace().next()).map(str::to_owned)
    };
    let npm = ["agents/package-lock.json", "agents/more/package-lock.json"];
    let python = ["requirements.txt", "agents/more/requirements.txt"];
    let mut found = npm.iter().filter_map(|file| of_npm(file));
    found.next().or_else(|| python.iter().filter_map(|file| of_python(file)).next())
}

/// Two pages named versions that no test had run.
#[test]
fn pages_of_agents_name_the_versions_of_the_lock_files() {
    let pages = pages().into_iter().filter(|page| page.path.starts_with("docs/agents/"));
    let mut checked = 0;
    for page in pages {
        let (_, tried) =
            page.text.split_once(" Tried: ").unwrap_or_else(|| panic!("{}", page.path));
        let tried = tried.split("\n\n").next().unwrap();
        // Each package is in backticks, and its version is the word after that.
        let words: Vec<_> = tried.split('`').collect();
        let named: Vec<_> = words.chunks_exact(2).map(|pair| pair[1]).collect();
        let versions = words.iter().skip(2).step_by(2);
        let versions = versions.map(|text| text.split_whitespace().next().unwrap_or_default());
        let named: Vec<_> = named.into_iter().zip(versions).collect();
        assert!(!named.is_empty(), "{}", page.path);
        for (package, version) in named {
            let version = version.trim_end_matches(['.', ',']);
            assert_eq!(locked(package).as_deref(), Some(version), "{} {package}", page.path);
            checked += 1;
        }
    }
    assert!(checked >= 8, "{checked}");
}
