//! Policies that their author has through a pipe.

use super::policy_file;
use crate::common::World;

const SHOP: &str = "schema = 1\nname = \"shop\"\nextends = [\"./base.toml\"]\n\
    [allowedPaths]\nread = [\"src/**\"]\n";
const BASE: &str = "schema = 1\n[secrets]\nnames = [\".env\"]\n";

#[test]
fn a_policy_that_comes_through_a_pipe_is_read() {
    let world = World::new();
    policy_file(&world, "base.toml", BASE);
    policy_file(&world, "shop.toml", &SHOP.replace("src/**", "{docs,src}/**"));
    for pipe in ["-", "/dev/stdin", "/proc/self/fd/0"] {
        let piped = |args: &[&str]| world.run_with_input(&[&["policy"], args].concat(), SHOP);
        let checked = piped(&["check", pipe]).ok();
        assert!(checked.text().starts_with(&format!("{pipe}: ok, policy `shop`")), "{checked:?}");
        let compared = piped(&["diff", pipe, "shop.toml"]).ok();
        assert!(compared.text().contains("docs/x"), "{compared:?}");
        assert!(compared.stderr.contains("base.toml"), "{compared:?}");
        piped(&["lint", pipe]).ok();
        piped(&["test", pipe]).ok();
        let explained = piped(&["explain", "read", "src/.env", "--policy", pipe]).ok();
        assert!(explained.text().contains("secrets.names[0]"), "{explained:?}");
    }
}

/// The extended file was read in its new version for both sides, so that nothing seemed to open.
#[test]
fn nothing_is_proven_of_a_piped_policy_that_extends_a_file() {
    let world = World::new();
    let rules = "schema = 1\n[[secrets.rules]]\nid = \"a\"\nregex = 'tok_[a-z]{9}'\n";
    policy_file(&world, "rules.toml", "[[rules]]\nid = \"a\"\nregex = 'tok_[a-z]{9}'\n");
    policy_file(&world, "base.toml", BASE);
    let named =
        "schema = 1\n[secrets]\nrulesets = [{ file = \"rules.toml\", format = \"gitleaks\" }]\n";
    for (text, file) in [(SHOP, Some("base.toml")), (named, Some("rules.toml")), (rules, None)] {
        policy_file(&world, "shop.toml", text);
        for sides in [["-", "shop.toml"], ["shop.toml", "-"]] {
            let args = [&["policy", "diff"], &sides[..], &["--no-new-access"]].concat();
            let compared = world.run_with_input(&args, text);
            assert_eq!(compared.code, if file.is_some() { 4 } else { 0 }, "{compared:?}");
            assert!(file.is_none_or(|file| compared.stderr.contains(file)), "{compared:?}");
        }
    }
}

#[test]
fn what_comes_through_a_pipe_is_bounded_and_read_once() {
    let world = World::new();
    let large = format!("schema = 1\n#{}", "x".repeat(2 << 20));
    let done = world.run_with_input(&["policy", "check", "-"], large);
    assert!(done.code == 4 && done.stderr.contains("1 MiB"), "{done:?}");
    for args in [["policy", "check", "-"].as_slice(), &["policy", "check", "/dev/stdin"]] {
        let done = world.run_with_input(args, "");
        assert!(done.code == 4 && done.stderr.contains("nothing comes from it"), "{done:?}");
    }
    let twice = world.run_with_input(&["policy", "diff", "-", "-"], "schema = 1\n");
    assert!(twice.code == 4 && twice.stderr.contains("read once only"), "{twice:?}");
}

#[test]
fn a_policy_in_force_comes_from_no_pipe() {
    let world = World::new();
    policy_file(&world, "p.toml", "schema = 1\nextends = [\"/dev/stdin\"]\n");
    for policy in ["-", "/dev/stdin"] {
        for args in [
            ["fs", "ls", ".", "--policy", policy].as_slice(),
            &["run", "--policy", policy, "--", "true"],
            &["policy", "learn", "--policy", policy],
        ] {
            let done = world.run_with_input(args, SHOP);
            assert!(done.code != 0, "{args:?}: {done:?}");
            assert!(done.stderr.contains("a pipe can be read once only"), "{args:?}: {done:?}");
        }
    }
    // Its standard input is the client's, and elsewhere by then.
    let done = world.run_with_input(&["mcp", "--policy", "-"], SHOP);
    assert!(done.code != 0 && done.stderr.contains("a pipe can be read once only"), "{done:?}");
    let done = world.run_with_input(&["policy", "check", "p.toml"], SHOP);
    assert!(done.code == 4 && done.stderr.contains("a pipe can be read once"), "{done:?}");
}
