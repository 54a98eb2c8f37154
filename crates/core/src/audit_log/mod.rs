//! The audit log: the sole writer of the chain.
//!
//! It gives each record its place in the chain, knows when the record is durable, and makes the
//! [`Grant`]s without which nothing is disclosed or changed. It decides nothing, and it never
//! continues without a log: a failed append fails that request and every later one; a lock that
//! another process keeps fails only those that waited for it. FORMAT.md of the audit crate
//! specifies the files.

mod checkpoint_builder;
mod checkpoint_thread;
mod checkpoints;
mod clock;
mod cosign;
mod disk;
mod error;
mod grant;
mod group;
mod inspect;
mod inspection;
mod keys;
mod last_signed;
mod lifetime;
mod log;
mod nonce;
mod orphans;
mod pack;
mod prune;
mod quarantine;
mod recover;
mod roots;
mod signing;
mod small_file;
#[cfg(test)]
mod tests;
mod unpack;

pub(crate) use disk::wait_lock;
pub use error::Error;
pub(crate) use grant::{Grant, Seal};
pub use inspection::LogInspection;
pub use prune::{Prune, Pruning};
pub use recover::RecoveryPlan;
pub use signing::{Signer, Signing};

use std::{
    collections::BTreeSet,
    fmt,
    fs::File,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use cap_std::fs::Dir;
use portcullis_audit::{Draft, KEY_FACT, Kind, Prepared, Receipt};
use rustix::fs::OFlags;

use checkpoint_builder::{CheckpointBuilder, Occasion};
use checkpoint_thread::CheckpointThread;
use disk::{FileLock, Folder};
use group::GroupCommit;
use lifetime::Lifetime;
use log::Log;
use nonce::Nonces;

/// A gateway's access to the audit log, for all its threads.
pub struct AuditLog {
    boot: String,
    group: Arc<GroupCommit>,
    maker: Option<Arc<CheckpointBuilder>>,
    keeper: Option<CheckpointThread>,
    /// True if reads wait until their records are synced too.
    all_durable: bool,
    life: Lifetime,
    nonces: Nonces,
    /// Intents of this process without an outcome.
    open: Mutex<BTreeSet<u64>>,
    observer: Option<Observer>,
    /// The sequence number after the newest record of this gateway.
    next: AtomicU64,
}

/// Maximum number of records that are written under one lock of the log.
const MAX_GROUP: usize = 256;

/// Called with every record before it is written.
type Observer = Box<dyn Fn(Kind, &Draft) + Send + Sync>;

impl fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditLog").field("boot", &self.boot).finish_non_exhaustive()
    }
}

/// A file for locks between gateways, made when it is first opened.
#[derive(Debug)]
pub(crate) struct LockFile {
    gateways: Folder,
    name: &'static str,
}

impl LockFile {
    /// Opens the file: a new open file description, which has locks of its own.
    ///
    /// # Errors
    ///
    /// Of the system.
    pub(crate) fn open(&self) -> io::Result<File> {
        Ok(self.gateways.file(self.name, OFlags::RDWR | OFlags::CREATE)?)
    }
}

impl AuditLog {
    /// Opens the log in the state directory `state`: makes missing files, repairs a torn tail and
    /// begins this gateway's lifetime. Reads the end of the log only.
    ///
    /// # Errors
    ///
    /// When the log cannot be opened, or its end is damaged otherwise.
    pub fn open(state: &Dir) -> Result<Self, Error> {
        let boot = disk::random_id()?;
        let mut log = Log::attach(state, boot.clone())?;
        let gateways = Folder::open(state, "gateways")?;
        let lock = log.lock();
        let held = FileLock::wait(&lock, log::LOCK)?;
        log.load()?;
        let life = Lifetime::begin(gateways, &boot, log.next())?;
        drop(held);
        Ok(Self {
            boot,
            group: Arc::new(GroupCommit::new(log)),
            maker: None,
            keeper: None,
            all_durable: false,
            life,
            nonces: Nonces::default(),
            open: Mutex::default(),
            observer: None,
            next: AtomicU64::new(0),
        })
    }

    /// Returns a file of the state directory for locks between gateways.
    ///
    /// # Errors
    ///
    /// When the directory of locks cannot be used.
    pub(crate) fn lock_file(&self, name: &'static str) -> Result<LockFile, Error> {
        let gateways =
            self.life.gateways.try_clone().map_err(Error::io("use the directory of locks"))?;
        Ok(LockFile { gateways, name })
    }

