//! Decisions on commands that an agent starts in its sandbox. The mount's requests decide
//! separately on what such a command does to the workspace.

use std::{collections::BTreeMap, path::Path};

use portcullis_audit::{Draft, Hash, Kind, MAX_LINE, Receipt};
use serde_json::Value;

use super::{
    Error, Gateway, Refusal,
    approval_requests::with_approval,
    approvals::{Approver, Binding, DisclosedQuestion},
    error::{Failure, Stopped},
    limits::Meter,
    pending_approval::{ApprovalNeeded, Approved},
    record,
};
use crate::{
    model::{Escaped, OperationKind, Session},
    policy::{Decision, Policy},
};

/// Maximum number of characters of a command in the first line of a question.
const MAX_TITLE: usize = 120;
/// Maximum length of a command's facts, in bytes as JSON. A record has room for them, also where
/// placeholders for secrets are longer than those.
const MAX_FACTS: usize = MAX_LINE / 4;
/// The line before a command of which a part is not shown: an agent can have it look like a secret.
const PLACEHOLDERS: &str = "not shown: what placeholders stand for, which may be anything\n";

/// A command that an agent wants to have started.
#[derive(Debug)]
pub struct CommandRequest<'a> {
    /// The program and its arguments.
    pub words: Vec<&'a str>,
    /// Variables in addition to those of the agent.
    pub variables: &'a [(String, String)],
    /// The working directory; `None` for that of the agent.
    pub directory: Option<&'a Path>,
    /// Facts for the record.
    pub facts: BTreeMap<String, Value>,
}

/// A command that was allowed, before its record is written.
#[derive(Debug)]
#[must_use]
pub struct AllowedCommand(Draft);

impl Gateway {
    /// Decides whether a command may be started. Waits where the policy asks for an approval.
    ///
    /// # Errors
    /// When the policy in force, a person or a limit of the session denies it: it must not be
    /// started then.
    pub fn decide_command(
        &self,
        session: &Session,
        command: &CommandRequest<'_>,
        approver: &dyn Approver,
    ) -> Result<AllowedCommand, Error> {
        let length = serde_json::to_vec(&command.facts).map_or(usize::MAX, |facts| facts.len());
        if length > MAX_FACTS {
            // The record of any other decision has them, and could not be written.
            let refusal = Refusal::Parameters("the command is too long for a record".to_owned());
            return Err(self.refuse(session, OperationKind::Command.as_str(), None, &refusal));
        }
        let denied = |decision: Decision| {
            let draft = self.command_draft(session, &self.policy(), command);
            Stopped::because(draft, decision.into())
        };
        let meter = self.begin_request(session, &self.policy()).map_err(|decision| {
            self.fail(self.command_draft(session, &self.policy(), command), decision.into(), None)
        })?;
        let meter = meter.as_deref();
        let fail = |stopped: Box<Stopped>| self.fail(stopped.draft, stopped.failure, meter);
        let decided = with_approval(
            |draft, asking| self.ask(session, draft, asking, approver),
            |approved| {
                // The session may have been closed during the wait.
                approved.and(meter).map_or(Ok(()), Meter::open).map_err(denied)?;
                self.settle_command(session, command, approved)
            },
        );
        decided.map(|(allowed, _)| allowed).map_err(fail)
    }

    /// Records durably that a command is started.
    ///
    /// # Errors
    /// When no record can be written: it must not be started then.
    pub fn record_command(&self, allowed: AllowedCommand) -> Result<Receipt, Error> {
        Ok(self.audit_log.note(Kind::Decision, allowed.0, true)?)
    }

    fn command_draft(
        &self,
        session: &Session,
        policy: &Policy,
        command: &CommandRequest<'_>,
    ) -> Draft {
        let mut draft = record::request(session, policy, OperationKind::Command.as_str(), None);
        record::add_facts(&mut draft, self.redact_facts(command.facts.clone()));
        draft
    }

