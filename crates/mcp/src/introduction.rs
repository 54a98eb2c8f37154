//! The part of a client's `initialize` that is used.

use rmcp::model::{ClientCapabilities, Implementation, InitializeRequestParams};

/// Longest name or version of a client, in characters.
const MAX_NAME: usize = 200;

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

/// Returns the beginning of a client's name or version.
pub(super) fn short(text: &str) -> String {
    text.chars().take(MAX_NAME).collect()
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
            "clientInfo": { "name": "x".repeat(1000), "version": "1", "title": "t" },
        }))
        .unwrap();
        shorten(&mut params);
        let left = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": { "elicitation": { "form": {} } },
            "clientInfo": { "name": "x".repeat(200), "version": "1" },
        });
        assert_eq!(serde_json::to_value(&params).unwrap(), left);
    }
}
