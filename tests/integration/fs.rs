//! `portcullis fs`: every operation, the record it leaves, and each error as a
//! user sees it.

mod errors;

use std::{
    fs::Permissions,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
};

use serde_json::json;

use crate::common::{ALL, World, done};

const SHA_OLD: &str = "cba06b5736faf67e54b07b561eae94395e774c517a7d910a54369e1263ccfbd4";

#[test]
fn read_prints_the_file_and_leaves_a_record() {
    let world = World::new();
    world.file("src/a.txt", "one\ntwo\nthree\n");
    assert_eq!(world.fs(&["read", "src/a.txt"]).ok().text(), "one\ntwo\nthree\n");
    let record = world.last();
    assert_eq!(record["kind"], "decision");
    assert_eq!(record["op"], "read");
    assert_eq!(record["path"], "src/a.txt");
    assert_eq!(record["decision"], "allow");
    assert_eq!(record["rule"], "allowedPaths.read");
    assert_eq!(record["result"], "ok");
    assert_eq!(record["bytes"], 14);
    assert_eq!(record["transport"], "cli");
}

#[test]
fn read_takes_lines_and_base64() {
    let world = World::new();
    world.file("a.txt", "one\ntwo\nthree\n");
    let lines = world.fs(&["read", "a.txt", "--line", "2", "--limit", "1"]).ok();
    assert_eq!(lines.text(), "two\n");
    assert_eq!(world.fs(&["read", "a.txt", "--line", "9"]).ok().text(), "");
    assert_eq!(world.fs(&["read", "a.txt", "--base64"]).ok().text(), "b25lCnR3bwp0aHJlZQo=\n");
    let zero = world.fs(&["read", "a.txt", "--line", "0"]);
    assert_eq!((zero.code, zero.stderr.as_str()), (2, "portcullis: `line` counts from 1\n"));
}

/// The log had gateways that never stopped.
#[test]
fn a_gateway_whose_command_fails_before_anything_is_asked_has_stopped() {
    let world = World::new();
    world.file("a.txt", "a");
    world.fs(&["stat", "a.txt"]).ok();
    let before = world.records().len();
    assert_eq!(world.fs(&["read", "a.txt", "--line", "0"]).code, 2);
    assert_eq!(world.fs(&["read", "a.txt", "a.txt", "--line", "0"]).code, 2);
    assert_eq!(world.records().len(), before);
    // A content that cannot be read.
    for operation in ["write", "append"] {
        let directory = std::fs::File::open(world.root()).unwrap();
        let mut command = world.command(&["fs", operation, "b.txt"]);
        assert_eq!(command.stdin(directory).output().unwrap().status.code(), Some(1));
        assert_eq!(world.records().last().unwrap()["kind"], "stop");
    }
    assert!(!world.path("b.txt").exists());
}

#[test]
fn read_of_an_absolute_path_beneath_the_workspace_works() {
    let world = World::new();
    let file = world.file("a.txt", "inside");
    let root = world.root().canonicalize().unwrap();
    let inside = root.join("a.txt");
    assert_eq!(world.fs(&["read", inside.to_str().unwrap()]).ok().text(), "inside");
    let sibling = format!("{}-evil/a.txt", root.display());
    world.fs(&["read", &sibling]).denied("workspace.outside");
    assert!(file.exists());
}

#[test]
fn write_creates_replaces_and_keeps_the_old_bytes() {
    let world = World::new();
    let created = world.write("deep/new/a.txt", "old");
    assert!(created.ok().stderr.starts_with("record "));
    assert_eq!(world.read("deep/new/a.txt"), "old");
    let done = world.write("deep/new/a.txt", "new").ok();
    assert_eq!(world.read("deep/new/a.txt"), "new");

    let requests = world.requests();
    let [intent, outcome] = requests.last_chunk::<2>().unwrap();
    assert_eq!(intent["kind"], "intent");
    assert_eq!(intent["before"], SHA_OLD);
    assert_eq!(intent["bytes"], 3);
    let backup = intent["backup"].as_str().unwrap();
    assert!(done.stderr.contains(backup), "{}", done.stderr);
    assert_eq!(outcome["kind"], "outcome");
    assert_eq!(outcome["of"], intent["seq"]);
    assert_eq!(outcome["result"], "ok");
    let kept = world.run(&["backup", "show", backup]).ok();
    assert_eq!(kept.text(), "old");
}

