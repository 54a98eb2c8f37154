//! The lines of a summary, as a person reads them.

use std::fmt;

use super::{Change, Connections, refusals::Refusal};
use crate::model::{Escaped, Quoted};

/// A line for people.
pub(super) enum Line<'a> {
    /// Versions of one path, or one change.
    Changes(Vec<&'a Change>),
    /// A refused request, after the word for how it was refused.
    Refusal(&'static str, &'a Refusal),
    /// The connections with one host, with that credential.
    Connections(&'a str, Option<&'a str>, &'a Connections),
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changes(changes) => {
                let Some(change) = changes.first() else { return Ok(()) };
                let path = change.path.quoted();
                write!(f, "{:<8} {path}", change.operation.to_string())?;
                if let Some(to) = &change.to {
                    write!(f, " to {}", to.quoted())?;
                }
                if changes.len() > 1 {
                    write!(f, " ({} versions)", changes.len())?;
                }
                match change.result.as_deref() {
                    Some("ok") => Ok(()),
                    Some(result) => write!(f, ": {}", Quoted(result)),
                    None => write!(f, ": not finished"),
                }
            }
            Self::Refusal(word, refusal) => {
                let (operation, path) = (Quoted(&refusal.operation), Quoted(&refusal.path));
                write!(f, "{word:<8} {operation} {path}")?;
                if let Some(to) = &refusal.to {
                    write!(f, " to {}", Quoted(to))?;
                }
                with(f, refusal.credential.as_deref())?;
                if let Some(request) = &refusal.request {
                    write!(f, " ({})", Escaped(request))?;
                }
                if refusal.times > 1 {
                    write!(f, ", {} times", refusal.times)?;
                }
                match (&refusal.rule, &refusal.reason) {
                    (Some(rule), _) => write!(f, ": rule {}", Quoted(rule))?,
                    (None, Some(reason)) => write!(f, ": {}", Quoted(reason))?,
                    (None, None) => {}
                }
                match &refusal.question {
                    Some(question) => write!(f, ", question {}", Quoted(question)),
                    None => Ok(()),
                }
            }
            Self::Connections(host, credential, Connections { number, traffic }) => {
                let times = if *number > 1 { format!(", {number} times") } else { String::new() };
                write!(f, "{:<8} {}", "connect", Quoted(host))?;
                with(f, *credential)?;
                write!(f, "{times}: {}", traffic.text(*number))
            }
        }
    }
}

/// Names the credential of a connection.
fn with(f: &mut fmt::Formatter<'_>, credential: Option<&str>) -> fmt::Result {
    credential.map_or(Ok(()), |id| write!(f, " with `{}`", Escaped(id)))
}
