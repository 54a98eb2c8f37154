//! Further workspaces of a connection.

use std::sync::Arc;

use portcullis::{acp::FurtherWorkspace, mcp::paths::Roots};
use serde_json::json;

use super::no_fs;
use crate::acp_rig::{Rig, gateway, request, workspace};

/// Changes of a session in a further workspace were counted in it after its
/// end, too.
#[test]
fn directories_of_a_further_workspace_pass_and_files_in_it_are_served() {
    let (base, root) = workspace();
    std::fs::write(root.join("a.txt"), "other\n").unwrap();
    let further = Arc::new(gateway(&root, base.path()));
    let roots = Roots::new(&root, Some(std::path::Path::new("/srv/lib")));
    let served = FurtherWorkspace { gateway: Arc::clone(&further), roots, options: String::new() };
    let mut rig = Rig::ready(no_fs(), |config| config.further = vec![served]);
    for (id, directory) in [(20, root.to_str().unwrap()), (21, "/srv/lib/sub")] {
        let params = json!({
            "cwd": rig.root, "mcpServers": [], "additionalDirectories": [directory]
        });
        rig.editor.send(&request(id, "session/new", params.clone()));
        assert_eq!(rig.agent.hear()["params"], params);
    }
    let refused = json!({"cwd": rig.root, "additionalDirectories": ["/srv/library"]});
    rig.editor.send(&request(22, "session/new", refused));
    assert_eq!(rig.editor.hear()["error"]["code"], -32602);
    for (id, path, content) in [
        (30, root.join("a.txt").to_str().unwrap(), "other\n"),
        (31, "/srv/lib/a.txt", "other\n"),
        (32, &rig.path("a.txt"), "one\ntwo żółć\nthree\n"),
    ] {
        let params = json!({"sessionId": "s1", "path": path});
        rig.agent.send(&request(id, "fs/read_text_file", params));
        assert_eq!(rig.agent.hear()["result"]["content"], content, "{path}");
    }
    let denied = json!({"sessionId": "s1", "path": root.join("secret/key.txt")});
    rig.agent.send(&request(33, "fs/read_text_file", denied));
    assert_eq!(rig.agent.hear()["error"]["data"]["rule"], "keys");
    let log = std::fs::read_to_string(base.path().join("state/audit/seg-000000.jsonl")).unwrap();
    assert_eq!(log.matches("\"acp.session\"").count(), 1, "{log}");
    assert!(log.contains("\"path\":\"a.txt\"") && log.contains("\"rule\":\"keys\""), "{log}");
    assert!(!rig.log().contains("\"rule\":\"keys\""));
}
