//! Requests that only mounts send.

use super::*;

#[test]
fn a_new_file_has_the_mode_that_was_asked_for() {
    let fixture = Fixture::new(OPEN);
    let create = |name: &str, mode| Write { mode, ..write(name, b"x") };
    let mode = |name: &str| fs::metadata(fixture.at(name)).unwrap().mode() & 0o7777;
    for (name, wanted) in [("a", 0o755), ("b", 0o400), ("c", 0o666)] {
        fixture.does(&create(name, Some(wanted)));
        assert_eq!(mode(name), wanted, "{name}");
    }
    let intents = fixture.requests();
    assert_eq!(intents[0].draft.facts.as_ref().unwrap()["attributes"], json!({ "mode": "0755" }));
    // An existing file keeps its mode.
    fixture.does(&create("b", Some(0o777)));
    assert_eq!(mode("b"), 0o400);
    let refused = fixture.fails(&create("e", Some(0o4755)));
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(!fixture.at("e").exists());
}

#[test]
fn attributes_are_set_and_recorded() {
    let fixture = Fixture::new(&format!(
        "{OPEN}[[rules]]\nid = \"no\"\neffect = \"deny\"\noperations = [\"setattr\"]\npaths = [\"no\"]\n"
    ));
    fixture.file("a", "x");
    fixture.file("no", "x");
    fs::set_permissions(fixture.at("a"), fs::Permissions::from_mode(0o644)).unwrap();
    fixture.does(&Mkdir { path: path("d"), recursive: false, mode: None });
    symlink("a", fixture.at("link")).unwrap();
    let meta = |name: &str| fs::symlink_metadata(fixture.at(name)).unwrap();

    assert_eq!(
        fixture.does(&set("a", Some(0o700), Some((1, 2)))).committed,
        Committed::Stored(None)
    );
    assert_eq!(
        (meta("a").mode() & 0o7777, meta("a").mtime(), meta("a").mtime_nsec()),
        (0o700, 1, 2)
    );
    let records = fixture.requests();
    let [.., intent, outcome] = &records[..] else { panic!("{records:?}") };
    let facts = intent.draft.facts.as_ref().unwrap();
    assert_eq!(intent.kind, Kind::Intent);
    assert_eq!(intent.draft.op.as_deref(), Some("setattr"));
    let set_to = json!({ "mode": "0700", "modified": 1, "modifiedNanoseconds": 2 });
    assert_eq!(facts["attributes"], set_to);
    assert_eq!(facts["attributesBefore"]["mode"], "0644");
    assert_eq!(outcome.draft.result.as_deref(), Some("ok"));
    assert_eq!(fixture.does(&set("a", Some(0o700), None)).committed, Committed::Unchanged);

    fixture.does(&set("d", Some(0o711), Some((-5, 0))));
    assert_eq!((meta("d").mode() & 0o7777, meta("d").mtime()), (0o711, -5));
    // The time is the link's own, not that of its target.
    fixture.does(&set("link", None, Some((9, 0))));
    assert_eq!((meta("link").mtime(), meta("a").mtime()), (9, 1));
    for refused in [
        set("link", Some(0o777), None),
        set("a", Some(0o4700), None),
        set("a", None, Some((0, 1_000_000_000))),
        set("a", Some(0o277), None),
        set("d", Some(0o677), None),
        set(".", Some(0o700), None),
    ] {
        assert_eq!(fixture.fails(&refused).kind(), ErrorKind::InvalidInput, "{refused:?}");
    }
    assert_eq!(fixture.fails(&set("none", Some(0o700), None)).kind(), ErrorKind::NotFound);
    assert_eq!(fixture.fails(&set("no", Some(0o700), None)).rule(), Some("no"));
    assert_eq!(meta("a").mode() & 0o7777, 0o700);
}

