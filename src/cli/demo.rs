//! `portcullis demo`: a temporary workspace, a badly behaved agent behind the real
//! gateway, and the results of its attempts.
//!
//! The demo plays the editor: it starts `portcullis run`, which starts gateway,
//! sandbox and agent as usual. Every printed line comes from the replies that the
//! agent got and from the log, and is compared with the expected result; a
//! difference makes the demo fail. Nothing outside its own directory is changed.

mod agent;
mod attempts;
mod directory;
mod editor;
mod reply_checker;
mod show;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
};

use portcullis_audit::{Directory, Report, Verifier};
use serde_json::{Value, json};

use self::{
    attempts::{ATTEMPTS, Action, UNDONE},
    directory::{AGENT, DemoDirectory},
    editor::{Editor, portcullis},
    reply_checker::{JudgedLine, ReplyChecker, at},
    show::{Output, line_json},
};
use super::render;
use crate::{
    app::{
        agent_sandbox::{SandboxGround, home_below, plain_spec},
        failure::{Context as _, Exit, Failure},
        opened::Opened,
        options::Common,
        output::styled,
        process,
    },
    model::{AgentName, Escaped, for_shell},
    sandbox::{Enforcement, Grant, LaunchError},
};

pub(crate) use agent::run_if_agent;

/// Show how attempts of a badly behaved agent end, in a throw-away workspace
///
/// Makes a workspace in a new temporary directory, starts an agent behind the
/// gateway that tries what it should not, shows the result of each attempt,
/// verifies the audit log and undoes a change from its backup. The directory
/// stays for you to look at.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis demo\n  \
    portcullis demo --keep /tmp/look\n  \
    portcullis demo --policy strict\n  \
    portcullis demo --json\n\n\
    Exit code 1 if an attempt ends otherwise than expected, also because this machine cannot \
    confine the agent, or because a policy of yours is looser or stricter than the demo's.")]
pub(crate) struct Args {
    /// Use this directory, new or empty, instead of a temporary one
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Use this policy instead of the demo's own
    #[arg(long, value_name = "FILE|NAME", value_hint = clap::ValueHint::FilePath)]
    policy: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    process::check_children()?;
    let directory = DemoDirectory::make(args.keep.as_deref())?;
    let show = Output { json: args.json };
    let result = Demo::new(&directory, args, show).and_then(Demo::run);
    directory.tidy();
    if result.is_err() {
        show.say(format_args!("\nAll files so far are in {}", shown(&directory.root)));
    }
    result
}

struct Demo<'a> {
    directory: &'a DemoDirectory,
    reply_checker: ReplyChecker<'a>,
    show: Output,
    policy: String,
    program: PathBuf,
    lines: Vec<JudgedLine>,
    /// Failures that concern no single line.
    problems: Vec<String>,
}

impl<'a> Demo<'a> {
    fn new(directory: &'a DemoDirectory, args: &Args, show: Output) -> Result<Self, Failure> {
        let policy = match &args.policy {
            None => directory.policy().to_string_lossy().into_owned(),
            Some(policy) => match rustix::fs::stat(policy.as_str()) {
                Ok(_) => std::path::absolute(policy)
                    .or_fail("cannot look up the policy")?
                    .to_string_lossy()
                    .into_owned(),
                Err(_) => policy.clone(),
            },
        };
        directory.write_shell_settings(&policy)?;
        Ok(Self {
            directory,
            reply_checker: ReplyChecker::new(directory),
            show,
            policy,
            program: directory.agent_program()?,
            lines: Vec::new(),
            problems: Vec::new(),
        })
    }

    fn run(mut self) -> Result<ExitCode, Failure> {
        let show = self.show;
        show.say(format_args!(
            "An agent behind the gateway. It knows where everything lies ($WS is its\n\
             workspace, $STATE has log and backups) and tries what it should not:\n"
        ));
        let enforcement = self.enforcement()?;
        show.head();
        self.visit(enforcement)?;
        self.remove()?;
        for surprise in self.directory.unexpected() {
            self.problems.push(surprise);
        }
        let start = self.start()?;
        let report = self.verify()?;
        let undo = self.undo()?;
        self.conclude(&start, &report, &undo)
    }

