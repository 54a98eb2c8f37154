//! Names that try to be other names.

use super::Siege;

#[test]
fn forms_of_a_denied_path_are_denied() {
    let mut siege = Siege::begin();
    for name in [
        "secret/key.txt",
        "./secret/key.txt",
        "secret//key.txt",
        "secret/./key.txt",
        "/secret/key.txt",
        "secret/key.txt/",
        "secret/key.txt/.",
        "SECRET/key.txt",
        "Secret/KEY.TXT",
        "secret./key.txt",
        "secret /key.txt",
        "secret. . /key.txt",
        "ſecret/key.txt",
        "secret\u{200b}/key.txt",
        "\u{feff}secret/key.txt",
    ] {
        let path = siege.inside(name);
        for outcome in siege.try_path(&path) {
            let (code, record) = outcome.unwrap_or_else(|| panic!("{name:?} was served"));
            // The hidden part of the name may be the reason of the denial.
            let rule = record["rule"].as_str().unwrap();
            assert!(code == -32001 && matches!(rule, "keys" | "names.hidden"), "{name:?} {record}");
        }
    }
    siege.end();
}

#[test]
fn twins_of_a_denied_name_in_another_normal_form_are_denied() {
    let mut siege = Siege::begin();
    siege.world().file("żółć/key.txt", "TOP-SECRET");
    for name in ["żółć", "z\u{307}o\u{301}łc\u{301}", "ŻÓŁĆ", "Z\u{307}O\u{301}ŁC\u{301}"]
    {
        let path = siege.inside(&format!("{name}/key.txt"));
        siege.denied(&path, "keys");
    }
    // ZFS can find one by the other.
    let path = siege.inside("żółć/\u{ff4b}ey\u{ff0e}txt");
    siege.denied(&path, "keys");
    siege.end();
}

/// A letter that looks like another is another: it opens nothing.
#[test]
fn a_name_that_only_looks_like_a_denied_one_is_a_name_of_its_own() {
    let mut siege = Siege::begin();
    // The first letter is Cyrillic.
    let path = siege.inside("ѕecret/key.txt");
    let [read, written] = siege.try_path(&path);
    assert_eq!(read.unwrap().0, -32002);
    assert!(written.is_none());
    let world = siege.end();
    assert_eq!(world.read("ѕecret/key.txt"), "PWNED");
}

#[test]
fn ways_up_and_out_are_refused() {
    let mut siege = Siege::begin();
    let base = siege.world().base().canonicalize().unwrap();
    let twin = format!("{}-evil", siege.inside(""));
    let twin = twin.replace("/-evil", "-evil");
    std::fs::create_dir(&twin).unwrap();
    std::fs::write(format!("{twin}/a.txt"), "OUTSIDE").unwrap();
    let outside = base.join("outside.txt").to_str().unwrap().to_owned();
    let up = [
        "../outside.txt",
        "a/../../outside.txt",
        "secret/../../outside.txt",
        "..",
        "../ws/secret/key.txt",
        "./../outside.txt",
        "...//../../outside.txt",
    ];
    let mut paths: Vec<String> = up.iter().map(|name| siege.inside(name)).collect();
    paths.extend([
        outside.clone(),
        format!("{twin}/a.txt"),
        format!("/proc/self/root{outside}"),
        "/proc/self/cwd/proof.txt".to_owned(),
        "/proc/self/fd/3".to_owned(),
        "/etc/passwd".to_owned(),
        "//etc/passwd".to_owned(),
        "/".to_owned(),
        "/dev/stdin".to_owned(),
    ]);
    for path in &paths {
        siege.denied(path, "workspace.outside");
    }
    for path in ["proof.txt", "./proof.txt", "~/proof.txt", "", " ", "file:///etc/passwd", "C:\\x"]
    {
        siege.invalid(path);
    }
    let world = siege.end();
    assert_eq!(std::fs::read_to_string(format!("{twin}/a.txt")).unwrap(), "OUTSIDE");
    assert!(!world.base().join("a").exists());
}

