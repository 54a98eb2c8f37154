//! `portcullis policy test`.

use super::policy_file;
use crate::common::{Done, World};

const SHOP: &str = r#"schema = 1
extends = ["baseline"]

[allowedPaths]
read = ["**"]
write = ["src/**"]
remove = ["src/**"]

[extensions]
deny = ["so"]

[files]
maxWriteSize = "1KiB"

[limits]
filesRemoved = 2

[[rules]]
id = "payments"
effect = "deny"
operations = ["write"]
paths = ["src/payments/**"]
agents = ["bot-*"]

[[tests]]
operation = "write"
path = "src/a.rs"
expect = { effect = "allow" }
"#;

const TESTS: &str = r#"schema = 1

[[tests]]
name = "no more than two files are removed"
files = { "src/a" = "1", "src/b" = "2", "src/c" = "3" }
steps = [
    { operation = "remove", path = "src/a", expect = { effect = "allow", rule = "allowedPaths.remove" } },
    { operation = "remove", path = "src/b", expect = { effect = "allow" } },
    { operation = "remove", path = "src/c", expect = { effect = "deny", rule = "limits.filesRemoved" } },
]

[[tests]]
agent = "bot-1"
operation = "write"
path = "src/payments/x.rs"
expect = { effect = "deny", rule = "payments" }

[[tests]]
operation = "append"
path = "src/x.rs"
content = "1234567890"
repeat = 102
expect = { effect = "allow" }

[[tests]]
name = "what is stored is judged as a whole"
files = { "src/x.rs" = "12345678901234567890" }
steps = [
    { operation = "append", path = "src/x.rs", content = "1234567890", repeat = 100, expect = { effect = "allow" } },
    { operation = "append", path = "src/x.rs", content = "12345", expect = { effect = "deny", rule = "files.maxWriteSize" } },
]

[[tests]]
operation = "read"
path = "data.bin"
base64 = "AAEC"
expect = { effect = "deny", rule = "files.binary.read" }

[[tests]]
files = { "a.txt" = "one" }
steps = [{ operation = "read", path = "a.txt", expect = { effect = "allow", content = "one" } }]
"#;

fn tests(world: &World, args: &[&str]) -> Done {
    world.run(&[&["policy", "test"], args].concat())
}

