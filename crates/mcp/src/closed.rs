//! Operations that a policy never allows on any path. Only tools with a use are shown to
//! a client. Decisions never depend on this module.

use portcullis_policy_tools::covers;

use crate::{
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{
        Mode, Policy,
        parts::{ActionSet, Comparison, Pattern},
        path_accesses,
    },
};

/// Returns true only if `policy` allows this agent no operation of this kind on any path.
/// False proves nothing.
pub(super) fn never_allows(policy: &Policy, agent: &AgentName, operation: OperationKind) -> bool {
    let root = WorkspacePath::root();
    path_accesses(operation, &root, Some(&root))
        .into_iter()
        .any(|(access, _)| is_closed(policy, agent, operation, access))
}

fn is_closed(policy: &Policy, agent: &AgentName, operation: OperationKind, access: Access) -> bool {
    let action = ActionSet::one(operation, access);
    let of_files = operation.is_of_files();
    // The workspace root itself is no file.
    let everything = if of_files { "**/*" } else { "**" };
    let everything = Pattern::alternatives(everything, Comparison::Folded).unwrap_or_default();
    let denied = policy.denied_paths().any(|entry, pattern| {
        let rule = policy.deny_rules().get(entry as usize);
        rule.is_some_and(|rule| rule.actions.contains(action) && rule.agents.hold(agent))
            && everything.iter().all(|all| covers(pattern, all))
    });
    if denied || policy.mode() == Mode::Observe {
        return denied;
    }
    let bounds = policy.layers().iter().filter(|layer| layer.bounds.contains(action));
    let mut bounds = bounds.peekable();
    bounds.peek().is_none()
        || bounds.any(|layer| {
            let granted =
                layer.allowed.get(access).as_ref().is_some_and(|list| !list.patterns.is_empty());
            let ruled = layer
                .allow_rules
                .iter()
                .any(|rule| rule.actions.contains(action) && rule.agents.hold(agent));
            let no_extension = of_files
                && (layer.extensions.get(access).as_ref())
                    .is_some_and(|allowed| allowed.extensions.is_empty());
            !ruled && (!granted || no_extension)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{PolicySource, compile};

    fn closed(text: &str) -> Vec<&'static str> {
        let policy =
            compile(&PolicySource::from_text("p", &format!("schema = 1\n{text}"))).unwrap();
        let agent = "a".parse().unwrap();
        OperationKind::ALL
            .into_iter()
            .filter(|kind| never_allows(&policy, &agent, *kind))
            .map(OperationKind::as_str)
            .collect()
    }

    #[test]
    fn what_no_statement_opens_is_closed() {
        let read = "[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\n";
        let changes = [
            "write", "append", "edit", "mkdir", "remove", "rename", "setattr", "symlink", "restore",
        ];
        assert_eq!(closed(read), changes);
        let more = "[[rules]]\nid = \"x\"\neffect = \"allow\"\noperations = [\"append\"]\n\
            paths = [\"log\"]\n";
        assert!(!closed(&format!("{read}{more}")).contains(&"append"));
        let other = more.replace("paths", "agents = [\"b\"]\npaths");
        assert!(closed(&format!("{read}{other}")).contains(&"append"));
    }

    #[test]
    fn what_a_rule_denies_everywhere_is_closed_and_what_it_denies_somewhere_is_not() {
        let all = "[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\n\
            remove = [\"**\"]\n[[rules]]\nid = \"x\"\neffect = \"deny\"\n\
            operations = [\"remove\"]\n";
        assert_eq!(closed(&format!("{all}paths = [\"**\"]\n")), ["remove", "rename"]);
        assert_eq!(closed(&format!("{all}paths = [\"src/**\"]\n")), [""; 0]);
        let files = all.replace("\"remove\"", "\"write\", \"append\", \"list\"");
        assert_eq!(closed(&format!("{files}paths = [\"**/*\"]\n")), ["write", "append", "edit"]);
        assert_eq!(closed(&format!("{all}agents = [\"b\"]\npaths = [\"**\"]\n")), [""; 0]);
    }

    /// Tools that write were shown although no file could be written.
    #[test]
    fn where_no_extension_is_allowed_no_file_is_written() {
        let all = "[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\n\
            remove = [\"**\"]\n[extensions.allow]\nwrite = []\n";
        assert_eq!(closed(all), ["write", "append", "edit"]);
        let one = "[[rules]]\nid = \"x\"\neffect = \"allow\"\noperations = [\"append\"]\n\
            paths = [\"log\"]\n";
        assert_eq!(closed(&format!("{all}{one}")), ["write", "edit"]);
    }
}
