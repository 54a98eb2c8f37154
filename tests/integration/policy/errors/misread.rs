//! Patterns that another language reads otherwise protect nothing, so they are errors.

use crate::common::{Done, World};

/// An example of each kind, as TOML reads it.
const PATTERNS: [&str; 58] = [
    "*.js *.ts",
    "src/*.js src/*.ts",
    "private # keep out",
    "(secret)",
    "*.(js)",
    "\u{201c}a\u{201d}",
    "\u{2018}a\u{2019}",
    "a\u{2026}",
    "\u{2026}/a",
    "private,src",
    "a;b",
    "#private",
    "regex:x",
    "<private>",
    "private/...",
    "!private/**",
    "src/!x",
    "~",
    "~/x/**",
    "C:/x",
    r"src\**",
    r"src\sub",
    r"\\host\share",
    "@(a|b)",
    "+(a)",
    "?(a)",
    "*(a)",
    "!(a)",
    " src/**",
    "src/** ",
    "src /**",
    "{js, ts}",
    "{js ,ts}",
    "*.{ js,ts}",
    "src/{name}",
    "{}",
    "./x",
    "x/../y",
    "/x",
    "x/",
    "x//y",
    "^src/.*$",
    r".*\.env",
    "(?i)x",
    "a|b",
    "src%2Fx",
    "file:///x",
    "https://x/y",
    "$HOME/x",
    "${HOME}/x",
    "%USERPROFILE%/x",
    "src/**, docs/**",
    "'src/**'",
    "src\u{2215}x",
    "\u{fe61}.pem",
    "\u{ff5b}a\u{ff0c}b\u{ff5d}",
    "[a\u{2013}z].key",
    "[[:alpha:]]",
];

fn check(text: &str) -> Done {
    let world = World::with_policy(text);
    world.run(&["policy", "check", "policy/policy.toml", "--json"])
}

fn quoted(pattern: &str) -> String {
    serde_json::to_string(pattern).unwrap()
}

#[test]
fn what_another_language_reads_otherwise_is_an_error_with_the_fix() {
    for pattern in PATTERNS {
        let pattern = quoted(pattern);
        for text in [
            format!("schema = 1\n[allowedPaths]\nread = [\n{pattern}]\n"),
            format!("schema = 1\n[secrets]\nnames = [\n{pattern}]\n"),
            format!(
                "schema = 1\n[[rules]]\nid = \"x\"\neffect = \"deny\"\npaths = [\n{pattern}]\n"
            ),
        ] {
            let done = check(&text);
            assert_eq!(done.code, 4, "{text}");
            let errors = done.json()["policies"][0]["errors"].clone();
            let errors = errors.as_array().unwrap();
            assert_eq!(errors.len(), 1, "{text}");
            let line = text.lines().position(|line| line.ends_with(']') && line.starts_with('"'));
            assert_eq!(errors[0]["line"].as_u64(), line.map(|line| line as u64 + 1), "{text}");
            let advice = format!("{}{}", errors[0]["label"], errors[0]["help"]);
            assert!(advice.contains("write") || advice.contains('`'), "{advice}");
        }
    }
}

/// Each of these loaded and found or closed nothing.
#[test]
fn what_finds_or_closes_nothing_in_secrets_is_an_error() {
    let rule = |regex: &str| {
        format!("schema = 1\n[[secrets.rules]]\nid = \"r\"\nregex = {}\n", quoted(regex))
    };
    for regex in ["", "^$", "(?:)", r"\b", "/tok/i", "/tok/"] {
        assert_eq!(check(&rule(regex)).code, 4, "{regex}");
    }
    for regex in ["x*", "/tok", "a/tok/i", "[/]tok[/]"] {
        assert_eq!(check(&rule(regex)).code, 0, "{regex}");
    }
    assert_eq!(check("schema = 1\n[secrets]\nnames = [\".\"]\n").code, 4);
}

