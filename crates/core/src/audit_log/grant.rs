//! Proof that the record of one operation is written.

use std::sync::atomic::{AtomicU64, Ordering};

use portcullis_audit::{Kind, Receipt};

/// The identity of one prepared operation. No two in a process are equal, and none can be copied.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seal(u64);

impl Seal {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Permission to disclose or to change what one record is about. Only the log makes a grant, after
/// the record is as safe as it must be, and for one seal.
#[must_use]
#[derive(Debug)]
pub(crate) struct Grant {
    receipt: Receipt,
    kind: Kind,
    seal: u64,
}

impl Grant {
    pub(super) fn new(receipt: Receipt, kind: Kind, seal: &Seal) -> Self {
        Self { receipt, kind, seal: seal.0 }
    }

    /// Returns the record's receipt.
    pub(crate) fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// Returns the record's receipt and opens nothing.
    pub(crate) fn into_receipt(self) -> Receipt {
        self.receipt
    }

    /// Returns the record's receipt, and true if the record is of this kind and was written for
    /// this seal.
    pub(crate) fn redeem(self, kind: Kind, seal: &Seal) -> (Receipt, bool) {
        (self.receipt, self.kind == kind && self.seal == seal.0)
    }
}
