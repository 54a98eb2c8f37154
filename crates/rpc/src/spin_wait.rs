//! The pace of a peer's lines. After a quick line, the next one is awaited actively: on a virtual
//! machine that halts idle processors, waking one takes longer than many a reply.

use std::{
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

/// Time of active waiting for the next line, if the last one came within it.
const SPIN_TIMEOUT: Duration = Duration::from_micros(150);
/// True if active waiting leaves a processor to the peer.
static SEVERAL: LazyLock<bool> =
    LazyLock::new(|| thread::available_parallelism().is_ok_and(|processors| processors.get() > 1));

/// The pace of one peer.
#[derive(Debug, Default)]
pub struct SpinWait {
    quick: bool,
}

/// The wait for one line.
#[derive(Debug)]
pub struct Wait {
    begun: Instant,
    awake: bool,
}

impl SpinWait {
    /// Begins to wait.
    pub fn wait(&self) -> Wait {
        Wait { begun: Instant::now(), awake: self.quick && *SEVERAL }
    }

    /// Records that the line has arrived.
    pub fn line_arrived(&mut self, wait: &Wait) {
        self.quick = wait.is_short();
    }
}

impl Wait {
    /// True if the caller should poll once more before it blocks. Other threads get the processor
    /// first.
    pub fn is_awake(&self) -> bool {
        let awake = self.awake && self.is_short();
        if awake {
            thread::yield_now();
        }
        awake
    }

    fn is_short(&self) -> bool {
        self.begun.elapsed() < SPIN_TIMEOUT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_was_quick_is_waited_for_awake_where_it_has_a_processor() {
        let mut spin_wait = SpinWait::default();
        assert!(!spin_wait.wait().awake);
        // The start is in the future, so the wait is short however late this test runs.
        let begun = Instant::now() + Duration::from_secs(3600);
        spin_wait.line_arrived(&Wait { begun, awake: false });
        assert_eq!(spin_wait.wait().awake, *SEVERAL);
        assert!(Wait { begun, awake: true }.is_awake());
    }

    #[test]
    fn a_peer_that_was_slow_is_waited_for_asleep() {
        let mut spin_wait = SpinWait::default();
        assert!(!spin_wait.wait().is_awake());
        spin_wait.quick = true;
        let wait = spin_wait.wait();
        thread::sleep(SPIN_TIMEOUT);
        assert!(!wait.is_awake());
        spin_wait.line_arrived(&wait);
        assert!(!spin_wait.wait().is_awake());
    }
}
