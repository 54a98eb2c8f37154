//! A policy that loses its bounds, for those that extend it.

use super::{lint::found, policy_file};
use crate::common::World;

/// The policy itself decides as before, so nothing was said to open, and a policy that extends it
/// opened.
#[test]
fn a_base_that_lost_its_bounds_opened_nothing() {
    let world = World::new();
    let lone = "[[rules]]\nid = \"one\"\neffect = \"allow\"\noperations = [\"write\"]\n\
        paths = [\"x\"]\n[[rules]]\nid = \"none\"\neffect = \"deny\"\npaths = [\"x\"]\n";
    let head = "schema = 1\nname = \"base\"\n[[rules]]\nid = \"secret\"\neffect = \"deny\"\n\
        paths = [\"secret/**\"]\n";
    let diff = |bound: &str, kept: &str| {
        let at_top = bound.starts_with("mode");
        let text = if at_top {
            head.replace("[[rules]]", &format!("{bound}\n[[rules]]"))
        } else {
            format!("{head}{bound}\n")
        };
        policy_file(&world, "old.toml", &text);
        policy_file(&world, "new.toml", &format!("{head}{kept}\n"));
        world.run(&["policy", "diff", "old.toml", "new.toml", "--no-new-access"])
    };
    for bound in [
        "[allowedPaths]\nread = []",
        "[allowedPaths]\nlist = []",
        "[allowedPaths]\nwrite = []",
        "[allowedPaths]\nremove = []",
        "mode = \"enforce\"",
        "[git]\nhistory = \"deny\"",
        "[git]\nrepository = \"private\"",
        "[agent]\nterminal = \"deny\"",
        "[agent]\nwrite = []",
        "[files.hardlinks]\nread = \"deny\"",
        "[files]\nbinary = { read = \"deny\" }",
        "[files]\nmaxReadSize = \"16MiB\"",
        "[scratch]\npaths = []",
        "[network]\nmode = \"enforce\"",
        "[network]\ncredentials = []",
        "[extensions.allow]\nwrite = [\"rs\"]",
        lone,
    ] {
        let done = diff(bound, "");
        assert_eq!(done.code, 4, "{bound}: {done:?}");
        assert!(done.text().contains("no bound for policies that extend"), "{bound}: {done:?}");
        if !bound.starts_with("mode") {
            assert_eq!(diff(bound, bound).code, 0, "{bound}");
        }
    }
    // The laxest value is no bound.
    for bound in ["[git]\nhistory = \"allow\"", "[files.hardlinks]\nread = \"allow\""] {
        assert_eq!(diff(bound, "").code, 0, "{bound}");
    }
}

/// Denials that went away opened nothing where the policy itself allows nothing, although a policy
/// that extends it opened.
#[test]
fn a_base_that_lost_its_denials_opened_nothing() {
    let world = World::new();
    let diff = |old: &str, new: &str| {
        policy_file(&world, "old.toml", &format!("schema = 1\n{old}"));
        policy_file(&world, "new.toml", &format!("schema = 1\n{new}"));
        let args = ["policy", "diff", "old.toml", "new.toml", "--no-new-access", "--json"];
        let done = world.run(&args);
        assert_eq!(done.json()["addsAccess"], done.code == 4, "{old} -> {new}: {done:?}");
        done.code
    };
    let rule = |effect: &str, rest: &str| {
        format!("[[rules]]\nid = \"r\"\neffect = \"{effect}\"\npaths = [\"x/**\"]\n{rest}")
    };
    let names = "[secrets]\nnames = [\"*.pem\"]\n";
    let (deny, ask) = (rule("deny", ""), rule("ask", ""));
    let closed = "[allowedPaths]\nread = []\nlist = []\nwrite = []\nremove = []\n";
    for denial in [&deny, &ask, names, "[extensions]\ndeny = [\"exe\"]\n"] {
        assert_eq!(
            [diff(denial, denial), diff("", denial), diff(denial, "")],
            [0, 0, 4],
            "{denial}"
        );
        // No policy that extends this one can allow anything.
        assert_eq!(diff(&format!("{closed}{denial}"), closed), 0, "{denial}");
        // A base that is no longer named.
        policy_file(&world, "base.toml", &format!("schema = 1\n{denial}"));
        assert_eq!(diff("extends = [\"base.toml\"]\n", ""), 4, "{denial}");
        assert_eq!(diff("extends = [\"base.toml\"]\n", denial), 0, "{denial}");
    }
    for (old, new) in [
        (&*deny, &*ask),
        (&deny, &rule("deny", "operations = [\"read\"]\n")),
        (&deny, &rule("deny", "agents = [\"bot\"]\n")),
        (names, &format!("{names}except = [\"ca.pem\"]\n")),
        (
            "[extensions]\nallow = { write = [\"md\"] }\n",
            "[extensions]\nallow = { write = [\"md\", \"exe\"] }\n",
        ),
    ] {
        assert_eq!([diff(old, new), diff(new, old)], [4, 0], "{old} -> {new}");
    }
    // Only reading is bounded.
    let read = "[allowedPaths]\nread = [\"src/**\"]\n";
    for (operations, code) in [("operations = [\"read\"]\n", 0), ("", 4)] {
        assert_eq!(diff(&format!("{read}{}", rule("deny", operations)), read), code);
    }
}

