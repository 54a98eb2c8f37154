//! Differences between two policies.

use super::*;

#[test]
fn a_diff_tells_what_opens_first() {
    let world = world();
    let done = world.run(&["policy", "diff", "old.toml", "new.toml"]).ok();
    insta::assert_snapshot!(done.text(), @r"
    old.toml -> new.toml: asked about 11 entries, 4 examples of patterns; agents: agent, bot-x, robot

    becomes allowed:
      write   docs/guide.md  allowedPaths.write (old.toml:9) -> allowedPaths.write (new.toml:9)
      write   docs/x  (example, nothing is there)  allowedPaths.write (old.toml:9) -> allowedPaths.write (new.toml:9)
      write   src/payments  agent bot-x  payments (old.toml:16) -> allowedPaths.write (new.toml:9)
      write   src/payments/card.rs  agent bot-x  payments (old.toml:16) -> allowedPaths.write (new.toml:9)
      write   src/payments/x  (example, nothing is there)  agent bot-x  payments (old.toml:16) -> allowedPaths.write (new.toml:9)
      setting limits.filesRemoved: 2 -> 5

    becomes denied:
      write   src/payments  agent robot  allowedPaths.write (old.toml:9) -> payments (new.toml:16)
      write   src/payments/card.rs  agent robot  allowedPaths.write (old.toml:9) -> payments (new.toml:16)
      write   src/payments/x  (example, nothing is there)  agent robot  allowedPaths.write (old.toml:9) -> payments (new.toml:16)
      remove  src/a.rs  allowedPaths.remove (old.toml:10) -> allowedPaths.remove (new.toml:10)
      remove  src/payments  allowedPaths.remove (old.toml:10) -> allowedPaths.remove (new.toml:10)
      remove  src/payments/card.rs  allowedPaths.remove (old.toml:10) -> allowedPaths.remove (new.toml:10)
      remove  src/payments/x  (example, nothing is there)  allowedPaths.remove (old.toml:10) -> allowedPaths.remove (new.toml:10)
      remove  src/x  (example, nothing is there)  allowedPaths.remove (old.toml:10) -> allowedPaths.remove (new.toml:10)
    ");
    let none = world.run(&["policy", "diff", "old.toml", "old.toml", "--no-new-access"]).ok();
    assert!(none.text().contains("nothing is decided differently"), "{}", none.text());
}

#[test]
fn questions_are_neither_allowed_nor_denied() {
    let world = world();
    let policy = |effect: &str| {
        let name = format!("{effect}.toml");
        policy_file(
            &world,
            &name,
            &format!(
                "schema = 1\nname = \"q\"\n[allowedPaths]\nread = [\"**\"]\nwrite = [\"**\"]\n\
                 [[rules]]\nid = \"pay\"\neffect = \"{effect}\"\noperations = [\"write\"]\n\
                 paths = [\"src/payments/**\"]\n"
            ),
        );
        name
    };
    let (ask, deny) = (policy("ask"), policy("deny"));
    let done = world.run(&["policy", "diff", &deny, &ask]).ok();
    insta::assert_snapshot!(done.text(), @r"
    deny.toml -> ask.toml: asked about 11 entries, 2 examples of patterns; agents: agent

    becomes allowed, or asked about and no longer denied:
      write   src/payments  pay (deny.toml:7) -> ask pay (ask.toml:7)
      write   src/payments/card.rs  pay (deny.toml:7) -> ask pay (ask.toml:7)
      write   src/payments/x  (example, nothing is there)  pay (deny.toml:7) -> ask pay (ask.toml:7)
    ");
    let done = world.run(&["policy", "diff", &ask, &deny]).ok();
    assert!(done.text().contains("becomes denied, or asked about"), "{}", done.text());
    let who = ["policy", "explain", "--policy", &ask, "--who", "robot", "--can", "write"];
    insta::assert_snapshot!(world.run(&who).ok().text(), @r"
    agent `robot` can write 6 of 6 files (policy `q` version 0)
    1 of them once a person agrees, marked `asks`
    .
    ├── .env
    ├── README.md
    ├── docs/  all 1
    ├── link.rs
    └── src/  2 of 2
        ├── a.rs
        └── payments/  all 1  asks
    ");
    let done = world.run(&[&who[..], &["--json"]].concat()).ok();
    assert_eq!(done.json()["asks"], serde_json::json!(["src/payments/card.rs"]));
}

#[test]
fn no_new_access_is_an_exit_code() {
    let world = world();
    let diff = |old: &str, new: &str| {
        policy_file(&world, "a.toml", old);
        policy_file(&world, "b.toml", new);
        world.run(&["policy", "diff", "a.toml", "b.toml", "--no-new-access"])
    };
    let closed = "schema = 1\n[allowedPaths]\nread = [\"src/**\"]\n";
    let rule = |effect: &str| {
        format!("{closed}[[rules]]\nid = \"r\"\neffect = \"{effect}\"\npaths = [\"**/x/**\"]\n")
    };
    let read = |pattern: &str| closed.replace("src/**", pattern);
    let open = closed.replace("src/**", "**");
    let looks = |time: &str| {
        format!(
            "{closed}[secrets]\nrules = [{{ id = \"k\", regex = \"tok\" }}]\nmaxScanTime = \"{time}\"\n"
        )
    };
    let denies = |pattern: &str| {
        format!("{open}[[rules]]\nid = \"r\"\neffect = \"deny\"\npaths = [\"{pattern}\"]\n")
    };
    let agents = |pattern: &str| format!("{}agents = [\"{pattern}\"]\n", denies("a"));
    let names = |names: &str, except: &str| {
        format!("{open}[secrets]\nnames = [\"{names}\"]\nexcept = [\"{except}\"]\n")
            .replace("except = [\"\"]\n", "")
    };
    for (old, new, code) in [
        (closed.to_owned(), closed.to_owned(), 0),
        // Paths that do not exist yet count.
        (closed.to_owned(), closed.replace("src/**", "{src,later}/**"), 4),
        (closed.replace("src/**", "{src,later}/**"), closed.to_owned(), 0),
        // A denial that goes away, at any depth.
        (format!("{closed}[secrets]\nnames = [\"*.pem\"]\n"), closed.to_owned(), 4),
        (closed.to_owned(), format!("{closed}[secrets]\nnames = [\"*.pem\"]\n"), 0),
        (
            format!("{closed}[secrets]\nnames = [\"*.pem\"]\n"),
            format!("{closed}[secrets]\nnames = [\"*.pem\"]\nexcept = [\"ca.pem\"]\n"),
            4,
        ),
        (format!("{closed}[extensions]\ndeny = [\"so\"]\n"), closed.to_owned(), 4),
        // A denial that is about fewer operations.
        (
            format!("{closed}[[rules]]\nid = \"r\"\neffect = \"deny\"\npaths = [\"**/x/**\"]\n"),
            format!(
                "{closed}[[rules]]\nid = \"r\"\neffect = \"deny\"\noperations = [\"write\"]\n\
                 paths = [\"**/x/**\"]\n"
            ),
            4,
        ),
        // A question in place of a denial opens, in place of an allowance it closes.
        (rule("deny"), rule("ask"), 4),
        (rule("ask"), rule("deny"), 0),
        (rule("ask"), closed.to_owned(), 4),
        (closed.to_owned(), rule("ask"), 0),
        // Patterns that have an example in common.
        (read("src/*"), read("src/**"), 4),
        (read("src/**"), read("src/*"), 0),
        (read("[!a]"), read("?"), 4),
        (read("[a-m]"), read("[a-z]"), 4),
        (read("[a-z]"), read("[a-m]"), 0),
        (denies("secrets/**"), denies("secrets/*"), 4),
        (denies("a/**/k"), denies("a/k"), 4),
        (denies("a*"), denies("a?"), 4),
        (denies("a*"), denies("a*x*"), 4),
        (denies("a?"), denies("a*"), 0),
        (agents("*"), agents("[!cC]*"), 4),
        (agents("[!cC]*"), agents("*"), 0),
        // Cases that no example shows, since each wildcard, filler and depth has its limits.
        (agents("*"), agents("a*"), 4),
        (agents("a*"), agents("*"), 0),
        (denies("d/*"), denies("d/[!.]*"), 4),
        (denies("d/[!.]*"), denies("d/*"), 0),
        (denies("d/?"), denies("d/[!k]"), 4),
        (denies("d/[a-z]"), denies("d/[a-jl-z]"), 4),
        (denies("d/[a-jl-z]"), denies("d/[a-z]"), 0),
        (denies("**/[!a-m]*"), denies("**/[!a-n]*"), 4),
        (denies("**/[!a-n]*"), denies("**/[!a-m]*"), 0),
        (denies("*x*"), denies("x*"), 4),
        (read("x*"), read("*x*"), 4),
        (read("*x*"), read("x*"), 0),
        (denies("**/k"), denies("{k,*/k,*/*/k,*/*/*/k}"), 4),
        (names("*x*", ""), names("x*", ""), 4),
        (names("*key*", "key.pub"), names("*key*", "*.pub"), 4),
        (names("*key*", "*.pub"), names("*key*", "key.pub"), 0),
        // Paths that nothing allows are not opened.
        (
            closed.to_owned()
                + "[[rules]]\nid = \"r\"\neffect = \"deny\"\noperations = [\"read\"]\n\
                   paths = [\"d/*\"]\n",
            closed.to_owned(),
            0,
        ),
        // Settings.
        (closed.to_owned(), format!("{closed}[files]\nmaxReadSize = \"1GiB\"\n"), 4),
        (closed.to_owned(), format!("{closed}[files]\nmaxReadSize = \"1KiB\"\n"), 0),
        (closed.to_owned(), format!("{closed}[agent]\nterminal = \"allow\"\n"), 4),
        (closed.to_owned(), format!("{closed}{HOST}"), 4),
        // A preset's hosts are allowed where no rule allows any.
        (format!("{closed}{HOST}"), closed.to_owned(), 4),
        (looks("1s"), looks("1m"), 4),
        (looks("1m"), looks("1s"), 0),
    ] {
        let done = diff(&old, &new);
        assert_eq!(done.code, code, "{old}\n{new}\n{done:?}");
    }
}

#[test]
fn recorded_requests_are_asked_about() {
    let mut world = world();
    world.use_policy("old.toml");
    world.write("docs/later.md", "x").denied("allowedPaths.write");
    world.write("docs/later.md", "x").denied("allowedPaths.write");
    world.fs(&["rm", "src/a.rs"]).ok();
    let json =
        world.run(&["policy", "diff", "old.toml", "new.toml", "--log", "--json"]).ok().json();
    let change = json["changes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|change| change["path"] == "docs/later.md")
        .unwrap()
        .clone();
    assert_eq!((&change["addsAccess"], &change["origin"]), (&true.into(), &"log".into()));
    assert_eq!(change["records"], 2);
    let done =
        world.run(&["policy", "diff", "old.toml", "new.toml", "--log", "--since", "2999-01-01"]);
    assert!(done.ok().text().contains("0 recorded requests"));
}

/// The effect of an exception or an allowance depended on its file.
#[test]
fn what_moves_to_another_file_of_a_policy_may_open() {
    let world = World::new();
    let diff = |old: [&str; 2], new: [&str; 2]| {
        for (side, texts) in [("old", old), ("new", new)] {
            let base = format!("{side}-base.toml");
            policy_file(&world, &base, &format!("schema = 1\n{}", texts[0]));
            let text = format!("schema = 1\nextends = [\"{base}\"]\n{}", texts[1]);
            policy_file(&world, &format!("{side}.toml"), &text);
        }
        world.run(&["policy", "diff", "old.toml", "new.toml", "--no-new-access"])
    };
    let names = "[allowedPaths]\nread = [\"src/**\"]\n[secrets]\nnames = [\"*.pem\"]\n";
    let excepted = |except: &str| format!("{names}except = [\"{except}\"]\n");
    for except in ["ca.pem", "test/**"] {
        let (together, alone) = (excepted(except), format!("[secrets]\nexcept = [\"{except}\"]\n"));
        let (apart, moved) = ([names, &alone], [&together[..], ""]);
        let done = diff(apart, moved);
        assert_eq!(done.code, 4, "{except}: {done:?}");
        assert_eq!(diff(moved, apart).code, 0, "{except}");
        // Names of the other file stay secret until they are excepted there, too.
        let both = [&together[..], "[secrets]\nnames = [\"*.pem\"]\n"];
        assert_eq!(diff(both, moved).code, 4, "{except}");
        assert_eq!(diff(moved, both).code, 0, "{except}");
        assert_eq!(diff(apart, apart).code, 0, "{except}");
    }
    let read = |patterns: &str| format!("[allowedPaths]\nread = [{patterns}]\n");
    let (one, all, both) = (read("\"src/*\""), read("\"src/**\""), read("\"src/*\", \"src/**\""));
    assert_eq!(diff([&one, &all], ["", &both]).code, 4);
    assert_eq!(diff(["", &both], [&one, &all]).code, 0);
}

#[test]
fn fewer_backups_are_a_change_that_decides_nothing() {
    let world = World::new();
    policy_file(&world, "old.toml", "schema = 1\n[backups]\nkeep = { versions = 20 }\n");
    policy_file(&world, "new.toml", "schema = 1\n[backups]\nkeep = { versions = 2 }\n");
    let done = world.run(&["policy", "diff", "old.toml", "new.toml", "--no-new-access"]).ok();
    insta::assert_snapshot!(done.text(), @r"
    old.toml -> new.toml: asked about 1 entry, 0 examples of patterns; agents: agent
    nothing is decided differently

    neither opens nor closes:
      setting backups.keep.versions: 20 -> 2
    ");
}
