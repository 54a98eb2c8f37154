//! What of a program's output reaches the operator's terminal: text, and an allow list of control
//! sequences.
//!
//! The output is parsed, and what is allowed is written anew from its parts. So a sequence comes
//! out whole and in one spelling, or not at all, and the terminal never has to agree with the
//! parser about where one ends. Strings (OSC, DCS, APC, PM, SOS) never pass: titles, the clipboard,
//! hyperlinks, images, settings. Nor does anything that a terminal answers, for the answer would be
//! typed into whatever reads next; the filter answers three questions itself.

use anstyle_parse::{DefaultCharAccumulator, Params, Parser, Perform};

use super::{
    changes::{BOTTOM, Change, Changes, default_of},
    cursor::{Cursor, Position},
};

/// The answer to "what are you?" (DA): a VT220 with colours.
const ATTRIBUTES: &[u8] = b"\x1b[?62;22c";
/// The answer to "are you there?" (DSR 5).
const READY: &[u8] = b"\x1b[0n";
/// How many bytes of answers wait at most; a program that does not read them asks in vain.
const MAX_REPLIES: usize = 1024;
/// The size of a screen that does not say it.
const ROWS: u16 = 24;
const COLUMNS: u16 = 80;
/// The forms of a cursor (DECSCUSR).
const MAX_CURSOR: u16 = 6;
/// The private mode in which lines are counted from the margin (DECOM); to switch it moves the
/// cursor.
const ORIGIN: u16 = 6;
/// The private mode in which a line that is full goes on in the next one (DECAWM).
const AUTOWRAP: u16 = 7;
/// What of a screen may be erased (ED): all of it, but not the lines that were scrolled away.
const MAX_ERASED: u16 = 2;

/// The filter. It holds an unfinished sequence of bounded size and no output.
pub(super) struct Filter {
    parser: Parser<DefaultCharAccumulator>,
    screen: Screen,
}

/// What comes of some output.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Passed {
    /// For the terminal.
    pub(super) output: Vec<u8>,
    /// For the program, as if it had been typed.
    pub(super) replies: Vec<u8>,
}

impl Filter {
    /// A filter for a terminal that takes its input for UTF-8, or for one that does not: there any
    /// byte of another character might be a control character (C1), so `?` stands for it.
    pub(super) fn new(is_utf8: bool) -> Self {
        let screen = Screen {
            passed: Passed::default(),
            changes: Changes::default(),
            cursor: Cursor::new(ROWS, COLUMNS),
            is_utf8,
            is_line_begun: false,
            has_moved: false,
        };
        Self { parser: Parser::<DefaultCharAccumulator>::new(), screen }
    }

    /// Takes what the program writes next.
    pub(super) fn pass(&mut self, written: &[u8]) -> Passed {
        for byte in written {
            self.parser.advance(&mut self.screen, *byte);
        }
        std::mem::take(&mut self.screen.passed)
    }

    /// The terminal has this size now; the cursor keeps its place.
    pub(super) fn resize(&mut self, rows: u16, columns: u16) {
        self.screen.cursor.resize(rows, columns);
    }

    /// The terminal has this size, and the program writes from its last line on.
    pub(super) fn begin(&mut self, rows: u16, columns: u16) {
        self.screen.cursor = Cursor::new(rows, columns);
    }

    /// What of the terminal the program changed.
    pub(super) fn changes(&self) -> &Changes {
        &self.screen.changes
    }

    /// What undoes that, and begins a line with nothing of the program in it or below it: what is
    /// said there is not to be mixed with the program's text.
    pub(super) fn undo(&self) -> String {
        let place = match (self.screen.has_moved, self.screen.is_line_begun) {
            (true, _) => BOTTOM,
            (false, true) => "\r\n",
            (false, false) => "",
        };
        format!("{}{place}\r\x1b[J", self.screen.changes.undo())
    }
}

struct Screen {
    passed: Passed,
    changes: Changes,
    cursor: Cursor,
    is_utf8: bool,
    /// Something was written since the last new line.
    is_line_begun: bool,
    /// The cursor, or text, may have gone to another line than the next one.
    has_moved: bool,
}

impl Screen {
    fn put(&mut self, bytes: &[u8]) {
        self.passed.output.extend_from_slice(bytes);
    }

    fn reply(&mut self, answer: &[u8]) {
        if self.passed.replies.len().saturating_add(answer.len()) <= MAX_REPLIES {
            self.passed.replies.extend_from_slice(answer);
        }
    }

    fn sequence(&mut self, intermediates: &str, params: &[Vec<u16>], action: u8) {
        // Markers of private sequences stand before the parameters.
        let is_marker = intermediates.starts_with(['<', '=', '>', '?']);
        let (marker, rest) = intermediates.split_at(usize::from(is_marker));
        let joined = |part: &Vec<u16>| {
            let numbers: Vec<_> = part.iter().map(u16::to_string).collect();
            numbers.join(":")
        };
        let params: Vec<_> = params.iter().map(joined).collect();
        let params = params.join(";");
        // What is left out is 0.
        let params = if params == "0" { "" } else { &params };
        let text = format!("\x1b[{marker}{params}{rest}{}", char::from(action));
        self.put(text.as_bytes());
    }

