//! The summary has every page, and every link leads somewhere.

use std::path::Component;

use super::page::{Page, others, pages, root};

/// Joins the directory of `page` and a relative target.
fn join(page: &str, target: &str) -> String {
    let mut joined = Vec::new();
    let directory = page.rsplit_once('/').map_or("", |(directory, _)| directory);
    for part in std::path::Path::new(directory).join(target).components() {
        match part {
            Component::ParentDir => {
                joined.pop().unwrap_or_else(|| panic!("{page}: {target} leads out"));
            }
            part => joined.push(part.as_os_str().to_str().unwrap().to_owned()),
        }
    }
    joined.join("/")
}

fn summary() -> Page {
    Page::read("docs/SUMMARY.md")
}

#[test]
fn the_summary_has_each_page_once() {
    let mut listed: Vec<_> =
        summary().links().iter().map(|link| join("docs/SUMMARY.md", link)).collect();
    listed.sort();
    let there: Vec<_> = pages().into_iter().map(|page| page.path).collect();
    assert_eq!(listed, there);
    assert!(!there.iter().any(|path| path.ends_with("README.md")), "mdBook breaks links to it");
}

#[test]
fn every_link_leads_to_a_page_and_a_heading() {
    let book = pages();
    let others = others();
    let mut followed = 0;
    let mut broken = Vec::new();
    for page in book.iter().chain(&others) {
        let in_book = page.path.starts_with("docs/");
        for link in page.links() {
            followed += 1;
            let (target, anchor) = match link.split_once('#') {
                Some((target, anchor)) => (target, Some(anchor)),
                None => (link.as_str(), None),
            };
            let path = if target.is_empty() { page.path.clone() } else { join(&page.path, target) };
            let found = book.iter().chain(&others).find(|page| page.path == path);
            let right = match (found, anchor) {
                // Files that mdBook does not make pages of lead nowhere in the book.
                (found, _) if in_book && !found.is_some_and(|to| to.path.starts_with("docs/")) => {
                    false
                }
                (Some(to), Some(anchor)) => to.anchors().iter().any(|there| there == anchor),
                (Some(_), None) => true,
                (None, anchor) => anchor.is_none() && root().join(&path).exists(),
            };
            if !right {
                broken.push(format!("{}: {link}", page.path));
            }
        }
    }
    assert!(broken.is_empty(), "these links lead nowhere:\n{}", broken.join("\n"));
    assert!(followed > 200, "only {followed} links were found");
}

#[test]
fn the_index_of_decisions_has_each_with_its_title() {
    let (summary, index) = (summary(), Page::read("docs/adr.md"));
    for page in pages().iter().filter(|page| page.path.starts_with("docs/adr/")) {
        let line = format!("({})", &page.path["docs/".len()..]);
        for list in [&summary, &index] {
            let named = list.text.lines().find(|there| there.ends_with(&line));
            let named = named.unwrap_or_else(|| panic!("{} is not in {}", page.path, list.path));
            let title = named.trim_start_matches([' ', '-', '[']).replace(['`', '*'], "");
            assert_eq!(title.split("](").next().unwrap(), page.title(), "{}", list.path);
        }
    }
}

/// Files in which messages and comments name pages.
fn sources(directory: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join(directory)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(path.to_str().unwrap()));
        } else {
            found.push(path);
        }
    }
    found
}

#[test]
fn pages_that_the_program_names_exist() {
    let mut named = 0;
    for directory in ["src", "crates/sandbox/src", "crates/review/src", "deploy", "presets"] {
        for file in sources(directory) {
            let Ok(text) = std::fs::read_to_string(&file) else { continue };
            for piece in text.split("docs/").skip(1) {
                let name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./".contains(byte);
                let length = piece.bytes().take_while(name).count();
                let Some(path) = piece[..length].split_inclusive(".md").next() else { continue };
                if path.ends_with(".md") {
                    named += 1;
                    let there = root().join("docs").join(path).exists();
                    assert!(there, "{} names docs/{path}", file.display());
                }
            }
        }
    }
    assert!(named > 10, "only {named} names were found");
}
