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
        let compared = piped(&["diff", pipe, "shop.toml", "--no-new-access"]);
        assert_eq!(compared.code, 4, "{compared:?}");
        assert!(compared.text().contains("docs/x"), "{compared:?}");
        piped(&["diff", "shop.toml", pipe, "--no-new-access"]).ok();
        piped(&["lint", pipe]).ok();
        piped(&["test", pipe]).ok();
        let explained = piped(&["explain", "read", "src/.env", "--policy", pipe]).ok();
        assert!(explained.text().contains("secrets.names[0]"), "{explained:?}");
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
