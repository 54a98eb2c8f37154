//! Estimated position of the cursor of the operator's terminal.
//!
//! Programs that ask for it and get no answer do not start, or wait. The terminal cannot be asked:
//! its answer might be typed into the operator's shell. So the position is estimated from the
//! output; wide characters and scroll regions are ignored.

/// A position on the screen, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) row: u16,
    pub(super) column: u16,
}

/// The cursor, on a screen of some size.
#[derive(Debug)]
pub(super) struct Cursor {
    position: Position,
    saved: Position,
    /// The last position of the screen.
    last: Position,
}

impl Cursor {
    /// Returns a cursor in the last line, where it is in a terminal that was used for a while.
    pub(super) fn new(rows: u16, columns: u16) -> Self {
        let last = Position { row: rows.max(1), column: columns.max(1) };
        let position = Position { column: 1, ..last };
        Self { position, saved: position, last }
    }

    /// Sets the size of the screen.
    pub(super) fn resize(&mut self, rows: u16, columns: u16) {
        self.last = Position { row: rows.max(1), column: columns.max(1) };
        self.move_to(self.position.row, self.position.column);
    }

    pub(super) fn position(&self) -> Position {
        self.position
    }

    fn move_to(&mut self, row: u16, column: u16) {
        self.position = Position {
            row: row.clamp(1, self.last.row),
            column: column.clamp(1, self.last.column),
        };
    }

    /// Moves the cursor for a printed character.
    pub(super) fn print(&mut self) {
        let Position { row, column } = self.position;
        if column >= self.last.column {
            self.move_to(row.saturating_add(1), 1);
        } else {
            self.move_to(row, column.saturating_add(1));
        }
    }

    /// Moves the cursor for a control character.
    pub(super) fn control(&mut self, byte: u8) {
        let Position { row, column } = self.position;
        match byte {
            0x08 => self.move_to(row, column.saturating_sub(1)),
            // Stops are at 1, 9, 17 and so on.
            0x09 => self.move_to(row, (column.saturating_sub(1) | 7).saturating_add(2)),
            0x0a..=0x0c => self.move_to(row.saturating_add(1), column),
            0x0d => self.move_to(row, 1),
            _ => {}
        }
    }

    /// Moves the cursor for a sequence that begins with ESC and no bracket.
    pub(super) fn escape(&mut self, last: u8) {
        let Position { row, column } = self.position;
        match last {
            b'7' => self.saved = self.position,
            b'8' => self.position = self.saved,
            b'D' => self.move_to(row.saturating_add(1), column),
            b'E' => self.move_to(row.saturating_add(1), 1),
            b'M' => self.move_to(row.saturating_sub(1), column),
            _ => {}
        }
    }

    /// Moves the cursor for a sequence without a marker, by its first two parameters.
    pub(super) fn sequence(&mut self, last: u8, first: u16, second: u16) {
        let Position { row, column } = self.position;
        let by = first.max(1);
        match last {
            b'A' => self.move_to(row.saturating_sub(by), column),
            b'B' | b'e' => self.move_to(row.saturating_add(by), column),
            b'C' | b'a' => self.move_to(row, column.saturating_add(by)),
            b'D' => self.move_to(row, column.saturating_sub(by)),
            b'E' => self.move_to(row.saturating_add(by), 1),
            b'F' => self.move_to(row.saturating_sub(by), 1),
            b'G' | b'`' => self.move_to(row, first),
            b'H' | b'f' => self.move_to(first, second),
            b'd' => self.move_to(first, column),
            b'r' => self.move_to(1, 1),
            b's' => self.saved = self.position,
            b'u' => self.position = self.saved,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(steps: impl FnOnce(&mut Cursor)) -> (u16, u16) {
        let mut cursor = Cursor::new(24, 80);
        steps(&mut cursor);
        (cursor.position().row, cursor.position().column)
    }

    #[test]
    fn it_moves_as_a_terminals_does() {
        assert_eq!(after(|_| {}), (24, 1));
        assert_eq!(after(|c| c.sequence(b'H', 0, 0)), (1, 1));
        assert_eq!(after(|c| c.sequence(b'H', 999, 999)), (24, 80));
        assert_eq!(after(|c| (0..81).for_each(|_| c.print())), (24, 2));
        let text = |c: &mut Cursor| {
            c.sequence(b'H', 3, 4);
            c.print();
            c.control(b'\n');
            c.control(b'\t');
            c.sequence(b'A', 0, 0);
        };
        assert_eq!(after(text), (3, 9));
        let saved = |c: &mut Cursor| {
            c.sequence(b'H', 3, 4);
            c.escape(b'7');
            c.sequence(b'r', 2, 5);
            c.escape(b'8');
            c.resize(2, 2);
        };
        assert_eq!(after(saved), (2, 2));
        assert_eq!(after(|c| c.resize(0, 0)), (1, 1));
    }
}
