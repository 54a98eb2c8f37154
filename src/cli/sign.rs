//! Signing for a gate that must not hold the key: it asks the broker, which
//! runs the operator's command. Whatever the gate sends is the text of a
//! checkpoint of this log, or nothing is run for it.

use std::{
    os::fd::OwnedFd,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use portcullis_audit::PublicKey;
use serde::{Deserialize, Serialize};

use super::{
    audit::checkpoint::sign_with,
    failure::{Context as _, Failure},
};
use crate::{ledger::Signer, sandbox::Channel};

/// How long the gate waits for a signature.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize)]
struct Ask {
    text: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    lines: Result<String, String>,
}

/// The broker, as the gate sees it.
pub(crate) struct Remote {
    channel: Mutex<Channel>,
    public: PublicKey,
}

impl Remote {
    pub(crate) fn new(channel: OwnedFd, public: PublicKey) -> Self {
        Self { channel: Mutex::new(Channel::from(channel)), public }
    }
}

impl Signer for Remote {
    fn public(&self) -> &PublicKey {
        &self.public
    }

    fn sign(&self, text: &str) -> Result<String, String> {
        // One at a time; a question has its answer before the next.
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = channel.send(&Ask { text: text.to_owned() }, &[]);
        asked.map_err(|error| error.to_string())?;
        let (answer, _) =
            channel.receive_within::<Answer>(PATIENCE).map_err(|error| error.to_string())?;
        answer.lines
    }
}

/// Answers a gate as long as it lives, in a thread of its own.
pub(crate) fn serve(
    channel: Channel,
    command: Vec<String>,
    public: &PublicKey,
) -> Result<(), Failure> {
    let origin = format!("{}\n", public.name());
    let answer = move || {
        // Ends when the gate has.
        while let Ok((Ask { text }, _)) = channel.receive::<Ask>() {
            let lines = if text.starts_with(&origin) && text.lines().count() == 3 {
                sign_with(&command, &text)
            } else {
                Err("that is no checkpoint of this log".to_owned())
            };
            if channel.send(&Answer { lines }, &[]).is_err() {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("signer".to_owned())
        .spawn(answer)
        .map(drop)
        .or_fail("cannot start a thread")
}
