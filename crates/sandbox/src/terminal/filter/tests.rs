//! Every allowed sequence, one by one, and proof that no other passes.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn shown(written: &[u8]) -> String {
    String::from_utf8(Filter::new(true).pass(written).output).unwrap()
}

fn passes(sequence: &str) {
    assert_eq!(shown(sequence.as_bytes()), sequence, "{sequence:?}");
}

fn is_dropped(sequence: &str) {
    let around = format!("a{sequence}b");
    assert_eq!(shown(around.as_bytes()), "ab", "{sequence:?}");
}

#[test]
fn text_and_what_full_screen_programs_need_passes() {
    for sequence in [
        "text, ümlaut, 漢字, 👩‍💻\r\n\t\x08\x07\x0b\x0c",
        "\x1b[1;31mred\x1b[m\x1b[38;5;200m\x1b[38;2;1;2;3m\x1b[4:3m\x1b[58:2:0:1:2:3m",
        "\x1b[2;3H\x1b[5A\x1b[5B\x1b[5C\x1b[5D\x1b[1G\x1b[7d\x1b[3`\x1b[4a\x1b[2e\x1b[1;1f",
        "\x1b[J\x1b[1J\x1b[2J\x1b[K\x1b[3L\x1b[3M\x1b[3P\x1b[3@\x1b[3X\x1b[2S\x1b[2T\x1b[9b",
        "\x1b[3;20r\x1b7\x1b8\x1bD\x1bE\x1bM\x1b=\x1b>\x1b[4h\x1b[4l\x1b[!p\x1b[s\x1b[u",
        "\x1b[?1049h\x1b[?25l\x1b[?1;7;2004h\x1b[?1000;1002;1003;1004;1006h\x1b[?2026l",
        "\x1b(0lqk\x1b(B\x1b)0\x0eq\x0f",
        "\x1b[2 q",
    ] {
        passes(sequence);
    }
    assert_eq!(
        shown(b"\x1b[0H\x1b[0m\x1b[0J\x1b[;5H\x1b[007G"),
        "\x1b[H\x1b[m\x1b[J\x1b[0;5H\x1b[7G"
    );
}

#[test]
fn strings_are_dropped() {
    for end in ["\x07", "\x1b\\"] {
        for osc in [
            "52;c;ZWNobyBvd25lZAo=",
            "52;c;?",
            "0;title",
            "2;title",
            "7;file://host/",
            "8;;http://example.org",
            "4;1;?",
            "10;?",
            "11;?",
            "9;notification",
            "777;notify;a;b",
            "1337;File=name=YQ==:AAAA",
            "133;A",
        ] {
            is_dropped(&format!("\x1b]{osc}{end}"));
        }
    }
    for string in [
        "\x1bP$qm\x1b\\",           // DECRQSS
        "\x1bP+q544e\x1b\\",        // XTGETTCAP
        "\x1bP0;1|17/ab\x1b\\",     // DECUDK
        "\x1bPq#0;2;0;0;0~~\x1b\\", // sixels
        "\x1bPtmux;\x1b\x1b]52;c;YQ==\x07\x1b\\",
        "\x1b_Gf=24;AAAA\x1b\\", // APC
        "\x1b^private\x1b\\",    // PM
        "\x1bXstring\x1b\\",     // SOS
    ] {
        let text = shown(string.as_bytes());
        assert!(!text.contains('\x1b') && !text.contains("52;"), "{string:?}: {text:?}");
    }
}

#[test]
fn what_a_terminal_answers_is_dropped() {
    for query in [
        "\x1b[6n",
        "\x1b[?6n",
        "\x1b[?996n",
        "\x1b[>c",
        "\x1b[>0c",
        "\x1b[=c",
        "\x1b[1c",
        "\x1bZ",
        "\x1b[?25$p",
        "\x1b[4$p",
        "\x1b[>q",
        "\x1b[>0q",
        "\x1b[18t",
        "\x1b[21t",
        "\x1b[14t",
        "\x1b[x",
        "\x1b[?u",
        "\x1b[?1;1;0S",
        "\x1b[?4m",
        "\x05",
        "\x1b[1;1;1;1;1;1*y",
        "\x1b[2&w",
        "\x1b[1$w",
    ] {
        is_dropped(query);
    }
}

