//! Changes of the operator's terminal that outlive the program that made them, and the sequences
//! that undo them.

use std::collections::BTreeSet;

/// Private modes (DECSET) that a program may switch, each with its default. Modes that change the
/// window (3, 40) or that a terminal answers are left out.
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
const SCREENS: [u16; 3] = [47, 1047, 1049];

/// Modes in which the terminal sends input that was not typed.
const REPORTING: [u16; 5] = [9, 1000, 1002, 1003, 1004];

/// Sequence that moves the cursor to a line of its own at the end of the screen: for messages after
/// a program that may have left the cursor above its own text.
pub(super) const BOTTOM: &str = "\x1b[999;1H\r\n";

/// A change of the terminal, in the order in which they are undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    /// The alternate screen is shown. Leaving it may restore other settings that were saved with
    /// the cursor: attributes, origin, character sets.
    Screen(u16),
    /// A private mode differs from its default.
    Mode(u16),
    /// Lines outside of the scroll region do not scroll.
    Margins,
    /// Characters move others aside (IRM).
    Insert,
    /// The keypad sends sequences (DECKPAM).
    Keypad,
    /// Letters are line drawing characters.
    Charset,
    /// The cursor has another form.
    Cursor,
    /// Colours or other attributes are set.
    Attributes,
}

impl Change {
    /// Returns the change by a private mode that a program may switch.
    pub(super) fn of_mode(mode: u16) -> Self {
        if SCREENS.contains(&mode) { Self::Screen(mode) } else { Self::Mode(mode) }
    }

    fn undo(self) -> String {
        match self {
            Self::Screen(mode) | Self::Mode(mode) => {
                let letter = if default_of(mode) == Some(true) { 'h' } else { 'l' };
                format!("\x1b[?{mode}{letter}")
            }
            Self::Margins => "\x1b[r".to_owned(),
            Self::Insert => "\x1b[4l".to_owned(),
            Self::Keypad => "\x1b>".to_owned(),
            Self::Charset => "\x1b(B\x1b)B\x0f".to_owned(),
            Self::Cursor => "\x1b[0 q".to_owned(),
            Self::Attributes => "\x1b[m".to_owned(),
        }
    }
}

/// Returns the default of a private mode, true if it is on; `None` if a program may not switch it.
pub(super) fn default_of(mode: u16) -> Option<bool> {
    MODES.iter().find(|(number, _)| *number == mode).map(|(_, default)| *default)
}

/// All changes that were made, those that the program took back included: settings that are saved
/// with the cursor are restored with it.
#[derive(Debug, Default)]
pub(super) struct Changes(BTreeSet<Change>);

impl Changes {
    /// Returns every change, for when those that were made are unknown. The alternate screen is
    /// left without restoring the cursor, whose position may never have been saved.
    pub(super) fn all() -> Self {
        use Change::{Attributes, Charset, Cursor, Insert, Keypad, Margins};
        let modes = MODES.iter().map(|(mode, _)| *mode).filter(|mode| *mode != 1049);
        let others = [Margins, Insert, Keypad, Charset, Cursor, Attributes];
        Self(modes.map(Change::of_mode).chain(others).collect())
    }

    /// Records a change.
    pub(super) fn note(&mut self, change: Change) {
        self.0.insert(change);
    }

    /// True if the terminal may have sent input that was not typed.
    pub(super) fn is_reporting(&self) -> bool {
        REPORTING.iter().any(|mode| self.0.contains(&Change::Mode(*mode)))
    }

    /// Returns the sequences that undo the changes, to be written to the terminal. The first ESC
    /// ends a sequence that was cut off before. The cursor may be anywhere afterwards.
    pub(super) fn undo(&self) -> String {
        self.0.iter().map(|change| change.undo()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_changed_is_undone_and_screens_first() {
        let mut changes = Changes::default();
        assert_eq!(changes.undo(), "");
        for change in [Change::Attributes, Change::Mode(6), Change::of_mode(1049)] {
            changes.note(change);
        }
        assert!(!changes.is_reporting());
        assert_eq!(changes.undo(), "\x1b[?1049l\x1b[?6l\x1b[m");
        assert!(Changes::all().is_reporting() && !Changes::all().undo().contains("1049"));
    }
}
