//! Attempts of an agent to have the gateway disclose a secret.

use std::process::Output;

use super::{FILE, TOKEN, seen, world};
use crate::common::{Done, World};

/// Checks that no output of the gateway contains the secret.
#[track_caller]
fn silent(done: &Done) {
    assert!(!done.stderr.contains(TOKEN) && !String::from_utf8_lossy(&done.stdout).contains(TOKEN));
}

#[track_caller]
fn refused(world: &World, path: &str, text: &str) {
    let done = world.write(path, text).denied("secrets.placeholder");
    silent(&done);
    assert_eq!(world.last()["rule"], "secrets.placeholder");
}

#[test]
fn placeholders_that_were_moved_doubled_altered_or_made_up() {
    let world = world("redact");
    let text = seen(&world, "app.conf");
    let line = text.lines().nth(1).unwrap();
    let placeholder = line.strip_prefix("token = ").unwrap();
    let made_up = format!("{line}\n")
        .replace(placeholder, "[portcullis-secret:token:00112233445566778899aabbccddeeff]");
    for attempt in [
        format!("{text}{line}\n"),
        format!("{placeholder}\n"),
        format!("x{line}\n"),
        format!("{line}#\n"),
        text.replace("token = ", "public = "),
        text.replace("[portcullis", "[Portcullis"),
        text.replace(":token:", ":password:"),
        text.replace(']', ""),
        made_up,
    ] {
        refused(&world, "app.conf", &attempt);
    }
    let add = ["fs", "append", "app.conf"];
    silent(&world.run_with_input(&add, format!("{line}\n")).denied("secrets.placeholder"));
    let edit = world.fs(&["edit", "app.conf", "--old", "token = ", "--new", "public = "]);
    silent(&edit.denied("secrets.placeholder"));
    assert_eq!(world.read("app.conf"), FILE);
}

#[test]
fn a_placeholder_in_another_file() {
    let world = world("redact");
    let text = seen(&world, "app.conf");
    refused(&world, "copy.conf", &text);
    assert!(!world.path("copy.conf").exists());
    world.file("other.conf", FILE);
    refused(&world, "other.conf", &text);
    // After a rename the file is another one, which must be read anew.
    world.fs(&["mv", "app.conf", "moved.conf"]).ok();
    refused(&world, "moved.conf", &text);
    let again = seen(&world, "moved.conf");
    world.write("moved.conf", again.replace("port = 80", "port = 81")).ok();
    assert_eq!(world.read("moved.conf"), FILE.replace("80", "81"));
    // The old name knows it no more.
    refused(&world, "app.conf", &text);
}

#[test]
fn lines_around_a_secret_that_would_hide_it_from_its_rule() {
    let world = world("redact");
    world.file("p.yaml", "a: 1\npassword:\n  hunter2hunter2\n");
    let text = seen(&world, "p.yaml");
    assert!(!text.contains("hunter2"), "{text}");
    for attempt in [
        text.replace("password:\n", ""),
        text.replace("password:", "passwort:"),
        text.replace("password:\n", "password:\n-\n"),
        text.replace("a: 1\n", "") + "password:\n",
    ] {
        if attempt.starts_with("password:\n  [") {
            continue;
        }
        refused(&world, "p.yaml", &attempt);
    }
    let edit = world.fs(&["edit", "p.yaml", "--old", "password:\n", "--new", ""]);
    edit.denied("secrets.placeholder");
    assert_eq!(world.read("p.yaml"), "a: 1\npassword:\n  hunter2hunter2\n");
}

#[test]
fn guesses_are_answered_alike_whether_right_or_wrong() {
    let world = world("redact");
    let guess = |value: &str| {
        let done =
            world.write("app.conf", FILE.replace(TOKEN, value)).denied("secrets.rules.token");
        silent(&done);
        // The receipt is of a record with a random nonce.
        let said = done.stderr.lines().filter(|line| !line.starts_with("  record "));
        let text = said.collect::<String>().replace(char::is_numeric, "#");
        (done.code, text)
    };
    assert_eq!(guess(TOKEN), guess("tok_00000000"));
    // Neither in a new file of the same name, whose placeholder could be
    // compared with the one that was seen.
    world.fs(&["rm", "app.conf"]).ok();
    assert_eq!(guess(TOKEN), guess("tok_00000000"));
    assert!(!world.path("app.conf").exists());
}

#[test]
fn an_agent_that_hears_of_a_placeholder_from_another() {
    let world = world("redact");
    let text = seen(&world, "app.conf");
    let other = |args: &[&str], input: &str| {
        world.run_with_input(&[&["fs", "--agent", "other"], args].concat(), input)
    };
    // It can keep the line where it is, and gains nothing.
    other(&["write", "app.conf"], &text.replace("port = 80", "port = 81")).ok();
    assert_eq!(world.read("app.conf"), FILE.replace("80", "81"));
    silent(&other(&["read", "app.conf"], ""));
    other(&["write", "mine"], &text).denied("secrets.placeholder");
}

