//! `change` messages to a client about the whole workspace, as far as the policy
//! lets the client's agent see it.

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use tokio::{io::AsyncWrite, sync::Notify};

use crate::{
    gateway::{EntryKind, Event, EventKind, Subscription, WatchEnd},
    model::{IGNORED_DIRECTORIES, WatchQuery, WorkspacePath},
};

use super::{Client, wire::CHANNEL};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Change<'a> {
    channel: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    event: &'a str,
    path: String,
    file_type: &'static str,
}

#[derive(Serialize)]
struct ReportedChange<'a> {
    channel: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    error: &'a str,
}

/// Returns the query for the changes that a client is notified of.
pub(super) fn query() -> WatchQuery {
    let ignore = IGNORED_DIRECTORIES.iter().map(|name| (*name).to_owned()).collect();
    WatchQuery { path: WorkspacePath::root(), recursive: true, ignore }
}

/// Sends changes to a client until it is gone, or no more come.
pub(super) async fn send<W>(client: Arc<Client<W>>, changes: Subscription)
where
    W: AsyncWrite + Unpin + Send + 'static,
{
    let ready = Arc::new(Notify::new());
    let wake = Arc::clone(&ready);
    changes.on_ready(move || wake.notify_one());
    loop {
        let messages = match changes.next(Duration::ZERO) {
            Ok(Some(event)) => messages(&event),
            Ok(None) => {
                ready.notified().await;
                continue;
            }
            Err(WatchEnd::Closed) => return,
            Err(reason) => {
                return send_end(&client, &reason).await;
            }
        };
        for message in messages {
            // A client that does not read gets a message later to list again.
            if client.send_message(&message).await.is_err() {
                return;
            }
        }
    }
}

/// Sends the last `change` message, with the reason. A failure to send is ignored:
/// the client is gone.
pub(super) async fn send_end<W>(client: &Client<W>, reason: &impl std::fmt::Display)
where
    W: AsyncWrite + Unpin + Send + 'static,
{
    let error = format!("no further changes are sent: {reason}");
    let over = ReportedChange { channel: CHANNEL, kind: "change", error: &error };
    let _ = client.send_message(&text(&over)).await;
}

/// Returns the messages for an event. The protocol has no renames: they become a
/// deletion and a creation. It has no entries of other kinds, which no list shows
/// either.
fn messages(event: &Event) -> Vec<Vec<u8>> {
    if event.kind == EntryKind::Other {
        return Vec::new();
    }
    let is_directory = event.kind == EntryKind::Directory;
    let file_type = if is_directory { "directory" } else { "file" };
    let message = |event, path: &WorkspacePath| {
        let path = format!("/{}", if path.is_root() { "" } else { path.as_str() });
        text(&Change { channel: CHANNEL, kind: "change", event, path, file_type })
    };
    match &event.what {
        EventKind::Renamed { from } => {
            vec![message("delete", from), message("create", &event.path)]
        }
        what => vec![message(what.as_str(), &event.path)],
    }
}

fn text(message: &impl Serialize) -> Vec<u8> {
    // Only strings are serialized, which cannot fail.
    serde_json::to_vec(message).unwrap_or_default()
}
