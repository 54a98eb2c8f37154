//! Requests that disclose a file, a directory or an entry.

use portcullis_audit::Draft;

use super::{reply::Attempt, request::Request, transaction::Transaction};
use crate::{
    model::request::{List, Names, Read, Stat},
    ops::{self, Content, Entries, Entry, prepare},
};

impl Request for Read {
    type Output = Content;

    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft) -> Attempt<Content> {
        let permit = transaction.permit(draft)?;
        let content = prepare::read(&transaction.context, &permit, self.range, self.encoding)?;
        transaction.disclose(draft, content)
    }
}

impl Request for List {
    type Output = Entries;

    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft) -> Attempt<Entries> {
        let permit = transaction.permit(draft)?;
        transaction.disclose(draft, prepare::list(&transaction.context, &permit)?)
    }
}

impl Request for Names {
    type Output = ops::Names;

    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft) -> Attempt<ops::Names> {
        let permit = transaction.permit(draft)?;
        transaction.disclose(draft, prepare::names(&transaction.context, &permit)?)
    }
}

impl Request for Stat {
    type Output = Entry;

    fn run<'a>(&'a self, transaction: &Transaction<'a>, draft: &mut Draft) -> Attempt<Entry> {
        let permit = transaction.permit(draft)?;
        transaction.disclose(draft, prepare::stat(&permit)?)
    }
}