    /// Has checkpoints signed from now on, at a clean stop and on each call of
    /// [`AuditLog::checkpoint`].
    ///
    /// # Errors
    ///
    /// When the log was signed with another key before, or does not match the signed one.
    pub fn signed(mut self, signing: Signing) -> Result<Self, Error> {
        let (audit, keys) = {
            let log = self.group.log();
            (Arc::clone(&log.audit), log.keys()?)
        };
        let maker = CheckpointBuilder::new(audit, keys, signing).and_then(|maker| {
            maker.check(self.group.mutex())?;
            self.record_lack_of_checkpoints(&maker)?;
            Ok(maker)
        });
        match maker {
            Ok(maker) => self.maker = Some(Arc::new(maker)),
            Err(error) => {
                // It wrote nothing, so no other gateway has to recover it.
                let _left = self.leave();
                return Err(error);
            }
        }
        Ok(self)
    }

    /// Records that no checkpoint of the log is left although gateways that sign stopped in order:
    /// the next checkpoint would hide that.
    fn record_lack_of_checkpoints(&self, maker: &CheckpointBuilder) -> Result<(), Error> {
        if !maker.lacks_checkpoints(self.group.mutex())? {
            return Ok(());
        }
        let alive = {
            let log = self.group.log();
            let lock = log.lock();
            let _between_registrations = FileLock::wait(&lock, log::LOCK)?;
            lifetime::census(&self.life.gateways, Some(&self.life))?.1
        };
        // One of them may have written its `stop` record, and not its checkpoint yet.
        if !alive.is_empty() {
            return Ok(());
        }
        tracing::warn!(
            "no checkpoint of the audit log is left, although gateways that sign stopped in order: \
             checkpoints were removed, or none could be signed; a record says so"
        );
        let draft = checkpoints::lack("a gateway went on with the log");
        self.note(Kind::Recovered, draft, true).map(drop)
    }

    /// Calls `observer` with every record from now on before it is written; it must be quick.
    pub(crate) fn observe(&mut self, observer: impl Fn(Kind, &Draft) + Send + Sync + 'static) {
        self.observer = Some(Box::new(observer));
    }

    /// Returns the number of records that no checkpoint covers, as far as this gateway has written
    /// and signed itself.
    pub(crate) fn uncovered(&self) -> u64 {
        let covered = self.maker.as_ref().map_or(0, |maker| maker.covered.load(Ordering::Relaxed));
        self.next.load(Ordering::Relaxed).saturating_sub(covered)
    }

    /// Makes reads, too, wait until their records are synced.
    pub fn make_all_durable(&mut self) {
        self.all_durable = true;
    }

    /// Makes checkpoints at their interval, in a thread that ends with this log; for a gateway that
    /// serves for long.
    ///
    /// # Errors
    ///
    /// When the thread cannot be started.
    pub fn keep_checkpoints(&mut self) -> Result<(), Error> {
        if let Some(maker) = &self.maker {
            self.keeper =
                Some(CheckpointThread::start(Arc::clone(maker), Arc::clone(&self.group))?);
        }
        Ok(())
    }