#[test]
fn a_link_is_made_only_where_it_stays_inside() {
    let fixture = Fixture::new(&format!(
        "{OPEN}[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"no/**\"]\n"
    ));
    fixture.file("d/x", "x");
    fixture.file("no/x", "x");
    symlink("../..", fixture.at("d/out")).unwrap();
    let target = |name: &str| fs::read_link(fixture.at(name)).unwrap().to_str().unwrap().to_owned();

    fixture.does(&link("d/link", "../d/x"));
    assert_eq!(target("d/link"), "../d/x");
    let records = fixture.requests();
    assert_eq!(records[0].draft.facts.as_ref().unwrap()["target"], "../d/x");
    assert_eq!(records[0].draft.op.as_deref(), Some("symlink"));
    fixture.does(&link("new/dir/link", "./../nowhere/yet"));
    assert_eq!(target("new/dir/link"), "./../nowhere/yet");
    // It may lead to a hidden entry, and is read as if that were missing.
    fixture.does(&link("d/hidden", "../no/x"));
    // A name before a `..` may become a link, which leads elsewhere.
    for outside in
        ["..", "/", "../../d/x", "/etc/passwd", "d/../../..", "d/out/x", "d/../d/x", "yet/.."]
    {
        let refused = fixture.fails(&link("escape", outside));
        assert_eq!(refused.kind(), ErrorKind::Denied, "{outside}: {refused}");
        assert!(!fixture.at("escape").is_symlink());
    }
    assert_eq!(fixture.fails(&link("d/link", "x")).kind(), ErrorKind::AlreadyExists);
    assert_eq!(fixture.fails(&link("no/link", "x")).rule(), Some("no"));
    for bad in ["", "a\0b", &"x".repeat(5000)] {
        assert!(fixture.fails(&link("bad", bad)).kind() == ErrorKind::InvalidInput);
    }
    let names: Vec<_> = fs::read_dir(fixture.dir.path().join("ws")).unwrap().collect();
    assert_eq!(names.len(), 3, "{names:?}");
}

#[test]
fn no_link_is_made_where_none_is_followed() {
    let fixture = Fixture::new(&format!("{OPEN}[files]\nsymlinks = \"deny\"\n"));
    fixture.file("x", "x");
    assert_eq!(fixture.fails(&link("link", "x")).rule(), Some("files.symlinks"));
}

/// A gateway died between the intent and the outcome.
#[test]
fn what_a_dead_gateway_began_is_settled() {
    let attributes = |mode: &str| json!({ "mode": mode });
    for (mode, result) in [(0o600, "committed"), (0o644, "rolledBack"), (0o755, "superseded")] {
        let fixture = Fixture::new(OPEN);
        fixture.file("a", "x");
        fs::set_permissions(fixture.at("a"), fs::Permissions::from_mode(mode)).unwrap();
        symlink("x", fixture.at("link")).unwrap();
        let begun = |request: &dyn Request<Output = Changed>, draft: Draft| {
            let policy = fixture.gateway.policy();
            let named =
                record::operation(&session(Transport::Mount), &policy, request.as_operation());
            let draft = Draft { op: named.op, path: named.path, session: named.session, ..draft };
            drop(fixture.gateway.audit_log.admit(draft, &crate::audit_log::Seal::new()).unwrap());
        };
        let facts = [("attributes", attributes("0600")), ("attributesBefore", attributes("0644"))];
        let facts = facts.map(|(name, value)| (name.to_owned(), value));
        let facts = Some(BTreeMap::from(facts));
        begun(&set("a", Some(0o600), None), Draft { facts, ..Draft::default() });
        let (temp, after) = (TempName::new().unwrap(), Some(Hash::of(b"y")));
        symlink("y", fixture.at(temp.as_str())).unwrap();
        let temp = Some(temp.as_str().to_owned());
        begun(&link("other", "y"), Draft { temp, after, ..Draft::default() });
        begun(&link("link", "x"), Draft { after: Some(Hash::of(b"x")), ..Draft::default() });

        let Fixture { dir, gateway } = fixture;
        drop(gateway);
        let fixture = Fixture { gateway: open(&dir, OPEN), dir };
        let records = fixture.records();
        let settled = records.iter().filter(|record| record.kind == Kind::Recovered);
        let results: Vec<_> = settled.map(|record| record.draft.result.clone().unwrap()).collect();
        assert_eq!(results, [result, "rolledBack", "committed"]);
        assert_eq!(fs::metadata(fixture.at("a")).unwrap().mode() & 0o777, mode);
        assert_eq!(fs::read_dir(fixture.dir.path().join("ws")).unwrap().count(), 2);
    }
}

/// Regression: a file that the agent was not shown counted as new in a commit, and was replaced
/// there.
#[test]
fn an_import_replaced_a_file_whose_content_is_denied() {
    let policy = format!(
        "{OPEN}[secrets]\nonRead = \"redact\"\n[[secrets.rules]]\nid = \"password\"\nregex = 'hunter[0-9]'\n"
    );
    let fixture = Fixture::new(&policy);
    // Only text can be redacted.
    let original = Some(b"\0hunter2".to_vec());
    let refused = |reply: Result<Reply<Option<Vec<u8>>>, Refused>| {
        let error = reply.map(|reply| reply.output).unwrap_err();
        assert_eq!(error.rule(), Some("secrets.rules.password"), "{error:?}");
    };
    let (session, facts) = (session(Transport::Cli), BTreeMap::new());
    let import = Import {
        request: write("a", b"new"),
        before: None,
        original: original.clone(),
        link: None,
    };
    refused(fixture.gateway.import(&session, &import, &facts, &NoApprover));
    let request = crate::model::request::Remove { path: path("a"), recursive: false };
    let import = Import { request, before: None, original, link: None };
    refused(fixture.gateway.import(&session, &import, &facts, &NoApprover));
    let denials = fixture.requests();
    let rules: Vec<_> = denials.iter().map(|record| record.draft.rule.as_deref()).collect();
    assert_eq!(rules, [Some("secrets.rules.password"); 2]);
    let import = Import { request: write("a", b"new"), before: None, original: None, link: None };
    assert!(fixture.gateway.import(&session, &import, &facts, &NoApprover).is_ok());
}
