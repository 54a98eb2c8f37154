//! The operations, one in each file: they disclose content, or change it so that a reader sees the
//! old or the new file and nothing is lost.
//!
//! `prepare` reads privately and checks; its result stays [`Sealed`] until the log grants it. This
//! module neither decides on names nor writes records: the gateway does, and only it calls in here.

mod append;
mod atomic_exchange;
mod attributes;
mod base;
mod buffers;
mod content;
mod context;
mod delete;
mod earlier_versions;
mod edit;
mod error;
mod exchange;
mod import;
mod last_renames;
mod list;
mod mkdir;
mod name_locks;
mod names;
mod parents;
mod read;
mod read_backup;
mod recover;
mod remove;
mod rename;
mod replace;
mod restore;
mod sealed;
mod search;
mod secrets;
mod stat;
mod symlink;
mod tmpfile;
mod unpack;
mod watch;
mod write;

pub(crate) use portcullis_search::{Follower, NoFollower, watch::EndedSubscription};

pub use attributes::SomeAttributes;
pub use base::Base;
pub use buffers::{BufferError, Buffers, Source};
pub(crate) use context::Context;
pub(crate) use error::Error;
pub(crate) use exchange::ExchangeEntry;
pub(crate) use last_renames::LastRenames;
pub use list::{Entries, Entry, EntryKind, MAX_LIST};
pub(crate) use name_locks::NameLocks;
pub use names::Names;
pub use read::{Content, TextPart};
pub(crate) use recover::{Resolution, UnfinishedChange, is_undone, settle};
pub use sealed::Committed;
pub(crate) use sealed::{Change, Facts, Sealed, SealedChange};
pub(crate) use search::{Disclosure, Start};
pub use search::{FileMatches, Matches, SearchResult};
pub(crate) use secrets::Findings;
pub(crate) use watch::Watcher;
pub use watch::{Event, Subscription};

pub(crate) mod prepare {
    //! The first half of every operation, by name.

    pub(crate) use super::{
        append::prepare as append, attributes::prepare as set_attributes, edit::prepare as edit,
        exchange::prepare as exchange, import::prepare as import, list::prepare as list,
        mkdir::prepare as mkdir, names::prepare as names, read::prepare as read,
        read_backup::content as recall, read_backup::tree as recall_tree,
        remove::prepare as remove, rename::prepare as rename, restore::prepare as restore,
        search::prepare_glob as glob, search::prepare_grep as grep, stat::prepare as stat,
        symlink::prepare as symlink, watch::prepare as watch, write::prepare as write,
    };
}