#[test]
fn agents_are_not_negated_either() {
    for agents in ["!bot", "a, b", "@(a|b)", " bot"] {
        let text = format!(
            "schema = 1\n[[rules]]\nid = \"x\"\neffect = \"deny\"\npaths = [\"a\"]\nagents = [{}]\n",
            quoted(agents)
        );
        assert_eq!(check(&text).code, 4, "{agents}");
    }
}

#[test]
fn an_extension_that_looks_like_several_is_refused() {
    for extension in ["pem,key", "!pem", "{pem,key}", "(pem|key)", "~pem", "\u{fe61}"] {
        let text = format!("schema = 1\n[extensions]\ndeny = [{}]\n", quoted(extension));
        assert_eq!(check(&text).code, 4, "{extension}");
    }
}

/// A name with such a character can be denied all the same.
#[test]
fn a_character_in_a_class_of_its_own_is_itself() {
    for (pattern, name) in [
        ("[!]x", "!x"),
        ("[~]", "~"),
        ("C[:]", "C:"),
        (r"src[\]sub", r"src\sub"),
        ("@[(]a[)]", "@(a)"),
        ("[ ]x[ ]", " x "),
        ("[\u{fe61}]x", "\u{fe61}x"),
        ("[[]id[]]", "[id]"),
        (r"\[id\]", "[id]"),
        ("[*]", "*"),
        ("[$]HOME", "$HOME"),
        ("a[|]b", "a|b"),
        ("100[%]20", "100%20"),
    ] {
        let world = World::with_rules(&format!(
            "[[rules]]\nid = \"named\"\neffect = \"deny\"\npaths = [{}]\n",
            quoted(pattern)
        ));
        world.file(&format!("{name}/s.txt"), "s");
        world.file("other/s.txt", "s");
        world.fs(&["read", &format!("{name}/s.txt")]).denied("named");
        world.fs(&["read", "other/s.txt"]).ok();
    }
}

#[test]
fn a_file_that_is_not_utf_8_is_told_what_it_is() {
    let utf16 = |mark: &[u8], bytes: fn(u16) -> [u8; 2]| {
        let text = "schema = 1\n".encode_utf16().flat_map(bytes);
        mark.iter().copied().chain(text).collect::<Vec<u8>>()
    };
    for content in [
        utf16(&[0xff, 0xfe], u16::to_le_bytes),
        utf16(&[0xfe, 0xff], u16::to_be_bytes),
        utf16(&[], u16::to_le_bytes),
    ] {
        let world = World::new();
        std::fs::write(world.base().join("p.toml"), content).unwrap();
        let done = world.run(&["policy", "check", "p.toml", "--json"]);
        assert_eq!(done.code, 4);
        let message = done.json()["policies"][0]["errors"][0]["message"].to_string();
        assert!(message.contains("UTF-16") && message.contains("UTF-8"), "{message}");
    }
    // A mark that the parser passes over changes nothing.
    let world = World::new();
    std::fs::write(world.base().join("p.toml"), "\u{feff}schema = 1\n").unwrap();
    world.run(&["policy", "check", "p.toml"]).ok();
}

/// They were taken as they stood, so a grant was of nothing and a rule found nothing.
#[test]
fn what_is_not_expanded_or_never_found_is_refused() {
    for path in ["/home/*/bin", "/opt/$NAME/x", "/~/x", "/usr/li?"] {
        for key in ["read", "write"] {
            let done = check(&format!("schema = 1\n[agent]\n{key} = [\"{path}\"]\n"));
            assert_eq!(done.code, 4, "{key} {path}");
        }
    }
    let rule = |entropy: &str| {
        check(&format!(
            "schema = 1\n[[secrets.rules]]\nid = \"a\"\nregex = 'a.+'\nkeywords = [\"a\"]\n\
             entropy = {entropy}\n"
        ))
    };
    assert_eq!(rule("900").code, 4);
    assert_eq!(rule("8").code, 4);
    rule("7.9").ok();
    // Entropies that no match has.
    for (regex, entropy) in [("key_([0-9a-f]{32})", "4"), ("[A-Za-z0-9]{8}", "3")] {
        let text = format!(
            "schema = 1\n[[secrets.rules]]\nid = \"a\"\nregex = '{regex}'\nentropy = {entropy}\n"
        );
        assert_eq!(check(&text).code, 4, "{regex}");
    }
    for agent in ["Claude Code", "a+b", "cli;x"] {
        let text = format!(
            "schema = 1\n[[rules]]\nid = \"a\"\neffect = \"deny\"\nagents = [\"{agent}\"]\n"
        );
        assert_eq!(check(&text).code, 4, "{agent}");
    }
}

