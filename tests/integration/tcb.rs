//! The trusted computing base: `docs/TCB.md` lists its files, and it grows only with a line that
//! gives the reason.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use crate::golden;

const DOCUMENT: &str = "docs/TCB.md";

/// End of the part of the document that is written by hand.
const MARK: &str = "<!-- The rest is made from the sources. -->\n";

/// The parts: a title, and the paths of its files or directories.
const PARTS: &[(&str, &[&str])] = &[
    ("The core", &["crates/core/src"]),
    ("Policy and secrets", &["crates/policy/src"]),
    (
        "The record's form, its chain and its readers",
        &[
            "audit/src/base64.rs",
            "audit/src/chain.rs",
            "audit/src/checkpoint.rs",
            "audit/src/compressed.rs",
            "audit/src/hash.rs",
            "audit/src/json.rs",
            "audit/src/line",
            "audit/src/line.rs",
            "audit/src/note",
            "audit/src/note.rs",
            "audit/src/reader.rs",
            "audit/src/record.rs",
            "audit/src/segment.rs",
            "audit/src/source.rs",
            "audit/src/time.rs",
            "audit/src/tree.rs",
        ],
    ),
    ("The sandbox", &["crates/sandbox/src"]),
    (
        "The files and scratch directories of a mount",
        &[
            "crates/mount/src/node.rs",
            "crates/mount/src/nodes.rs",
            "crates/mount/src/open.rs",
            "crates/mount/src/scratch",
            "crates/mount/src/scratch.rs",
            "crates/mount/src/stage.rs",
            "crates/mount/src/staged.rs",
            "crates/mount/src/view_cache.rs",
        ],
    ),
    (
        "Between agent and editor",
        &[
            "crates/acp/src/agent.rs",
            "crates/acp/src/allowed.rs",
            "crates/acp/src/buffers.rs",
            "crates/acp/src/editor_requests.rs",
            "crates/acp/src/initialize.rs",
            "crates/acp/src/inject.rs",
            "crates/acp/src/logins.rs",
            "crates/acp/src/proxy.rs",
            "crates/acp/src/terminal_content.rs",
            "crates/acp/src/terminal_updates.rs",
            "crates/acp/src/workspaces.rs",
            "crates/mcp/src/paths.rs",
            "crates/rpc/src/envelope.rs",
            "crates/rpc/src/framing.rs",
            "crates/rpc/src/id.rs",
            "crates/rpc/src/message.rs",
            "crates/rpc/src/object.rs",
            "crates/rpc/src/strict_json.rs",
        ],
    ),
    (
        "Answers to questions",
        &[
            "crates/acp/src/asker.rs",
            "crates/acp/src/editor_user.rs",
            "crates/acp/src/permission_request.rs",
            "crates/mcp/src/approver.rs",
            "crates/mcp/src/elicit.rs",
            "crates/mcp/src/question.rs",
            "crates/mcp/src/suspended.rs",
            "crates/serve/src/files/approver.rs",
            "src/app/approval_socket",
            "src/app/approval_socket.rs",
            "src/cli/approve.rs",
        ],
    ),
    ("Egress", &["crates/egress/src"]),
    ("The import of commits", &["crates/git/src", "src/app/git", "src/cli/git"]),
    (
        "Policy files and their signatures",
        &[
            "src/app/policy_loading.rs",
            "src/app/policy_reload.rs",
            "src/app/policy_rollback.rs",
            "src/app/policy_texts.rs",
            "src/app/policy_transfer.rs",
            "src/config.rs",
            "src/config/file.rs",
            "src/config/operator.rs",
            "src/config/policy_texts.rs",
            "src/config/signature.rs",
        ],
    ),
    (
        "Start",
        &[
            "crates/serve/src/guard.rs",
            "crates/serve/src/throttle.rs",
            "crates/serve/src/token.rs",
            "src/app/agent_sandbox.rs",
            "src/app/bootstrap.rs",
            "src/app/executed_files.rs",
            "src/app/launch.rs",
            "src/app/opened.rs",
            "src/app/preset_hosts.rs",
            "src/app/presets.rs",
            "src/app/process.rs",
            "src/app/scratch.rs",
            "src/app/state_directory.rs",
            "src/app/state_owner.rs",
            "src/app/token.rs",
            "src/app/trusted_paths.rs",
            "src/cli/agent",
            "src/cli/agent.rs",
            "src/cli/exec.rs",
            "src/cli/local_gateway.rs",
            "src/cli/login.rs",
            "src/cli/mcp.rs",
            "src/cli/run",
            "src/cli/run.rs",
            "src/cli/sandbox_stages.rs",
            "src/cli/serve/front_requests.rs",
            "src/cli/serve/plan",
            "src/cli/serve/plan.rs",
            "src/cli/serve/policies.rs",
            "src/cli/serve/reload.rs",
            "src/cli/serve/worker.rs",
            "src/cli/shell.rs",
        ],
    ),
];