    /// Returns the enforcement on this machine, determined as in `run`.
    fn enforcement(&self) -> Result<Enforcement, Failure> {
        let opened = Opened::open(&Common {
            workspace: self.directory.workspace(),
            config: None,
            policy: self.policy.clone(),
            state: Some(self.directory.state()),
            adopt: None,
            agent: None,
        })?;
        let home = home_below(&self.directory.data(), &opened.agent_data_name(), &agent_name()?);
        let mut spec = plain_spec(
            &SandboxGround::from(&opened),
            self.program.clone(),
            home,
            Enforcement::Partial,
        );
        spec.read.push(Grant { path: self.program.clone(), required: true });
        match spec.launch() {
            Ok(pending) => Ok(pending.report.enforcement),
            Err(LaunchError::Refused(reason)) => {
                self.show.warn(format_args!(
                    "this machine cannot confine an agent, and `portcullis run` would\n\
                     refuse to start one:\n  {reason}\n\
                     What follows is run with `--unconfined`: what passes the gateway is decided\n\
                     all the same, and what goes past it is not refused. The demo will fail.\n"
                ));
                Ok(Enforcement::None)
            }
            Err(error) => Err(Failure::new(error).help("`portcullis doctor` says more")),
        }
    }

    /// Runs the agent.
    fn visit(&mut self, enforcement: Enforcement) -> Result<(), Failure> {
        let options: &[&str] = match enforcement {
            Enforcement::Full => &[],
            Enforcement::Partial => &["--allow-partial"],
            Enforcement::None => &["--unconfined"],
        };
        let mut editor = Editor::start(self.directory, &self.policy, &self.program, options)?;
        let (reply_checker, show, lines) = (&self.reply_checker, self.show, &mut self.lines);
        editor.converse(&self.directory.workspace(), |update| {
            let id = at(update, "/toolCallId").as_str().unwrap_or_default();
            let Some(attempt) = ATTEMPTS.iter().find(|attempt| attempt.id == id) else {
                return Ok(());
            };
            let line = match attempt.action {
                Action::Shell(_) => reply_checker.shell(attempt, at(update, "/rawOutput")),
                _ => reply_checker.acp(attempt, at(update, "/rawOutput"))?,
            };
            show.line(&line);
            lines.push(line);
            Ok(())
        })?;
        editor.end()
    }

    /// Makes the attempts that are impossible over ACP.
    fn remove(&mut self) -> Result<(), Failure> {
        for attempt in ATTEMPTS.iter().filter(|a| matches!(a.action, Action::Remove)) {
            let printed = self.command(&["fs", "rm", "-r", attempt.path, "--json"])?;
            let line = self.reply_checker.command(attempt, &printed)?;
            self.show.line(&line);
            self.lines.push(line);
        }
        for attempt in &ATTEMPTS {
            if !self.lines.iter().any(|line| line.attempt.id == attempt.id) {
                self.problems.push(format!("the agent did not report on `{}`", attempt.shown()));
            }
        }
        Ok(())
    }

    /// Runs this program on the demo's workspace and parses its output.
    fn command(&self, words: &[&str]) -> Result<Value, Failure> {
        let shown = words.join(" ");
        let output = portcullis(self.directory, &self.policy)
            .args(words)
            .output()
            .or_fail(format_args!("cannot start `portcullis {shown}`"))?;
        serde_json::from_slice(&output.stdout).map_err(|_| {
            let output = String::from_utf8_lossy(&output.stderr);
            Failure::new(format_args!("`portcullis {shown}` failed: {}", output.trim_end()))
        })
    }