/// A base without rules about content has settings for those of the policies that extend it, and they
/// were compared only beside such rules.
#[test]
fn settings_for_the_findings_of_extending_policies_were_not_compared() {
    let world = World::new();
    let diff = |old: &str, new: &str| {
        policy_file(&world, "old.toml", &format!("schema = 1\n{old}\n"));
        policy_file(&world, "new.toml", &format!("schema = 1\n{new}\n"));
        let args = ["policy", "diff", "old.toml", "new.toml", "--no-new-access", "--json"];
        let done = world.run(&args);
        let json = done.json();
        assert_eq!(json["addsAccess"], done.code == 4, "{old} -> {new}: {done:?}");
        let settings = json["settings"].as_array().unwrap().iter();
        let opened = settings.filter(|setting| setting["addsAccess"] == true);
        let keys = opened.map(|setting| setting["key"].as_str().unwrap().to_owned());
        keys.collect::<Vec<_>>()
    };
    let set = |text: &str| format!("[secrets]\n{text}");
    for (key, strict, lax) in [
        ("secrets.onRead", set("onRead = 'deny'"), set("onRead = 'redact'")),
        ("secrets.onRead", set("onRead = 'redact'"), set("onRead = 'warn'")),
        ("secrets.onWrite", set("onWrite = 'deny'"), set("onWrite = 'warn'")),
        ("secrets.maxScanTime", set("maxScanTime = '1s'"), set("maxScanTime = '2s'")),
        // Without a section, attempts to connect are not recorded.
        ("network", "[network]".to_owned(), String::new()),
    ] {
        let opened = diff(&strict, &lax);
        assert!(opened.iter().any(|opened| opened == key), "{strict} -> {lax}: {opened:?}");
    }
    for (old, new) in [
        (set("onRead = 'redact'\nonWrite = 'deny'"), set("onWrite = 'deny'\nonRead = 'deny'")),
        (set("maxScanTime = '2s'"), set("maxScanTime = '1s'")),
        // There was no bound.
        (String::new(), set("onRead = 'redact'\nmaxScanTime = '1h'")),
        (String::new(), "extends = ['secrets']".to_owned()),
        (String::new(), "[network]".to_owned()),
    ] {
        assert_eq!(diff(&old, &new), [""; 0], "{old} -> {new}");
    }
}

/// An exception counted as old if any file had it, although it opens the names of its own file alone.
#[test]
fn a_file_that_excepts_what_another_one_did_opened_nothing() {
    let world = World::new();
    let secrets = |names: &str, except: &str| {
        format!("schema = 1\n[secrets]\nnames = [{names}]\nexcept = [{except}]\n")
    };
    let child = |text: &str| text.replace("schema = 1", "schema = 1\nextends = ['base.toml']");
    let diff = |base: &str, old: &str, new: &str| {
        policy_file(&world, "base.toml", base);
        policy_file(&world, "old.toml", &child(old));
        policy_file(&world, "new.toml", &child(new));
        let args = ["policy", "diff", "old.toml", "new.toml", "--no-new-access", "--json"];
        let done = world.run(&args);
        assert_eq!(done.json()["addsAccess"], done.code == 4, "{old} -> {new}: {done:?}");
        done.code
    };
    let base = secrets("'.env'", "'.env.example'");
    let (all, but) = (secrets("'.env*'", ""), secrets("'.env*'", "'.env.example'"));
    assert_eq!([diff(&base, &all, &but), diff(&base, &but, &all)], [4, 0]);
    // The base closes it still, or nothing of it.
    assert_eq!(diff(&secrets("'.env*'", ""), &all, &but), 0);
    assert_eq!(diff(&base, &all, &secrets("'.env*'", "'x.pem'")), 0);
    assert_eq!(diff(&base, &all, &secrets("'.env*', '*.pem'", "'x.pem'")), 0);
    // A name that closes the directory above is excepted.
    let (key, vault) = (secrets("'vault/key'", ""), secrets("'vault'", "'vault'"));
    assert_eq!(diff(&base, &key, &vault), 4);
    assert_eq!(diff(&base, &key, &secrets("'vault'", "")), 0);
}