#[test]
fn tests_with_content_and_steps_are_carried_out_by_the_gateway() {
    let world = World::new();
    policy_file(&world, "shop.toml", SHOP);
    policy_file(&world, "shop.test.toml", TESTS);
    let done = tests(&world, &["--all", "shop.toml"]).ok();
    insta::assert_snapshot!(done.text(), @r"
    ok    shop.toml:25 write `src/a.rs`: allowedPaths.write
    ok    shop.test.toml:3 no more than two files are removed: limits.filesRemoved
    ok    shop.test.toml:12 write `src/payments/x.rs` by agent `bot-1`: payments
    ok    shop.test.toml:18 append `src/x.rs`: allowedPaths.write
    ok    shop.test.toml:25 what is stored is judged as a whole: files.maxWriteSize
    ok    shop.test.toml:33 read `data.bin`: files.binary.read
    ok    shop.test.toml:39 read `a.txt`: allowedPaths.read
    shop.toml: 7 of 7 tests passed
    shop.toml: 4 of 5 rules decided a test
      no test: extensions.deny (shop.toml:10)
    ");
    // Nothing of it was recorded, and nothing of the workspace was touched.
    assert!(!world.state().exists());
    assert_eq!(std::fs::read_dir(world.root()).unwrap().count(), 0);
}

#[test]
fn what_fails_is_told_with_its_place() {
    let world = World::new();
    policy_file(&world, "shop.toml", SHOP);
    policy_file(
        &world,
        "shop.test.toml",
        r#"schema = 1

[[tests]]
operation = "write"
path = "src/payments/x.rs"
expect = { effect = "deny" }

[[tests]]
operation = "list"
path = "src"
expect = { effect = "deny" }

[[tests]]
operation = "list"
path = "src"
expect = { effect = "deny", rule = "default" }

[[tests]]
steps = [
    { operation = "write", path = "src/x", content = "a", expect = { effect = "allow" } },
    { operation = "write", path = "src/x.so", content = "a", expect = { effect = "allow" } },
]

[[tests]]
operation = "read"
path = "a.txt"
content = "one"
expect = { effect = "allow", content = "two" }

[[tests]]
steps = [{ operation = "read", path = "missing", expect = { effect = "allow" } }]
"#,
    );
    let done = tests(&world, &["shop.toml"]);
    assert_eq!(done.code, 4);
    insta::assert_snapshot!(done.text(), @r#"
    FAIL  shop.test.toml:3 write `src/payments/x.rs`
            write `src/payments/x.rs` is allowed by `allowedPaths.write` (shop.toml:6), expected deny
    FAIL  shop.test.toml:8 list `src`
            no rule decided list `src`; if that is meant, expect `rule = "default"`
    FAIL  shop.test.toml:18 write `src/x`
            step 2: write `src/x.so` is denied by `extensions.deny` (shop.toml:10), expected allow
    FAIL  shop.test.toml:24 read `a.txt`
            another content is disclosed than expected
    FAIL  shop.test.toml:30 read `missing`
            allowed, but not done: not found
    shop.toml: 2 of 7 tests passed
    shop.toml: 1 of 5 rules decided a test
      no test: allowedPaths.read (shop.toml:5)
      no test: allowedPaths.remove (shop.toml:7)
      no test: extensions.deny (shop.toml:10)
      no test: payments (shop.toml:19)
    "#);
}

/// A step under a rule that asks waited for an approval, and then came out as
/// denied.
#[test]
fn a_step_that_asks_is_one_that_asks_and_waits_for_nobody() {
    let world = World::new();
    let asks = "[limits]\napprovalTimeout = \"5s\"\n[[rules]]\nid = \"person\"\neffect = \"ask\"\n\
        operations = [\"write\", \"read\"]\npaths = [\"src/ask/**\"]\n";
    let policy = SHOP.replace("[limits]\n", "").replace("filesRemoved = 2\n", asks);
    policy_file(&world, "shop.toml", &policy);
    policy_file(
        &world,
        "shop.test.toml",
        r#"schema = 1

[[tests]]
name = "a person is asked, and without a yes nothing is done"
files = { "src/ask/a" = "one" }
steps = [
    { operation = "write", path = "src/ask/a", content = "two", expect = { effect = "ask", rule = "person" } },
    { operation = "edit", path = "src/ask/a", old = "none", content = "two", expect = { effect = "ask" } },
    { operation = "read", path = "src/ask/gone", expect = { effect = "ask" } },
    { operation = "rename", path = "src/ask/a", to = "src/a", expect = { effect = "deny", rule = "person" } },
    { operation = "write", path = "src/a", content = "two", expect = { effect = "allow" } },
]

[[tests]]
operation = "write"
path = "src/ask/a"
content = "two"
expect = { effect = "allow" }

[[tests]]
operation = "write"
path = "src/ask/a"
content = "two"
expect = { effect = "deny", rule = "person" }
"#,
    );
    let done = tests(&world, &["--all", "shop.toml"]);
    assert_eq!(done.code, 4);
    insta::assert_snapshot!(done.text(), @r"
    ok    shop.toml:30 write `src/a.rs`: allowedPaths.write
    ok    shop.test.toml:3 a person is asked, and without a yes nothing is done: allowedPaths.write
    FAIL  shop.test.toml:14 write `src/ask/a`
            write `src/ask/a` is asked about by `person` (shop.toml:18), expected allow
    FAIL  shop.test.toml:20 write `src/ask/a`
            write `src/ask/a` is asked about by `person` (shop.toml:18), expected deny by `person`
    shop.toml: 2 of 4 tests passed
    shop.toml: 2 of 6 rules decided a test
      no test: allowedPaths.read (shop.toml:5)
      no test: allowedPaths.remove (shop.toml:7)
      no test: extensions.deny (shop.toml:10)
      no test: payments (shop.toml:24)
    ");
}

#[test]
fn programs_get_the_same() {
    let world = World::new();
    policy_file(&world, "shop.toml", SHOP);
    policy_file(&world, "none.toml", "schema = 1\n");
    let result = tests(&world, &["--json", "shop.toml", "none.toml"]).ok().json();
    assert_eq!(result["ok"], true);
    let shop = &result["policies"][0];
    assert_eq!(shop["tests"][0]["rule"], "allowedPaths.write");
    assert_eq!(shop["coverage"][1]["tests"], 1);
    assert_eq!(result["policies"][1]["warnings"][0], "the policy has no tests");
    let done = tests(&world, &["none.toml"]).ok();
    assert!(done.text().contains("warning: the policy has no tests"), "{}", done.text());
}

#[test]
fn a_test_file_belongs_to_the_policy_it_is_called_after() {
    let world = World::new();
    let test = |path: &str| {
        format!(
            "schema = 1\n[[tests]]\noperation = \"read\"\npath = \"{path}\"\n\
             expect = {{ effect = \"deny\", rule = \"default\" }}\n"
        )
    };
    for (name, text) in [
        ("a.toml", "schema = 1\n".to_owned()),
        ("a.b.toml", "schema = 1\n".to_owned()),
        ("a.test.toml", test("of-a")),
        ("a.more.test.toml", test("more-of-a")),
        ("a.b.test.toml", test("of-a-b")),
        ("common.test.toml", test("of-all")),
    ] {
        policy_file(&world, name, &text);
    }
    let run = |policy: &str| tests(&world, &["--all", policy]).ok().text().to_owned();
    insta::assert_snapshot!(run("a.toml"), @r"
    ok    a.more.test.toml:2 read `more-of-a`: default
    ok    a.test.toml:2 read `of-a`: default
    ok    common.test.toml:2 read `of-all`: default
    a.toml: 3 of 3 tests passed
    a.toml: 0 of 0 rules decided a test
    ");
    insta::assert_snapshot!(run("./a.b.toml"), @r"
    ok    ./a.b.test.toml:2 read `of-a-b`: default
    ok    ./common.test.toml:2 read `of-all`: default
    ./a.b.toml: 2 of 2 tests passed
    ./a.b.toml: 0 of 0 rules decided a test
    ");
}

#[test]
fn tests_that_are_none() {
    let world = World::new();
    policy_file(&world, "p.toml", "schema = 1\n");
    let test = "[[tests]]\noperation = \"read\"\npath = \"a\"\nexpect = { effect = \"deny\" }\n";
    for (text, with) in [
        ("schema = 2\n".to_owned(), "schema 1 only"),
        ("schema = 1\nmode = \"enforce\"\n".to_owned(), "unknown field `mode`"),
        ("schema = 1\n[[tests]]\npath = \"a\"\n".to_owned(), "or `steps` that have them"),
        (format!("schema = 1\n{test}repeat = 1000000000000\n"), "more than 20000 operations"),
        (format!("schema = 1\n{test}raed = 1\n"), "unknown field `raed`"),
        (format!("schema = 1\n{}", test.replace("\"a\"", "\"../a\"")), "bad path"),
        (format!("schema = 1\n{}", test.replace("\"deny\"", "\"dney\"")), "one of allow, deny"),
        (format!("schema = 1\n{}", test.replace("read", "rename")), "needs `to`"),
        ("schema = 1\nx = [".to_owned(), "p.test.toml:2"),
        ("#".repeat(2 << 20), "larger than 1 MiB"),
    ] {
        policy_file(&world, "p.test.toml", &text);
        let done = tests(&world, &["p.toml"]);
        assert_eq!(done.code, 4, "{text:.200}");
        assert!(done.stderr.contains(with), "{with}: {}", done.stderr);
    }
    std::fs::write(world.base().join("p.test.toml"), b"schema = 1 # \xff").unwrap();
    let done = tests(&world, &["p.toml"]);
    assert!(done.code == 4 && done.stderr.contains("not UTF-8"), "{}", done.stderr);
}

#[test]
fn tests_in_a_policy_touch_no_disk() {
    let world = World::new();
    let text = "schema = 1\n[[tests]]\noperation = \"read\"\npath = \"a\"\ncontent = \"x\"\n\
        expect = { effect = \"deny\" }\n";
    policy_file(&world, "p.toml", text);
    let done = tests(&world, &["p.toml"]);
    assert_eq!(done.code, 4);
    assert!(done.stderr.contains("unknown key `content` in `tests`"), "{}", done.stderr);
}
