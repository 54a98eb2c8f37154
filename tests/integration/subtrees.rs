//! Entries beneath a directory that is removed or renamed: each is decided on as if it had been
//! named itself, and no removal or rename opens anything.

use serde_json::{Value, json};

use crate::common::{ALL, World};

fn entries(world: &World, directory: &str) -> Vec<String> {
    let listed = world.fs(&["ls", directory]).ok();
    listed.text().lines().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect()
}

/// Names without an extension were taken for directories.
#[test]
fn files_without_an_extension_do_not_go_along_where_they_may_not_go_themselves() {
    let world =
        World::with_rules("[extensions]\nallow = { write = [\"md\"], remove = [\"md\"] }\n");
    for file in ["d/in/Makefile", "d/in/a.md", "fine/in/a.md"] {
        world.file(file, "x");
    }
    for (args, rule) in [
        (&["rm", "d/in/Makefile"][..], "extensions.allow.remove"),
        (&["mv", "d/in/Makefile", "d/Makefile"], "extensions.allow.remove"),
        (&["rm", "-r", "d"], "extensions.allow.remove"),
        (&["mv", "d", "build"], "extensions.allow.remove"),
    ] {
        world.fs(args).denied(rule);
    }
    for args in [&["remove", "d"][..], &["rename", "d", "--to", "build"]] {
        let explained = world.run(&[&["policy", "explain"], args].concat()).ok();
        let beneath = "beneath it, `d/in/Makefile` is denied by `extensions.allow.remove`";
        assert!(explained.text().contains(beneath), "{}", explained.text());
    }
    // Directories need none, wherever they go and come back.
    let explained = world.run(&["policy", "explain", "rename", "fine", "--to", "new"]).ok();
    assert!(explained.text().starts_with("allowed by"), "{}", explained.text());
    world.fs(&["mv", "fine", "new"]).ok();
    world.fs(&["rm", "-r", "new"]).ok();
    world.run(&["backup", "restore", "new", "--yes"]).ok();
    assert_eq!(world.read("new/in/a.md"), "x");
}

#[test]
fn a_directory_takes_no_script_to_a_new_place_under_the_embedded_policy() {
    let mut world = World::new();
    world.use_policy("docs-writer");
    world.file("docs/bin/deploy", "#!/bin/sh\n");
    world.fs(&["mv", "docs/bin/deploy", "docs/deploy"]).denied("extensions.allow.remove");
    world.fs(&["mv", "docs/bin", "docs/sbin"]).denied("extensions.allow.remove");
    std::fs::rename(world.path("docs/bin/deploy"), world.path("docs/bin/deploy.md")).unwrap();
    world.fs(&["mv", "docs/bin", "docs/sbin"]).ok();
}

#[test]
fn what_is_neither_a_file_nor_a_directory_stays_where_it_is() {
    let world = World::with_policy(ALL);
    world.file("d/a", "x");
    rustix::fs::mkfifoat(rustix::fs::CWD, world.path("d/fifo"), rustix::fs::Mode::RWXU).unwrap();
    for args in [&["mv", "d/fifo", "q"][..], &["mv", "d", "e"], &["rm", "-r", "d"]] {
        world.fs(args).denied("files.type");
    }
}

/// Files whose extension is not among those that may be listed were taken for
/// directories, and moved to where they are seen.
#[test]
fn what_an_extension_hides_is_not_renamed_into_view_nor_named() {
    let world = World::with_rules(
        "[extensions]\nallow = { list = [\"md\"] }\n[[rules]]\nid = \"kept\"\neffect = \"deny\"\n\
         operations = [\"remove\"]\npaths = [\"kept/*.key\", \"kept/WORDS\", \"kept/shut/x.md\"]\n",
    );
    for file in ["d/prod.key", "d/WORDS", "d/a.md", "kept/a.md"] {
        world.file(file, "x");
    }
    for from in ["d/prod.key", "d/WORDS"] {
        world.fs(&["stat", from]).denied("extensions.allow.list");
        world.fs(&["mv", from, "d/p.md"]).denied("extensions.allow.list");
        let explained = world.run(&["policy", "explain", "rename", from, "--to", "d/p.md"]).ok();
        assert!(explained.text().starts_with("denied by `extensions.allow.list`"));
    }
    assert_eq!(entries(&world, "d"), ["a.md"]);
    // From one name that hides it to another, and with a directory of any name.
    world.fs(&["mv", "d/prod.key", "d/new.key"]).ok();
    world.fs(&["mv", "d", "d.md"]).ok();
    world.fs(&["mv", "d.md", "d"]).ok();
    // The rule that keeps it is not disclosed either.
    for hidden in ["kept/prod.key", "kept/WORDS"] {
        world.file(hidden, "x");
        for args in [&["rm", "-r", "kept"][..], &["mv", "kept", "e"]] {
            world.fs(args).denied("workspace.hidden");
            assert_eq!(world.last()["rule"], "kept");
        }
        std::fs::remove_file(world.path(hidden)).unwrap();
    }
    // Visible entries are named.
    world.file("kept/shut/x.md", "x");
    world.fs(&["rm", "-r", "kept"]).denied("kept");
}

