//! Look-ups of names that the policy hides.

use super::*;

/// The records of look-ups.
fn lookups(records: &[Value]) -> Vec<&Value> {
    records.iter().filter(|record| record["facts"]["lookup"] == true).collect()
}

/// The number of counted denials of `path`.
fn counted(records: &[Value], path: &str) -> u64 {
    let of = |record: &Value| record["facts"]["paths"].as_array().cloned().unwrap_or_default();
    let repeats = records.iter().filter(|record| said(record, "op") == "repeats").flat_map(of);
    let of_path = repeats.filter(|entry| entry["path"] == path);
    of_path.map(|entry| entry["denials"].as_u64().unwrap()).sum()
}

/// They left nothing in the log: it did not tell that a program had tried.
#[test]
fn a_lookup_of_a_hidden_name_is_recorded_whatever_is_there() {
    for who in users() {
        let mut told = Vec::new();
        for is_there in [true, false] {
            let world = SandboxWorld::mounted(who);
            if !is_there {
                std::fs::remove_dir_all(world.base().join("ws/hidden")).unwrap();
            }
            let script = "cat hidden; for n in 1 2 3; do test -e hidden/file && echo there; done; \
                          test -e missing; cat file.txt";
            let ended = world.exec(&["--json"], script);
            assert_eq!((ended.code, ended.stdout.as_str()), (0, "secret\n"), "{ended:?}");
            assert!(ended.stderr.contains("cat: hidden: No such file or directory"), "{ended:?}");
            let summary: Value =
                serde_json::from_str(ended.stderr.lines().last().unwrap()).unwrap();
            let records = world.records();
            let [lookup] = lookups(&records)[..] else { panic!("{records:#?}") };
            let fields = ["op", "path", "decision", "rule", "result", "transport"];
            assert_eq!(
                fields.map(|field| said(lookup, field)),
                ["list", "hidden", "deny", "hidden", "denied", "mount"]
            );
            assert_eq!(lookup["facts"]["process"]["program"], "cat", "{lookup}");
            assert!(counted(&records, "hidden") >= 3, "{records:#?}");
            told.push((counted(&records, "hidden"), summary["denials"].clone()));
            let session = said(lookup, "session");
            let story = ["audit", "session", session, "--workspace", &world.at("ws")];
            let story = end(world.command(&story).spawn().unwrap()).stdout;
            assert!(story.contains("denied    hidden by hidden"), "{story}");
        }
        let denials = |(times, denials): &(u64, Value)| (*times, denials[0]["times"].clone());
        assert_eq!(denials(&told[0]), denials(&told[1]));
        // The counted ones were not told.
        for (times, denials) in &told {
            assert_eq!(denials[0]["times"], times + 1, "{denials}");
        }
    }
}

/// The self-test, before any program ran, counted as a denial of the agent.
#[test]
fn a_lookup_of_the_setup_was_a_denial_of_the_agent() {
    let world = SandboxWorld::mounted(users()[0]);
    let policy = "schema = 1\n[allowedPaths]\nread = [\"dir/**\"]\nlist = [\"dir{,/**}\"]\n";
    std::fs::write(world.at("policies/policy.toml"), policy).unwrap();
    let ended = world.exec(&["--json"], "true");
    let summary: Value = serde_json::from_str(ended.stderr.lines().last().unwrap()).unwrap();
    assert_eq!((ended.code, &summary["denials"]), (0, &serde_json::json!([])), "{summary}");
    assert_eq!(lookups(&world.records()), Vec::<&Value>::new());
}

/// Programs look for such names in every directory.
#[test]
fn lookups_of_hidden_names_count_against_no_limit() {
    let world = SandboxWorld::mounted(users()[0]);
    let policy = world.at("policies/policy.toml");
    let hidden =
        POLICY.replace(r#"["hidden", "hidden/**"]"#, r#"["hidden", "hidden/**", "**/.env*"]"#);
    std::fs::write(&policy, format!("{hidden}\n[mount]\ndenials = 3\n")).unwrap();
    let script = "for n in $(seq 200); do test -e .env.$n; test -e dir/.env; done; cat file.txt";
    let ended = world.exec(&[], script);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "secret\n"), "{ended:?}");
    let records = world.records();
    assert_eq!(lookups(&records).len(), 201, "{records:#?}");
    assert_eq!(counted(&records, "dir/.env"), 199);
    assert!(!records.iter().any(|record| record["facts"]["sessionClosed"] == true));
}

/// Neither what it disclosed nor what was denied of it had a record, and no limit counted the denials.
#[test]
fn reading_a_link_left_no_record() {
    let world = SandboxWorld::mounted(users()[0]);
    let policy = world.at("policies/policy.toml");
    let rules = "\n[[rules]]\nid = \"never\"\neffect = \"deny\"\noperations = [\"read\"]\npaths = [\"closed\"]\n\
                 [[rules]]\nid = \"person\"\neffect = \"ask\"\noperations = [\"read\"]\npaths = [\"asked\"]\n\
                 [mount]\ndenials = 4\n";
    std::fs::write(&policy, format!("{POLICY}{rules}")).unwrap();
    let link = |target: &str, name: &str| {
        std::os::unix::fs::symlink(target, world.base().join("ws").join(name)).unwrap();
    };
    link("/etc/passwd", "out");
    for name in ["open", "closed", "asked"] {
        link("file.txt", name);
    }
    let script = "for n in 1 2 3; do readlink open; done; for n in closed asked out; do readlink $n; done; \
                  cat file.txt; readlink out; cat file.txt";
    let ended = world.exec(&[], script);
    // The fourth denial closes the session.
    assert_eq!(ended.stdout, "file.txt\nfile.txt\nfile.txt\nsecret\n", "{ended:?}");
    let records = world.records();
    let about = |path: &str| {
        let of = |record: &&Value| said(record, "op") == "read" && said(record, "path") == path;
        records.iter().filter(of).collect::<Vec<_>>()
    };
    let [open] = about("open")[..] else { panic!("{records:#?}") };
    let hash = portcullis_audit::Hash::of(b"file.txt").to_string();
    assert_eq!(
        ["decision", "result", "before"].map(|field| said(open, field)),
        ["allow", "ok", &hash]
    );
    assert_eq!(open["facts"]["target"], "file.txt", "{open}");
    for (path, rule) in [("closed", "never"), ("asked", "person"), ("out", "workspace.outside")] {
        let denied = about(path);
        let fields = ["decision", "rule"].map(|field| said(denied[0], field));
        assert_eq!(
            (fields, denied.len()),
            (["deny", rule], if path == "out" { 2 } else { 1 }),
            "{denied:#?}"
        );
        assert_eq!(denied[0]["facts"].get("target"), None, "{denied:#?}");
    }
    assert_eq!(about("out")[1]["facts"]["sessionClosed"], true, "{records:#?}");
    // What has a record of its own is not counted as well.
    assert_eq!(counted(&records, "out"), 0, "{records:#?}");
}