/// The path is not decoded: what is written in it is its name.
#[test]
fn encoded_ways_up_are_plain_names() {
    let mut siege = Siege::begin();
    let names = [
        "%2e%2e/outside.txt",
        "..%2foutside.txt",
        "%252e%252e%252foutside.txt",
        "..%c0%afoutside.txt",
        "..\\outside.txt",
        "&#46;&#46;/outside.txt",
        "..;/outside.txt",
        ". ./outside.txt",
        "$HOME/outside.txt",
        "`id`",
    ];
    for name in names {
        let path = siege.inside(name);
        let [read, written] = siege.try_path(&path);
        assert_eq!(read.unwrap().0, -32002, "{name}");
        assert!(written.is_none(), "{name}: {written:?}");
        assert_eq!(siege.world().read(name), "PWNED");
    }
    let world = siege.end();
    let mut beside: Vec<_> =
        std::fs::read_dir(world.base()).unwrap().map(|e| e.unwrap().file_name()).collect();
    beside.sort();
    assert!(!beside.iter().any(|name| name.to_str().unwrap().contains("id")) || beside.len() < 8);
    assert!(!world.base().join("outside.txt.tmp").exists());
}

#[test]
fn names_that_steer_or_deceive_cannot_be_created_and_do_no_harm_in_the_log() {
    let mut siege = Siege::begin();
    let names = [
        "new\nline",
        "esc\u{1b}[2J",
        "bell\u{7}",
        "del\u{7f}",
        "csi\u{9b}31m",
        "rtl\u{202e}txt.exe",
        "iso\u{2066}late",
        "zero\u{200b}width",
        "join\u{200d}er",
        "bom\u{feff}",
        "tab\there",
        "x\n{\"v\":1,\"seq\":0,\"kind\":\"start\"}\n",
        "\r\u{1b}]0;title\u{7}",
    ];
    for name in names {
        let path = siege.inside(name);
        let [read, written] = siege.try_path(&path);
        assert_eq!(read.unwrap().0, -32002, "{name:?}");
        let (code, record) = written.unwrap();
        assert_eq!((code, &record["rule"]), (-32001, &"names.hidden".into()), "{name:?}");
        assert_eq!(record["path"], name);
    }
    // An existing one can be read: the name appears in the log only.
    siege.world().file("there\nnow", "INSIDE");
    let path = siege.inside("there\nnow");
    let request = siege.relay.read_at(&path);
    assert_eq!(siege.relay.ask_one(request)["result"]["content"], "INSIDE");
    let world = siege.end();
    // `records` would have failed on a line that is no record of ours.
    assert_eq!(world.records().iter().filter(|record| record["seq"] == 0).count(), 1);
    let shown = world.run(&["audit", "show"]).ok();
    let unsafe_bytes = |byte: &u8| *byte < 0x20 && *byte != b'\n';
    assert!(!shown.stdout.iter().any(unsafe_bytes), "{}", shown.text());
    assert!(!shown.text().contains(['\u{9b}', '\u{202e}', '\u{2066}', '\u{200b}']));
    assert_eq!(shown.text().lines().count(), world.records().len());
}

#[test]
fn nul_and_lengths_past_the_limit_are_refused() {
    let mut siege = Siege::begin();
    let component = "n".repeat(255);
    let path = siege.inside(&component);
    assert!(siege.try_path(&path)[1].is_none(), "255 bytes are a name");
    assert_eq!(siege.world().read(&component), "PWNED");
    for name in [
        "n".repeat(256),
        "ż".repeat(128),
        "x/".repeat(2048) + "x",
        "a/".repeat(10_000),
        "n".repeat(1_000_000),
        "nul\0byte".to_owned(),
        "proof.txt\0.png".to_owned(),
    ] {
        let path = siege.inside(&name);
        siege.invalid(&path);
    }
    // Parts without meaning in a path do not count.
    let request = siege.relay.read(&("./".repeat(100_000) + "proof.txt"));
    assert_eq!(siege.relay.ask_one(request)["result"]["content"], "PROOF");
    siege.end();
}
