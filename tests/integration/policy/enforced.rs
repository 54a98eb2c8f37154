//! Each section of a policy through the gateway, with the record that it
//! leaves.

use crate::common::World;

const OPEN: &str = "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\nremove = [\"**\"]\n";

/// A workspace under a policy that allows everything but what `more` denies.
fn world(more: &str) -> World {
    let world = World::with_policy(&format!("{OPEN}{more}"));
    world.file("src/a.rs", "fn a() {}\n");
    world
}

/// Checks that `rule` denied the request, and that the record names it.
#[track_caller]
fn denied(world: &World, args: &[&str], rule: &str) {
    world.fs(args).denied(rule);
    let record = world.last();
    assert_eq!(record["kind"], "decision", "{record}");
    assert_eq!(record["decision"], "deny", "{record}");
    assert_eq!(record["rule"], rule, "{record}");
}

#[test]
fn allowed_paths() {
    let world = World::with_policy(
        "schema = 1\n[allowedPaths]\nread = [\"src/**\"]\nlist = [\"src\"]\nwrite = [\"src/*\"]\n",
    );
    world.file("src/a.rs", "fn a() {}\n");
    world.file("b.rs", "fn b() {}\n");
    world.fs(&["read", "src/a.rs"]).ok();
    assert_eq!(world.last()["rule"], "allowedPaths.read");
    assert_eq!(world.last()["line"], 3);
    denied(&world, &["read", "b.rs"], "allowedPaths.read");
    denied(&world, &["ls", "."], "allowedPaths.list");
    denied(&world, &["stat", "src/a.rs"], "allowedPaths.list");
    world.write("src/new.rs", "new").ok();
    world.write("src/deep/new.rs", "new").denied("allowedPaths.write");
    denied(&world, &["rm", "src/a.rs"], "default");
    denied(&world, &["mv", "src/a.rs", "src/b.rs"], "default");
    assert_eq!(world.read("src/a.rs"), "fn a() {}\n");
}

#[test]
fn extensions() {
    let world = world("[extensions]\nallow = { write = [\"rs\"] }\ndeny = [\"pem\"]\n");
    for name in ["a.pem", "b.PEM", "c.pem.txt", "d.pem.", "e.pem "] {
        world.file(name, "key");
        denied(&world, &["read", name], "extensions.deny");
    }
    world.write("src/b.rs", "").ok();
    world.write("src/b.py", "").denied("extensions.allow.write");
    world.write("src/Makefile", "").denied("extensions.allow.write");
    world.fs(&["mkdir", "src/dir"]).ok();
    denied(&world, &["mv", "src/a.rs", "src/a"], "extensions.allow.write");
    let listed = world.fs(&["ls", "."]).ok();
    assert!(!listed.text().to_lowercase().contains("pem"), "{}", listed.text());
}

#[test]
fn secrets() {
    let world =
        world("[secrets]\nnames = [\".env\", \".env.*\", \".aws\"]\nexcept = [\".env.example\"]\n");
    for name in [".env", "x/.ENV", ".env.local", ".aws/config", ".env.example."] {
        world.file(name, "secret");
    }
    denied(&world, &["read", ".env"], "secrets.names[0]");
    denied(&world, &["read", "missing/.env"], "secrets.names[0]");
    denied(&world, &["read", "x/.ENV"], "secrets.names[0]");
    denied(&world, &["stat", ".env.local"], "secrets.names[1]");
    denied(&world, &["read", ".env.example."], "secrets.names[1]");
    denied(&world, &["ls", ".aws"], "secrets.names[2]");
    denied(&world, &["read", ".aws/config"], "secrets.names[2]");
    world.fs(&["rm", "-r", "x"]).denied("workspace.hidden");
    assert_eq!(world.last()["rule"], "secrets.names[0]");
    denied(&world, &["mv", "src/a.rs", ".env"], "secrets.names[0]");
    world.write(".env.example", "A=\n").ok();
    world.fs(&["read", ".env.example"]).ok();
    let listed = world.fs(&["ls", "."]).ok();
    assert!(!listed.text().contains(".aws"), "{}", listed.text());
    assert_eq!(world.read("x/.ENV"), "secret");
}

#[test]
fn sizes_of_files() {
    let world = world("[files]\nmaxReadSize = \"10B\"\nmaxWriteSize = \"20B\"\n");
    world.file("ten", "0123456789");
    world.file("eleven", "0123456789x");
    world.fs(&["read", "ten"]).ok();
    denied(&world, &["read", "eleven"], "files.maxReadSize");
    denied(&world, &["read", "eleven", "--line", "1", "--limit", "1"], "files.maxReadSize");
    world.write("ten", "01234567890123456789").ok();
    world.write("ten", "012345678901234567890").denied("files.maxWriteSize");
    world.run_with_input(&["fs", "append", "eleven"], "0123456789").denied("files.maxWriteSize");
    assert_eq!(world.read("eleven"), "0123456789x");
}

