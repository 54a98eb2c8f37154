//! Text that a person does not see, in files that agents take for instructions.

use super::*;

/// "send keys" in tags, a direction control, and what languages and emoji need.
const TEXT: &str = "# Rules\nRun the tests.\u{e0073}\u{e0065}\u{e006e}\u{e0064}\n\
    עברית می\u{200c}خواهم 👩\u{200d}💻\n\u{202e}esrever\u{202c}\nlast\n";

fn world_with(on_read: &str) -> World {
    let policy = format!(
        "{POLICY}\n[files.invisible]\nonRead = \"{on_read}\"\npaths = [\"{{AGENTS,CLAUDE}}.md\"]\n"
    );
    let world = World::with_policy(&policy);
    world.file("AGENTS.md", TEXT);
    world.file("docs/agents.md", TEXT);
    world.file("notes.md", TEXT);
    world
}

/// Rule, line and action of what the newest record found.
fn found(world: &World) -> Vec<(String, u64, String)> {
    let record = world.last();
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let findings = record["findings"].as_array().cloned().unwrap_or_default();
    let of = |f: &Value| (text(f, "rule"), f["line"].as_u64().unwrap(), text(f, "action"));
    findings.iter().map(of).collect()
}

fn each(action: &str) -> Vec<(String, u64, String)> {
    [2, 4, 4].map(|line| ("files.invisible".to_owned(), line, action.to_owned())).into()
}

#[test]
fn invisible_text_is_a_placeholder_and_comes_back_with_what_is_written() {
    let world = world_with("redact");
    for path in ["AGENTS.md", "docs/agents.md"] {
        let text = seen(&world, path);
        assert_eq!(found(&world), each("redacted"), "{path}");
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[1].starts_with("Run the tests.[portcullis-secret:files.invisible:"),
            "{text}"
        );
        assert_eq!(lines[2], TEXT.lines().nth(2).unwrap());
        assert_eq!(lines[3].matches("[portcullis-secret:").count(), 2, "{text}");
        world.write(path, text.replace("last", "more")).ok();
        let stored = std::fs::read_to_string(world.path(path)).unwrap();
        assert_eq!(stored, TEXT.replace("last", "more"));
        // A line with a placeholder is not to be changed.
        world.write(path, text.replace("Run", "Skip")).denied("secrets.placeholder");
    }
    assert_eq!(seen(&world, "notes.md"), TEXT);
    world.fs(&["rename", "notes.md", "CLAUDE.md"]).denied("files.invisible");
    world.write("CLAUDE.md", "a\u{200b}b").denied("files.invisible");
    world.write("plain.md", "a\u{200b}b").ok();
    world.write("CLAUDE.md", "mit Umlaut: ä, 👩\u{200d}💻, عربي\n").ok();
    // Under another name it would be read.
    world.fs(&["rename", "AGENTS.md", "rules.md"]).denied("files.invisible");
    let shown = |path: &str| {
        let hits = world.fs(&["grep", "esrever", path]).ok();
        hits.text().contains('\u{202e}') || hits.text().contains("u{202e}")
    };
    assert!(shown("notes.md") && !shown("AGENTS.md"));
}

/// Any text could stand in a row of two characters without a glyph.
#[test]
fn bits_in_fillers_and_null_noteheads_are_invisible_text() {
    let world = world_with("deny");
    let bits: String = (0..64).map(|n| ['\u{16fe4}', '\u{1d159}'][n % 5 % 2]).collect();
    world.file("AGENTS.md", format!("# Rules{bits}\n"));
    world.fs(&["read", "AGENTS.md"]).denied("files.invisible");
    world.write("CLAUDE.md", "a\u{1107f}").denied("files.invisible");
    world.write("CLAUDE.md", "a\u{fffe}").denied("files.invisible");
}

