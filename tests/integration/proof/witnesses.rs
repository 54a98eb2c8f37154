//! What was asked for and is not there is said: growth, a witness, an option.

use super::{audit, second, text};
use crate::common::World;

fn world() -> World {
    let world = World::new();
    world.write("a", "x").ok();
    world
}

/// The log's key in a file.
fn key(world: &World) -> String {
    let file = world.base().join("log.vkey");
    std::fs::write(&file, world.run(&["audit", "key"]).ok().stdout).unwrap();
    text(&file).to_owned()
}

/// An option that it did not know, or with `=`, was passed over, and what it should have
/// checked looked checked.
#[test]
fn the_second_verifier_passes_no_option_over() {
    let world = world();
    let (key, state, other) = (key(&world), audit(&world), self::world());
    let (log, other) = (text(&state), self::key(&other));
    let head = format!("1:{}", "0".repeat(64));
    let run = |args: &[&str]| second(&[&["log", log], args].concat());
    let equal = |name: &str, value: &str| format!("{name}={value}");
    run(&[&equal("--key", &key)]).ok();
    // Several are trusted, as `audit verify` does.
    run(&["--key", &other, "--key", &key]).ok();
    run(&["--key", &key, "--key", &other]).ok();
    for args in [
        &[equal("--key", &other)][..],
        &["--key".to_owned(), key.clone(), "--key".to_owned(), "/dev/null".to_owned()],
        &[equal("--head", &head)],
    ] {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let wrong = run(&args);
        assert_eq!(wrong.code, 5, "{args:?}: {wrong:?}");
    }
    let minus = format!("-{head}");
    for args in [
        &["--kye", &key][..],
        &["--key"],
        &["--key", "--head", &head],
        &["--head", &minus],
        &["--head", &key],
        &["--head", "1:00"],
        &["--old", &key],
        &[&key],
    ] {
        let wrong = run(args);
        assert_eq!((wrong.code, wrong.text()), (2, ""), "{args:?}: {wrong:?}");
        assert!(wrong.stderr.contains("SEQ:HASH"), "{args:?}: {wrong:?}");
    }
}
