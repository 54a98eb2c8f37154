//! Events without data, which make a client reconnect (2025-11-25). Clients
//! of older revisions take them for messages, and fail.

use hyper::body::{Bytes, Frame};
use rmcp::model::ProtocolVersion;

/// Returns true if clients of a revision know such events.
pub(super) fn is_known(revision: &ProtocolVersion) -> bool {
    revision.as_str() >= ProtocolVersion::V_2025_11_25.as_str()
}

/// Returns the frame, or an empty one if its event has no data. Each event of `rmcp`
/// is a frame of its own and begins with its data. Comments, which keep a stream
/// alive, pass.
pub(super) fn remove(frame: Frame<Bytes>) -> Frame<Bytes> {
    let rest = frame.data_ref().and_then(|event| event.strip_prefix(b"data:"));
    match rest {
        Some(rest) if !has_data(rest) => Frame::data(Bytes::new()),
        _ => frame,
    }
}

/// Returns true if the line contains anything but blanks.
fn has_data(rest: &[u8]) -> bool {
    rest.iter().take_while(|byte| !b"\r\n".contains(byte)).any(|byte| *byte != b' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_events_without_data_are_removed() {
        let left = |event: &'static [u8]| {
            let frame = remove(Frame::data(Bytes::from_static(event)));
            frame.into_data().unwrap_or_default()
        };
        for event in
            [&b"data: \nid: 0\nretry: 3000\n\n"[..], b"data:\n\n", b"data:\r\nid: 1\r\n\r\n"]
        {
            assert_eq!(left(event), "", "{event:?}");
        }
        for event in
            [&b"data: {}\nid: 0\n\n"[..], b"data:{}\n\n", b":\n\n", b"{\"data\":\"\"}", b""]
        {
            assert_eq!(left(event), event);
        }
    }

    #[test]
    fn revisions_before_2025_11_25_do_not_know_them() {
        let known = ProtocolVersion::KNOWN_VERSIONS.iter().filter(|revision| is_known(revision));
        let known: Vec<_> = known.map(ProtocolVersion::as_str).collect();
        assert_eq!(known, ["2025-11-25", "2026-07-28"]);
    }
}
