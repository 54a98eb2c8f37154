//! Decisions besides that on the named path: on all entries of a directory, and
//! on the directories that are made on the way.

use super::policy_file;
use crate::common::World;

const POLICY: &str = r#"schema = 1
[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["src", "src/**"]

[[rules]]
id = "payments"
effect = "deny"
operations = ["remove", "rename", "mkdir"]
paths = ["src/payments/**", "src/new"]
"#;

fn world() -> World {
    let mut world = World::new();
    policy_file(&world, "policy.toml", POLICY);
    policy_file(&world, "open.toml", POLICY.split("[[rules]]").next().unwrap());
    for file in ["src/a.rs", "src/payments/card.rs", "src/old/b.rs"] {
        world.file(file, "text");
    }
    world.use_policy("policy.toml");
    world
}

#[test]
fn explain_says_what_denies_beneath_and_on_the_way() {
    let world = world();
    let explain = |args: &[&str]| {
        let done = world.run(&[&["policy", "explain"], args].concat()).ok();
        done.text().lines().filter(|line| !line.starts_with("  ")).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(explain(&["remove", "src"]), @r"
    denied by `payments` (policy.toml:9)
    policy `policy` version 0, agent `agent`
    note: beneath it, `src/payments` is denied by `payments` (policy.toml:9)

    remove: remove src
    ");
    insta::assert_snapshot!(explain(&["write", "src/new/deep/c.rs"]), @r"
    denied by `payments` (policy.toml:9)
    policy `policy` version 0, agent `agent`
    note: on the way, the directory `src/new` is denied by `payments` (policy.toml:9)

    write: write src/new/deep/c.rs
    ");
    let renamed = explain(&["rename", "src", "--to", "src2"]);
    assert!(renamed.contains("beneath it, `src/payments` is denied"), "{renamed}");
    for allowed in [&["remove", "src/old"][..], &["write", "src/other/deep/c.rs"]] {
        let text = explain(allowed);
        assert!(text.starts_with("allowed by") && !text.contains("note:"), "{text}");
    }
    // The gateway does what `explain` reports.
    world.fs(&["rm", "-r", "src"]).denied("payments");
    world.write("src/new/deep/c.rs", "x").denied("payments");
    world.fs(&["rm", "-r", "src/old"]).ok();
    world.write("src/other/deep/c.rs", "x").ok();
}

#[test]
fn a_replay_leaves_undecided_what_lay_beside_denied() {
    let world = world();
    world.fs(&["rm", "-r", "src"]).denied("payments");
    world.write("src/new/deep/c.rs", "x").denied("payments");
    world.fs(&["rm", "src/payments/card.rs"]).denied("payments");
    let replay = |policy: &str| world.run(&["policy", "replay", policy, "--json"]).ok().json();
    // The names that were asked for are allowed, then and now.
    let same = replay("policy.toml");
    assert_eq!(
        (&same["changed"], &same["undecided"]["payments"]),
        (&0.into(), &2.into()),
        "{same}"
    );
    // Without the rule, its denials are gone.
    let open = replay("open.toml");
    assert_eq!(
        (&open["changed"], &open["undecided"]),
        (&3.into(), &serde_json::json!({})),
        "{open}"
    );
}

/// The headline was `allowed`.
#[test]
fn explain_denies_links_that_the_gateway_never_follows() {
    let world = world();
    std::os::unix::fs::symlink("/etc/hostname", world.path("out")).unwrap();
    std::os::unix::fs::symlink("loop", world.path("loop")).unwrap();
    for (link, rule) in [("out", "workspace.outside"), ("loop", "workspace.links")] {
        let explained = world.run(&["policy", "explain", "read", link, "--json"]).ok().json();
        let decision = &explained["decision"];
        assert_eq!((&decision["effect"], &decision["rule"]), (&"deny".into(), &rule.into()));
        world.fs(&["read", link]).denied(rule);
    }
}

/// The requested names alone decided what a rename discloses, and the gateway decides by those to
/// which links lead.
#[test]
fn explain_of_a_rename_through_a_link_missed_what_it_discloses() {
    let mut world = World::new();
    let text = "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\n\
        remove = [\"**\"]\n[[rules]]\nid = \"closed\"\neffect = \"deny\"\noperations = [\"read\"]\n\
        paths = [\"closed/**\"]\n[[rules]]\nid = \"kept\"\neffect = \"deny\"\n\
        operations = [\"rename\"]\npaths = [\"open/**/kept\"]\n";
    policy_file(&world, "links.toml", text);
    world.use_policy("links.toml");
    for file in ["closed/a", "open/b", "tree/kept", "tree/c"] {
        world.file(file, "text");
    }
    for (link, target) in [("to-closed", "closed"), ("to-open", "open")] {
        std::os::unix::fs::symlink(target, world.path(link)).unwrap();
    }
    for (from, to, rule) in [
        ("to-closed/a", "open/a", Some("closed")),
        ("to-closed/a", "to-open/a", Some("closed")),
        ("tree", "to-open/tree", Some("kept")),
        ("to-open/b", "tree/b", None),
    ] {
        let explain = ["policy", "explain", "rename", from, "--to", to, "--json"];
        let decision = world.run(&explain).ok().json()["decision"].clone();
        let moved = world.fs(&["mv", from, to]);
        match rule {
            Some(rule) => {
                moved.denied(rule);
                assert_eq!(decision["rule"], rule, "{from} {to}: {decision}");
            }
            None => {
                moved.ok();
                assert_eq!(decision["effect"], "allow", "{from} {to}: {decision}");
            }
        }
    }
}

/// It said that such renames are allowed where the gateway denied, and the other way round.
#[test]
fn explain_of_a_rename_decided_in_another_order_than_the_gateway() {
    const EXTENSIONS: &str = "[extensions]\nallow = { write = [\"md\"], read = [\"txt\"] }\n";
    let mkdir = |effect: &str, path: &str| {
        format!(
            "[[rules]]\nid = \"way\"\neffect = \"{effect}\"\noperations = [\"mkdir\"]\n\
             paths = [\"{path}\"]\nscope = \"entry\"\n"
        )
    };
    let hidden = "[[rules]]\nid = \"closed\"\neffect = \"deny\"\noperations = [\"read\"]\n\
        paths = [\"x.md\"]\nscope = \"entry\"\n[[rules]]\nid = \"kept\"\neffect = \"deny\"\n\
        operations = [\"remove\", \"rename\"]\npaths = [\"dir/*\"]\n";
    let reserved = format!(".portcullis-{}.tmp", "0".repeat(32));
    for (rules, from, to, rule) in [
        // A file has the extension of its new name, also where a directory has that name.
        (EXTENSIONS, "x.md", "other", Some("extensions.allow.write")),
        (EXTENSIONS, "nothing", "other", Some("extensions.allow.write")),
        (EXTENSIONS, "x.md", "y.txt", Some("extensions.allow.write")),
        // Directories on the way are decided on before it is told that a file is there.
        (&mkdir("deny", "file"), "x.md", "file/new", Some("way")),
        (&mkdir("deny", "file/sub"), "nothing", "file/sub/new", Some("way")),
        (&mkdir("deny", "elsewhere"), "x.md", "file/new", None),
        // Nothing is decided on after that.
        (EXTENSIONS, "dir", "file/new", None),
        (EXTENSIONS, "x.md", "file/new.txt", Some("extensions.allow.write")),
        // Names come before what is there.
        (hidden, "dir/n.txt", "y", Some("kept")),
        (hidden, "x.md", "other", Some("closed")),
        (hidden, "dir", "other", Some("kept")),
        ("", "x.md", &reserved, Some("names.reserved")),
    ] {
        let world = World::with_rules(rules);
        for file in ["file", "x.md", "dir/n.txt", "other/z.md"] {
            world.file(file, "text");
        }
        let case = format!("{rules}{from} {to}");
        let explain = ["policy", "explain", "rename", from, "--to", to, "--json"];
        let explained = world.run(&explain).ok().json();
        let decision = &explained["decision"];
        let moved = world.fs(&["mv", from, to]);
        match rule {
            Some(rule) => {
                moved.denied(rule);
                assert_eq!(
                    (&decision["effect"], &decision["rule"]),
                    (&"deny".into(), &rule.into())
                );
            }
            None => {
                assert!(moved.stderr.contains("not a directory"), "{case}: {moved:?}");
                assert_eq!(decision["effect"], "allow", "{case}: {explained}");
                let note = "on the way, nothing can be decided: not a directory";
                assert!(explained["notes"].as_array().unwrap().contains(&note.into()), "{case}");
            }
        }
    }
    let world = World::with_rules(EXTENSIONS);
    world.file("x.md", "text");
    world.file("other/z.md", "text");
    let explained = world.run(&["policy", "explain", "rename", "x.md", "--to", "other"]).ok();
    assert!(explained.text().contains("note: moved, `x.md` is denied by"), "{explained:?}");
    // A question about a directory that cannot be made is asked.
    let world = World::with_rules(&mkdir("ask", "file/sub"));
    world.file("file", "text");
    world.file("x.md", "text");
    let explain = ["policy", "explain", "rename", "x.md", "--to", "file/sub/new", "--json"];
    let decision = world.run(&explain).ok().json()["decision"].clone();
    assert_eq!((&decision["effect"], &decision["rule"]), (&"ask".into(), &"way".into()));
}

/// It said that such a write is allowed: it followed a link that the gateway passes as missing.
#[test]
fn explain_followed_a_link_that_is_hidden() {
    let world = World::with_rules(
        "[[rules]]\nid = \"links\"\neffect = \"deny\"\noperations = [\"list\", \"write\"]\n\
         paths = [\"a/lb\"]\nscope = \"entry\"\n",
    );
    world.file("a/b/old", "text");
    world.file("c", "text");
    std::os::unix::fs::symlink("b", world.path("a/lb")).unwrap();
    let rule = |args: &[&str]| {
        let explained = world.run(&[&["policy", "explain", "--json"], args].concat()).ok().json();
        explained["decision"]["rule"].clone()
    };
    assert_eq!(rule(&["write", "a/lb/new"]), "links");
    world.write("a/lb/new", "x").denied("links");
    assert_eq!(rule(&["rename", "c", "--to", "a/lb/c"]), "links");
    world.fs(&["mv", "c", "a/lb/c"]).denied("links");
    assert_eq!(rule(&["write", "a/b/new"]), "allowedPaths.write");
    world.write("a/b/new", "x").ok();
}
