//! The instructions for the client's model: where the files are, what is denied, how
//! approvals work, how to undo.
//!
//! Denials are described in the policy's terms, as far as there is room: clients cut off
//! long instructions. A rule that denies lists is described by its reason alone, because
//! its names could disclose files that the agent must not know of.

use crate::model::{Escaped, OperationKind, WorkspacePath};

use super::{
    config::{ClientLocation, Config},
    denials::{Denials, DeniedByRule, denials},
    further::FurtherWorkspace,
    shared::Shared,
};

/// Maximum of bytes of the instructions, unless the workspace's path is longer.
const MAX_INSTRUCTIONS: usize = 2_000;
/// Maximum of bytes of names of secrets, and of extensions.
const MAX_NAMES: usize = 200;
/// Maximum of names of one rule, and of characters of its reason.
const MAX_NAMES_OF_RULE: usize = 2;
const MAX_REASON: usize = 100;

/// Returns the instructions under the policy in force.
pub(super) fn text(config: &Config, shared: &Shared) -> String {
    let policy = shared.gateway.policy();
    let shown = shared.catalog.under(&policy);
    let root = shared.roots.absolute(&WorkspacePath::root());
    let surroundings = match config.location {
        ClientLocation::Sandbox => {
            "Your own file tools and your shell do not have these files: to them the directory is \
             empty or stale. Read, search and change files with these tools."
        }
        ClientLocation::Mounted => {
            "Your own file tools and your shell have these files, too, as far as the policy shows \
             them: what it hides is missing there, and what it denies is refused. Both ways are \
             decided, kept and recorded alike. Have git check out other versions outside of the \
             directory (`git worktree add ~/NAME COMMIT`): here it may not write what is denied."
        }
        ClientLocation::Host => {
            "Use these tools for these files, not your own file tools and not your shell: what \
             those change is neither kept nor recorded."
        }
        ClientLocation::Remote => {
            "The directory is on the server's machine: your own file tools and your shell may \
             have no such files, or others. Use these tools."
        }
    };
    let denied = match closed(&shared.catalog.closed(&shown)) {
        Some(closed) => format!("It never allows you to {closed}. "),
        None => String::new(),
    };
    let asked = match shown.asks {
        true => {
            let limit = policy.approval_timeout();
            let limit = limit.map(|limit| format!("up to {} s ", limit.as_secs()));
            let limit = limit.unwrap_or_default();
            let who = match config {
                Config { attached: Some(_), .. } => "the user of the editor",
                Config { elicit: true, .. } => "your user, if your client can ask",
                Config { .. } => "the operator",
            };
            format!(
                "Some calls need a person's approval. There is no tool to ask for it: make the \
                 call, and it waits {limit}until {who} answers, or somebody with \
                 `portcullis approve`. A rejection is final; do not repeat the call.\n"
            )
        }
        false => String::new(),
    };
    let before = format!(
        "The files of the workspace {root}, through a gateway. Paths are relative to it, or absolute \
         beneath it. {}{surroundings}\n\
         A policy decides about every call. {denied}",
        beside(&shared.further)
    );
    let after = format!(
        "A call that is denied says by which rule and why. Do not look for another way to do it: \
         tell your user what you need.\n\
         {asked}\
         What you replace or remove is kept in a backup first. You have no tool to undo; your \
         user has: `portcullis undo --session {session}`, with the options of the gateway for \
         workspace, policy and state directory, takes back what this session changed, and asks \
         before. Every call is recorded.",
        session = shared.session.recorded_id(),
    );
    let room = MAX_INSTRUCTIONS.saturating_sub(before.len() + after.len());
    before + &named(&denials(&policy, &shared.session.agent), room) + &after
}

/// Describes the further workspaces.
fn beside(further: &[FurtherWorkspace]) -> String {
    let root = |workspace: &FurtherWorkspace| workspace.roots.absolute(&WorkspacePath::root());
    match further.iter().map(root).collect::<Vec<_>>() {
        roots if roots.is_empty() => String::new(),
        roots => format!(
            "Files of {} by absolute paths alone, those of one call in one of them, each under a \
             policy of its own. ",
            roots.join(", ")
        ),
    }
}

/// Describes denials in at most `room` bytes.
fn named(denials: &Denials, room: usize) -> String {
    let Denials { secrets, extensions, rules } = denials;
    let extensions: Vec<_> = extensions.iter().map(|extension| format!("*.{extension}")).collect();
    let closed = [("Names of secrets", secrets), ("Extensions", &extensions)];
    let closed = closed.into_iter().filter(|(_, names)| !names.is_empty()).map(|(what, names)| {
        let names = names.iter().map(|name| code(name));
        format!("{what} are closed: {}. ", listed(names, ", ", "…", MAX_NAMES))
    });
    let rules = rules.iter().filter_map(in_words);
    listed(closed.chain(rules), "", "More is denied. ", room)
}

