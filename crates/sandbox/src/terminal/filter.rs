//! The terminal filter: passes text and an allow list of control sequences from a program's output
//! to the operator's terminal.
//!
//! The output is parsed, and allowed parts are written anew. So a sequence passes complete and in
//! one form, or not at all, and the terminal need not agree with the parser on its end. Strings
//! (OSC, DCS, APC, PM, SOS) never pass: titles, the clipboard, hyperlinks, images, settings. Nor do
//! queries, whose answers the terminal would type into the next program that reads; the filter
//! answers three of them itself.

use anstyle_parse::{DefaultCharAccumulator, Params, Parser, Perform};

use super::{
    changes::{BOTTOM, Change, Changes, default_of},
    cursor::{Cursor, Position},
};

/// Answer to a query of device attributes (DA): a VT220 with colours.
const ATTRIBUTES: &[u8] = b"\x1b[?62;22c";
/// Answer to a query of the status (DSR 5): ready.
const READY: &[u8] = b"\x1b[0n";
/// Maximum of bytes of waiting answers; queries of a program that does not read them get none.
const MAX_REPLIES: usize = 1024;
/// Size of a screen that does not report it.
const ROWS: u16 = 24;
const COLUMNS: u16 = 80;
/// Highest form of a cursor (DECSCUSR).
const MAX_CURSOR: u16 = 6;
/// The private mode in which lines are counted from the margin (DECOM); switching it moves the
/// cursor.
const ORIGIN: u16 = 6;
/// The private mode in which a full line continues in the next one (DECAWM).
const AUTOWRAP: u16 = 7;
/// Highest allowed parameter of erasing (ED): all of the screen, but not the scrollback.
const MAX_ERASED: u16 = 2;

/// The filter. It buffers an unfinished sequence of bounded size and no output.
pub(super) struct Filter {
    parser: Parser<DefaultCharAccumulator>,
    screen: Screen,
}

/// Result of filtering some output.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FilteredOutput {
    /// Bytes for the terminal.
    pub(super) output: Vec<u8>,
    /// Bytes for the program, as if they had been typed.
    pub(super) replies: Vec<u8>,
}

impl Filter {
    /// Makes a filter. `is_utf8` is true if the terminal decodes UTF-8. If not, any byte of a
    /// non-ASCII character might be a control character (C1), so `?` replaces it.
    pub(super) fn new(is_utf8: bool) -> Self {
        let screen = Screen {
            passed: FilteredOutput::default(),
            changes: Changes::default(),
            cursor: Cursor::new(ROWS, COLUMNS),
            is_utf8,
            is_line_begun: false,
            has_moved: false,
        };
        Self { parser: Parser::<DefaultCharAccumulator>::new(), screen }
    }

    /// Filters the program's next output.
    pub(super) fn pass(&mut self, written: &[u8]) -> FilteredOutput {
        for byte in written {
            self.parser.advance(&mut self.screen, *byte);
        }
        std::mem::take(&mut self.screen.passed)
    }

    /// Sets the terminal's size; the cursor keeps its position.
    pub(super) fn resize(&mut self, rows: u16, columns: u16) {
        self.screen.cursor.resize(rows, columns);
    }

    /// Sets the terminal's size, with the cursor in its last line.
    pub(super) fn begin(&mut self, rows: u16, columns: u16) {
        self.screen.cursor = Cursor::new(rows, columns);
    }

    /// Returns the program's changes of the terminal.
    pub(super) fn changes(&self) -> &Changes {
        &self.screen.changes
    }

    /// Returns sequences that undo the changes, and begin a line with no text of the program in it
    /// or below it: messages there must not be mixed with the program's text.
    pub(super) fn undo(&self) -> String {
        let position = match (self.screen.has_moved, self.screen.is_line_begun) {
            (true, _) => BOTTOM,
            (false, true) => "\r\n",
            (false, false) => "",
        };
        format!("{}{position}\r\x1b[J", self.screen.changes.undo())
    }
}

struct Screen {
    passed: FilteredOutput,
    changes: Changes,
    cursor: Cursor,
    is_utf8: bool,
    /// True if text was written since the last new line.
    is_line_begun: bool,
    /// True if the cursor, or text, may have moved to another line than the next one.
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
        // An omitted parameter is 0.
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
            // The cursor's position; with parameters these are about margins.
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
                let Position { row, column } = self.cursor.position();
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

/// True if a sequence leaves the cursor, and all text, in their lines.
fn stays_in_line(action: u8) -> bool {
    // ICH, CUF, CUB, CHA, CHT, ED, EL, DCH, ECH, CBT
    matches!(action, b'@' | b'C' | b'D' | b'G' | b'I' | b'J' | b'K' | b'P' | b'X' | b'Z')
    // HPA, HPR, REP, IRM, SGR, and saving the cursor's place
    || matches!(action, b'`' | b'a' | b'b' | b'h' | b'l' | b'm' | b's')
}

#[cfg(test)]
#[path = "filter/tests.rs"]
mod tests;