#[test]
fn write_keeps_the_mode_but_never_set_id_bits() {
    let world = World::new();
    let file = world.file("run.sh", "#!/bin/sh\n");
    std::fs::set_permissions(&file, Permissions::from_mode(0o6751)).unwrap();
    world.write("run.sh", "#!/bin/sh\ntrue\n").ok();
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o751);
}

/// `ls` showed what `stat` and `glob` denied.
#[test]
fn a_list_shows_only_files_with_an_extension_that_may_be_listed() {
    let world = World::with_policy(
        "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\n\
         [extensions]\nallow = { list = [\"md\"] }\n",
    );
    for file in ["a.md", "b.rs", "c", "d.d/e.md", "d.d/f.rs"] {
        world.file(file, "text");
    }
    let shown = |path: &str| -> Vec<String> {
        let listed = world.fs(&["ls", path, "--json"]).ok().json();
        let entries = listed["entries"].as_array().unwrap();
        entries.iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(shown("."), ["a.md", "d.d"]);
    assert_eq!(shown("d.d"), ["d.d/e.md"]);
    assert_eq!(world.fs(&["stat", "b.rs"]).code, 3);
}

#[test]
fn write_keeps_the_access_list() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    let world = World::new();
    let file = world.file("a.txt", "old");
    // user::rw- user:65534:r-- group::r-- mask::r-- other::---
    let mut list = vec![2, 0, 0, 0];
    for (tag, permissions, id) in [
        (1_u16, 6_u16, u32::MAX),
        (2, 4, 65534),
        (4, 4, u32::MAX),
        (16, 4, u32::MAX),
        (32, 0, u32::MAX),
    ] {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    setxattr(&file, "system.posix_acl_access", &list, XattrFlags::empty()).unwrap();
    world.write("a.txt", "new").ok();
    let mut kept = vec![0; 1024];
    let length = getxattr(&file, "system.posix_acl_access", &mut kept).unwrap();
    assert_eq!(kept[..length], list);
}

#[test]
fn append_adds_to_the_end_and_creates() {
    let world = World::new();
    world.run_with_input(&["fs", "append", "log.txt"], "one\n").ok();
    world.run_with_input(&["fs", "append", "log.txt"], "two\n").ok();
    assert_eq!(world.read("log.txt"), "one\ntwo\n");
}

#[test]
fn edit_replaces_exactly_one_occurrence() {
    let world = World::new();
    world.file("a.txt", "alpha beta alpha");
    world.fs(&["edit", "a.txt", "--old", "beta", "--new", "gamma"]).ok();
    assert_eq!(world.read("a.txt"), "alpha gamma alpha");
    let twice = world.fs(&["edit", "a.txt", "--old", "alpha", "--new", "x"]);
    assert_eq!(twice.code, 1);
    assert!(twice.stderr.contains("occurs more than once"), "{}", twice.stderr);
    let never = world.fs(&["edit", "a.txt", "--old", "nothing", "--new", "x"]);
    assert!(never.stderr.contains("occurs 0 times"), "{}", never.stderr);
    assert_eq!(world.read("a.txt"), "alpha gamma alpha");
}

#[test]
fn ls_hides_what_the_policy_denies() {
    let world = World::new();
    world.file("a.txt", "x");
    world.file(".env", "SECRET=1");
    world.file("dir/b.txt", "y");
    let listing = world.fs(&["ls"]).ok();
    assert!(listing.text().contains("a.txt") && listing.text().contains("dir/"));
    assert!(!listing.text().contains(".env"), "{}", listing.text());
    let json = world.run(&["fs", "ls", "--json"]).ok().json();
    assert_eq!(json["entries"].as_array().unwrap().len(), 2);
    assert_eq!(world.last()["counts"]["entries"], 2);
}

#[test]
fn ls_counts_names_that_are_not_utf8() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};
    let world = World::new();
    std::fs::write(world.root().join(OsStr::from_bytes(b"bad\xff")), "x").unwrap();
    let listing = world.fs(&["ls", "--json"]).ok().json();
    assert_eq!(listing["notUtf8"], 1);
    assert!(listing["entries"].as_array().unwrap().is_empty());
}

#[test]
fn names_cannot_steer_the_terminal() {
    let world = World::new();
    world.file("a\u{1b}[31mred\nline", "x");
    let listing = world.fs(&["ls"]).ok();
    assert!(listing.text().contains("a\\u{1b}[31mred\\nline"), "{:?}", listing.text());
    let created = world.write("b\u{202e}txt", "x");
    assert_eq!(created.code, 3, "{created:?}");
}