    /// Decides by the policy in force, with the approval if there is one.
    fn settle_command(
        &self,
        session: &Session,
        command: &CommandRequest<'_>,
        approved: Option<&Approved>,
    ) -> Result<AllowedCommand, Box<Stopped>> {
        let policy = self.policy();
        let mut draft = self.command_draft(session, &policy, command);
        let decision = policy.evaluate_command();
        if decision.is_deny() {
            return Err(Stopped::because(draft, decision.into()));
        }
        record::decide(&mut draft, &decision);
        if decision.is_ask() {
            let Some((title, change)) = self.describe_command(command) else {
                let reason = "a person cannot be asked, because the rules for secrets did not examine \
                              all of the command; shorten it, or raise `secrets.maxScanTime`";
                return Err(Stopped::because(draft, decision.denying().with_reason(reason).into()));
            };
            let binding = command.binding(title, &policy, &decision);
            let rules = vec![decision];
            let Some(seq) = self.approvals.record_of(approved, session, &binding) else {
                let path = binding.path.clone();
                let disclosed_part = DisclosedQuestion {
                    path,
                    to: None,
                    rules: rules.clone(),
                    change: change.clone(),
                };
                let asking = ApprovalNeeded { binding, rules, change, disclosed_part };
                return Err(Stopped::because(draft, Failure::Ask(Box::new(asking))));
            };
            record::approve(&mut draft, &rules, seq);
        }
        draft.result = Some("ok".to_owned());
        Ok(AllowedCommand(draft))
    }

    /// Returns the beginning of the command's line, and all of the command, for a person, with
    /// placeholders in place of secrets; `None` if the rules did not examine all of it.
    fn describe_command(&self, command: &CommandRequest<'_>) -> Option<(String, String)> {
        let words = self.redact_words(&command.words)?;
        let line = command_line(&words);
        let mut title: String = line.chars().take(MAX_TITLE).collect();
        if title.len() < line.len() {
            title.push('…');
        }
        let mut is_whole = words.iter().map(String::as_str).eq(command.words.iter().copied());
        let mut shown = |plain: &str| {
            let shown = self.redact_text(plain)?;
            is_whole &= shown == plain;
            Some(Escaped(&shown).to_string())
        };
        let directory = match command.directory {
            Some(directory) => shown(&directory.to_string_lossy())?,
            None => "that of the agent".to_owned(),
        };
        let mut text = format!("directory: {directory}\n");
        for (name, value) in command.variables {
            text.push_str(&format!("variable: {}\n", shown(&format!("{name}={value}"))?));
        }
        if !is_whole {
            text.push_str(PLACEHOLDERS);
        }
        // It comes last, because its lines can look like any other one.
        text.push_str(&format!("command:\n{line}"));
        Some((title, text))
    }
}

impl CommandRequest<'_> {
    fn binding(&self, title: String, policy: &Policy, decision: &Decision) -> Binding {
        let directory = self.directory.map(|directory| directory.as_os_str().as_encoded_bytes());
        let mut exact = Vec::new();
        // The numbers and lengths make different commands different bytes.
        let mut add = |bytes: &[u8]| {
            exact.extend(bytes.len().to_be_bytes());
            exact.extend(bytes);
        };
        add(&self.words.len().to_be_bytes());
        self.words.iter().for_each(|word| add(word.as_bytes()));
        for (name, value) in self.variables {
            add(name.as_bytes());
            add(value.as_bytes());
        }
        directory.into_iter().for_each(add);
        let (policy, rules) = (policy.sha256().to_owned(), vec![decision.rule().to_owned()]);
        Binding {
            command: Some(Hash::of(&exact)),
            ..Binding::new(OperationKind::Command, title, policy, rules)
        }
    }
}

/// Returns a command as a line of a shell.
fn command_line(words: &[String]) -> String {
    match words {
        [shell, option, line] if shell == "/bin/sh" && option == "-c" => line.clone(),
        _ => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    }
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./-_".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests make directories of the gateway's")]
mod tests {
    use std::{fs, sync::Arc};

    use cap_std::fs::Dir;
    use portcullis_audit::{AuditRecord, Directory, Reader};

