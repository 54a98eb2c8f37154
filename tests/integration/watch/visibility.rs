//! No events are sent about entries that may not be listed.

use std::{collections::BTreeSet, fs, time::Duration};

use portcullis::{
    gateway::{ErrorKind, EventKind, WatchEnd},
    model::{AgentName, Session, WatchQuery},
    policy::{Policy, PolicySource, compile},
};

use super::{Fixture, TIMEOUT, path};
use crate::common::ALL;

const SECRET: &str = "[[rules]]\nid = \"hidden\"\neffect = \"deny\"\npaths = [\"secret/**\"]\n\
    agents = [\"tester\"]\n";

#[test]
fn what_may_not_be_listed_comes_and_goes_and_is_never_named() {
    let fixture = Fixture::new(SECRET);
    fixture.mkdir("secret/in");
    fixture.write("secret/a", "x");
    fixture.write("open", "x");
    fixture.mkdir("dir/sub");
    fixture.write("dir/sub/f", "x");
    let all = fixture.watch(".");
    let other = Session {
        agent: "operator".parse::<AgentName>().unwrap(),
        id: "0f".repeat(16),
        ..fixture.session.clone()
    };
    let sees = fixture.gateway.watch(&other, &WatchQuery::new(path("."))).unwrap().output;
    let step = |act: &dyn Fn(), all_told: &[&str], sees_told: &[&str]| {
        act();
        assert_eq!(fixture.told(&all), all_told);
        assert_eq!(fixture.told(&sees), sees_told);
    };
    step(&|| fixture.write("secret/b", "x"), &[], &["create secret/b"]);
    step(&|| fixture.mv("secret/a", "came"), &["create came"], &["rename secret/a came"]);
    step(&|| fixture.mv("open", "secret/went"), &["delete open"], &["rename open secret/went"]);
    let moved = ["rename dir/ secret/dir/", "rescan secret/dir/"];
    step(&|| fixture.mv("dir", "secret/dir"), &["delete dir/"], &moved);
    let unseen = "create secret/dir/sub/unseen";
    step(&|| fixture.write("secret/dir/sub/unseen", "x"), &[], &[unseen]);
    let told = ["create back/", "create back/sub/", "create back/sub/f", "create back/sub/unseen"];
    let moved = ["rename secret/dir/ back/", "rescan back/"];
    step(&|| fixture.mv("secret/dir", "back"), &told, &moved);
    step(
        &|| fixture.write("back/sub/seen", "x"),
        &["create back/sub/seen"],
        &["create back/sub/seen"],
    );
}

/// All subscribers were told to look again, which disclosed directories to an
/// agent that may not see them.
#[test]
fn hidden_directories_that_change_their_names_make_nobody_look_again() {
    let hidden = "[[rules]]\nid = \"hidden\"\neffect = \"deny\"\npaths = [\"**/h?/**\", \"**/h?\"]\n\
        agents = [\"tester\"]\n";
    let fixture = Fixture::new(hidden);
    fixture.mkdir("pub/h1/in");
    fixture.mkdir("other");
    fixture.write("pub/a.md", "x");
    let deaf = [".", "pub", "pub/a.md", "other"].map(|path| fixture.watch(path));
    let other = Session {
        agent: "operator".parse::<AgentName>().unwrap(),
        id: "0f".repeat(16),
        ..fixture.session.clone()
    };
    // The last subscriber gets its events last.
    let sees = fixture.gateway.watch(&other, &WatchQuery::new(path("."))).unwrap().output;
    let mut again = false;
    while !again {
        for _ in 0..20 {
            fixture.mv("pub/h1", "pub/h2");
            fixture.mv("pub/h2", "pub/h1");
        }
        while let Some(event) = sees.next(Duration::from_millis(50)).unwrap() {
            again |= event.what == EventKind::Rescan;
        }
    }
    for subscription in &deaf {
        assert_eq!(subscription.next(Duration::ZERO), Ok(None), "{}", subscription.path());
    }
    assert!(fixture.told(&deaf[0]).is_empty());
}