#[test]
fn what_outlives_a_program_or_hides_what_it_did_is_dropped() {
    for sequence in [
        "\x1b[3J",       // the lines that were scrolled away
        "\x1bc",         // RIS, which clears them, too
        "\x1b[8;10;10t", // the window's size
        "\x1b[22;0t",    // the stack of titles
        "\x1b[5i",       // printing
        "\x1b[4i",
        "\x1b[?5i",
        "\x1b[>1u", // keyboard protocols
        "\x1b[<1u",
        "\x1b[=1;1u",
        "\x1b[>4;2m",
        "\x1b[20h", // what Enter sends
        "\x1b[2h",  // a locked keyboard
        "\x1b[12l",
        "\x1b[?3h", // 132 columns
        "\x1b[?1048h",
        "\x1b[?2031h", // reports of colour schemes
        "\x1b[?2048h", // reports of the size
        "\x1b[?9001h",
        "\x1b[?1001h", // a mouse mode that waits for an answer
        "\x1b[1;2;3;4;5T",
        "\x1b[1;2s",
        "\x1b[3g", // tab stops
        "\x1bH",
        "\x1b#8",
        "\x1b%@", // character sets
        "\x1b%G",
        "\x1b(A",
        "\x1b*0",
        "\x1bn",
        "\x1bo",
        "\x1bN",
        "\x1b G", // replies in 8 bits
        "\x1b[7 q",
        "\x1b[1\"q",
        "\x1b[61\"p",
        "\x1b[1;2;3:4H",
        "\x00",
        "\x11",
        "\x13",
        "\x18",
        "\x1a",
        "\x7f",
    ] {
        is_dropped(sequence);
    }
    // Of several modes in one sequence those pass that may.
    assert_eq!(shown(b"\x1b[?3;25;2048h"), "\x1b[?25h");
    let many = format!("\x1b[{}H", "1;".repeat(40));
    is_dropped(&many);
}

#[test]
fn control_characters_of_eight_bits_are_dropped() {
    // As one byte, and as UTF-8.
    for c1 in 0x80..=0x9f_u8 {
        assert_eq!(shown(&[b'a', c1, b'b']), "ab", "{c1:x}");
        assert_eq!(shown(&[b'a', 0xc2, c1, b'b']), "ab", "{c1:x}");
    }
    assert_eq!(shown(b"\x9b6n"), "6n");
    assert_eq!(shown(b"\xc2\x9d52;c;YQ==\x07"), "52;c;YQ==\x07");
    // Overlong, cut off, and an escape in the middle of a character.
    for (written, text) in [
        (&b"\xc0\x9bx"[..], "x"),
        (b"\xe2\x82\x1b[6nx", "\u{fffd}[6nx"),
        (b"\xf0\x9f\x9b\x9b\x9b6n", "\u{1f6db}6n"),
    ] {
        assert_eq!(shown(written), text, "{written:x?}");
    }
}

/// The second byte of `Û` is CSI in a terminal that does not decode UTF-8.
#[test]
fn other_terminals_get_ascii() {
    let mut filter = Filter::new(false);
    assert_eq!(filter.pass("Û6n\u{fffd}".as_bytes()).output, b"?6n?");
}

#[test]
fn three_questions_are_answered_here() {
    let mut filter = Filter::new(true);
    let passed = filter.pass(b"\x1b[c\x1b[0c\x1b[5n");
    assert_eq!(passed.output, b"");
    assert_eq!(passed.replies, b"\x1b[?62;22c\x1b[?62;22c\x1b[0n");
    filter.begin(30, 100);
    assert_eq!(filter.pass(b"\x1b[6n\x1b[2;3Hx\x1b[6n").replies, b"\x1b[30;1R\x1b[2;4R");
    filter.resize(1, 100);
    assert_eq!(filter.pass(b"\x1b[6n").replies, b"\x1b[1;4R");
    let passed = filter.pass(&b"\x1b[c".repeat(10_000));
    assert!(passed.replies.len() <= MAX_REPLIES && passed.replies.ends_with(b"c"));
}

#[test]
fn a_line_that_was_begun_is_ended() {
    let undo = |written: &[u8]| {
        let mut filter = Filter::new(true);
        filter.pass(written);
        filter.undo()
    };
    assert_eq!(undo(b""), "\r\x1b[J");
    assert_eq!(undo(b"text"), "\r\n\r\x1b[J");
    assert_eq!(undo(b"text\r"), "\r\n\r\x1b[J");
    assert_eq!(undo(b"te\x1b[Kxt\r\n\x1b[31m"), "\x1b[m\r\x1b[J");
    let bottom = "\x1b[999;1H\r\n\r\x1b[J";
    for moved in ["\x1b[9A", "\x1b[H", "\x1b8", "\x1bM", "\x1b[u", "\x1b[2S", "\x1b[?6h"] {
        assert!(undo(moved.as_bytes()).ends_with(bottom), "{moved:?}");
    }
    assert_eq!(undo(b"\x1b[?1049h\x1b[31mtext"), format!("\x1b[?1049l\x1b[m{bottom}"));
    let switched = undo(b"\x1b[?25l\x1b[?1003h\x1b[2;5r\x1b[4h");
    assert_eq!(switched, format!("\x1b[?25h\x1b[?1003l\x1b[r\x1b[4l{bottom}"));
}