fn sources(path: &Path, found: &mut Vec<PathBuf>) {
    // The checkout itself may lie in a directory of that name.
    let beneath = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap();
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            sources(&entry.unwrap().path(), found);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs")
        && !beneath.iter().any(|name| name == "tests")
        && !path.file_name().unwrap().to_str().unwrap().ends_with("tests.rs")
    {
        found.push(path.to_owned());
    }
}

/// The lines that are code: not blank, no comment, and before the tests, which come last.
fn code(text: &str) -> usize {
    let text = text.split("\nmod tests {\n").next().unwrap();
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// The first sentence of a file's documentation.
fn sentence(text: &str) -> Option<String> {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    let paragraph: Vec<_> = lines.map(str::trim).take_while(|line| !line.is_empty()).collect();
    let paragraph = paragraph.join(" ");
    let end = paragraph.find(". ").map_or(paragraph.len(), |at| at + 1);
    let sentence = paragraph[..end].trim_end_matches(['.', ':']).replace('|', "\\|");
    (!sentence.is_empty()).then(|| without_links(&sentence))
}

/// Links of rustdoc lead nowhere in a page: only their text stays.
fn without_links(sentence: &str) -> String {
    let mut pieces = sentence.split("](");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        if let Some(at) = plain.rfind('[') {
            plain.remove(at);
        }
        plain += piece.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain
}

#[test]
fn the_list_of_trusted_files_is_up_to_date_and_within_its_budget() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join(DOCUMENT)).unwrap();
    let (written, _) = document.split_once(MARK).expect("the mark");
    let (mut found, mut total) = (format!("{written}{MARK}"), 0);
    for (title, paths) in PARTS {
        let mut files = Vec::new();
        for path in *paths {
            let before = files.len();
            sources(&root.join(path), &mut files);
            assert!(files.len() > before, "{path} has no source");
        }
        files.sort();
        let (mut rows, mut lines) = (String::new(), 0);
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let name = file.strip_prefix(root).unwrap().display();
            let sentence =
                sentence(&text).unwrap_or_else(|| panic!("{name} does not say what it is"));
            let count = code(&text);
            lines += count;
            writeln!(rows, "| `{name}` | {count} | {sentence} |").unwrap();
        }
        total += lines;
        write!(found, "\n## {title}: {lines} lines\n\n| file | lines | |\n|---|---:|---|\n{rows}")
            .unwrap();
    }
    // The last row of the budget has the number in force.
    let budget = written.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next());
    let budget: Vec<usize> = budget.filter_map(|number| number.parse().ok()).collect();
    let budget = budget.last().expect("a budget");
    assert!(
        total <= *budget,
        "{total} lines of code have to be trusted, and {DOCUMENT} allows {budget}: \
         move something out, or add a row that says why it grows"
    );
    golden::same(DOCUMENT, &found);
}
