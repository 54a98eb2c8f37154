//! The memory that one guest's lines take from the stock of all guests.

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use crate::stock::{Hold, Stock};

/// Longest piece of a line that is not counted before the line is whole.
pub(super) const SMALL: usize = 64 << 10;
/// By how much memory for a line grows.
const STEP: usize = 1 << 20;
/// What a request takes besides its text.
const REQUEST: usize = 8 << 10;
/// How often a text is in memory: as it came, and as what it says.
const SHARE: usize = 2;
/// How long a line may take to be whole while others wait for the memory.
const LATE: Duration = Duration::from_secs(10);
/// How often it is looked whether others do.
const LOOK: Duration = Duration::from_secs(1);

type Asked = Pin<Box<dyn Future<Output = Option<Hold>> + Send + Sync>>;

/// What one guest's line takes.
pub(super) struct Ration {
    stock: Arc<Stock>,
    hold: Option<Hold>,
    /// What is waited for: nobody loses its place in line when it is given up and taken
    /// up again.
    asked: Option<Asked>,
    /// Since when the line takes something.
    since: Instant,
}

impl Ration {
    pub(super) fn new(stock: Arc<Stock>) -> Self {
        Self { stock, hold: None, asked: None, since: Instant::now() }
    }

    /// Has memory for what there is of a line that is not whole; whether there is any.
    pub(super) async fn grow(&mut self, length: usize) -> bool {
        length <= SMALL || self.cover(length.next_multiple_of(STEP)).await
    }

    /// Has memory for a line; whether there is any.
    pub(super) async fn cover(&mut self, length: usize) -> bool {
        let held = self.hold.as_ref().map_or(0, Hold::bytes);
        let more = cost(length).saturating_sub(held);
        if more == 0 {
            return true;
        }
        let asked = self.asked.get_or_insert_with(|| {
            let purse = Arc::clone(&self.stock.sent);
            Box::pin(async move { purse.take(more).await })
        });
        let taken = asked.await;
        self.asked = None;
        match (&mut self.hold, taken) {
            (Some(hold), Some(more)) => hold.merge(more),
            (None, Some(more)) => {
                self.hold = Some(more);
                self.since = Instant::now();
            }
            (_, None) => {
                self.hold = None;
                return false;
            }
        }
        true
    }

    /// The memory of a line that is whole.
    pub(super) fn take(&mut self, length: usize) -> Option<Hold> {
        let mut hold = self.hold.take()?;
        hold.shrink(cost(length));
        Some(hold)
    }

    /// Gives everything back.
    pub(super) fn clear(&mut self) {
        self.hold = None;
    }

    /// Comes when a line that takes memory has not come to its end for too long, and
    /// others wait.
    pub(super) async fn late(&self) {
        if self.hold.is_none() {
            return std::future::pending().await;
        }
        while self.since.elapsed() < LATE || self.stock.short_for() < LATE {
            sleep(LOOK).await;
        }
    }
}

impl std::fmt::Debug for Ration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ration").field("hold", &self.hold).finish_non_exhaustive()
    }
}

fn cost(length: usize) -> usize {
    length.saturating_mul(SHARE).saturating_add(REQUEST)
}
