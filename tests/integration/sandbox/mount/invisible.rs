//! Text that a person does not see, as programs in a mount read and write it.

use super::*;

#[test]
fn programs_read_placeholders_for_invisible_text_and_write_it_back() {
    const TEXT: &str = "# Rules\nRun the tests.\u{e0073}\u{e0065}\n\u{5e9} 👩\u{200d}💻\n\u{202e}esrever\u{202c}\n";
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let rule = "\n[files.invisible]\npaths = [\"AGENTS.md\"]\n";
        std::fs::write(world.at("policies/policy.toml"), format!("{POLICY}{rule}")).unwrap();
        std::fs::write(world.at("ws/AGENTS.md"), TEXT).unwrap();
        if is_root() && who != As::Root {
            world.give_away();
        }
        let script = r#"test $(stat -c %s AGENTS.md) = $(wc -c <AGENTS.md) && sed 's/:[0-9a-f]*]/]/g' AGENTS.md
            grep -c "$(printf '\360\237\221\251\342\200\215')" AGENTS.md
            text=$(cat AGENTS.md) && printf '%s\nmore\n' "$text" >AGENTS.md && echo written
            cp AGENTS.md copy.md || echo not copied; mv AGENTS.md moved.md || echo not moved
            printf 'a\342\200\213b' | dd of=AGENTS.md oflag=append conv=notrunc,fsync 2>/dev/null ||
            echo not added; tail -n 1 AGENTS.md"#;
        let ended = world.exec(&[], script);
        let redacted = "[portcullis-secret:files.invisible]";
        let shown = format!(
            "# Rules\nRun the tests.{redacted}\n\u{5e9} 👩\u{200d}💻\n{redacted}esrever{redacted}\n\
             1\nwritten\nnot copied\nnot moved\nnot added\nmore\n"
        );
        assert_eq!(ended.stdout, shown, "{who:?} {ended:?}");
        let stored = std::fs::read_to_string(world.at("ws/AGENTS.md")).unwrap();
        assert_eq!(stored, format!("{TEXT}more\n"), "{who:?}");
        assert!(!world.base().join("ws/moved.md").exists());
        let records = world.records();
        let found = |record: &&Value| {
            said(record, "op") == "read" && record["findings"][0]["rule"] == "files.invisible"
        };
        let read = records.iter().find(found).unwrap();
        assert_eq!(read["findings"][0]["action"], "redacted", "{read}");
    }
}
