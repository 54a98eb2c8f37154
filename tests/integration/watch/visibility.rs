//! No events are sent about entries that may not be listed.

use std::{collections::BTreeSet, fs, time::Duration};

use portcullis::{
    gateway::{ErrorKind, EventKind, WatchEnd},
    model::{AgentName, Session, WatchQuery},
    policy::{Policy, PolicySource, compile},
};

use super::{House, TIMEOUT, path};
use crate::common::ALL;

const SECRET: &str = "[[rules]]\nid = \"hidden\"\neffect = \"deny\"\npaths = [\"secret/**\"]\n\
    agents = [\"tester\"]\n";

#[test]
fn what_may_not_be_listed_comes_and_goes_and_is_never_named() {
    let house = House::new(SECRET);
    house.mkdir("secret/in");
    house.write("secret/a", "x");
    house.write("open", "x");
    house.mkdir("dir/sub");
    house.write("dir/sub/f", "x");
    let all = house.watch(".");
    let other = Session {
        agent: "operator".parse::<AgentName>().unwrap(),
        id: "0f".repeat(16),
        ..house.session.clone()
    };
    let sees = house.gateway.watch(&other, &WatchQuery::new(path("."))).unwrap().output;
    let step = |act: &dyn Fn(), all_told: &[&str], sees_told: &[&str]| {
        act();
        assert_eq!(house.told(&all), all_told);
        assert_eq!(house.told(&sees), sees_told);
    };
    step(&|| house.write("secret/b", "x"), &[], &["create secret/b"]);
    step(&|| house.mv("secret/a", "came"), &["create came"], &["rename secret/a came"]);
    step(&|| house.mv("open", "secret/went"), &["delete open"], &["rename open secret/went"]);
    let moved = ["rename dir/ secret/dir/", "rescan secret/dir/"];
    step(&|| house.mv("dir", "secret/dir"), &["delete dir/"], &moved);
    let unseen = "create secret/dir/sub/unseen";
    step(&|| house.write("secret/dir/sub/unseen", "x"), &[], &[unseen]);
    let told = ["create back/", "create back/sub/", "create back/sub/f", "create back/sub/unseen"];
    let moved = ["rename secret/dir/ back/", "rescan back/"];
    step(&|| house.mv("secret/dir", "back"), &told, &moved);
    step(
        &|| house.write("back/sub/seen", "x"),
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
    let house = House::new(hidden);
    house.mkdir("pub/h1/in");
    house.mkdir("other");
    house.write("pub/a.md", "x");
    let deaf = [".", "pub", "pub/a.md", "other"].map(|path| house.watch(path));
    let other = Session {
        agent: "operator".parse::<AgentName>().unwrap(),
        id: "0f".repeat(16),
        ..house.session.clone()
    };
    // The last subscriber gets its events last.
    let sees = house.gateway.watch(&other, &WatchQuery::new(path("."))).unwrap().output;
    let mut again = false;
    while !again {
        for _ in 0..20 {
            house.mv("pub/h1", "pub/h2");
            house.mv("pub/h2", "pub/h1");
        }
        while let Some(event) = sees.next(Duration::from_millis(50)).unwrap() {
            again |= event.what == EventKind::Rescan;
        }
    }
    for subscription in &deaf {
        assert_eq!(subscription.next(Duration::ZERO), Ok(None), "{}", subscription.path());
    }
    assert!(house.told(&deaf[0]).is_empty());
}

#[test]
fn what_lies_beneath_a_renamed_directory_is_judged_by_its_new_name() {
    let house = House::new(
        "[[rules]]\nid = \"keys\"\neffect = \"deny\"\npaths = [\"b/*.key\", \"a/*.pem\"]\n",
    );
    house.mkdir("a");
    for name in ["a/x.key", "a/x.pem", "a/x.txt"] {
        house.write(name, "x");
    }
    let all = house.watch(".");
    house.mv("a", "b");
    assert_eq!(house.told(&all), ["rename a/ b/", "rescan b/"]);
    for name in ["b/x.key", "b/x.pem"] {
        house.write(name, "y");
    }
    assert_eq!(house.told(&all), ["modify b/x.pem"]);
}

#[test]
fn beneath_what_nothing_allows_only_what_something_does_is_told() {
    let house = House::under(
        "schema = 1\n[allowedPaths]\nlist = [\"src/open/**\", \"mark-*\", \"src/open\"]\n",
    );
    house.mkdir("src/open");
    house.mkdir("src/closed");
    let all = house.watch(".");
    house.write("src/a", "x");
    house.write("src/closed/a", "x");
    house.write("src/open/a", "x");
    assert_eq!(house.told(&all), ["create src/open/a"]);
    house.mv("src", "gone");
    assert_eq!(house.told(&all), ["rescan ./"]);
    house.write("gone/open/b", "x");
    house.mv("gone", "src");
    let told: BTreeSet<_> = house.told(&all).into_iter().collect();
    let expected = ["create src/open/", "create src/open/a", "create src/open/b"];
    assert_eq!(told, BTreeSet::from(expected.map(str::to_owned)));
    // Its existence is not disclosed either.
    let refused = |name: &str| {
        let error = house.gateway.watch(&house.session, &WatchQuery::new(path(name))).unwrap_err();
        (error.kind(), error.to_string())
    };
    assert_eq!(refused("src/closed"), refused("src/nothing"));
    assert_eq!(refused("src/closed").0, ErrorKind::Denied);
}

#[test]
fn what_a_person_would_be_asked_about_is_not_told() {
    let house = House::new(
        "[[rules]]\nid = \"q\"\neffect = \"ask\"\noperations = [\"list\"]\npaths = [\"ask/**\"]\n",
    );
    house.mkdir("ask");
    let all = house.watch(".");
    house.write("ask/a", "x");
    assert!(house.told(&all).is_empty());
    house.mv("ask/a", "a");
    assert_eq!(house.told(&all), ["create a"]);
    let error = house.gateway.watch(&house.session, &WatchQuery::new(path("ask"))).unwrap_err();
    assert_eq!((error.kind(), error.rule()), (ErrorKind::Denied, Some("q")));
}

fn policy(version: u64, more: &str) -> Policy {
    let text =
        format!("{}{more}", ALL.replace("schema = 1", &format!("schema = 1\nversion = {version}")));
    compile(&PolicySource::from_text("test.toml", &text)).unwrap()
}

#[test]
fn another_policy_holds_for_subscriptions_at_once() {
    let house = House::under(&format!("schema = 1\nversion = 1\n{}", &ALL["schema = 1\n".len()..]));
    house.mkdir("secret");
    let (all, secret) = (house.watch("."), house.watch("secret"));
    house.gateway.reload(&house.session, policy(2, SECRET), "test").unwrap();
    house.write("secret/unseen", "x");
    assert_eq!(house.told(&all), ["rescan ./"]);
    assert_eq!(secret.next(TIMEOUT), Err(WatchEnd::Denied));
    house.gateway.reload(&house.session, policy(3, ""), "test").unwrap();
    house.write("secret/seen", "x");
    fs::remove_file(house.at("secret/unseen")).unwrap();
    assert_eq!(house.told(&all), ["rescan ./", "create secret/seen", "delete secret/unseen"]);
}