    /// Makes a checkpoint of all records now; false if there is one, or there is no signer.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn checkpoint(&self) -> Result<bool, Error> {
        self.maker
            .as_ref()
            .map_or(Ok(false), |maker| maker.make(self.group.mutex(), Occasion::Request))
    }

    /// Fails if the log takes no more records.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.group.check()
    }

    /// Returns the random identifier of this process's lifetime in each of its records: 32
    /// hexadecimal digits.
    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// Appends a `decision`. On return it is written, so that it survives this process, but not
    /// necessarily the machine, unless all are made durable.
    ///
    /// # Errors
    ///
    /// When it is not in the log.
    pub(crate) fn record(&self, draft: Draft) -> Result<Receipt, Error> {
        self.append(Kind::Decision, draft, self.all_durable)
    }

    /// Appends the decision to disclose what has the seal.
    ///
    /// # Errors
    ///
    /// When it is not in the log: nothing may be disclosed.
    pub(crate) fn record_for(&self, draft: Draft, seal: &Seal) -> Result<Grant, Error> {
        Ok(Grant::new(self.record(draft)?, Kind::Decision, seal))
    }

    /// Appends several `decision`s in this order. On return all of them are as safe as that of
    /// [`AuditLog::record`].
    ///
    /// # Errors
    ///
    /// When one of them is not in the log: nothing may be disclosed.
    pub(crate) fn record_all(&self, drafts: impl Iterator<Item = Draft>) -> Result<(), Error> {
        let mut drafts = drafts.peekable();
        while drafts.peek().is_some() {
            let together: Result<Vec<Prepared>, Error> = drafts
                .by_ref()
                .take(MAX_GROUP)
                .map(|draft| self.prepare(Kind::Decision, draft))
                .collect();
            if let Some(receipt) = self.group.append_all(together?, self.all_durable)? {
                self.appended(&receipt);
            }
        }
        Ok(())
    }

    /// Appends the `intent` to make the change that has the seal. On return it is synced.
    ///
    /// # Errors
    ///
    /// When it is not in the log: nothing may be changed.
    pub(crate) fn admit(&self, draft: Draft, seal: &Seal) -> Result<Grant, Error> {
        Ok(Grant::new(self.note(Kind::Intent, draft, true)?, Kind::Intent, seal))
    }

    /// Appends the `outcome` of an intent of this gateway. On return it is written; if the machine
    /// dies before it is synced, the intent is recovered.
    ///
    /// # Errors
    ///
    /// When it is not in the log, or when `intent` has an outcome already.
    pub fn complete(&self, intent: &Receipt, draft: Draft) -> Result<Receipt, Error> {
        if !self.intents().remove(&intent.seq) {
            return Err(Error::NoIntent(intent.seq));
        }
        let draft = Draft { of: Some(intent.seq), ..draft };
        self.append(Kind::Outcome, draft, false).inspect_err(|_error| {
            self.intents().insert(intent.seq);
        })
    }

    /// Appends a record of any kind, such as `start` or `policy`; with `durable` it is synced on
    /// return. Such a record never grants a disclosure or a change.
    ///
    /// # Errors
    ///
    /// When it is not in the log.
    pub fn note(&self, kind: Kind, draft: Draft, durable: bool) -> Result<Receipt, Error> {
        if kind != Kind::Intent {
            return self.append(kind, draft, durable);
        }
        self.life.persist().inspect_err(|error| self.group.fail(error))?;
        let receipt = self.append(kind, draft, true)?;
        self.intents().insert(receipt.seq);
        Ok(receipt)
    }

    /// Ends this gateway's lifetime with a synced `stop` record. Returns why no checkpoint could be
    /// signed: the log is intact then, and the next one covers it.
    ///
    /// # Errors
    ///
    /// When the record is not in the log, or the log is damaged.
    pub fn close(mut self, draft: Draft) -> Result<Option<Error>, Error> {
        self.append(Kind::Stop, draft, true)?;
        self.keeper = None;
        let unsigned = self.last_checkpoint()?;
        if self.intents().is_empty() {
            self.life.end()?;
        }
        // Otherwise the next gateway finds the file and recovers the intents.
        Ok(unsigned)
    }

    /// Closes a log that other threads share, which takes no more records from them. The next
    /// gateway takes this one for dead, and settles what they left.
    ///
    /// # Errors
    ///
    /// As [`Self::close`].
    pub(crate) fn close_shared(&self, draft: Draft) -> Result<Option<Error>, Error> {
        self.append(Kind::Stop, draft, true)?;
        self.group.fail(&Error::Stopped);
        self.last_checkpoint()
    }

    /// Makes the last checkpoint; returns why none could be signed.
    fn last_checkpoint(&self) -> Result<Option<Error>, Error> {
        let made = self.maker.as_ref().map(|maker| maker.make(self.group.mutex(), Occasion::End));
        let unsigned = match made.and_then(Result::err) {
            Some(error @ (Error::Damaged { .. } | Error::Tampered { .. })) => return Err(error),
            other => other,
        };
        if let Some(error) = &unsigned {
            tracing::error!(%error, "no checkpoint of the audit log could be signed");
        }
        Ok(unsigned)
    }

    /// Ends the lifetime of a gateway that wrote no records.
    ///
    /// # Errors
    ///
    /// When its lock cannot be removed.
    pub fn leave(self) -> Result<(), Error> {
        self.life.end()
    }

    fn append(&self, kind: Kind, draft: Draft, durable: bool) -> Result<Receipt, Error> {
        let receipt = self.group.append(self.prepare(kind, draft)?, durable)?;
        self.appended(&receipt);
        Ok(receipt)
    }

    fn appended(&self, receipt: &Receipt) {
        self.next.fetch_max(receipt.seq.saturating_add(1), Ordering::Relaxed);
    }

    fn prepare(&self, kind: Kind, mut draft: Draft) -> Result<Prepared, Error> {
        draft.boot = Some(self.boot.clone());
        if let (Kind::Start, Some(maker)) = (kind, &self.maker) {
            // The chain has the key, so that a replaced one shows.
            let key = maker.signing.signer.public().to_string();
            draft.facts.get_or_insert_default().insert(KEY_FACT.to_owned(), key.into());
        }
        // Each thread makes its own JSON here, outside the lock.
        let record = Prepared::new(kind, &draft, self.nonces.next()?)?;
        if let Some(observer) = &self.observer {
            observer(kind, &draft);
        }
        Ok(record)
    }

    fn intents(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        // A set has no state between two of its operations.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
