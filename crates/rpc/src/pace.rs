//! How soon a peer says its next line. One that asks again at once is waited for
//! awake: to wake an idle processor takes longer than many an answer, where the
//! machine is virtual and halts it.

use std::{
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

/// How long the next line is waited for awake, where the last one came as soon.
const AWAKE: Duration = Duration::from_micros(150);
/// Whether who waits awake leaves the peer a processor.
static SEVERAL: LazyLock<bool> =
    LazyLock::new(|| thread::available_parallelism().is_ok_and(|processors| processors.get() > 1));

/// The pace of one peer.
#[derive(Debug, Default)]
pub struct Pace {
    quick: bool,
}

/// Waiting for one line.
#[derive(Debug)]
pub struct Wait {
    begun: Instant,
    awake: bool,
}

impl Pace {
    /// Begins to wait.
    pub fn wait(&self) -> Wait {
        Wait { begun: Instant::now(), awake: self.quick && *SEVERAL }
    }

    /// Takes note that the line is there.
    pub fn heard(&mut self, wait: &Wait) {
        self.quick = wait.is_short();
    }
}

impl Wait {
    /// Whether to look once more before going to sleep. Whoever else wants the
    /// processor has it first.
    pub fn is_awake(&self) -> bool {
        let awake = self.awake && self.is_short();
        if awake {
            thread::yield_now();
        }
        awake
    }

    fn is_short(&self) -> bool {
        self.begun.elapsed() < AWAKE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_was_quick_is_waited_for_awake_where_it_has_a_processor() {
        let mut pace = Pace::default();
        assert!(!pace.wait().awake);
        // However late this test runs, not yet over.
        let begun = Instant::now() + Duration::from_secs(3600);
        pace.heard(&Wait { begun, awake: false });
        assert_eq!(pace.wait().awake, *SEVERAL);
        assert!(Wait { begun, awake: true }.is_awake());
    }

    #[test]
    fn a_peer_that_was_slow_is_waited_for_asleep() {
        let mut pace = Pace::default();
        assert!(!pace.wait().is_awake());
        pace.quick = true;
        let wait = pace.wait();
        thread::sleep(AWAKE);
        assert!(!wait.is_awake());
        pace.heard(&wait);
        assert!(!pace.wait().is_awake());
    }
}