#[test]
fn stat_tells_type_size_and_time() {
    let world = World::new();
    world.file("a.txt", "12345");
    let stat = world.fs(&["stat", "a.txt", "--json"]).ok().json();
    assert_eq!(stat["stat"]["type"], "file");
    assert_eq!(stat["stat"]["size"], 5);
    assert!(stat["stat"]["modified"].as_str().unwrap().ends_with('Z'));
    assert!(world.fs(&["stat", "."]).ok().text().contains("directory"));
}

/// It was nothing at all, where people read `.`.
#[test]
fn the_workspace_itself_has_a_path_for_programs_too() {
    let world = World::new();
    let stat = world.fs(&["stat", ".", "--json"]).ok().json();
    assert_eq!((&stat["stat"]["path"], &stat["stat"]["name"]), (&json!("."), &json!(".")));
}

#[test]
fn mkdir_makes_parents_when_asked() {
    let world = World::new();
    let refused = world.fs(&["mkdir", "a/b/c"]);
    assert_eq!((refused.code, refused.stderr.contains("`--parents`")), (1, true), "{refused:?}");
    world.fs(&["mkdir", "--parents", "a/b/c"]).ok();
    assert!(world.path("a/b/c").is_dir());
    world.fs(&["mkdir", "--recursive", "a/b/c"]).ok();
    let again = world.fs(&["mkdir", "a"]);
    assert_eq!((again.code, again.stderr.contains("already exists")), (1, true));
}

#[test]
fn rm_removes_files_links_and_trees_and_keeps_them() {
    let world = World::new();
    world.file("a.txt", "precious");
    world.file("dir/x/y.txt", "deep");
    std::os::unix::fs::symlink("a.txt", world.path("link")).unwrap();
    world.fs(&["rm", "link"]).ok();
    assert_eq!(world.read("a.txt"), "precious");
    world.fs(&["rm", "a.txt"]).ok();
    let full = world.fs(&["rm", "dir"]);
    assert_eq!((full.code, full.stderr.contains("not empty")), (1, true), "{full:?}");
    world.fs(&["rm", "-r", "dir"]).ok();
    let left = std::fs::read_dir(world.root()).unwrap().count();
    assert_eq!(left, 0);
    let listed = world.run(&["backup", "list", "--json"]).ok();
    assert!(listed.text().contains("dir"), "{}", listed.text());
    world.run(&["backup", "restore", "dir"]).ok();
    assert_eq!(world.read("dir/x/y.txt"), "deep");
}

#[test]
fn rm_of_a_tree_that_holds_something_denied_is_denied_whole() {
    let world = World::new();
    world.file("dir/ok.txt", "x");
    world.file("dir/sub/.env", "SECRET=1");
    let done = world.fs(&["rm", "-r", "dir"]);
    assert_eq!(done.code, 3, "{done:?}");
    assert_eq!(world.read("dir/ok.txt"), "x");
}

#[test]
fn the_root_is_never_removed_or_renamed() {
    let world = World::new();
    world.file("a.txt", "x");
    assert_ne!(world.fs(&["rm", "-r", "."]).code, 0);
    assert_ne!(world.fs(&["mv", ".", "b"]).code, 0);
    assert_ne!(world.fs(&["mv", "a.txt", "."]).code, 0);
    assert_eq!(world.read("a.txt"), "x");
}

#[test]
fn a_rename_may_say_that_it_takes_no_name_from_another() {
    let world = World::new();
    world.file("a.txt", "a");
    world.file("b.txt", "b");
    for to in ["b.txt", "a.txt", "./a.txt"] {
        let refused = world.fs(&["mv", "--no-clobber", "a.txt", to]);
        assert!(refused.code == 1 && refused.stderr.contains("already exists"), "{refused:?}");
    }
    assert_eq!((world.read("a.txt"), world.read("b.txt")), ("a".into(), "b".into()));
    world.fs(&["mv", "--no-clobber", "a.txt", "c.txt"]).ok();
    world.fs(&["mv", "c.txt", "b.txt"]).ok();
    assert_eq!(world.read("b.txt"), "a");
}

#[test]
fn mv_renames_and_keeps_what_it_replaces() {
    let world = World::new();
    world.file("a.txt", "a");
    world.file("b.txt", "b");
    world.file("dir/x.txt", "x");
    world.fs(&["mv", "dir", "moved/dir"]).ok();
    assert_eq!(world.read("moved/dir/x.txt"), "x");
    world.fs(&["mv", "a.txt", "b.txt"]).ok();
    assert_eq!(world.read("b.txt"), "a");
    assert!(!world.path("a.txt").exists());
    let requests = world.requests();
    let backup = requests[requests.len() - 2]["backup"].as_str().unwrap();
    assert_eq!(world.run(&["backup", "show", backup]).ok().text(), "b");
    let into_itself = world.fs(&["mv", "moved", "moved/dir/deeper"]);
    assert_eq!(into_itself.code, 1, "{into_itself:?}");
}