/// Describes one rule; `None` if there is nothing that the agent may know.
fn in_words(rule: &DeniedByRule) -> Option<String> {
    let reason = rule.reason.as_deref().map(|reason| {
        let short: String = reason.chars().take(MAX_REASON).collect();
        Escaped(&short).to_string()
    });
    let names = rule.names.iter().take(MAX_NAMES_OF_RULE).map(|name| {
        let itself = if name.is_entry { " itself" } else { "" };
        format!("{}{itself}", code(&name.text))
    });
    let names: Vec<_> = names.collect();
    let more = if rule.names.len() > MAX_NAMES_OF_RULE { " and the like" } else { "" };
    let because = |reason| format!(": {reason}");
    match (names.as_slice(), reason) {
        ([], None) => None,
        ([], Some(reason)) if rule.operations.contains(&OperationKind::List) => {
            Some(format!("Some files are hidden: {reason}. "))
        }
        ([], Some(reason)) => {
            Some(format!("You may not {} some files: {reason}. ", verb(&rule.operations)))
        }
        (names, reason) => Some(format!(
            "You may not {} {}{more}{}. ",
            verb(&rule.operations),
            names.join(", "),
            reason.map(because).unwrap_or_default()
        )),
    }
}

/// Describes the operations that a rule denies, in as few words as possible.
fn verb(operations: &[OperationKind]) -> String {
    use OperationKind as Kind;
    let chief = [Kind::Read, Kind::Write, Kind::Remove];
    let (chief, _): (Vec<_>, Vec<_>) =
        chief.into_iter().partition(|kind| operations.contains(kind));
    closed(if chief.is_empty() { operations } else { &chief }).unwrap_or_default()
}

fn code(name: &str) -> String {
    format!("`{}`", Escaped(name))
}

/// Joins as many texts as fit, with `more` where some are missing.
fn listed(texts: impl Iterator<Item = String>, between: &str, more: &str, room: usize) -> String {
    let mut list = String::new();
    for text in texts {
        if list.len() + text.len() + 2 * between.len() + more.len() > room {
            return if list.is_empty() { list } else { list + between + more };
        }
        if !list.is_empty() {
            list += between;
        }
        list += &text;
    }
    list
}

/// Describes operations that are never allowed.
fn closed(kinds: &[OperationKind]) -> Option<String> {
    let (last, others) = kinds.split_last()?;
    let others: Vec<_> = others.iter().map(|kind| kind.as_str()).collect();
    Some(match others.as_slice() {
        [] => last.to_string(),
        others => format!("{} or {last}", others.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{PolicySource, compile};

    fn told(text: &str, room: usize) -> String {
        let policy = compile(&PolicySource::from_text("p", text)).unwrap();
        named(&denials(&policy, &"a".parse().unwrap()), room)
    }

    /// The instructions used to say only that the policy decides.
    #[test]
    fn denials_are_told_in_the_words_of_the_policy() {
        let told = told(
            "schema = 1\nextensions = { deny = [\"exe\"] }\nsecrets = { names = [\".env\"] }\n\
             [[rules]]\nid = \"git\"\neffect = \"deny\"\noperations = [\"write\", \"remove\"]\n\
             paths = [\"**/.git/**\", \"**/.hg\", \"**/.svn\"]\nreason = \"Git runs this\"\n\
             [[rules]]\nid = \"new\"\neffect = \"deny\"\noperations = [\"mkdir\"]\npaths = [\"new\"]\n\
             [[rules]]\nid = \"known\"\neffect = \"deny\"\npaths = [\"one\"]\nreason = \"of customers\"\n\
             [[rules]]\nid = \"unknown\"\neffect = \"deny\"\npaths = [\"other\"]\n\
             [[rules]]\nid = \"entry\"\neffect = \"deny\"\noperations = [\"remove\"]\n\
             scope = \"entry\"\npaths = [\"src\"]\n",
            1000,
        );
        assert_eq!(
            told,
            "Names of secrets are closed: `.env`. Extensions are closed: `*.exe`. You may not write \
             or remove `.git`, `.hg` and the like: Git runs this. You may not mkdir `new`. Some \
             files are hidden: of customers. You may not remove `src` itself. "
        );
    }

    #[test]
    fn denials_take_no_more_room_than_there_is() {
        let rule = |n| {
            format!(
                "[[rules]]\nid = \"r{n}\"\neffect = \"deny\"\noperations = [\"write\"]\npaths = [\"p{n}\"]\n"
            )
        };
        let names: Vec<_> = (0..40).map(|n| format!("\"secret-name-{n}\"")).collect();
        let rules: String = (0..40).map(rule).collect();
        let text = format!("schema = 1\nsecrets = {{ names = [{}] }}\n{rules}", names.join(", "));
        for room in [0, 10, 100, 300, 500, 10_000] {
            let told = told(&text, room);
            assert!(told.len() <= room, "{room} {told}");
            assert_eq!(told.is_empty(), room < 300, "{room} {told}");
            assert_eq!(told.ends_with("More is denied. "), (300..10_000).contains(&room), "{told}");
        }
    }

    #[test]
    fn operations_are_listed_as_a_sentence_has_them() {
        use OperationKind as Kind;
        assert_eq!(closed(&[]), None);
        assert_eq!(closed(&[Kind::Write]).unwrap(), "write");
        assert_eq!(closed(&[Kind::Write, Kind::Edit]).unwrap(), "write or edit");
        assert_eq!(
            closed(&[Kind::Write, Kind::Edit, Kind::Remove]).unwrap(),
            "write, edit or remove"
        );
    }
}
