//! Compressed segments, converted back to their plain form.

use std::io;

use portcullis_audit::{PACKED, Segment, Source as _};
use rustix::fs::OFlags;

use super::{Error, disk::Folder};

/// Converts a compressed segment to its plain form, which can be cut and extended.
pub(super) fn unpack(audit: &Folder, segment: Segment) -> Result<(), Error> {
    let name = segment.to_string();
    unpack_named(audit, &name).map_err(|error| match error {
        Error::Unreadable(_) => error,
        error => error.of(&name),
    })
}

fn unpack_named(audit: &Folder, name: &str) -> Result<(), Error> {
    let failed = || Error::io("unpack a segment");
    let packed = format!("{name}{PACKED}");
    if audit.stat(name).map_err(failed())?.is_some()
        || audit.stat(&packed).map_err(failed())?.is_none()
    {
        return Ok(());
    }
    let damaged = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => Error::Unreadable(packed.clone()),
        _ => Error::std("unpack a segment")(error),
    };
    let mut lines = audit.open(name).map_err(damaged)?;
    let temp = format!(".{name}");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
    let mut file = audit.file(&temp, flags).map_err(failed())?;
    let copied = io::copy(&mut lines, &mut file).and_then(|_bytes| file.sync_all());
    if copied.is_err() {
        // On a full disk it would leave no room for the next start.
        audit.remove(&temp).map_err(failed())?;
    }
    copied.map_err(damaged)?;
    audit
        .rename(&temp, audit, name)
        .and_then(|()| audit.sync())
        .and_then(|()| audit.remove(&packed))
        .map_err(failed())
}
