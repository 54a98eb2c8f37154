//! How far long work has come. Who does it tells; whether anybody sees it is
//! the affair of the command line.

/// Hears how far the work has come.
pub trait Watch {
    /// A piece of work begins, of `total` units: [`Work`] says which.
    fn begin(&self, work: Work, total: u64);

    /// So many units more are done.
    fn done(&self, units: u64);
}

/// A piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Asking about paths; the unit is one path for one agent.
    Asking,
    /// Reading the log; the unit is a byte.
    Reading,
}

/// Nobody looks.
#[derive(Debug, Clone, Copy)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn begin(&self, _work: Work, _total: u64) {}

    fn done(&self, _units: u64) {}
}
