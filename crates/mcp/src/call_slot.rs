//! The wait of a call for its slot and its memory.

use std::{sync::Arc, time::Duration};

use rmcp::{RoleServer, service::RequestContext};
use tokio::time::sleep;

use super::{memory::CallSlot, server::Server};
use crate::gateway::Refusal;

/// Interval of checks if the client has read earlier replies.
const WRITE_POLL_INTERVAL: Duration = Duration::from_millis(10);

impl Server {
    /// Waits until the client has read earlier replies, for the call's slot and for memory
    /// for its reply. The call holds them until it has a reply, or waits for an approval.
    ///
    /// # Errors
    /// When it is cancelled meanwhile, or gets no memory in time.
    pub(super) async fn begin_call(
        &self,
        context: &RequestContext<RoleServer>,
    ) -> Result<(), Refusal> {
        let Some(memory) = &self.shared.memory else { return Ok(()) };
        let writer = &self.shared.writer;
        let begun = async {
            // Bounds the calls of one client that queue ahead of other clients'.
            let client = Arc::clone(&self.shared.calls_in_line).acquire_owned().await.ok()?;
            loop {
                while !writer.has_room() {
                    sleep(WRITE_POLL_INTERVAL).await;
                }
                let (slot, reply) = memory.begin_call().await?;
                if writer.has_room() {
                    return Some(CallSlot { _slot: slot, _reply: reply, _client: client });
                }
            }
        };
        let slot = tokio::select! {
            biased;
            () = context.ct.cancelled() => return Err(Refusal::Cancelled),
            slot = begun => slot,
        };
        let Some(slot) = slot else {
            return Err(Refusal::Parameters("too many replies wait to be read".to_owned()));
        };
        self.under_way.take_slot(&context.id, slot);
        Ok(())
    }
}
