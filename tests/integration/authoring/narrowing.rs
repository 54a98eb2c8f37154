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

/// A denial or a question about listing a directory keeps what is beneath it out of searches and the
/// mount; without one they pass a directory that nothing allows. Both counted as not listed.
#[test]
fn a_directory_that_searches_enter_was_not_seen_to_open() {
    let world = World::new();
    // Returns the operations that open `d`.
    let diff = |old: &str, new: &str| -> Vec<String> {
        for (side, text) in [("old", old), ("new", new)] {
            let text = format!(
                "schema = 1\n[allowedPaths]\nlist = ['d/**']\nread = []\nwrite = []\nremove = []\n\
                 {text}"
            );
            policy_file(&world, &format!("{side}.toml"), &text);
        }
        let args = ["policy", "diff", "old.toml", "new.toml", "--no-new-access", "--json"];
        let done = world.run(&args);
        let json = done.json();
        assert_eq!(json["addsAccess"], done.code == 4, "{old} -> {new}: {done:?}");
        let changes = json["changes"].as_array().unwrap().iter();
        let opened = changes.filter(|change| change["addsAccess"] == true && change["path"] == "d");
        let operations = opened.flat_map(|change| change["operations"].as_array().unwrap());
        operations.map(|operation| operation.as_str().unwrap().to_owned()).collect()
    };
    let rule = |effect: &str, operation: &str| {
        let scope = if effect == "allow" { "" } else { "scope = 'entry'\n" };
        format!(
            "[[rules]]\nid = '{effect}'\neffect = '{effect}'\noperations = ['{operation}']\n\
             paths = ['d']\n{scope}"
        )
    };
    let (deny, ask, allow) =
        (|word| rule("deny", word), |word| rule("ask", word), |word| rule("allow", word));
    let all = ["list beneath", "glob beneath", "grep beneath", "watch beneath"];
    assert_eq!(diff(&deny("list"), ""), all);
    assert_eq!(diff(&deny("list"), &deny("stat")), all);
    let but_glob = all.into_iter().filter(|word| *word != "glob beneath").collect::<Vec<_>>();
    assert_eq!(diff(&deny("list"), &deny("glob")), but_glob);
    // What was asked about is denied, and entered.
    assert_eq!(diff(&(ask("list") + &allow("list")), &ask("list")), all);
    assert_eq!(diff(&(ask("list") + &allow("list")), &(ask("list") + &allow("stat"))), all);
    for (old, new) in [("", deny("list")), (&*ask("list"), ask("list") + &allow("list"))] {
        let opened = diff(old, &new);
        assert!(!opened.iter().any(|operation| operation.contains("beneath")), "{opened:?}");
    }
    // A search enters it, as the mount does.
    world.file("d/x", "");
    for (name, code) in [("old", 3), ("new", 0)] {
        let denial = if name == "old" { deny("list") } else { String::new() };
        let text = format!("schema = 1\n[allowedPaths]\nlist = ['d/**']\n{denial}");
        policy_file(&world, &format!("{name}.toml"), &text);
        let args = ["fs", "--policy", &format!("{name}.toml"), "glob", "**", "--json"];
        let found = world.run(&args);
        assert_eq!(found.text().contains("d/x"), code == 0, "{name}: {found:?}");
    }
}
