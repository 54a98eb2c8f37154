//! No two types of one crate share a name. Code for tests and associated types do not count.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use syn::Item;

use super::{libraries, named, root};

/// Names that modules give to a type of their own by convention.
const CONVENTIONAL: [&str; 4] = ["Args", "Error", "Options", "State"];
/// Types with an alternative in builds without a feature.
const ALTERNATIVES: [&str; 3] = ["Exporter", "SendingSpans", "Spans"];

/// The files that define each name.
type Definitions = BTreeMap<String, Vec<PathBuf>>;

/// Adds the types of all files beneath a directory.
fn read(directory: &Path, definitions: &mut Definitions) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        if path.is_dir() {
            read(&path, definitions);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            add(&syn::parse_file(&text).unwrap().items, &path, definitions);
        }
    }
}

fn add(items: &[Item], file: &Path, definitions: &mut Definitions) {
    for item in items {
        let (name, attributes) = match item {
            Item::Struct(item) => (&item.ident, &item.attrs),
            Item::Enum(item) => (&item.ident, &item.attrs),
            Item::Union(item) => (&item.ident, &item.attrs),
            Item::Trait(item) => (&item.ident, &item.attrs),
            Item::Type(item) => (&item.ident, &item.attrs),
            Item::Mod(module) => {
                let inner = module.content.as_ref().map_or(&[][..], |(_, items)| items);
                if !is_for_tests(&module.attrs) {
                    add(inner, file, definitions);
                }
                continue;
            }
            _ => continue,
        };
        if !is_for_tests(attributes) {
            definitions.entry(name.to_string()).or_default().push(file.to_owned());
        }
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        list.is_ok_and(|list| list.path.is_ident("cfg") && list.tokens.to_string() == "test")
    })
}

/// The names with several definitions, each with its files.
fn doubled(definitions: Definitions, allowed: &[&str]) -> Vec<(String, Vec<PathBuf>)> {
    let several = definitions.into_iter().filter(|(_, files)| files.len() > 1);
    several.filter(|(name, _)| !allowed.contains(&name.as_str())).collect()
}

#[test]
fn no_two_types_of_a_crate_share_a_name() {
    let allowed = [&CONVENTIONAL[..], &ALTERNATIVES].concat();
    let (mut wrong, mut types) = (Vec::new(), 0);
    for library in libraries(root()) {
        let mut definitions = Definitions::new();
        read(library.parent().unwrap(), &mut definitions);
        types += definitions.len();
        for (name, files) in doubled(definitions, &allowed) {
            let files: Vec<_> = files.iter().map(|file| named(file)).collect();
            wrong.push(format!("`{name}`: {}", files.join(", ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(types > 500, "the sources were not found");
}

#[test]
fn types_for_tests_and_associated_types_may_share_a_name() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("a.rs", "struct A; struct B; #[cfg(test)] mod tests { struct A; }");
    write("b.rs", "mod inner { enum B {} } impl T for C { type A = u8; } #[cfg(test)] struct A;");
    write("tests.rs", "struct A;");
    let mut definitions = Definitions::new();
    read(directory.path(), &mut definitions);
    let names: Vec<_> = doubled(definitions, &[]).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["B"]);
}
