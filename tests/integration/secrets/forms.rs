//! Content that is not text, and content that takes long to look through.

use crate::common::World;

const TOKEN: &str = "tok_a1b2c3d4";

fn policy(on_read: &str) -> String {
    super::POLICY
        .replace(
            "[secrets]",
            "[files]\nbinary = { read = \"base64\", write = \"base64\" }\n[secrets]",
        )
        .replace("onRead = \"redact\"", on_read)
}

fn utf16(text: &str, unit: fn(u16) -> [u8; 2]) -> Vec<u8> {
    text.encode_utf16().flat_map(unit).collect()
}

/// The same secret in bytes of many kinds, none of them text.
fn forms() -> Vec<(&'static str, Vec<u8>)> {
    let text = format!("one\ntoken = {TOKEN}\nthree\n");
    vec![
        ("nul", [b"\0".to_vec(), text.clone().into()].concat()),
        ("nul-after", [text.clone().into(), b"\0".to_vec()].concat()),
        ("latin-1", [b"caf\xe9 ".to_vec(), text.clone().into()].concat()),
        ("utf-8-and-bytes", [text.clone().into(), b"\xff".to_vec()].concat()),
        ("utf-16le", utf16(&text, u16::to_le_bytes)),
        ("utf-16be", utf16(&text, u16::to_be_bytes)),
        ("utf-16le-bom", [b"\xff\xfe".to_vec(), utf16(&text, u16::to_le_bytes)].concat()),
        ("utf-16be-bom", [b"\xfe\xff".to_vec(), utf16(&text, u16::to_be_bytes)].concat()),
        ("utf-16-odd", [b"\0".to_vec(), utf16(&text, u16::to_le_bytes)].concat()),
    ]
}

#[test]
fn what_is_not_text_is_denied_whole_in_part_and_in_base64() {
    for on_read in ["onRead = \"redact\"", "onRead = \"deny\""] {
        let world = World::with_policy(&policy(on_read));
        for (name, content) in forms() {
            world.file(name, &content);
            for args in [
                &["read", name][..],
                &["read", name, "--base64"],
                &["read", name, "--line", "1", "--limit", "1"],
            ] {
                let done = world.fs(args).denied("secrets.rules.token");
                assert!(done.stdout.is_empty() && !done.stderr.contains(TOKEN), "{done:?}");
                let finding = &world.last()["findings"][0];
                assert_eq!(
                    (&finding["rule"], &finding["action"]),
                    (&"token".into(), &"denied".into())
                );
            }
            if on_read.contains("redact") {
                let reason = world.last()["reason"].as_str().unwrap().to_owned();
                assert!(reason.contains("only text can be redacted"), "{name}: {reason}");
            }
            world.fs(&["edit", name, "--old", "one", "--new", "two"]).denied("secrets.rules.token");
            world.run_with_input(&["fs", "append", name], "x").denied("secrets.rules.token");
            world.write("new", &content).denied("secrets.rules.token");
            assert_eq!(std::fs::read(world.path(name)).unwrap(), content);
            assert!(!world.path("new").exists());
            // Nor does the backup store show it.
            world.write(name, "plain\n").ok();
            for args in [&["backup", "show", name][..], &["backup", "diff", name]] {
                let done = world.run(args);
                assert!(!String::from_utf8_lossy(&done.stdout).contains(TOKEN), "{name}: {done:?}");
                assert!(!done.stderr.contains(TOKEN), "{name}: {done:?}");
            }
        }
        assert!(!super::state_shows(&world, TOKEN));
    }
}

#[test]
fn without_a_secret_such_bytes_pass_and_under_warn_they_are_recorded() {
    let world = World::with_policy(&policy("onRead = \"warn\"\nonWrite = \"warn\""));
    for (name, content) in forms() {
        world.file(name, &content);
        assert!(!world.fs(&["read", name, "--base64"]).ok().stdout.is_empty());
        assert_eq!(world.last()["findings"][0]["action"], "warned", "{name}");
    }
    let world = World::with_policy(&policy("onRead = \"redact\""));
    world.file("image", b"\x89PNG\0\0\xff");
    world.fs(&["read", "image", "--base64"]).ok();
    assert_eq!(world.last().get("findings"), None);
}

#[test]
fn a_placeholder_in_what_is_not_text_is_none() {
    let world = World::with_policy(&policy("onRead = \"redact\""));
    world.file("a", format!("{TOKEN}\n"));
    let line = world.fs(&["read", "a"]).ok().text().to_owned();
    world.file("a", format!("{TOKEN}\n\0"));
    world.write("a", &line).denied("secrets.placeholder");
}

/// An engine that is let loose on all of this content at once is busy for many
/// minutes.
#[test]
fn one_slow_expression_is_given_up_in_time() {
    let expressions = [
        // No longest match, and one of 9,000 bytes.
        r"(?:[a-z]{1,90}[0-9]?){90}[.][\s\S]*[!]",
        r"(?:[a-z]{1,90}[0-9]?){90}[.]{3}",
    ];
    // Letters and digits in no order.
    let mut state = 1_u64;
    let content: Vec<u8> = (0..8 << 20)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            b"abcdefghijklmnopqrstuvwxyz01"[usize::try_from(state >> 33).unwrap() % 28]
        })
        .collect();
    for expression in expressions {
        let world = World::with_policy(&format!(
            "schema = 1\n[allowedPaths]\nread = [\"**\"]\nwrite = [\"**\"]\n[secrets]\n\
             maxScanTime = \"50ms\"\n[[secrets.rules]]\nid = \"slow\"\nregex = '{expression}'\n"
        ));
        world.file("a", &content);
        world.fs(&["read", "a"]).denied("secrets.maxScanTime");
        world.write("b", &content).denied("secrets.maxScanTime");
        assert!(!world.path("b").exists());
    }
}
