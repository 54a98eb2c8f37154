//! Progress of long work. The worker reports it; the command line decides on its display.

/// Receives reports of progress.
pub trait ProgressObserver {
    /// Begins a piece of work of `total` units, which [`Phase`] defines.
    fn begin(&self, work: Phase, total: u64);

    /// Reports further units as done.
    fn done(&self, units: u64);
}

/// Kinds of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Decisions on paths; the unit is one path for one agent.
    Asking,
    /// The log is read; the unit is a byte.
    Reading,
}

/// Ignores reports of progress.
#[derive(Debug, Clone, Copy)]
pub struct NoObserver;

impl ProgressObserver for NoObserver {
    fn begin(&self, _work: Phase, _total: u64) {}

    fn done(&self, _units: u64) {}
}
