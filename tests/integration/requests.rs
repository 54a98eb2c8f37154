//! Requests of any type, for tests that send many to a gateway and compare the replies.

use std::fmt::Debug;

use portcullis::{
    gateway::{
        Changed, Client, Content, Entries, Entry, Error, Gateway, Matches, Names, Reply, Request,
        SearchResult,
    },
    model::{AsOperation, Session},
};

/// A request of any type.
pub(crate) trait AnyRequest: AsOperation + Debug + Sync {
    /// Sends it to a gateway; returns the reply in words.
    fn put(
        &self,
        gateway: &Gateway,
        session: &Session,
        client: Client<'_>,
    ) -> Result<Reply<String>, Error>;
}

impl<R: Request<Output: Words> + Debug + Sync> AnyRequest for R {
    fn put(
        &self,
        gateway: &Gateway,
        session: &Session,
        client: Client<'_>,
    ) -> Result<Reply<String>, Error> {
        let Reply { receipt, output } = gateway.handle(session, self, client)?;
        Ok(Reply { receipt, output: output.words() })
    }
}

/// A reply in words, without times and ids.
pub(crate) trait Words: Debug {
    fn words(&self) -> String {
        format!("{self:?}")
    }
}

impl Words for Content {}
impl Words for Entries {}
impl Words for SearchResult {}
impl Words for Matches {}
impl Words for Names {}

impl Words for Entry {
    fn words(&self) -> String {
        format!("Stat {} {:?}", self.path, self.size)
    }
}

impl Words for Changed {
    fn words(&self) -> String {
        format!("Changed {}", self.committed.as_str())
    }
}