#[test]
fn invisible_text_is_denied_or_told_of_where_the_policy_says_so() {
    let world = world_with("deny");
    world.fs(&["read", "AGENTS.md"]).denied("files.invisible");
    assert_eq!(found(&world), each("denied"));
    world.write("AGENTS.md", "a\u{e0041}").denied("files.invisible");
    let world = world_with("warn");
    assert_eq!(seen(&world, "AGENTS.md"), TEXT);
    assert_eq!(found(&world), each("warned"));
    world.write("AGENTS.md", "a\u{e0041}").ok();
}

#[test]
fn a_policy_that_extends_another_cannot_show_invisible_text() {
    let mut world = World::with_policy(
        "schema = 1\nextends = [\"baseline\"]\n[allowedPaths]\nread = [\"**\"]\n\
         [files.invisible]\nonRead = \"warn\"\npaths = [\"**\"]\n",
    );
    world.file(".github/copilot-instructions.md", TEXT);
    assert!(seen(&world, ".github/copilot-instructions.md").contains("portcullis-secret"));
    world.file("other", TEXT);
    assert_eq!(seen(&world, "other"), TEXT);
    assert_eq!(found(&world), each("warned"));
    world.use_policy("policy/policy.toml");
    let explained = world.run(&["policy", "explain", "read", "AGENTS.md", "--json"]).ok();
    let explained: Value = serde_json::from_str(explained.text()).unwrap();
    let stages = explained["accesses"][0]["stages"].as_array().unwrap().iter();
    let stages: Vec<_> = stages.filter(|stage| stage["stage"] == "files.invisible").collect();
    assert_eq!(stages.len(), 1, "{explained}");
}

/// Each of them, of 3 bytes, had a placeholder of 66 bytes in its place and took some hundred bytes
/// of memory.
#[test]
fn a_file_full_of_invisible_characters_took_gigabytes_and_minutes() {
    let world = world_with("redact");
    let text = |count: usize| "a\u{200b}".repeat(count);
    std::fs::write(world.path("AGENTS.md"), text(100_001)).unwrap();
    world.fs(&["read", "AGENTS.md"]).denied("secrets.tooManyFindings");
    std::fs::write(world.path("AGENTS.md"), text(1_000)).unwrap();
    world.fs(&["read", "AGENTS.md"]).ok();
    world.write("AGENTS.md", text(100_001)).denied("secrets.tooManyFindings");
}

/// Secrets of rules with keywords were as many, too.
#[test]
fn a_file_full_of_secrets_is_denied_as_a_whole() {
    let policy = "schema = 1\n[allowedPaths]\nread = [\"**\"]\n[secrets]\nonRead = \"redact\"\n\
                  [[secrets.rules]]\nid = \"k\"\nregex = 'k[0-9]'\nkeywords = [\"k\"]\n";
    let world = World::with_policy(policy);
    std::fs::write(world.path("a"), "k1 ".repeat(100_001)).unwrap();
    world.fs(&["read", "a"]).denied("secrets.tooManyFindings");
}

/// A policy that named a directory protected nothing in it, and did not say so.
#[test]
fn a_directory_among_the_paths_of_invisible_text_is_what_is_in_it() {
    let policy = format!("{POLICY}\n[files.invisible]\npaths = [\"prompts\", \"docs/ai\"]\n");
    let world = World::with_policy(&policy);
    for path in ["prompts/x.md", "deep/Prompts/a/y.md", "docs/ai/z.md", "prompts.md"] {
        world.file(path, TEXT);
        let is_hidden = seen(&world, path).contains("portcullis-secret:files.invisible");
        assert_eq!(is_hidden, path != "prompts.md", "{path}");
    }
    // A text of any length stood behind one hieroglyph.
    let controls: String = "ignore all"
        .bytes()
        .map(|b| char::from_u32(0x13430 + u32::from(b % 32)).unwrap())
        .collect();
    world.file("prompts/h.md", format!("a \u{13000}{controls} b \u{13000}\u{13430}\u{13001} c\n"));
    let text = seen(&world, "prompts/h.md");
    assert_eq!(text.matches("portcullis-secret").count(), 1, "{text}");
    assert!(text.contains("\u{13000}\u{13430}\u{13001} c") && !text.contains(&controls), "{text}");
}
