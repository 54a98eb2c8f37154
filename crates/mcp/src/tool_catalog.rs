//! The selection of tools for a client: those of which the policy in force allows its
//! agent some use. It is computed once for each policy.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use crate::{
    lock,
    model::{AgentName, OperationKind},
    policy::{Effect, Policy, parts::CompiledRule},
};

use super::{
    closed::never_allows,
    denials::is_about,
    tools::{self, Tool, Toolset},
};

/// All tools of a client.
pub(super) struct ToolCatalog {
    agent: AgentName,
    /// True if commands can be started.
    has_commands: bool,
    tools: Arc<Tools>,
    /// The last policy, and its selection.
    last: Mutex<(Weak<Policy>, Arc<ShownTools>)>,
}

/// The tools of a set. Their schemas take far more memory than the rest of a session,
/// so all sessions with the same set share them.
struct Tools {
    all: Vec<Tool>,
    by_name: HashMap<String, usize>,
}

static MADE: Mutex<Vec<(Toolset, Weak<Tools>)>> = Mutex::new(Vec::new());

impl Tools {
    fn of(set: &Toolset) -> Arc<Self> {
        let mut made = lock(&MADE);
        let known = made.iter().find(|(of, _)| of == set).and_then(|(_, tools)| tools.upgrade());
        known.unwrap_or_else(|| {
            let all = tools::tools(set);
            let names = all.iter().map(|tool| tool.shown().name.to_string());
            let by_name = names.zip(0..).collect();
            let tools = Arc::new(Self { all, by_name });
            made.retain(|(_, tools)| tools.strong_count() > 0);
            made.push((set.clone(), Arc::downgrade(&tools)));
            tools
        })
    }
}

/// The selection of tools under one policy.
#[derive(Default)]
pub(super) struct ShownTools {
    /// True for each tool that is shown.
    tools: Vec<bool>,
    /// True if a rule, or the setting for commands, has the effect `ask`.
    pub(super) asks: bool,
}

impl ShownTools {
    /// Returns true if both show the same tools.
    pub(super) fn shows_as(&self, other: &Self) -> bool {
        self.tools == other.tools
    }
}

impl ToolCatalog {
    pub(super) fn new(set: &Toolset, agent: &AgentName, has_commands: bool) -> Self {
        Self { agent: agent.clone(), has_commands, tools: Tools::of(set), last: Mutex::default() }
    }

    /// Returns the selection under `policy`.
    pub(super) fn under(&self, policy: &Arc<Policy>) -> Arc<ShownTools> {
        let mut last = lock(&self.last);
        let (known, shown) = &mut *last;
        if !std::ptr::eq(known.as_ptr(), Arc::as_ptr(policy)) {
            let terminal = policy.agent().terminal;
            let may_start = self.has_commands && terminal != Effect::Deny;
            let is_shown = |tool: &Tool| {
                tool.is_public()
                    || match tool.kind() {
                        Some(kind) => !never_allows(policy, &self.agent, kind),
                        None => may_start,
                    }
            };
            let tools: Vec<bool> = self.tools.all.iter().map(is_shown).collect();
            // A question about what nothing allows is never asked.
            let kinds = self.tools.all.iter().zip(&tools).filter(|(_, is_shown)| **is_shown);
            let kinds: Vec<_> = kinds.filter_map(|(tool, _)| tool.kind()).collect();
            let is_asked = |rule: &CompiledRule| {
                // Programs in the mount do what no tool does.
                rule.agents.hold(&self.agent)
                    && (may_start || kinds.iter().any(|kind| is_about(rule, *kind)))
            };
            let asks = policy.ask_rules().iter().any(is_asked)
                || policy.network().rules().any(|rule| rule.effect == Effect::Ask)
                || (may_start && terminal == Effect::Ask);
            *shown = Arc::new(ShownTools { tools, asks });
            *known = Arc::downgrade(policy);
        }
        Arc::clone(shown)
    }

    /// Returns the tools that are shown.
    pub(super) fn list<'a>(&'a self, shown: &'a ShownTools) -> impl Iterator<Item = &'a Tool> {
        let all = self.tools.all.iter().zip(&shown.tools);
        all.filter(|(_, is_shown)| **is_shown).map(|(tool, _)| tool)
    }