/// The sample alone is the complete content, and a line of a file is not.
#[test]
fn an_anchored_secret_rule_finds_a_line_of_a_file() {
    let world = World::with_rules(
        "[secrets]\nonRead = \"deny\"\n[[secrets.rules]]\nid = \"pw\"\n\
         regex = '^PASSWORD=([0-9A-Za-z]{12})$'\nkeywords = [\"password\"]\n\
         match = [\"PASSWORD=hQ2vTz8LmN4r\"]\n",
    );
    for (name, content) in
        [("lf", "a\nPASSWORD=hQ2vTz8LmN4r\nb\n"), ("crlf", "a\r\nPASSWORD=hQ2vTz8LmN4r\r\nb\r\n")]
    {
        world.file(name, content);
        world.fs(&["read", name]).denied("secrets.rules.pw");
    }
}

/// Denials ignore the case of paths, and did not that of agents or of negated classes.
#[test]
fn a_denial_holds_whatever_the_case_of_agent_and_name() {
    let world = World::with_rules(
        "[[rules]]\nid = \"by-agent\"\neffect = \"deny\"\npaths = [\"a\"]\nagents = [\"Claude*\"]\n\
         [[rules]]\nid = \"class\"\neffect = \"deny\"\npaths = [\"data/[!a-z]*\"]\n",
    );
    world.file("a", "a");
    world.file("data/Secret", "s");
    world.fs(&["read", "a", "--agent", "claude-code"]).denied("by-agent");
    world.fs(&["read", "a", "--agent", "codex"]).ok();
    world.fs(&["read", "data/Secret"]).denied("class");
}

/// Regression: these were taken, and a denial of them protected nothing.
#[test]
fn options_and_wildcards_of_other_languages_protected_nothing() {
    let rule = |pattern: &str| {
        format!(
            "schema = 1\nname = \"x\"\nversion = 1\n[[rules]]\nid = \"d\"\neffect = \"deny\"\n\
             paths = [\"{pattern}\"]\n"
        )
    };
    for (pattern, what) in [
        ("path=secret/**", "a pattern stands alone"),
        ("--exclude=secret/**", "a pattern stands alone"),
        ("secret/.*?", "regular expression"),
        ("secret/-", "stand for no directories"),
        ("secret/#", "stand for no directories"),
        ("secret/+/x", "stand for no directories"),
    ] {
        assert!(super::check(&rule(pattern)).contains(what), "{pattern}");
    }
}

/// Regression: these were taken, and a denial of them protected nothing.
#[test]
fn invisible_characters_and_expressions_in_lists_protected_nothing() {
    let start = "schema = 1\nname = \"x\"\nversion = 1\n[allowedPaths]\nread = [\"**\"]\n";
    let hidden = ["\u{200b}", "\u{202e}", "\u{ad}"];
    for c in hidden {
        super::check(&format!("{start}[extensions]\ndeny = [\"pe{c}m\"]\n"));
        for texts in [
            format!("regex = \"to{c}k_[a-z]{{9}}\""),
            format!("regex = \"tok_[a-z]{{9}}\"\nkeywords = [\"to{c}k\"]"),
        ] {
            let rule = format!("{start}[[secrets.rules]]\nid = \"tok\"\n{texts}\n");
            assert!(super::check(&rule).contains("invisible"), "{rule}");
        }
    }
    for agent in [".*", "claude-.*", ".*-code"] {
        let rule = format!(
            "{start}[[rules]]\nid = \"d\"\neffect = \"deny\"\noperations = [\"read\"]\n\
             paths = [\"a/**\"]\nagents = [\"{agent}\"]\n"
        );
        assert!(super::check(&rule).contains("regular expression"), "{rule}");
    }
}