#[test]
fn a_secret_that_changed_meanwhile_is_not_put_back_for_the_new_one() {
    let world = world("redact");
    let text = seen(&world, "app.conf");
    world.file("app.conf", FILE.replace(TOKEN, "tok_ffffffff"));
    refused(&world, "app.conf", &text);
    assert_eq!(world.read("app.conf"), FILE.replace(TOKEN, "tok_ffffffff"));
}

#[test]
fn an_old_version_from_the_backup_store() {
    let world = world("redact");
    let text = seen(&world, "app.conf");
    let line = text.lines().nth(1).unwrap();
    world.write("app.conf", "port = 81\n").ok();
    // The line is gone from the file, so its placeholder is unknown.
    refused(&world, "app.conf", &text);
    for args in [
        &["backup", "show", "app.conf"][..],
        &["backup", "diff", "app.conf"],
        &["backup", "diff", "app.conf", "--json"],
        &["backup", "show", "app.conf", "--json"],
        &["backup", "list"],
        &["backup", "list", "--json"],
        &["audit", "show"],
        &["audit", "show", "--json"],
    ] {
        silent(&world.run(args).ok());
    }
    assert_eq!(world.run(&["backup", "show", "app.conf"]).ok().text(), text);
    let diff = world.run(&["backup", "diff", "app.conf"]).ok();
    assert!(diff.text().contains(&format!("-{line}\n")), "{diff:?}");
    // A hash of it would confirm a guess.
    let shown = world.run(&["backup", "show", "app.conf", "--json"]).ok().json();
    assert!(shown["backup"].get("sha256").is_none(), "{shown}");
    // Elsewhere it may not be, in its own place it comes back as it was.
    world.run(&["backup", "restore", "app.conf", "--to", "free.txt"]).denied("secrets.rules.token");
    world.run(&["backup", "restore", "app.conf"]).ok();
    assert_eq!(world.read("app.conf"), FILE);
    assert_eq!(seen(&world, "app.conf"), text);
}

#[test]
fn a_tree_from_the_backup_store_is_compared_by_what_is_there() {
    let world = world("redact");
    world.file("dir/app.conf", FILE);
    world.file("dir/other", "x\n");
    world.fs(&["rm", "-r", "dir"]).ok();
    world.run(&["backup", "restore", "dir"]).ok();
    let same = world.run(&["backup", "diff", "dir"]).ok();
    assert_eq!(same.text(), "");
    world.file("dir/app.conf", FILE.replace(TOKEN, "tok_ffffffff"));
    assert_eq!(world.run(&["backup", "diff", "dir"]).ok().text(), "M dir/app.conf\n");
}

#[test]
fn a_rename_to_where_a_rule_does_not_look() {
    let mut world = World::new();
    let directory = world.base().join("policy");
    std::fs::create_dir_all(&directory).unwrap();
    let rules = "[[rules]]\nid = \"conf\"\nregex = 'tok_[0-9a-z]{8}'\npath = '\\.conf$'\nkeywords = [\"tok_\"]\n";
    std::fs::write(directory.join("rules.toml"), rules).unwrap();
    world.set_policy(
        "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\nremove = [\"**\"]\n\
         [secrets]\nonRead = \"redact\"\nrulesets = [{ file = \"rules.toml\", format = \"gitleaks\" }]\n",
    );
    world.file("dir/app.conf", FILE);
    world.file("dir/free.txt", FILE);
    assert!(!seen(&world, "dir/app.conf").contains(TOKEN));
    assert!(seen(&world, "dir/free.txt").contains(TOKEN));
    world.fs(&["mv", "dir/app.conf", "dir/app.txt"]).denied("secrets.rules.conf");
    world.fs(&["mv", "dir/app.conf", "dir/b.conf"]).ok();
    // Nor may a guess be brought to where a secret was, to compare placeholders.
    world.write("dir/guess.txt", "tok_00000000\n").ok();
    world.fs(&["mv", "dir/guess.txt", "dir/app.conf"]).denied("secrets.rules.conf");
    // A directory is looked through.
    std::fs::write(directory.join("rules.toml"), rules.replace("\\.conf$", "^dir/")).unwrap();
    world.fs(&["mv", "dir", "other"]).denied("secrets.rules.conf");
    assert!(world.path("dir/b.conf").exists());
}

#[test]
fn the_state_directory_is_the_operator_s_and_no_output_names_its_key() {
    let world = world("redact");
    seen(&world, "app.conf");
    let Output { stdout, .. } = world.command(&["doctor"]).output().unwrap();
    let key = std::fs::read(world.state().join("secrets.key")).unwrap();
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(!String::from_utf8_lossy(&stdout).contains(&hex));
    assert!(!super::state_shows(&world, &hex));
}