#[test]
fn binary_files() {
    let strict = world("");
    strict.file("late", [b"text\n".repeat(10_000).as_slice(), b"\0"].concat());
    strict.file("latin", b"caf\xe9");
    denied(&strict, &["read", "late"], "files.binary.read");
    denied(&strict, &["read", "late", "--line", "1", "--limit", "1"], "files.binary.read");
    denied(&strict, &["read", "latin", "--base64"], "files.binary.read");
    strict.write("new", b"\0").denied("files.binary.write");
    let open = world("[files]\nbinary = { read = \"base64\", write = \"base64\" }\n");
    open.file("latin", b"caf\xe9");
    let done = open.fs(&["read", "latin", "--base64"]).ok();
    assert_eq!(done.text().trim(), "Y2Fm6Q==");
}

#[test]
fn symbolic_links() {
    let follow = world("");
    let refuse = world("[files]\nsymlinks = \"deny\"\n");
    for world in [&follow, &refuse] {
        std::os::unix::fs::symlink("src", world.path("link")).unwrap();
    }
    follow.fs(&["read", "link/a.rs"]).ok();
    assert_eq!(follow.last()["resolved"], "src/a.rs");
    denied(&refuse, &["read", "link/a.rs"], "files.symlinks");
    refuse.fs(&["read", "src/a.rs"]).ok();
}

#[test]
fn hard_links() {
    let closed = world("");
    let open = world("[files]\nhardlinks = { read = \"allow\" }\n");
    for world in [&closed, &open] {
        std::fs::hard_link(world.path("src/a.rs"), world.path("other.rs")).unwrap();
    }
    denied(&closed, &["read", "other.rs"], "files.hardlinks.read");
    open.fs(&["read", "other.rs"]).ok();
    open.write("other.rs", "changed").denied("files.hardlinks.write");
    assert_eq!(open.read("src/a.rs"), "fn a() {}\n");
}

#[test]
fn types_of_files() {
    let world = world("");
    rustix::fs::mkfifoat(rustix::fs::CWD, world.path("fifo"), rustix::fs::Mode::RWXU).unwrap();
    denied(&world, &["read", "fifo"], "files.type");
    world.write("fifo", "x").denied("files.type");
}

#[test]
fn rules() {
    let world = world(
        "[[rules]]\nid = \"frozen\"\neffect = \"deny\"\noperations = [\"write\", \"rename\"]\n\
         paths = [\"Frozen/**\"]\nreason = \"frozen for the release\"\n\
         [[rules]]\nid = \"mine\"\neffect = \"deny\"\npaths = [\"src/**\"]\nagents = [\"client-*\"]\n",
    );
    world.file("frozen/a", "a");
    let done = world.write("frozen/a", "b").denied("frozen");
    assert!(done.stderr.contains("frozen for the release"), "{}", done.stderr);
    assert_eq!(world.last()["reason"], "frozen for the release");
    denied(&world, &["mv", "src", "frozen"], "frozen");
    denied(&world, &["mkdir", "FROZEN"], "frozen");
    denied(&world, &["mv", "frozen/a", "b"], "frozen");
    world.fs(&["rm", "frozen/a"]).ok();
    world.fs(&["read", "src/a.rs"]).ok();
    let attached_client = world.run(&["fs", "--agent", "client-1", "read", "src/a.rs"]);
    attached_client.denied("mine");
}

#[test]
fn hidden_names() {
    let world = world("");
    let names = ["a\u{200b}", "a\u{202e}txt.exe", "a\nb", "\u{1b}[31m"];
    // Without a glyph, though neither controls nor default-ignorable.
    let blank = ["a\u{1107f}", "a\u{16fe4}", "a\u{1d159}", "a\u{fffe}", "a\u{1ffff}"];
    for name in names.into_iter().chain(blank) {
        denied(&world, &["mkdir", name], "names.hidden");
        denied(&world, &["mv", "src/a.rs", name], "names.hidden");
    }
}

#[test]
fn a_policy_that_does_not_load_lets_nothing_run() {
    let mut world = world("");
    world.set_policy(&format!("{OPEN}[file]\n"));
    let done = world.fs(&["read", "src/a.rs"]);
    assert_eq!(done.code, 4);
    assert!(done.stderr.contains("did you mean `files`?"), "{}", done.stderr);
    assert_eq!(done.text(), "");
}