/// Checks the output by a scanner that shares no code with the filter.
fn check_output(output: &[u8], is_utf8: bool) {
    let text = std::str::from_utf8(output).unwrap();
    assert!(is_utf8 || text.is_ascii());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\x1b' {
            assert!(!c.is_control() || ('\x07'..='\x0f').contains(&c), "{c:?} in {text:?}");
            continue;
        }
        match chars.next() {
            Some('7' | '8' | 'D' | 'E' | 'M' | '=' | '>') => {}
            Some('(' | ')') => assert!(matches!(chars.next(), Some('0' | 'B'))),
            Some('[') => {
                let mut body = String::new();
                let last = loop {
                    let c = chars.next().unwrap();
                    if ('@'..='~').contains(&c) {
                        break c;
                    }
                    body.push(c);
                };
                let is_private = body.starts_with('?');
                let allowed = match last {
                    'h' | 'l' => is_private || body == "4",
                    'p' => body == "!",
                    'q' => body.ends_with(' '),
                    'J' => matches!(body.as_str(), "" | "1" | "2"),
                    last => "@ABCDEFGHIKLMPSTXZ`abdefmrsu".contains(last) && !is_private,
                };
                assert!(allowed, "{body:?} {last:?} in {text:?}");
                let numbers = body.trim_start_matches('?').trim_end_matches(['!', ' ']);
                assert!(numbers.bytes().all(|b| b.is_ascii_digit() || b == b';' || b == b':'));
            }
            other => panic!("ESC {other:?} in {text:?}"),
        }
    }
}

/// A model of the settings of a terminal that a program can change. It shares no code with the
/// filter.
#[derive(Default)]
struct Terminal {
    /// Settings that differ from their default and are restored with the cursor: attributes, the
    /// character set, origin and autowrap.
    with_cursor: BTreeSet<String>,
    saved: BTreeSet<String>,
    /// All other settings.
    others: BTreeSet<String>,
}

impl Terminal {
    fn take(&mut self, output: &str) {
        let mut rest = output;
        while let Some(at) = rest.find(['\x1b', '\x0e', '\x0f']) {
            let (control, after) = rest.split_at(at).1.split_at(1);
            rest = after;
            if control != "\x1b" {
                switch(&mut self.with_cursor, "SO", control == "\x0e");
                continue;
            }
            let private = rest.strip_prefix('[');
            let end = |from: &str| from.find(|c| ('@'..='~').contains(&c)).unwrap() + 1;
            let length = private.map_or_else(
                || if rest.starts_with(['(', ')']) { 2 } else { 1 },
                |body| 1 + end(body),
            );
            let sequence;
            (sequence, rest) = rest.split_at(length);
            self.sequence(sequence);
        }
    }

    fn sequence(&mut self, sequence: &str) {
        let (body, last) = sequence.split_at(sequence.len() - 1);
        match (body, last) {
            ("", "7") | ("[", "s") => self.saved = self.with_cursor.clone(),
            ("", "8") | ("[", "u") => self.with_cursor = self.saved.clone(),
            ("", "=" | ">") => switch(&mut self.others, "keypad", last == "="),
            ("(" | ")", _) => switch(&mut self.with_cursor, body, last == "0"),
            ("[!", "p") => switch(&mut self.with_cursor, "?7", true),
            ("[4", "h" | "l") => switch(&mut self.others, "insert", last == "h"),
            (_, "m") => switch(&mut self.with_cursor, "attributes", body != "["),
            (_, "r") => switch(&mut self.others, "margins", body != "["),
            (_, "q") => switch(&mut self.others, "cursor", body != "[ " && body != "[0 "),
            (_, "h" | "l") => {
                for mode in body.trim_start_matches("[?").split(';') {
                    let is_changed = (last == "h") != ["7", "25"].contains(&mode);
                    match mode {
                        "6" | "7" => {
                            switch(&mut self.with_cursor, &format!("?{mode}"), is_changed);
                        }
                        "47" | "1047" | "1049" => {
                            switch(&mut self.others, "alternate", is_changed);
                            if mode == "1049" && is_changed {
                                self.saved = self.with_cursor.clone();
                            } else if mode == "1049" {
                                self.with_cursor = self.saved.clone();
                            }
                        }
                        other => switch(&mut self.others, other, is_changed),
                    }
                }
            }
            _ => {}
        }
    }