#[test]
fn what_cannot_be_read_cannot_be_renamed_into_readability() {
    let world = World::with_policy(
        "schema = 1\nname = \"t\"\n[allowedPaths]\nread = [\"open/**\"]\nwrite = [\"**\"]\n\
         remove = [\"**\"]\nlist = [\"**\"]\n",
    );
    world.file("closed/a.txt", "hidden");
    std::fs::create_dir(world.path("open")).unwrap();
    assert_eq!(world.fs(&["mv", "closed/a.txt", "open/a.txt"]).code, 3);
    assert_eq!(world.fs(&["mv", "closed", "open/closed"]).code, 3);
    assert_eq!(world.read("closed/a.txt"), "hidden");
}

#[test]
fn oversized_and_binary_content_is_denied_whole() {
    let world = World::with_policy(
        "schema = 1\nname = \"t\"\n[allowedPaths]\nread = [\"**\"]\nwrite = [\"**\"]\n\
         [files]\nmaxReadSize = \"10B\"\nmaxWriteSize = \"10B\"\n",
    );
    world.file("big.txt", "12345678901");
    world.file("bin", "ab\0cd");
    world.file("small.txt", "12345678");
    world.fs(&["read", "big.txt", "--limit", "1"]).denied("files.maxReadSize");
    world.fs(&["read", "bin"]).denied("files.binary.read");
    world.write("new.txt", "12345678901").denied("files.maxWriteSize");
    assert!(!world.path("new.txt").exists());
    world.run_with_input(&["fs", "append", "small.txt"], "xyz").denied("files.maxWriteSize");
    assert_eq!(world.read("small.txt"), "12345678");
    world.write("new.bin", "a\0b").denied("files.binary.write");
    world.write("latin1.txt", b"caf\xe9").denied("files.binary.write");
}

#[test]
fn binary_as_base64_when_the_policy_lets_it() {
    let world = World::with_policy(
        "schema = 1\nname = \"t\"\n[allowedPaths]\nread = [\"**\"]\n[files]\nbinary = { read = \"base64\" }\n",
    );
    world.file("bin", "ab\0cd");
    assert_eq!(world.fs(&["read", "bin", "--base64"]).ok().text(), "YWIAY2Q=\n");
    let text = world.fs(&["read", "bin"]);
    assert_eq!(
        (text.code, text.stderr.contains("--base64") || text.stderr.contains("base64")),
        (1, true)
    );
}

