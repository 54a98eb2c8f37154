//! `policy diff --no-new-access`, where no example shows what opens.

use super::policy_file;
use crate::common::World;

/// Examples end in `x`, so none had an extension behind text of its own.
#[test]
fn a_change_of_extensions_counts_as_opening() {
    let world = World::new();
    let diff = |old: &str, new: &str| {
        for (side, text) in [("old", old), ("new", new)] {
            let text = format!(
                "schema = 1\n[allowedPaths]\nread = [\"bin/tool*\"]\nwrite = [\"bin/tool*\"]\n\
                 [extensions]\n{text}\n"
            );
            policy_file(&world, &format!("{side}.toml"), &text);
        }
        world.run(&["policy", "diff", "old.toml", "new.toml", "--no-new-access"])
    };
    let (md, more) = ("allow = { write = [\"md\"] }", "allow = { write = [\"md\", \"exe\"] }");
    for (closed, open) in [("deny = [\"exe\"]", ""), (md, more), (md, "")] {
        let done = diff(closed, open);
        assert_eq!(done.code, 4, "{closed} -> {open}: {done:?}");
        assert!(done.text().contains("extensions."), "{done:?}");
        assert_eq!(diff(open, closed).code, 0, "{open} -> {closed}");
    }
}

/// The base's own pattern counted as open before, even if a file had narrowed it.
#[test]
fn a_layer_that_narrows_no_more_opens() {
    let world = World::new();
    let diff = |base: &str, old: &str, new: &str| {
        policy_file(&world, "base.toml", &format!("schema = 1\n[allowedPaths]\nread = [{base}]\n"));
        for (side, list) in [("old", old), ("new", new)] {
            let read = if list.is_empty() { String::new() } else { format!("read = [{list}]\n") };
            let text = format!("schema = 1\nextends = [\"base.toml\"]\n[allowedPaths]\n{read}");
            policy_file(&world, &format!("{side}.toml"), &text);
        }
        world.run(&["policy", "diff", "old.toml", "new.toml", "--no-new-access"])
    };
    let done = diff("'**/*.md'", "'**/{[a-z],.}*'", "");
    assert_eq!(done.code, 4, "{done:?}");
    assert!(done.text().contains("`**/*.md` not certain to be open -> `**/*.md` open"), "{done:?}");
    assert_eq!(diff("'**'", "'**/*x'", "'**/?'").code, 4);
    // The base is as open as before, and what bounds it is narrower.
    assert_eq!(diff("'**'", "'src/**'", "'src/*'").code, 0);
    assert_eq!(diff("'**/*.md'", "", "'**/{[a-z],.}*'").code, 0);
}

/// An operation that only a mount uses was not compared.
#[test]
fn an_operation_of_mounts_counts_as_opening() {
    let world = World::new();
    let base = "schema = 1\n[allowedPaths]\nlist = [\"**\"]\nread = [\"**\"]\n";
    policy_file(&world, "old.toml", base);
    for operation in ["symlink", "setattr"] {
        let rule = format!(
            "{base}[[rules]]\nid = \"more\"\neffect = \"allow\"\noperations = [\"{operation}\"]\n\
             paths = [\"src/**\"]\n"
        );
        policy_file(&world, "new.toml", &rule);
        let done = world.run(&["policy", "diff", "old.toml", "new.toml", "--no-new-access"]);
        assert_eq!(done.code, 4, "{operation}: {done:?}");
    }
    for more in ["[mount]\nmaxReadSize = \"1GiB\"\n", "[scratch]\npaths = [\"target\"]\n"] {
        policy_file(&world, "new.toml", &format!("{base}{more}"));
        let done = world.run(&["policy", "diff", "old.toml", "new.toml", "--no-new-access"]);
        assert_eq!(done.code, 4, "{more}: {done:?}");
    }
}

/// A secret name was compared with what is allowed as if it closed the named entry alone.
#[test]
fn a_secret_name_that_goes_away_opens_what_is_beneath_it() {
    let world = World::new();
    let diff = |old: &str, new: &str| {
        for (side, text) in [("old", old), ("new", new)] {
            policy_file(&world, &format!("{side}.toml"), &format!("schema = 1\n{text}"));
        }
        world.run(&["policy", "diff", "old.toml", "new.toml", "--no-new-access"])
    };
    let name = |name: &str| format!("[secrets]\nnames = ['{name}']\n");
    for (read, secret) in [
        ("**/*.md", "vault"),
        ("*/*.md", "vault"),
        ("docs/*/*.md", "internal"),
        ("src/**/*.rs", "internal"),
    ] {
        let open = format!("[allowedPaths]\nread = ['{read}']\n");
        let closed = format!("{open}{}", name(secret));
        for new in [open.clone(), format!("{open}{}", name("keys"))] {
            let done = diff(&closed, &new);
            assert_eq!(done.code, 4, "{read}: {done:?}");
            let change = format!("denials: `{secret}` closed -> `{secret}` not certain to be");
            assert!(done.text().contains(&change), "{done:?}");
        }
        assert_eq!(diff(&open, &closed).code, 0, "{read}");
        // A rule closes as much as the name, unless it is about the entry alone.
        let rule = format!("{open}[[rules]]\nid = 'r'\neffect = 'deny'\npaths = ['**/{secret}']\n");
        assert_eq!(diff(&closed, &rule).code, 0, "{read}");
        assert_eq!(diff(&rule, &closed).code, 0, "{read}");
        assert_eq!(diff(&closed, &format!("{rule}scope = 'entry'\n")).code, 4, "{read}");
        // An exception opens what is beneath the entry, too.
        assert_eq!(diff(&closed, &format!("{closed}except = ['{secret}']\n")).code, 4, "{read}");
    }
    // The name covers the rule, but an exception opens a directory above what the rule closed.
    let open = "[allowedPaths]\nread = ['**/*.md']\n";
    let rule = "[[rules]]\nid = 'r'\neffect = 'deny'\npaths = ['**/vault/x.md']\n";
    let excepted = "[secrets]\nnames = ['vault']\nexcept = ['vault']\n";
    assert_eq!(diff(&format!("{open}{rule}"), &format!("{open}{excepted}")).code, 4);
    let lists = "[allowedPaths]\nread = ['[ab]/b', '**']\n";
    let done = diff(&format!("{lists}{}", name("??")), "[allowedPaths]\nread = ['c/**/b']\n");
    assert_eq!(done.code, 4, "{done:?}");
}