    /// Switches the modes among `numbers` that may be switched.
    fn switch(&mut self, numbers: &[Vec<u16>], action: u8) {
        let known = |number: &u16| default_of(*number).is_some();
        let modes: Vec<_> = numbers.iter().flatten().copied().filter(known).collect();
        for mode in &modes {
            let change = Change::of_mode(*mode);
            self.changes.note(change);
            self.has_moved |= matches!(change, Change::Screen(_) | Change::Mode(ORIGIN));
        }
        if !modes.is_empty() {
            let modes: Vec<_> = modes.into_iter().map(|mode| vec![mode]).collect();
            self.sequence("?", &modes, action);
        }
    }
}

impl Perform for Screen {
    fn print(&mut self, c: char) {
        // DEL, and C1 in two bytes, which terminals take for control characters, too.
        if c.is_control() {
            return;
        }
        self.is_line_begun = true;
        self.cursor.print();
        let shown = if c.is_ascii() || self.is_utf8 { c } else { '?' };
        self.put(shown.encode_utf8(&mut [0; 4]).as_bytes());
    }

    fn execute(&mut self, byte: u8) {
        match byte {
            // BEL, BS, HT, LF, VT, FF, CR
            0x07..=0x0d => self.is_line_begun &= byte != b'\n',
            // SO, SI
            0x0e | 0x0f => self.changes.note(Change::Charset),
            // Among others ENQ, which a terminal answers, and C1.
            _ => return,
        }
        self.cursor.control(byte);
        self.put(&[byte]);
    }

    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], ignored: bool, action: u8) {
        let Ok(intermediates) = std::str::from_utf8(intermediates) else { return };
        if ignored {
            return;
        }
        let params: Vec<_> = params.iter().map(<[u16]>::to_vec).collect();
        // Only colours have parameters with parts.
        let is_plain = params.iter().all(|part| part.len() == 1);
        let sole = match params.as_slice() {
            [part] if is_plain => part.first().copied(),
            _ => None,
        };
        let change = match (intermediates, action) {
            // ICH, CUU, CUD, CUF, CUB, CNL, CPL, CHA, CUP, CHT
            ("", b'@'..=b'I')
            // EL, IL, DL, DCH, SU, ECH, CBT
            | ("", b'K' | b'L' | b'M' | b'P' | b'S' | b'X' | b'Z')
            // HPA, HPR, REP, VPA, VPR, HVP
            | ("", b'`' | b'a' | b'b' | b'd' | b'e' | b'f') if is_plain => None,
            ("", b'J') if sole.is_some_and(|what| what <= MAX_ERASED) => None,
            // SD; with more parameters it is about the mouse.
            ("", b'T') if sole.is_some() => None,
            // The cursor's place; with parameters these are about margins.
            ("", b's' | b'u') if sole == Some(0) => None,
            ("", b'h' | b'l') if sole == Some(4) => Some(Change::Insert),
            ("", b'm') => Some(Change::Attributes),
            ("", b'r') if is_plain => Some(Change::Margins),
            // DECSTR, which ends autowrap in some terminals.
            ("!", b'p') if sole == Some(0) => Some(Change::Mode(AUTOWRAP)),
            // DECSCUSR
            (" ", b'q') if sole.is_some_and(|form| form <= MAX_CURSOR) => Some(Change::Cursor),
            ("?", b'h' | b'l') if is_plain => return self.switch(&params, action),
            ("", b'c') if sole == Some(0) => return self.reply(ATTRIBUTES),
            ("", b'n') if sole == Some(5) => return self.reply(READY),
            ("", b'n') if sole == Some(6) => {
                let Position { row, column } = self.cursor.place();
                return self.reply(format!("\x1b[{row};{column}R").as_bytes());
            }
            _ => return,
        };
        if let Some(change) = change {
            self.changes.note(change);
        }
        if intermediates.is_empty() {
            self.has_moved |= !stays_in_line(action);
            let mut numbers = params.iter().flatten().copied();
            let [first, second] = [(); 2].map(|()| numbers.next().unwrap_or(0));
            self.cursor.sequence(action, first, second);
        }
        self.sequence(intermediates, &params, action);
    }

    fn esc_dispatch(&mut self, intermediates: &[u8], ignored: bool, byte: u8) {
        let change = match (intermediates, byte) {
            _ if ignored => return,
            // DECSC, DECRC, IND, NEL, RI
            ([], b'7' | b'8' | b'D' | b'E' | b'M') => None,
            // DECKPAM, DECKPNM
            ([], b'=' | b'>') => Some(Change::Keypad),
            // G0 and G1: ASCII or line drawing
            ([b'(' | b')'], b'0' | b'B') => Some(Change::Charset),
            _ => return,
        };
        if let Some(change) = change {
            self.changes.note(change);
        }
        if intermediates.is_empty() {
            self.has_moved |= matches!(byte, b'8' | b'M');
            self.cursor.escape(byte);
        }
        self.put(b"\x1b");
        self.put(intermediates);
        self.put(&[byte]);
    }
}

/// Whether a sequence leaves the cursor, and all text, in their lines.
fn stays_in_line(action: u8) -> bool {
    // ICH, CUF, CUB, CHA, CHT, ED, EL, DCH, ECH, CBT
    matches!(action, b'@' | b'C' | b'D' | b'G' | b'I' | b'J' | b'K' | b'P' | b'X' | b'Z')
    // HPA, HPR, REP, IRM, SGR, and saving the cursor's place
    || matches!(action, b'`' | b'a' | b'b' | b'h' | b'l' | b'm' | b's')
}

#[cfg(test)]
#[path = "filter/tests.rs"]
mod tests;