#[test]
fn every_request_leaves_a_record_and_the_log_verifies() {
    let world = World::new();
    world.write("a.txt", "x").ok();
    world.fs(&["read", "a.txt"]).ok();
    world.fs(&["read", "missing"]);
    world.fs(&["read", ".env"]);
    world.fs(&["read", "../outside"]).denied("workspace.outside");
    let requests = world.requests();
    assert_eq!(requests.len(), 6, "{requests:#?}");
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn temporary_names_of_the_gateway_are_reserved() {
    let world = World::new();
    let name = format!(".portcullis-{}.tmp", "0".repeat(32));
    world.file(&name, "planted");
    world.fs(&["read", &name]).denied("names.reserved");
    world.write(&name, "x").denied("names.reserved");
    assert!(!world.fs(&["ls"]).ok().text().contains("portcullis"));
}

#[test]
fn options_are_taken_before_and_after_the_operation() {
    let world = World::new();
    world.file("a.txt", "x");
    world.run(&["fs", "--agent", "one", "read", "a.txt"]).ok();
    assert_eq!(world.last()["agent"], "one");
    world.run(&["fs", "read", "a.txt", "--agent", "two", "--policy", "read-only"]).ok();
    assert_eq!(world.last()["agent"], "two");
}

/// An agent of `serve` could change the policy of a command in another workspace.
#[test]
fn a_policy_or_a_state_in_a_workspace_of_the_service_was_used() {
    let world = World::new();
    let base = world.base();
    std::fs::create_dir(base.join("shop")).unwrap();
    let (policy, config) = (base.join("shop/policy.toml"), base.join("portcullis.toml"));
    std::fs::write(&policy, ALL).unwrap();
    let text = "[[workspaces]]\nname = \"shop\"\nroot = \"shop\"\npolicy = \"default\"\n";
    std::fs::write(&config, text).unwrap();
    let named = ["--config", config.to_str().unwrap()];
    world.run(&[&["fs", "ls"], &named[..]].concat()).ok();
    for command in [
        &["fs", "ls", "--policy", policy.to_str().unwrap()][..],
        &["fs", "ls", "--state", "shop/state"],
        &["run", "--policy", policy.to_str().unwrap(), "--", "/bin/true"],
        &["approve", "--list", "--state", "shop/state"],
    ] {
        let done = world.run(&[&command[..1], &named, &command[1..]].concat());
        assert_eq!((done.code, done.stderr.contains("overlap")), (1, true), "{done:?}");
    }
    assert!(!base.join("shop/state").exists());
}

/// An agent chose whom notifications and copies of the log trusted.
#[test]
fn certificates_of_the_environment_were_taken_from_the_workspace() {
    let world = World::new();
    let config = world.base().join("portcullis.toml");
    let text = "[approvals.notify]\nwebhook = \"https://example.org/\"\n";
    std::fs::write(&config, text).unwrap();
    let lists = |args: &[&str], name: &str, value: String| {
        let mut command = world.command(&[&["fs", "ls"], args].concat());
        done(command.env(name, value).output().unwrap())
    };
    let (inside, named) = (world.path("ca").display().to_string(), config.to_str().unwrap());
    for (name, value) in
        [("SSL_CERT_FILE", inside.clone()), ("SSL_CERT_DIR", format!("/etc:{inside}"))]
    {
        let ended = lists(&["--config", named], name, value.clone());
        assert_eq!((ended.code, ended.stderr.contains("overlap")), (1, true), "{ended:?}");
        lists(&[], name, value).ok();
        lists(&["--config", named], name, "/etc".to_owned()).ok();
    }
}

/// Regression: the directory was compared, but not the links in it that `openssl rehash` makes.
#[test]
fn certificates_of_a_directory_were_taken_from_the_workspace() {
    let world = World::new();
    let (config, certificates) = (world.base().join("portcullis.toml"), world.base().join("ca"));
    let text = "[approvals.notify]\nwebhook = \"https://example.org/\"\n";
    std::fs::write(&config, text).unwrap();
    std::fs::create_dir(&certificates).unwrap();
    let link = certificates.join("0a1b2c3d.0");
    let lists = || {
        let mut command = world.command(&["fs", "ls", "--config", config.to_str().unwrap()]);
        done(command.env("SSL_CERT_DIR", &certificates).output().unwrap())
    };
    for target in [world.file("dev-ca.crt", "none\n"), world.path("not-yet.crt")] {
        std::os::unix::fs::symlink(target, &link).unwrap();
        let refused = lists();
        let named = format!("the certificate `{}`", link.display());
        assert!(refused.code == 1 && refused.stderr.contains(&named), "{refused:?}");
        std::fs::remove_file(&link).unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
    lists().ok();
    std::fs::remove_dir_all(&certificates).unwrap();
    lists().ok();
}

#[test]
fn a_policy_or_a_state_inside_the_workspace_is_refused() {
    let mut world = World::new();
    let policy = world.file("policy.toml", "schema = 1\nname = \"t\"\n");
    world.use_policy(policy.to_str().unwrap());
    let done = world.fs(&["ls"]);
    assert_eq!((done.code, done.stderr.contains("overlap")), (1, true), "{done:?}");
    let world = World::new();
    let inside = world.path("state");
    let state = inside.to_str().unwrap();
    for command in [
        &["fs", "ls", "--state", state][..],
        &["mcp", "--state", state],
        &["run", "--state", state, "--", "/bin/true"],
    ] {
        let done = world.run(command);
        assert_eq!((done.code, done.stderr.contains("overlap")), (1, true), "{done:?}");
        // It was made before that was looked at.
        assert!(!inside.exists(), "{command:?}");
    }
}

#[test]
fn what_was_put_back_beside_its_name_is_not_served() {
    let world = World::new();
    world.file("key.pem.conflict-0123abcd", "PRIVATE");
    world.fs(&["read", "key.pem.conflict-0123abcd"]).denied("names.reserved");
    assert!(!world.fs(&["ls"]).ok().text().contains("conflict"));
    world.file("merge.conflict-notes", "mine");
    assert_eq!(world.fs(&["read", "merge.conflict-notes"]).ok().text(), "mine");
}