#[test]
fn what_lies_beneath_a_renamed_directory_is_judged_by_its_new_name() {
    let fixture = Fixture::new(
        "[[rules]]\nid = \"keys\"\neffect = \"deny\"\npaths = [\"b/*.key\", \"a/*.pem\"]\n",
    );
    fixture.mkdir("a");
    for name in ["a/x.key", "a/x.pem", "a/x.txt"] {
        fixture.write(name, "x");
    }
    let all = fixture.watch(".");
    fixture.mv("a", "b");
    assert_eq!(fixture.told(&all), ["rename a/ b/", "rescan b/"]);
    for name in ["b/x.key", "b/x.pem"] {
        fixture.write(name, "y");
    }
    assert_eq!(fixture.told(&all), ["modify b/x.pem"]);
}

#[test]
fn beneath_what_nothing_allows_only_what_something_does_is_told() {
    let fixture = Fixture::under(
        "schema = 1\n[allowedPaths]\nlist = [\"src/open/**\", \"mark-*\", \"src/open\"]\n",
    );
    fixture.mkdir("src/open");
    fixture.mkdir("src/closed");
    let all = fixture.watch(".");
    fixture.write("src/a", "x");
    fixture.write("src/closed/a", "x");
    fixture.write("src/open/a", "x");
    assert_eq!(fixture.told(&all), ["create src/open/a"]);
    fixture.mv("src", "gone");
    assert_eq!(fixture.told(&all), ["rescan ./"]);
    fixture.write("gone/open/b", "x");
    fixture.mv("gone", "src");
    let told: BTreeSet<_> = fixture.told(&all).into_iter().collect();
    let expected = ["create src/open/", "create src/open/a", "create src/open/b"];
    assert_eq!(told, BTreeSet::from(expected.map(str::to_owned)));
    // Its existence is not disclosed either.
    let refused = |name: &str| {
        let error =
            fixture.gateway.watch(&fixture.session, &WatchQuery::new(path(name))).unwrap_err();
        (error.kind(), error.to_string())
    };
    assert_eq!(refused("src/closed"), refused("src/nothing"));
    assert_eq!(refused("src/closed").0, ErrorKind::Denied);
}

#[test]
fn what_a_person_would_be_asked_about_is_not_told() {
    let fixture = Fixture::new(
        "[[rules]]\nid = \"q\"\neffect = \"ask\"\noperations = [\"list\"]\npaths = [\"ask/**\"]\n",
    );
    fixture.mkdir("ask");
    let all = fixture.watch(".");
    fixture.write("ask/a", "x");
    assert!(fixture.told(&all).is_empty());
    fixture.mv("ask/a", "a");
    assert_eq!(fixture.told(&all), ["create a"]);
    let error = fixture.gateway.watch(&fixture.session, &WatchQuery::new(path("ask"))).unwrap_err();
    assert_eq!((error.kind(), error.rule()), (ErrorKind::Denied, Some("q")));
}

fn policy(version: u64, more: &str) -> Policy {
    let text =
        format!("{}{more}", ALL.replace("schema = 1", &format!("schema = 1\nversion = {version}")));
    compile(&PolicySource::from_text("test.toml", &text)).unwrap()
}

#[test]
fn another_policy_holds_for_subscriptions_at_once() {
    let fixture =
        Fixture::under(&format!("schema = 1\nversion = 1\n{}", &ALL["schema = 1\n".len()..]));
    fixture.mkdir("secret");
    let (all, secret) = (fixture.watch("."), fixture.watch("secret"));
    fixture.gateway.reload(&fixture.session, policy(2, SECRET), "test").unwrap();
    fixture.write("secret/unseen", "x");
    assert_eq!(fixture.told(&all), ["rescan ./"]);
    assert_eq!(secret.next(TIMEOUT), Err(WatchEnd::Denied));
    fixture.gateway.reload(&fixture.session, policy(3, ""), "test").unwrap();
    fixture.write("secret/seen", "x");
    fs::remove_file(fixture.at("secret/unseen")).unwrap();
    assert_eq!(fixture.told(&all), ["rescan ./", "create secret/seen", "delete secret/unseen"]);
}
