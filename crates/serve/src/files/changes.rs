//! What changes, told to a client without being asked: `change` messages about
//! the whole workspace, as far as the policy lets the client's agent see it.

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
struct Over<'a> {
    channel: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    error: &'a str,
}

/// What a client is told of.
pub(super) fn query() -> WatchQuery {
    let ignore = IGNORED_DIRECTORIES.iter().map(|name| (*name).to_owned()).collect();
    WatchQuery { path: WorkspacePath::root(), recursive: true, ignore }
}

/// Tells a client until it is gone, or nothing more comes.
pub(super) async fn tell<W>(client: Arc<Client<W>>, changes: Subscription)
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
            Err(why) => {
                return say_over(&client, &why).await;
            }
        };
        for message in messages {
            // Whoever does not read is told later to look again.
            if client.say(&message).await.is_err() {
                return;
            }
        }
    }
}

/// Says that nothing more is told, and why. Whoever does not hear it is gone.
pub(super) async fn say_over<W>(client: &Client<W>, why: &impl std::fmt::Display)
where
    W: AsyncWrite + Unpin + Send + 'static,
{
    let error = format!("changes are not told any more: {why}");
    let over = Over { channel: CHANNEL, kind: "change", error: &error };
    let _ = client.say(&text(&over)).await;
}

/// The protocol knows no renames: one name goes, another comes. Nor does it know
/// what is never served, which no list shows either.
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
    // Texts and nothing else: there is nothing that could not be written.
    serde_json::to_vec(message).unwrap_or_default()
}