    /// Returns the operations of tools that are not shown.
    pub(super) fn closed(&self, shown: &ShownTools) -> Vec<OperationKind> {
        let hidden = |kind: &OperationKind| {
            let mut tools = self.tools.all.iter().zip(&shown.tools);
            tools.any(|(tool, is_shown)| tool.kind() == Some(*kind) && !is_shown)
        };
        OperationKind::ALL.into_iter().filter(hidden).collect()
    }

    /// Returns the number of a tool that is shown.
    pub(super) fn find(&self, name: &str, shown: &ShownTools) -> Option<usize> {
        let number = self.tools.by_name.get(name).copied()?;
        shown.tools.get(number).filter(|is_shown| **is_shown).map(|_| number)
    }

    /// Returns a tool by its number.
    pub(super) fn tool(&self, number: usize) -> Option<&Tool> {
        self.tools.all.get(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{PolicySource, compile};

    fn policy(access: &str) -> Arc<Policy> {
        let text = format!("schema = 1\n[allowedPaths]\n{access} = [\"**\"]\n");
        Arc::new(compile(&PolicySource::from_text("p", &text)).unwrap())
    }

    #[test]
    fn sessions_share_the_tools_of_a_set() {
        let agent = "a".parse().unwrap();
        let offers =
            || ToolCatalog::new(&Toolset::Workspace(tools::Name::near("shared")), &agent, false);
        let (first, second) = (offers(), offers());
        assert!(Arc::ptr_eq(&first.tools, &second.tools));
        let made = Arc::downgrade(&first.tools);
        drop((first, second));
        assert!(made.upgrade().is_none());
    }

    #[test]
    fn tools_for_commands_are_shown_where_they_can_be_started_and_the_policy_allows_terminals() {
        let set = Toolset::Workspace(tools::Name::near("w"));
        for (can, terminal) in [(true, "allow"), (true, "deny"), (false, "allow")] {
            let text = format!("schema = 1\n[agent]\nterminal = \"{terminal}\"\n");
            let policy = Arc::new(compile(&PolicySource::from_text("p", &text)).unwrap());
            let catalog = ToolCatalog::new(&set, &"a".parse().unwrap(), can);
            let is_shown = catalog.find("workspace__w__exec", &catalog.under(&policy)).is_some();
            assert_eq!(is_shown, can && terminal == "allow", "{can} {terminal}");
        }
    }

    /// The instructions told of approvals beside the words that nothing is allowed.
    #[test]
    fn a_rule_that_asks_about_what_nothing_allows_was_told_of() {
        for (list, commands, asks) in
            [("read", false, false), ("write", false, true), ("read", true, true)]
        {
            let text = format!(
                "schema = 1\n[allowedPaths]\n{list} = [\"**\"]\n[agent]\nterminal = \"allow\"\n\
                 [[rules]]\nid = \"k\"\neffect = \"ask\"\noperations = [\"write\"]\npaths = [\"a\"]\n"
            );
            let policy = Arc::new(compile(&PolicySource::from_text("p", &text)).unwrap());
            let catalog = ToolCatalog::new(&Toolset::Reference, &"a".parse().unwrap(), commands);
            assert_eq!(catalog.under(&policy).asks, asks, "{list} {commands}");
        }
    }

    #[test]
    fn what_a_policy_shows_is_found_out_once() {
        let catalog = ToolCatalog::new(&Toolset::Reference, &"a".parse().unwrap(), false);
        let (read, write) = (policy("read"), policy("write"));
        let first = catalog.under(&read);
        assert!(Arc::ptr_eq(&first, &catalog.under(&read)));
        let named = |shown: &ShownTools| catalog.find("write_file", shown).is_some();
        let second = catalog.under(&write);
        assert!(!first.shows_as(&second) && !named(&first) && named(&second));
        assert_eq!(
            catalog.list(&second).filter(|tool| tool.shown().name == "write_file").count(),
            1
        );
        assert!(first.shows_as(&catalog.under(&read)));
    }
}
