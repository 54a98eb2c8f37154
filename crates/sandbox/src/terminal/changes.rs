//! What a program may change of the operator's terminal so that it outlives the program, and
//! what undoes each change.

use std::collections::BTreeSet;

/// The private modes (DECSET) that a program may switch, and whether each is on by default.
/// Not here are modes that change the window (3, 40) or what a terminal answers.
const MODES: [(u16, bool); 20] = [
    (1, false),  // application cursor keys
    (5, false),  // reverse video, a visible bell
    (6, false),  // origin
    (7, true),   // autowrap
    (9, false),  // mouse: presses
    (12, false), // blinking cursor
    (25, true),  // visible cursor
    (47, false),
    (66, false),   // application keypad
    (1000, false), // mouse: presses and releases
    (1002, false), // mouse: drags
    (1003, false), // mouse: all motion
    (1004, false), // focus
    (1005, false), // mouse positions in UTF-8
    (1006, false), // mouse positions in decimals
    (1007, false), // the wheel as cursor keys
    (1047, false),
    (1049, false),
    (2004, false), // bracketed paste
    (2026, false), // synchronized output
];

/// The alternate screen, by three numbers.
pub(super) const SCREENS: [u16; 3] = [47, 1047, 1049];

/// Modes in which the terminal sends what nobody typed.
const REPORTING: [u16; 5] = [9, 1000, 1002, 1003, 1004];

/// A change of the terminal, in the order in which they are undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    /// A private mode is not as it is by default.
    Mode(u16),
    /// Lines outside of the scroll region stay.
    Margins,
    /// Characters move others aside (IRM).
    Insert,
    /// The keypad sends sequences (DECKPAM).
    Keypad,
    /// Letters are line drawing characters.
    Charset,
    /// The form of the cursor.
    Cursor,
    /// Colours and other attributes.
    Attributes,
}

impl Change {
    fn undo(self) -> String {
        match self {
            Self::Mode(mode) => {
                let letter = if default_of(mode) == Some(true) { 'h' } else { 'l' };
                format!("\x1b[?{mode}{letter}")
            }
            // To reset the region moves the cursor.
            Self::Margins => "\x1b7\x1b[r\x1b8".to_owned(),
            Self::Insert => "\x1b[4l".to_owned(),
            Self::Keypad => "\x1b>".to_owned(),
            Self::Charset => "\x1b(B\x1b)B\x0f".to_owned(),
            Self::Cursor => "\x1b[0 q".to_owned(),
            Self::Attributes => "\x1b[m".to_owned(),
        }
    }
}

/// Whether a private mode is on by default; `None` if a program may not switch it.
pub(super) fn default_of(mode: u16) -> Option<bool> {
    MODES.iter().find(|(number, _)| *number == mode).map(|(_, default)| *default)
}

/// The changes that were made and not undone.
#[derive(Debug, Default)]
pub(super) struct Changes(BTreeSet<Change>);

impl Changes {
    /// Every change, for where nobody knows which were made. The alternate screen is left without
    /// the cursor, whose place may never have been saved.
    pub(super) fn all() -> Self {
        use Change::{Attributes, Charset, Cursor, Insert, Keypad, Margins, Mode};
        let modes = MODES.iter().map(|(mode, _)| *mode).filter(|mode| *mode != 1049);
        let others = [Margins, Insert, Keypad, Charset, Cursor, Attributes];
        Self(modes.map(Mode).chain(others).collect())
    }

    /// Notes that something is, or is no longer, other than it was.
    pub(super) fn note(&mut self, change: Change, is_made: bool) {
        if is_made {
            self.0.insert(change);
        } else {
            self.0.remove(&change);
        }
    }

    /// Whether the terminal may send what nobody typed.
    pub(super) fn is_reporting(&self) -> bool {
        REPORTING.iter().any(|mode| self.0.contains(&Change::Mode(*mode)))
    }

    /// Whether the alternate screen is shown.
    pub(super) fn is_alternate(&self) -> bool {
        SCREENS.iter().any(|mode| self.0.contains(&Change::Mode(*mode)))
    }

    /// What undoes them, to be written to the terminal. A sequence that was cut off before is
    /// ended by the first ESC.
    pub(super) fn undo(&self) -> String {
        self.0.iter().map(|change| change.undo()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_changed_is_undone() {
        let mut changes = Changes::default();
        assert_eq!(changes.undo(), "");
        changes.note(Change::Attributes, true);
        changes.note(Change::Mode(25), true);
        changes.note(Change::Mode(1049), true);
        assert!(changes.is_alternate() && !changes.is_reporting());
        assert_eq!(changes.undo(), "\x1b[?25h\x1b[?1049l\x1b[m");
        changes.note(Change::Mode(1049), false);
        assert!(!changes.is_alternate());
        assert!(Changes::all().is_reporting() && !Changes::all().undo().contains("1049"));
    }
}
