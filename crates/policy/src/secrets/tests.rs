//! Reads and writes with secrets, and attacks by agents.

use proptest::prelude::*;

use super::*;
use crate::{Policy, PolicySource, compile, model::WorkspacePath};

const RULES: &str = r#"
schema = 1
[secrets]
onRead = "redact"
[[secrets.rules]]
id = "token"
regex = '\btok_[0-9a-z]{8}\b'
keywords = ["tok_"]
[[secrets.rules]]
id = "block"
regex = '-----BEGIN KEY-----[\s\S]{4,200}?-----END KEY-----'
keywords = ["begin key"]
[[secrets.rules]]
id = "next-line"
regex = 'password:\s*([a-z0-9]{6,20})'
keywords = ["password"]
[[secrets.rules]]
id = "perhaps"
regex = 'hint=([a-z]{5})'
warnOnly = true
"#;

const TOKEN: &str = "tok_12345678";

fn policy(text: &str) -> Policy {
    compile(&PolicySource::from_text("p", text)).unwrap_or_else(|error| panic!("{error}"))
}

struct TestBench {
    policy: Policy,
    key: SecretKey,
}

impl TestBench {
    fn new(text: &str) -> Self {
        Self { policy: policy(text), key: SecretKey::new(&[9; 32]) }
    }