    use super::*;
    use crate::{
        audit_log::AuditLog,
        gateway::{ErrorKind, approvals::NoApprover},
        model::Transport,
        policy::{PolicySource, SecretKey, compile},
        workspace::Workspace,
    };

    /// Neither it nor its refusal was recorded.
    #[test]
    fn a_command_too_long_for_a_record_left_none() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["ws", "state"] {
            fs::create_dir(temp.path().join(name)).unwrap();
        }
        let text = "schema = 1\n[agent]\nterminal = \"allow\"\n";
        let policy = Arc::new(compile(&PolicySource::from_text("p", text)).unwrap());
        let state = Dir::from_std_file(fs::File::open(temp.path().join("state")).unwrap());
        let workspace = Workspace::open(&temp.path().join("ws")).unwrap();
        let key = SecretKey::new(&[7; SecretKey::LENGTH]);
        let log = AuditLog::open(&state).unwrap();
        let gateway = Gateway::open(workspace, policy, log, &state, key).unwrap();
        let (id, agent, user) = ("ab".repeat(16), "agent".parse().unwrap(), "user".to_owned());
        let session = Session { id, agent, user, transport: Transport::Acp, acp: None };
        gateway.start(&session, BTreeMap::new()).unwrap();
        let decide = |words: usize| {
            let words = vec![""; words];
            let facts = BTreeMap::from([("command".to_owned(), words.clone().into())]);
            let command = CommandRequest { words, variables: &[], directory: None, facts };
            gateway.decide_command(&session, &command, &NoApprover)
        };
        assert!(decide(1000).is_ok());
        let error = decide(1_000_000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let source = Directory::new(temp.path().join("state/audit"));
        let mut reader = Reader::new(&source, error.receipt().unwrap().seq);
        let record = AuditRecord::parse(&reader.next().unwrap().unwrap().bytes).unwrap();
        assert_eq!(record.draft.op.as_deref(), Some("command"));
        assert_eq!(
            (record.draft.result.as_deref(), record.draft.facts),
            (Some("invalidInput"), None)
        );
    }

    fn hash(words: &[&str], variables: &[(&str, &str)], directory: Option<&str>) -> Option<Hash> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let variables: Vec<_> = variables.iter().map(owned).collect();
        let command = CommandRequest {
            words: words.to_vec(),
            variables: &variables,
            directory: directory.map(Path::new),
            facts: BTreeMap::new(),
        };
        let text = "schema = 1\n[agent]\nterminal = \"ask\"\n";
        let source = crate::policy::PolicySource::from_text("p", text);
        let policy = crate::policy::compile(&source).unwrap();
        let decision = policy.evaluate_command();
        assert!(decision.is_ask());
        command.binding(String::new(), &policy, &decision).command
    }

    #[test]
    fn an_approval_is_of_one_command_with_its_variables_and_directory() {
        let approved = hash(&["a", "b"], &[("C", "d")], Some("/e"));
        assert_eq!(approved, hash(&["a", "b"], &[("C", "d")], Some("/e")));
        for other in [
            hash(&["a", "b", "C"], &[("C", "d")], Some("/e")),
            hash(&["a", "bC"], &[("C", "d")], Some("/e")),
            hash(&["a", "b", "C", "d"], &[], Some("/e")),
            hash(&["a", "b"], &[("C", "d"), ("", "")], Some("/e")),
            hash(&["a", "b"], &[("C", "D")], Some("/e")),
            hash(&["a", "b"], &[("C", "d")], Some("/f")),
            hash(&["a", "b"], &[("C", "d")], None),
            hash(&["a", "b"], &[("C", "d"), ("/e", "")], None),
        ] {
            assert_ne!(approved, other);
        }
    }

    #[test]
    fn a_command_is_shown_as_a_line_of_a_shell() {
        let line = |words: &[&str]| {
            command_line(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(line(&["/bin/sh", "-c", "make && ls"]), "make && ls");
        assert_eq!(line(&["make", "a b", "", "it's", "-j4"]), r"make 'a b' '' 'it'\''s' -j4");
        assert_eq!(line(&["/bin/sh", "-c", "a", "b"]), "/bin/sh -c a b");
    }
}