    fn left(&self) -> String {
        self.with_cursor.union(&self.others).cloned().collect::<Vec<_>>().join(" ")
    }
}

fn switch(set: &mut BTreeSet<String>, name: &str, is_changed: bool) {
    if is_changed {
        set.insert(name.to_owned());
    } else {
        set.remove(name);
    }
}

/// A second sequence, which is dropped or restores saved settings, made the filter forget the first
/// one.
#[test]
fn a_change_that_seemed_taken_back_was_not_undone() {
    for written in [
        "\x1b[8m\x1b7\x1b[m\x1b8",
        "\x1b[8m\x1b[?1049h\x1b[m",
        "\x1b[?6h\x1b[?1049h\x1b[?6l",
        "\x1b(0\x1b7\x1b(B\x1b8",
        "\x1b[4h\x1b[20l",
        "\x1b[5;8r\x1b[1:2r",
        "\x1b[3 q\x1b[7 q",
        "\x1b[!p",
    ] {
        let mut filter = Filter::new(true);
        let mut terminal = Terminal::default();
        terminal.take(std::str::from_utf8(&filter.pass(written.as_bytes()).output).unwrap());
        assert_ne!(terminal.left(), "", "{written:?}");
        terminal.take(&filter.undo());
        assert_eq!(terminal.left(), "", "{written:?}");
    }
}

/// Generates bytes among which sequences, partial and complete, are likely.
fn written() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            &b"\x1b["[..],
            b"\x1b]",
            b"\x1bP",
            b"\x1b_",
            b"\x1b",
            b"\x9b",
            b"\xc2\x9b",
            b"?",
            b">",
            b"!",
            b" ",
            b"$",
            b";",
            b":",
            b"0",
            b"52",
            b"1049",
            b"\x1b7",
            b"\x1b8",
            b"\x1b[8m",
            b"25",
            b"6",
            b"h",
            b"l",
            b"m",
            b"n",
            b"c",
            b"t",
            b"H",
            b"J",
            b"q",
            b"p",
            b"u",
            b"r",
            b"\x07",
            b"\x1b\\",
            b"\x05",
            b"\x18",
            b"(",
            b"B",
            b"\xe2",
            b"\x82",
            b"\xac",
            "漢".as_bytes(),
            b"text",
            b"\r\n",
            b"\x0e",
        ])
        .prop_map(<[u8]>::to_vec),
        prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn nothing_but_the_allow_list_comes_out(written in written(), is_utf8: bool) {
        let mut filter = Filter::new(is_utf8);
        check_output(&filter.pass(&written).output, is_utf8);
    }

    /// The result does not depend on how the output is cut.
    #[test]
    fn pieces_come_out_as_the_whole(written in written(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8)) {
        let mut whole = Filter::new(true);
        let expected = whole.pass(&written);
        let mut places: Vec<_> = cuts.iter().map(|cut| cut.index(written.len() + 1)).collect();
        places.sort_unstable();
        let mut filter = Filter::new(true);
        let mut got = FilteredOutput::default();
        let mut from = 0;
        for to in places.into_iter().chain([written.len()]) {
            let piece = filter.pass(&written[from..to]);
            got.output.extend(piece.output);
            got.replies.extend(piece.replies);
            from = to;
        }
        prop_assert_eq!(got, expected);
        prop_assert_eq!(filter.undo(), whole.undo());
    }

    /// Filtered output passes unchanged.
    #[test]
    fn filtering_twice_changes_nothing(written in written()) {
        let once = Filter::new(true).pass(&written).output;
        let twice = Filter::new(true).pass(&once).output;
        prop_assert_eq!(once, twice);
    }

    /// A terminal after an undo is as if the program had never written.
    #[test]
    fn what_undoes_changes_leaves_none(written in written()) {
        let mut filter = Filter::new(true);
        let output = filter.pass(&written).output;
        let mut terminal = Terminal::default();
        terminal.take(std::str::from_utf8(&output).unwrap());
        terminal.take(&filter.undo());
        prop_assert_eq!(terminal.left(), "");
    }
}