const CLOSED: &str = "schema = 1\n[allowedPaths]\nread = [\"pub/**\"]\nlist = [\"**\"]\n\
    write = [\"**\"]\nremove = [\"**\"]\n";

/// Regression: with the name that keeps it closed gone, a file was read under the other one.
#[test]
fn a_file_is_not_opened_by_taking_away_the_name_that_may_not_be_read() {
    let mut world = World::with_policy(CLOSED);
    world.file("pub/x", "TREASURE\n");
    world.file("pub/open", "plain\n");
    world.file("new", "new\n");
    for (from, to) in [("pub/x", "drop/in/y"), ("pub/open", "pub/too")] {
        std::fs::create_dir_all(world.path(to).parent().unwrap()).unwrap();
        std::fs::hard_link(world.path(from), world.path(to)).unwrap();
    }
    let closed = |world: &World| {
        world.fs(&["rm", "drop/in/y"]).denied("files.hardlinks.read");
        world.fs(&["rm", "-r", "drop"]).denied("files.hardlinks.read");
        world.fs(&["mv", "new", "drop/in/y"]).denied("files.hardlinks.read");
        world.fs(&["mv", "drop/in/y", "pub/y"]).denied("allowedPaths.read");
        world.fs(&["mv", "drop", "pub/drop"]).denied("allowedPaths.read");
        world.fs(&["read", "pub/x"]).denied("files.hardlinks.read");
    };
    closed(&world);
    world.write("drop/in/y", "new\n").denied("files.hardlinks.write");
    let explained = world.run(&["policy", "explain", "remove", "drop"]).ok();
    let beneath = "beneath it, `drop/in/y` is denied by `files.hardlinks.read`";
    assert!(explained.text().contains(beneath), "{}", explained.text());
    // Also where a write may give the file of several names a new one of its own.
    world.set_policy(&format!("{CLOSED}[files]\nhardlinks = {{ write = \"allow\" }}\n"));
    closed(&world);
    world.write("drop/in/y", "new\n").denied("files.hardlinks.read");
    // Where the entry is invisible, so is the rule.
    world.set_policy(&CLOSED.replace("list = [\"**\"]", "list = [\"pub/**\"]"));
    world.fs(&["rm", "-r", "drop"]).denied("workspace.hidden");
    // A path that needs an approval is not opened either.
    let asks = "[[rules]]\nid = \"person\"\neffect = \"ask\"\noperations = [\"read\"]\n\
                paths = [\"drop/**\"]\n";
    world.set_policy(&format!("{ALL}{asks}"));
    world.fs(&["rm", "drop/in/y"]).denied("files.hardlinks.read");
    // From one closed name to another, and one of several that may be read, is nothing.
    world.set_policy(CLOSED);
    world.fs(&["mv", "drop", "closed"]).ok();
    world.fs(&["read", "pub/x"]).denied("files.hardlinks.read");
    world.fs(&["rm", "pub/too"]).ok();
    assert_eq!(world.fs(&["read", "pub/open"]).ok().text(), "plain\n");
    // If files with several names may be read, it was readable before.
    world.set_policy(&format!("{CLOSED}[files]\nhardlinks = {{ read = \"allow\" }}\n"));
    world.fs(&["rm", "-r", "closed"]).ok();
    assert_eq!(world.fs(&["read", "pub/x"]).ok().text(), "TREASURE\n");
    let records = world.requests();
    let removed = |record: &&Value| record["op"] == "remove" && record["result"] == "ok";
    assert_eq!(records.iter().filter(removed).count(), 2, "{}", json!(records));
}
