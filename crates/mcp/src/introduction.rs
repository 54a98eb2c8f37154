//! The part of a client's `initialize` that is used.

use rmcp::model::{ClientCapabilities, Implementation, InitializeRequestParams};

/// Longest name or version of a client, in bytes.
const MAX_NAME: usize = 200;
/// The text in place of a longer one.
const TOO_LONG: &str = "(more than 200 bytes)";

/// Removes what is not used from the parameters of `initialize`: `rmcp` keeps them as long as
/// the session.
pub fn shorten(params: &mut InitializeRequestParams) {
    params.meta = None;
    let elicitation = params.capabilities.elicitation.take();
    params.capabilities = ClientCapabilities::default();
    params.capabilities.elicitation = elicitation;
    let Implementation { name, version, .. } = &params.client_info;
    params.client_info = Implementation::new(short(name), short(version));
}

/// Returns a client's name or version for its record, unless it is too long: a secret that is cut is
/// no longer found.
pub(super) fn short(text: &str) -> String {
    if text.len() <= MAX_NAME { text.to_owned() } else { TOO_LONG.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn name_version_revision_and_elicitation_remain() {
        let mut params = serde_json::from_value::<InitializeRequestParams>(json!({
            "_meta": { "progressToken": 1 },
            "protocolVersion": "2025-11-25",
            "capabilities": {
                "elicitation": { "form": {} }, "experimental": { "x": {} }, "sampling": {},
            },
            "clientInfo": { "name": "x y ".repeat(1000), "version": "1", "title": "t" },
        }))
        .unwrap();
        shorten(&mut params);
        let left = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": { "elicitation": { "form": {} } },
            "clientInfo": { "name": TOO_LONG, "version": "1" },
        });
        assert_eq!(serde_json::to_value(&params).unwrap(), left);
    }
}