    /// Returns the facts of the `start` record about the agent's confinement.
    fn start(&mut self) -> Result<BTreeMap<String, Value>, Failure> {
        let facts = self.reply_checker.start()?.and_then(|record| record.draft.facts);
        let Some(facts) = facts else {
            self.problems.push("the log does not begin with the start of the gateway".to_owned());
            return Ok(BTreeMap::new());
        };
        let fact = |name: &str| match facts.get(name) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => "unknown".to_owned(),
        };
        self.show.say(format_args!(
            "\nWithout record (-) is what went past the gateway: the kernel answered. Record 0\n\
             says how the agent was confined: {}, self-test {} passed, Landlock\n\
             ABI {}.",
            fact("enforcement"),
            fact("selfTest"),
            fact("landlockAbi"),
        ));
        if fact("enforcement") == Enforcement::Partial.as_str() {
            let gaps = facts.get("gaps").and_then(Value::as_array);
            let gaps: Vec<_> = gaps.into_iter().flatten().filter_map(Value::as_str).collect();
            self.show.warn(format_args!(
                "enforcement is partial here, which `portcullis run` accepts only with\n\
                 --allow-partial: {}",
                gaps.join("; ")
            ));
        }
        Ok(facts)
    }

    /// Verifies the log, and that it contains every printed record.
    fn verify(&mut self) -> Result<Report, Failure> {
        let source = Directory::new(self.directory.state().join("audit"));
        let receipts: Vec<_> = self.lines.iter().filter_map(|line| line.receipt.clone()).collect();
        let verifier = receipts
            .iter()
            .fold(Verifier::new(&source), |all, receipt| all.expect(receipt.seq, receipt.leaf));
        let report = verifier.run().or_fail("cannot read the log")?;
        self.show.heading("The audit log");
        if report.is_valid() {
            self.show.say(format_args!(
                "intact: {} records in one chain, among them the {} that replies named",
                report.records,
                receipts.len(),
            ));
        }
        for damage in &report.damages {
            self.problems.push(format!("the audit log is damaged: {}", damage.detail));
        }
        Ok(report)
    }

    /// Restores the agent's changes.
    fn undo(&mut self) -> Result<Value, Failure> {
        self.show.heading("Undo");
        let edited = self
            .lines
            .iter()
            .find(|line| line.attempt.id == "edit")
            .and_then(|line| line.backup.clone());
        let Some(backup) = edited else {
            self.problems.push(format!("there is no backup of `{UNDONE}`"));
            return Ok(Value::Null);
        };
        let printed = self.command(&["backup", "restore", &backup, "--json"])?;
        let record = at(&printed, "/receipt/seq");
        if at(&printed, "/ok") == true && self.directory.is_undone() {
            self.show.say(format_args!(
                "{UNDONE} is what it was before the edit: restored from backup\n{backup} as record \
                 {record}"
            ));
        } else {
            let reason =
                at(&printed, "/error/message").as_str().unwrap_or("the content is another");
            self.problems.push(format!("`{UNDONE}` was not restored: {reason}"));
        }
        Ok(printed)
    }

    /// Prints the conclusion.
    fn conclude(
        self,
        start: &BTreeMap<String, Value>,
        report: &Report,
        undo: &Value,
    ) -> Result<ExitCode, Failure> {
        let wrong = self.lines.iter().filter(|line| line.wrong.is_some()).count();
        let ok = wrong == 0 && self.problems.is_empty();
        if self.show.json {
            let object = json!({
                "ok": ok,
                "directory": self.directory.root,
                "workspace": self.directory.workspace(),
                "state": self.directory.state(),
                "policy": self.policy,
                "start": start,
                "attempts": self.lines.iter().map(line_json).collect::<Vec<_>>(),
                "log": { "valid": report.is_valid(), "records": report.records, "head": report.head },
                "undo": undo,
                "problems": self.problems,
            });
            styled(format_args!("{object}"));
        }
        self.show_where();
        for problem in &self.problems {
            self.show.problem(problem);
        }
        if ok {
            return Ok(ExitCode::SUCCESS);
        }
        if wrong > 0 {
            let attempts = render::counted(u64::try_from(wrong).unwrap_or(u64::MAX), "attempt");
            self.show.problem(format_args!("{attempts} did not end as they must, see the table"));
        }
        Ok(Exit::Failure.into())
    }

    fn show_where(&self) {
        let show = self.show;
        show.heading(format_args!("Everything is in {}", shown(&self.directory.root)));
        show.say("  workspace/  what the agent worked on     outside/  what it tried to reach");
        show.say("  state/      audit log and backups        policy/   what was allowed");
        show.heading("Look around");
        show.say(format_args!(". {}", for_shell(&self.directory.shell_settings())));
        for (command, about) in [
            ("portcullis audit show", "every record, denied ones too"),
            ("portcullis audit verify", "is it intact? change a byte and see"),
            ("portcullis backup list", "what was replaced or removed"),
            ("portcullis backup restore old", "undo the removal"),
            ("portcullis fs read .env", "try one yourself"),
            ("portcullis policy explain read .env", "why, stage by stage"),
        ] {
            show.say(format_args!("{command:<37}  # {about}"));
        }
        show.say(format_args!("rm -r {}", for_shell(&self.directory.root)));
        show.say(
            "\nNext: `portcullis doctor`, then `portcullis run -- AGENT` in a project of yours.",
        );
    }
}

/// Formats a path for people.
fn shown(path: &Path) -> String {
    Escaped(&path.display().to_string()).to_string()
}

fn agent_name() -> Result<AgentName, Failure> {
    AGENT.parse().or_fail("cannot name the agent")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{
        attempts::{Attempt, ExpectedEnd},
        *,
    };

    #[test]
    fn every_attempt_has_its_own_name_and_fits_its_column() {
        let names: BTreeSet<_> = ATTEMPTS.iter().map(|attempt| attempt.id).collect();
        assert_eq!(names.len(), ATTEMPTS.len());
        assert!(ATTEMPTS.iter().all(|attempt| attempt.shown().len() <= 23));
        let refused = |a: &&Attempt| a.must == ExpectedEnd::BeRefused;
        assert!(ATTEMPTS.iter().filter(refused).count() > 10);
    }
}
