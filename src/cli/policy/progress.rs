//! A progress bar for long work: on stderr, on a terminal only, and removed at the
//! end.

use std::{cell::RefCell, io::IsTerminal as _, time::Duration};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::policy_tools::{Phase, ProgressObserver};

/// The numbers of decisions, and of bytes of a log, below which no bar is needed.
const MIN_DECISIONS: u64 = 20_000;
const MIN_LOG_BYTES: u64 = 16 << 20;

/// The bar, while there is work.
#[derive(Debug, Default)]
pub(super) struct Bar(RefCell<Option<ProgressBar>>);

impl ProgressObserver for Bar {
    fn begin(&self, work: Phase, total: u64) {
        let (small, style) = match work {
            Phase::Asking => (MIN_DECISIONS, "asking {wide_bar} {percent}% {eta}"),
            Phase::Reading => {
                (MIN_LOG_BYTES, "reading the log {wide_bar} {bytes}/{total_bytes} {eta}")
            }
        };
        let mut bar = self.0.borrow_mut();
        if let Some(done) = bar.take() {
            done.finish_and_clear();
        }
        if total < small || !std::io::stderr().is_terminal() {
            return;
        }
        let fresh = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let fresh = match ProgressStyle::with_template(style) {
            Ok(style) => fresh.with_style(style),
            Err(_template) => fresh,
        };
        fresh.tick();
        fresh.enable_steady_tick(Duration::from_millis(200));
        *bar = Some(fresh);
    }

    fn done(&self, units: u64) {
        if let Some(bar) = &*self.0.borrow() {
            bar.inc(units);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = self.0.get_mut().take() {
            bar.finish_and_clear();
        }
    }
}