/// A rule that permits nothing was to be removed, and its file closed nothing any more.
#[test]
fn the_only_bound_of_a_file_was_to_be_removed() {
    let world = World::new();
    let host = |id: &str, effect: &str, host: &str, rest: &str| {
        format!(
            "[[network.rules]]\nid = \"{id}\"\neffect = \"{effect}\"\nhosts = [\"{host}\"]\n{rest}"
        )
    };
    let ports = "ports = [443]\n";
    let all = host("all", "allow", "*.example.com", ports);
    let pair = [
        host("old", "allow", "old.example.com", ports),
        host("no-old", "deny", "old.example.com", ""),
    ]
    .concat();
    policy_file(&world, "base.toml", &format!("schema = 1\n{all}"));
    policy_file(&world, "main.toml", &format!("schema = 1\nextends = [\"base.toml\"]\n{pair}"));
    policy_file(&world, "preset.toml", &format!("schema = 1\n{pair}"));
    let files = "schema = 1\n[[rules]]\nid = \"x\"\neffect = \"allow\"\noperations = [\"write\"]\n\
        paths = [\"x/**\"]\n[[rules]]\nid = \"no-x\"\neffect = \"deny\"\npaths = [\"x\", \"x/**\"]\n";
    policy_file(&world, "files.toml", files);
    for name in ["main.toml", "preset.toml", "files.toml"] {
        let list = found(&world, &[name, "--no-tree"]);
        let about = list.iter().find(|finding| finding["id"] == "unreachable-rule");
        let advice = about.unwrap()["suggestion"].as_str().unwrap();
        assert!(!advice.contains("remove") && advice.contains("no longer closes"), "{advice}");
    }
    // A rule that names private addresses changes something beside one that does not.
    for (one, other) in [
        (
            host("db", "allow", "10.1.2.3", "ports = [5432]\n"),
            host("any", "allow", "*", "ports = [443, 5432]\n"),
        ),
        (host("one", "ask", "10.1.2.3", ports), host("all", "ask", "*", ports)),
        (host("one", "allow", "0.0.0.0/0", ports), host("ten", "allow", "10.0.0.0/8", ports)),
        (host("one", "allow", "8.0.0.0/5", ports), host("ten", "allow", "10.1.2.3", ports)),
        (host("one", "ask", "*", ports), host("ten", "allow", "10.0.0.0/8", ports)),
    ] {
        policy_file(&world, "private.toml", &format!("schema = 1\n{one}{other}"));
        let list = found(&world, &["private.toml", "--no-tree"]);
        assert!(list.iter().all(|finding| finding["id"] != "shadowed-rule"), "{list:?}");
    }
}

/// Names of the tree looked like parts of the output.
#[test]
fn names_of_files_forged_marks_and_decisions() {
    let world = World::with_policy(
        "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\n\
         [[rules]]\nid = \"x\"\neffect = \"ask\"\noperations = [\"read\"]\npaths = [\"asked\"]\n",
    );
    world.file("asked", "");
    world.file("deploy.sh  asks", "");
    let shown = world
        .run(&["policy", "explain", "--who", "agent", "--can", "write"])
        .ok()
        .text()
        .to_owned();
    assert!(!shown.contains("── deploy.sh  asks"), "{shown}");
    world.file("x  allowedPaths.write (a.toml:8) -> deny", "");
    policy_file(&world, "old.toml", "schema = 1\n[allowedPaths]\nwrite = []\n");
    policy_file(&world, "new.toml", "schema = 1\n[allowedPaths]\nwrite = [\"**\"]\n");
    let shown = world.run(&["policy", "diff", "old.toml", "new.toml"]).ok().text().to_owned();
    assert!(shown.contains("\"x  allowedPaths.write (a.toml:8) -> deny\""), "{shown}");
}

/// Programs write there without a decision, and `explain` spoke of the decision alone.
#[test]
fn explain_did_not_mention_scratch_directories() {
    let world = World::with_policy(
        "schema = 1\n[allowedPaths]\nread = [\"**\"]\nwrite = [\"src/**\"]\n\
         [scratch]\npaths = [\"target\"]\n",
    );
    world.file("target/x", "");
    let explain = ["policy", "explain", "write", "target/x"];
    let shown = world.run(&explain).ok().text().to_owned();
    assert!(shown.contains("note: `target` is a scratch directory"), "{shown}");
    let json = world.run(&[&explain[..], &["--json"]].concat()).ok().json();
    assert!(json["notes"][0].as_str().unwrap().contains("scratch directory"), "{json}");
    let shown = world.run(&["policy", "explain", "write", "src/a.rs"]).ok().text().to_owned();
    assert!(!shown.contains("scratch"), "{shown}");
}

/// The labels of the link's own name counted, and not those of the file that is read.
#[test]
fn explain_of_a_read_through_a_link_missed_the_labels() {
    let world = World::with_policy(
        "schema = 1\n[allowedPaths]\nread = [\"**\"]\n[[labels]]\nid = \"customers\"\n\
         paths = [\"data/**\"]\n[[network.rules]]\nid = \"site\"\neffect = \"allow\"\n\
         hosts = [\"site.example\"]\nports = [443]\n[[network.rules]]\nid = \"closed\"\n\
         effect = \"deny\"\nhosts = [\"*\"]\nwhenRead = [\"customers\"]\n",
    );
    world.file("data/a.csv", "");
    std::os::unix::fs::symlink("data/a.csv", world.root().join("link")).unwrap();
    let explain = ["policy", "explain", "connect", "site.example:443", "--json", "--read"];
    for path in ["data/a.csv", "link"] {
        let json = world.run(&[&explain[..], &[path]].concat()).ok().json();
        assert_eq!(json["decision"]["rule"], "closed", "{path}: {json}");
    }
}
