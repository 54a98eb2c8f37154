//! The escape key for an operator whose program takes every key: Ctrl-] three times within a
//! second, as in systemd's `machinectl shell`.

use std::time::{Duration, Instant};

/// Ctrl-]
const DETACH_KEY: u8 = 0x1d;
const KEY_PRESSES: usize = 3;
const KEY_PRESS_TIMEOUT: Duration = Duration::from_secs(1);

/// Watches what is typed.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// Times at which the key was typed, without another key since.
    typed: Vec<Instant>,
}

impl Keys {
    /// Records input at a moment. Returns true if the operator asked to leave.
    pub(super) fn typed(&mut self, bytes: &[u8], now: Instant) -> bool {
        for byte in bytes {
            if *byte != DETACH_KEY {
                self.typed.clear();
                continue;
            }
            self.typed.retain(|then| now.saturating_duration_since(*then) < KEY_PRESS_TIMEOUT);
            self.typed.push(now);
            if self.typed.len() >= KEY_PRESSES {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_times_within_a_second() {
        let begin = Instant::now();
        let at = |tenths: u64| begin + Duration::from_millis(100 * tenths);
        let out = |typed: &[(&[u8], u64)]| {
            let mut keys = Keys::default();
            typed.iter().any(|(bytes, tenths)| keys.typed(bytes, at(*tenths)))
        };
        assert!(out(&[(b"\x1d\x1d\x1d", 0)]));
        assert!(out(&[(b"x\x1d", 0), (b"\x1d", 4), (b"\x1d", 9)]));
        assert!(!out(&[(b"\x1d", 0), (b"\x1d", 5), (b"\x1d", 10)]));
        assert!(out(&[(b"\x1d", 0), (b"\x1d", 5), (b"\x1d", 10), (b"\x1d", 12)]));
        assert!(!out(&[(b"\x1d\x1d", 0), (b"a\x1d\x1d", 1)]));
        assert!(!out(&[(b"\x1b[A\x03", 0)]));
    }
}
