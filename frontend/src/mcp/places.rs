//! When a call may begin, where several clients share their memory.

use std::{sync::Arc, time::Duration};

use rmcp::{RoleServer, service::RequestContext};

use crate::gateway::Refusal;

use super::server::Server;

/// How often it is looked whether a client has read what it was told.
const LOOK: Duration = Duration::from_millis(10);

impl Server {
    /// Waits until the client has read what it was told before, for the call's turn
    /// and for memory for its reply. The call keeps them until it is answered, or asks
    /// a person.
    ///
    /// # Errors
    /// When it is taken back before, or finds no memory in time.
    pub(super) async fn enter(&self, context: &RequestContext<RoleServer>) -> Result<(), Refusal> {
        let Some(stock) = &self.shared.stock else { return Ok(()) };
        let outlet = &self.shared.outlet;
        let entered = async {
            // However much one client asks for, little of it is in line before others.
            let turn = Arc::clone(&self.shared.turns).acquire_owned().await.ok()?;
            loop {
                while !outlet.has_room() {
                    tokio::time::sleep(LOOK).await;
                }
                let place = stock.enter().await?;
                if outlet.has_room() {
                    return Some(place.of(turn));
                }
            }
        };
        let place = tokio::select! {
            biased;
            () = context.ct.cancelled() => return Err(Refusal::Cancelled),
            place = entered => place,
        };
        let Some(place) = place else {
            return Err(Refusal::Parameters("too many replies wait to be read".to_owned()));
        };
        self.under_way.take_place(&context.id, place);
        Ok(())
    }
}
