//! Packing the vault when nobody waits for it.

use std::{ops::ControlFlow, thread, time::Duration};

use crate::backup::Vault;

/// How often a gate that runs for long looks whether there is enough to pack.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Packs the vault now if enough was saved since it was packed last. What goes
/// wrong is only said: everything is kept as it is then.
pub(crate) fn pack_if_due(vault: &Vault) {
    let packed = vault.is_due().and_then(|due| {
        if due { vault.pack(&mut |_| ControlFlow::Continue(())).map(Some) } else { Ok(None) }
    });
    match packed {
        Ok(None) => {}
        Ok(Some(done)) => tracing::info!(
            entries = done.entries,
            before = done.before,
            after = done.after,
            damaged = done.damaged,
            "packed backups"
        ),
        Err(error) => tracing::warn!(%error, "backups could not be packed"),
    }
}

/// Looks after the vault from a thread of its own, as long as the process
/// lives. The process may end at any moment: packing survives that.
///
/// # Errors
/// When there can be no thread.
pub(crate) fn start(vault: Vault) -> std::io::Result<()> {
    let work = move || {
        // Requests go first. Where this is refused, they wait a little.
        let _ = rustix::process::setpriority_process(None, 19);
        loop {
            thread::sleep(LOOK_EVERY);
            pack_if_due(&vault);
        }
    };
    thread::Builder::new().name("housekeeping".to_owned()).spawn(work).map(drop)
}