    fn at<T>(&self, path: &str, run: impl FnOnce(&Secrets, &Subject<'_>) -> T) -> T {
        let path = WorkspacePath::parse(path).unwrap();
        let subject = Subject { path: &path, key: &self.key, overdue: &|| false };
        run(self.policy.secrets().unwrap(), &subject)
    }

    fn read_at(&self, path: &str, content: &[u8]) -> Vec<u8> {
        self.at(path, |secrets, subject| secrets.disclose(subject, content.to_vec()))
            .verdict
            .unwrap()
            .bytes
    }

    fn read(&self, content: &str) -> String {
        String::from_utf8(self.read_at("f", content.as_bytes())).unwrap()
    }

    fn write(&self, old: &str, text: &str) -> Result<String, (String, String)> {
        self.at("f", |secrets, subject| {
            secrets.store(subject, Some(old.as_bytes()), text.as_bytes().into())
        })
        .verdict
        .map(|bytes| String::from_utf8(bytes.into_owned()).unwrap())
        .map_err(|denial| (denial.rule, denial.reason.unwrap()))
    }

    #[track_caller]
    fn refused(&self, old: &str, text: &str) -> String {
        let (rule, reason) = self.write(old, text).unwrap_err();
        assert!(!reason.contains("tok_1") && !reason.contains("hunter"), "{reason}");
        if rule == "secrets.placeholder" { reason } else { rule }
    }
}

fn bench() -> TestBench {
    TestBench::new(RULES)
}

#[test]
fn a_reader_sees_placeholders_and_a_writer_gets_the_secrets_back() {
    let old = format!(
        "# settings\na = {TOKEN}\r\nb = 1\n-----BEGIN KEY-----\nabcd\n-----END KEY-----\nend"
    );
    let seen = bench().read(&old);
    assert!(!seen.contains("12345678") && !seen.contains("abcd"), "{seen}");
    let lines: Vec<_> = seen.split('\n').collect();
    assert_eq!(lines.len(), 5);
    assert!(lines[1].starts_with("a = [portcullis-secret:token:") && lines[1].ends_with("]\r"));
    let text = seen.replace("b = 1", "b = 2") + "\nmore\n";
    let stored = bench().write(&old, &text).unwrap();
    assert_eq!(stored, old.replace("b = 1", "b = 2") + "\nmore\n");
    // Complete lines may be reordered or removed.
    let moved = [lines[2], lines[1], "x"].join("\n");
    assert_eq!(bench().write(&old, &moved).unwrap(), format!("b = 1\na = {TOKEN}\r\nx"));
}

#[test]
fn a_placeholder_says_nothing_but_where_and_which() {
    let seen = bench().read(&format!("{TOKEN} {TOKEN} tok_87654321"));
    let words: Vec<_> = seen.split(' ').collect();
    assert_eq!(words[0], words[1]);
    assert_ne!(words[0], words[2]);
    let elsewhere = String::from_utf8(bench().read_at("g", TOKEN.as_bytes())).unwrap();
    assert_ne!(elsewhere, words[0]);
    let other_key = TestBench { key: SecretKey::new(&[8; 32]), ..bench() };
    assert_ne!(other_key.read(TOKEN), words[0]);
}

#[test]
fn group_0_is_all_that_matches() {
    let rules = |group: &str| {
        format!(
            "schema = 1\n[secrets]\nonRead = \"redact\"\n[[secrets.rules]]\nid = \"two\"\n\
             regex = 'tok=(abc)(def)'\n{group}"
        )
    };
    let seen = TestBench::new(&rules("group = 0\n")).read("a tok=abcdef b");
    assert!(seen.starts_with("a [portcullis-secret:two:") && seen.ends_with("] b"), "{seen}");
    assert!(TestBench::new(&rules("group = 1\n")).read("a tok=abcdef b").ends_with("]def b"));
}

#[test]
fn a_rule_that_could_show_its_secret_is_refused() {
    for (regex, why) in [
        ("(KEY|TOKEN)=([a-z]+)", "more than one group"),
        ("K=([a-z]+?)", "lazy repetition"),
        (r#"L="([^"]*?)"#, "lazy repetition"),
    ] {
        let text = format!("schema = 1\n[[secrets.rules]]\nid = \"r\"\nregex = '{regex}'\n");
        let refused = compile(&PolicySource::from_text("p", &text)).unwrap_err().to_string();
        assert!(refused.contains(why), "{regex}: {refused}");
    }
}

#[test]
fn placeholders_that_are_misused_are_refused() {
    let old = format!("a = {TOKEN}\nb = 1\n");
    let seen = bench().read(&old);
    let line = seen.lines().next().unwrap();
    let placeholder = line.strip_prefix("a = ").unwrap();
    let unknown = "is none of this file";
    let moved = "moved out of its line";
    let twice = "more often than it stands";
    for (text, why) in [
        (format!("# {placeholder}\n"), moved),
        (format!("{placeholder}\n"), moved),
        (format!("{line} \n"), moved),
        (format!("{line}\r\n"), moved),
        (format!("x{line}\n"), moved),
        (format!("{line}\n{line}\n"), twice),
        (format!("{}\n", line.replace("token", "block")), unknown),
        (format!("{}\n", line.to_uppercase()), unknown),
        (format!("a = {}\n", placeholder.trim_end_matches(']')), unknown),
        ("a = [portcullis-secret:token:00000000000000000000000000000000]\n".to_owned(), unknown),
        (String::from_utf8(bench().read_at("other", old.as_bytes())).unwrap(), unknown),
    ] {
        let reason = bench().refused(&old, &text);
        assert!(reason.contains(why), "{text}: {reason}");
    }
    // A new file has no placeholders.
    let new =
        bench().at("f", |secrets, subject| secrets.store(subject, None, seen.as_bytes().into()));
    assert_eq!(new.verdict.unwrap_err().rule, "secrets.placeholder");
}

#[test]
fn a_long_line_beside_many_secrets_is_refused_after_one_look_at_it() {
    let old = format!("a = {TOKEN}\n").repeat(5_000);
    let long = format!("[portcullis-secret:{}", "[x]".repeat(500_000));
    assert!(bench().refused(&old, &long).contains("is none of this file"));
    let placeholder = bench().read(&format!("{TOKEN}\n"));
    assert!(
        bench().refused(&old, &format!("{long}{placeholder}")).contains("moved out of its line")
    );
}

#[test]
fn text_like_a_placeholder_that_lay_in_the_file_stays_where_it_is() {
    let old = format!("see [portcullis-secret:token:x] in\na = {TOKEN}\n");
    let seen = bench().read(&old);
    assert_eq!(bench().write(&old, &format!("{seen}b\n")).unwrap(), format!("{old}b\n"));
    assert!(
        bench()
            .refused(&old, &format!("{seen}see [portcullis-secret:token:x] in\n"))
            .contains("more often")
    );
    // A copy that was planted beside the secret cannot be distinguished from it.
    let planted = format!("{}{old}", bench().read(&format!("a = {TOKEN}\n")));
    let seen = bench().read(&planted);
    assert!(bench().refused(&planted, &seen).contains("cannot be distinguished"));
}

#[test]
fn a_secret_that_would_not_be_found_again_is_not_put_back() {
    let old = "password:\n  hunter2hunter2\nx\n";
    let seen = bench().read(old);
    assert!(!seen.contains("hunter2"), "{seen}");
    let line = seen.lines().nth(1).unwrap();
    assert_eq!(bench().write(old, &format!("y\n{seen}")).unwrap(), format!("y\n{old}"));
    for text in
        [format!("{line}\n"), format!("passwort:\n{line}\n"), format!("x\n{line}\npassword:\n")]
    {
        assert!(bench().refused(old, &text).contains("no longer be recognised"), "{text}");
    }
}

#[test]
fn what_readers_are_refused_stays_found_when_more_is_added() {
    for on_write in ["deny", "warn"] {
        let settings = format!("onRead = \"deny\"\nonWrite = \"{on_write}\"");
        let bench = TestBench::new(&RULES.replace("onRead = \"redact\"", &settings));
        let old = format!("a = 1\nb = {TOKEN}");
        assert_eq!(bench.refused(&old, &format!("{old}X")), "secrets.rules.token");
        // The same holds for one secret of two.
        let two = format!("{TOKEN}\n{old}");
        assert_eq!(bench.refused(&two, &format!("{two}X")), "secrets.rules.token");
        let added = bench.at("f", |secrets, subject| {
            secrets.store(subject, Some(old.as_bytes()), format!("{old}X").into_bytes().into())
        });
        assert_eq!(added.findings.len(), 1);
        assert_eq!((added.findings[0].line, added.findings[0].action), (2, "denied"));
        assert_eq!(bench.write(&old, &format!("{old}\nX")).is_ok(), on_write == "warn");
        let hint = "hint=abcde";
        assert!(bench.write(hint, "hint=abc").is_ok(), "a rule that warns withholds nothing");
    }
}

#[test]
fn guesses_are_refused_alike_whether_they_are_right_or_not() {
    let old = format!("a = {TOKEN}\n");
    let right = bench().write(&old, &old).unwrap_err();
    let wrong = bench().write(&old, "a = tok_00000000\n").unwrap_err();
    assert_eq!(right, wrong);
    assert_eq!(right.0, "secrets.rules.token");
    // The same holds if the line of the secret is kept, and beside it.
    let seen = bench().read(&old);
    assert_eq!(bench().refused(&old, &format!("{seen}{TOKEN}\n")), "secrets.rules.token");
}

#[test]
fn what_is_not_text_is_not_redacted_but_refused() {
    let text = RULES.replace(
        "[secrets]",
        "[files]\nbinary = { read = \"base64\", write = \"base64\" }\n[secrets]",
    );
    let bench = TestBench::new(&text);
    let utf16 =
        |text: &str| -> Vec<u8> { text.encode_utf16().flat_map(u16::to_le_bytes).collect() };
    for content in [
        [b"\xff\xfe".to_vec(), utf16(&format!("a = {TOKEN}"))].concat(),
        utf16(TOKEN),
        [b"\0".to_vec(), utf16(TOKEN)].concat(),
    ] {
        let read = bench.at("f", |secrets, subject| secrets.disclose(subject, content.clone()));
        assert_eq!(read.verdict.unwrap_err().rule, "secrets.rules.token");
        assert!(read.findings.iter().all(|finding| finding.action == "denied"));
        let written =
            bench.at("f", |secrets, subject| secrets.store(subject, None, content.into()));
        assert_eq!(written.verdict.unwrap_err().rule, "secrets.rules.token");
    }
    // Bytes that are not text at all, with a secret in the clear; and a text in another encoding.
    for content in [
        [b"\xff\0".to_vec(), TOKEN.into(), b"\0".to_vec()].concat(),
        [b"caf\xe9 ".to_vec(), TOKEN.into()].concat(),
    ] {
        let read = bench.at("f", |secrets, subject| secrets.disclose(subject, content.clone()));
        let denial = read.verdict.unwrap_err();
        assert_eq!(denial.rule, "secrets.rules.token");
        assert!(denial.reason.unwrap().contains("only text can be redacted"));
        assert_eq!(read.findings[0].action, "denied");
    }
    // Readers got no placeholder of such a file, so none is known.
    let seen = bench.read(TOKEN);
    let old = [TOKEN.as_bytes(), b"\n\0"].concat();
    let written = bench
        .at("f", |secrets, subject| secrets.store(subject, Some(&old), seen.into_bytes().into()));
    assert_eq!(written.verdict.unwrap_err().rule, "secrets.placeholder");
}

#[test]
fn many_secrets_are_kept_and_moved_in_little_time() {
    // An algorithm that compares all pairs would take minutes.
    let line = |number: usize| format!("a = tok_{number:08}\nsame = {TOKEN}\n");
    let old: String = (0..15_000).map(line).collect();
    let bench = bench();
    let seen = bench.read(&old);
    assert!(!seen.contains("tok_"));
    assert_eq!(bench.write(&old, &format!("{seen}x\n")).unwrap(), format!("{old}x\n"));
    let to = WorkspacePath::parse("g").unwrap();
    bench.at("f", |secrets, subject| secrets.renamed(subject, &to, old.as_bytes())).unwrap();
}

#[test]
fn findings_name_rule_line_and_a_keyed_hash() {
    let content = format!("one\n{TOKEN}\nhint=abcde\n{TOKEN}\n");
    let read =
        bench().at("f", |secrets, subject| secrets.disclose(subject, content.clone().into()));
    let told: Vec<_> = read.findings.iter().map(|f| (f.rule.as_str(), f.line, f.action)).collect();
    assert_eq!(
        told,
        [("token", 2, "redacted"), ("perhaps", 3, "warned"), ("token", 4, "redacted")]
    );
    assert_eq!(read.findings[0].hash, read.findings[2].hash);
    assert_eq!(read.findings[0].hash.len(), 32);
    assert!(read.verdict.unwrap().redacted);
    let seen = bench().read(&content);
    let write = bench().at("f", |secrets, subject| {
        secrets.store(subject, Some(content.as_bytes()), seen.as_bytes().into())
    });
    let told: Vec<_> = write.findings.iter().map(|f| (f.line, f.action)).collect();
    assert_eq!(told, [(2, "preserved"), (3, "warned"), (4, "preserved")]);
}

#[test]
fn a_scan_that_takes_too_long_denies() {
    let path = WorkspacePath::parse("f").unwrap();
    let bench = bench();
    let subject = Subject { path: &path, key: &bench.key, overdue: &|| true };
    let secrets = bench.policy.secrets().unwrap();
    let read = secrets.disclose(&subject, b"nothing".into());
    assert_eq!(read.verdict.unwrap_err().rule, "secrets.maxScanTime");
    let write = secrets.store(&subject, None, b"nothing".into());
    assert_eq!(write.verdict.unwrap_err().rule, "secrets.maxScanTime");
}

#[test]
fn one_keyword_in_another_hides_no_rule() {
    let text = r#"
schema = 1
[[secrets.rules]]
id = "long"
regex = 'abcd[0-9]'
keywords = ["abcd"]
[[secrets.rules]]
id = "short"
regex = 'bc.[0-9]+'
keywords = ["bc"]
"#;
    let read =
        TestBench::new(text).at("f", |secrets, s| secrets.disclose(s, b"xABCD1 abcd12".to_vec()));
    let told: Vec<_> = read.findings.iter().map(|f| f.rule.as_str()).collect();
    assert_eq!(told, ["long", "short"]);
    assert_eq!(read.verdict.unwrap_err().rule, "secrets.rules.long");
}

fn with_rule(rule: &str) -> TestBench {
    TestBench::new(&format!(
        "schema = 1\n[secrets]\nonRead = \"redact\"\n[[secrets.rules]]\nid = \"r\"\n{rule}\n"
    ))
}

#[test]
fn the_delimiter_behind_one_secret_is_the_one_before_the_next() {
    let bench = with_rule(r"regex = '(?:^|[ =])([a-z]{3}[0-9]{3})(?:[ ;]|$)'");
    let seen = bench.read("abc123 def456 ghi789");
    assert!(!["123", "456", "789"].iter().any(|part| seen.contains(part)), "{seen}");
}

#[test]
fn a_match_that_is_no_secret_hides_none_that_begins_in_it() {
    let regex = r"(?:key|token)[a-z_]{0,20}\s?[:=]\s?([a-z0-9_]{8,})(?:\s|$)";
    let bench = with_rule(&format!("regex = '''{regex}'''\nentropy = 3.2"));
    let seen = bench.read("token: key_key_key = a1b2c3d4e5f6\n");
    assert!(seen.starts_with("token: key_key_key = [portcullis-secret:r:"), "{seen}");
    // A refused match is refused with all its ends, and quickly.
    let bench = with_rule("regex = '[a-z]{8,}'\nentropy = 3.2");
    let text = format!("{}abcdefghijkl", "a".repeat(200_000));
    assert_eq!(bench.read(&text), text);
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_first_line() {
    let bench = with_rule(r"regex = '^PASS=(\S+)$'");
    let seen = bench.read("\u{feff}PASS=abc\nPASS=def\n");
    assert!(seen.starts_with("\u{feff}PASS=[portcullis-secret:r:"), "{seen}");
    assert!(!seen.contains("def"), "{seen}");
    let old = "\u{feff}PASS=abc\nx\n";
    assert_eq!(bench.write(old, &bench.read(old)).unwrap(), old);
    assert!(bench.write("", old).is_err());
    for order in [u16::to_le_bytes, u16::to_be_bytes] {
        let wide: Vec<u8> = "\u{feff}PASS=abc\n".encode_utf16().flat_map(order).collect();
        let read = bench.at("f", |secrets, subject| secrets.disclose(subject, wide));
        assert_eq!(read.verdict.unwrap_err().rule, "secrets.rules.r");
    }
    // A secret that the mark is beside, or in, is found once.
    for regex in [r"x[0-9]+", r"^\S*x[0-9]+"] {
        let bench = with_rule(&format!("regex = '{regex}'"));
        let read =
            bench.at("f", |secrets, subject| secrets.disclose(subject, "\u{feff}x1 x2".into()));
        let count = if regex.starts_with('^') { 1 } else { 2 };
        assert_eq!(read.findings.len(), count, "{:?}", read.findings);
    }
}

proptest! {
    /// A search around keywords finds what a search everywhere finds.
    #[test]
    fn windows_lose_nothing(text in "([kK][eE]y|=|[ab]| |\n){0,60}") {
        let rule = |regex: &str, keywords: &[&str]| format!(
            "schema = 1\n[[secrets.rules]]\nid = \"r\"\nregex = '''{regex}'''\nkeywords = {keywords:?}\n"
        );
        let regex = r"(?i)[ab]{0,3}key\s{0,2}=\s?([ab]{1,4})\b";
        let find = |keywords: &[&str]| {
            let bench = TestBench::new(&rule(regex, keywords));
            let read = bench.at("f", |secrets, s| secrets.disclose(s, text.clone().into_bytes()));
            read.findings.into_iter().map(|f| (f.line, f.hash)).collect::<Vec<_>>()
        };
        prop_assert_eq!(find(&["key"]), find(&[]));
    }

    /// Changes of lines around secrets make only these lines differ.
    #[test]
    fn only_what_was_changed_differs(
        lines in prop::collection::vec(
            prop_oneof![
                "[a-f =:]{0,12}",
                "[a-c]{0,3} = tok_[0-9]{8}",
                Just("-----BEGIN KEY-----\nqwertz\n-----END KEY-----".to_owned()),
            ],
            0..12,
        ),
        changes in prop::collection::vec((any::<prop::sample::Index>(), "[u-z ]{0,8}"), 0..4),
        ending in any::<bool>(),
    ) {
        let mut old = lines.join("\n");
        if ending { old.push('\n'); }
        let bench = bench();
        let seen = bench.read(&old);
        prop_assert!(!seen.contains("tok_") && !seen.contains("qwertz"));
        let (mut text, mut expected): (Vec<String>, Vec<String>) =
            (seen.split('\n').map(str::to_owned).collect(), Vec::new());
        // The lines of the original; a block is one line of the view.
        let mut rest = old.as_str();
        for line in &text {
            let block = line.contains("portcullis-secret:block");
            let end = if block { rest.find("END KEY-----").unwrap() + 12 } else { rest.find('\n').unwrap_or(rest.len()) };
            expected.push(rest.get(..end).unwrap().to_owned());
            rest = rest.get(end + 1..).unwrap_or("");
        }
        for (at, new) in changes {
            let at = at.index(text.len());
            text[at] = new.clone();
            expected[at] = new;
        }
        prop_assert_eq!(bench.write(&old, &text.join("\n")).unwrap(), expected.join("\n"));
    }

    /// Stored content shows the next reader no more than what was read, whatever lines an agent
    /// rearranges.
    #[test]
    fn no_arrangement_of_lines_discloses(
        picks in prop::collection::vec((0_usize..9, any::<bool>()), 0..14),
    ) {
        let secrets = ["tok_00112233", "hunter2hunter2", "tok_99887766", "qwertzuiop"];
        let old = "a tok_00112233 b\npassword:\nhunter2hunter2\n-----BEGIN KEY-----\nqwertzuiop\n-----END KEY-----\ntok_99887766\nx\n";
        let bench = bench();
        let seen = bench.read(old);
        let mut pieces: Vec<&str> = seen.lines().collect();
        pieces.extend(["password:", "-----BEGIN KEY-----", "-----END KEY-----", "tok_"]);
        let text: String = picks
            .iter()
            .map(|(pick, newline)| format!("{}{}", pieces[pick % pieces.len()], if *newline { "\n" } else { "" }))
            .collect();
        if let Ok(stored) = bench.write(old, &text) {
            let shown = bench.read(&stored);
            for secret in secrets {
                prop_assert!(!shown.contains(secret), "{stored:?} shows {shown:?}");
            }
        }
    }
}
