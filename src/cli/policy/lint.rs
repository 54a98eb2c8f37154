//! `portcullis policy lint`: finds probable mistakes in a policy.

mod sarif;

use std::{
    collections::{BTreeSet, HashSet},
    path::Path,
    process::ExitCode,
    rc::Rc,
};

use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};
use serde_json::{Value, json};

use crate::{
    app::{
        default_agents,
        failure::{Context as _, Exit, Failure},
        git::workspace,
        output::colours,
        workspace::open_workspace,
    },
    cli::render::counted,
    model::{Escaped, WorkspacePath},
    operator_files,
    policy::Policy,
    policy_tools::{self, Finding, LINTS, OutlineFile, Subject, Tree, lint},
    review::visible_json,
};

use super::files::policies;

/// Longest line that is shown with a finding, in bytes. The renderer looks at all of it for each
/// finding.
const MAX_SHOWN_LINE: usize = 4096;

/// Find likely mistakes in a policy
///
/// Finds rules that others cover or deny, patterns that match nothing in the
/// workspace, rules without tests, writable files that something else executes
/// later, endings that evade a rule, and more. Embedded policies that a policy
/// extends are not looked at.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis policy lint mine.toml\n  \
    portcullis policy lint mine.toml --workspace ~/src/shop --deny-warnings\n  \
    portcullis policy lint mine.toml --no-tree --sarif > lint.sarif")]
pub(super) struct Args {
    /// Policy files, names of embedded policies, or `-` for standard input
    #[arg(required = true, value_name = "FILE|NAME", value_hint = clap::ValueHint::FilePath)]
    files: Vec<String>,
    /// The directory that the agent works in, for patterns that match nothing
    #[arg(long, value_name = "DIR", default_value = ".", env = "PORTCULLIS_WORKSPACE")]
    workspace: std::path::PathBuf,
    /// Do not look at the workspace
    #[arg(long)]
    no_tree: bool,
    /// Leave this lint out; may be given several times
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    allow: Vec<String>,
    /// Exit with 4 when anything is found
    #[arg(long)]
    deny_warnings: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print SARIF 2.1.0, for code scanning
    #[arg(long, conflicts_with = "json")]
    sarif: bool,
}

/// The maximum of tracked paths in `--json`.
const MAX_HIDDEN: usize = 1000;

/// A finding with its file.
pub(super) struct Located {
    finding: Finding,
    file: Rc<OutlineFile>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let tree = if args.no_tree {
        None
    } else {
        let workspace = open_workspace(&args.workspace)?;
        Some(Tree::of(&workspace).or_fail("cannot look at the workspace")?)
    };
    let scratch = super::test::Scratch::new()?;
    let tracked = match args.no_tree {
        true => None,
        false => tracked(args, scratch.path()),
    };
    let mut hidden = BTreeSet::new();
    // Those of policies under which git does not show them either.
    let mut not_committed = BTreeSet::new();
    let mut not_in_mount = BTreeSet::new();
    let mut for_others = BTreeSet::new();
    let default_agents = default_agents::all();
    let names: Vec<_> = default_agents.iter().filter_map(|(_, name)| name.parse().ok()).collect();
    let mut found: Vec<Located> = Vec::new();
    let mut told = HashSet::new();
    for (number, file) in policies(&args.files)?.into_iter().enumerate() {
        let tested = super::test::test(file, &scratch, number).map_err(|problem| {
            Failure::new(format_args!("cannot lint the policy `{file}`"))
                .exit(Exit::Policy)
                .details(problem.text, "policies", json!([problem.object]))
        })?;
        let subject = Subject {
            policy: &tested.policy,
            outline: &tested.outline,
            tree: tree.as_ref(),
            tracked: tracked.as_deref(),
            tests: Some(&tested.report),
            default_agents: &default_agents,
        };
        let paths = policy_tools::hidden(subject).into_iter().cloned();
        if policy_tools::shows_git_objects(subject) {
            hidden.extend(paths);
        } else {
            not_committed.extend(paths);
        }
        let rules = policy_tools::not_in_mount(subject).into_iter();
        not_in_mount.extend(rules.map(|rule| rule.id.clone()));
        let rules = policy_tools::for_others(subject, &names).into_iter();
        for_others.extend(rules.map(|rule| rule.id.clone()));
        for located in locate(lint(subject), &tested.outline) {
            let Located { finding, file } = &located;
            if args.allow.iter().any(|id| id == finding.id) {
                continue;
            }
            // A file that several policies extend is reported once.
            let same =
                (file.name.clone(), finding.id, finding.span.clone(), finding.message.clone());
            if told.insert(same) {
                found.push(located);
            }
        }
    }
    hidden.extend(not_committed.iter().cloned());
    if args.sarif {
        let log = sarif::log(&found).or_fail("cannot print SARIF")?;
        outln!("{}", visible_json(&log));
    } else if args.json {
        let some: Vec<_> = hidden.iter().take(MAX_HIDDEN).map(WorkspacePath::as_str).collect();
        let hidden = json!({ "count": hidden.len(), "paths": some });
        let findings = findings_json(&found);
        outjson!(json!({
            "findings": findings, "trackedHidden": hidden, "notInMount": not_in_mount,
            "forOtherAgents": for_others,
        }));
    } else {
        print(&found);
        if !not_committed.is_empty() {
            let (count, paths) = (not_committed.len(), not_committed.iter().collect::<Vec<_>>());
            errln!(
                "portcullis: note: rules hide {} of those that git tracks: {}; commits of agents \
                 do not have hidden files, and an import leaves these unchanged",
                counted(count as u64, "file"),
                Escaped(&policy_tools::named(&paths))
            );
        }
        if !not_in_mount.is_empty() {
            let rules: Vec<_> = not_in_mount.iter().map(|id| format!("`{id}`")).collect();
            errln!(
                "portcullis: note: no effect in a mount, where programs request no `stat`, `append`, `edit`, \
                 `glob`, `grep` and `watch`, {} {}",
                if rules.len() == 1 { "has the rule" } else { "have the rules" },
                rules.join(", ")
            );
        }
        if !for_others.is_empty() {
            let rules: Vec<_> = for_others.iter().map(|id| format!("`{id}`")).collect();
            errln!(
                "portcullis: note: by default agents have the name of their preset, of the program of \
                 `run`, or {}: to none of them but such a program {} {}",
                default_agents::NAMES.map(|name| format!("`{name}`")).join(", "),
                if rules.len() == 1 { "applies" } else { "apply" },
                rules.join(", ")
            );
        }
    }
    if args.deny_warnings && !found.is_empty() {
        return Err(if args.json || args.sarif {
            Failure::silent(Exit::Policy)
        } else {
            Failure::new(format_args!("denied: {}", counted(found.len() as u64, "warning")))
                .exit(Exit::Policy)
        });
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the files of the checked-out commit of the workspace, if they can be read.
fn tracked(args: &Args, location: &Path) -> Option<Vec<WorkspacePath>> {
    let root = operator_files::canonicalize(&args.workspace).ok()?;
    workspace::tracked(&root, location).unwrap_or_else(|failure| {
        let reason = failure.message();
        errln!("portcullis: note: files that git tracks were not checked: {reason}");
        None
    })
}

/// Returns the findings that need neither workspace nor tests and show that the
/// policy protects less than its text suggests.
pub(super) fn misleading(policy: &Policy, outline: &[OutlineFile]) -> Vec<Located> {
    let default_agents = &default_agents::all();
    let subject = Subject { default_agents, ..Subject::new(policy, outline) };
    let found = lint(subject).into_iter().filter(Finding::is_misleading);
    locate(found, outline).collect()
}

/// Adds to findings the files that they are in.
fn locate(
    findings: impl IntoIterator<Item = Finding>,
    outline: &[OutlineFile],
) -> impl Iterator<Item = Located> {
    let files: Vec<_> = outline.iter().cloned().map(Rc::new).collect();
    findings.into_iter().filter_map(move |finding| {
        let file = Rc::clone(files.get(finding.file)?);
        Some(Located { finding, file })
    })
}

fn parse_id(text: &str) -> Result<String, String> {
    if LINTS.iter().any(|lint| lint.id == text) {
        return Ok(text.to_owned());
    }
    let ids: Vec<_> = LINTS.iter().map(|lint| lint.id).collect();
    Err(format!("expected one of {}", ids.join(", ")))
}

fn print(found: &[Located]) {
    render(found, |text| outln!("{text}\n"));
    match found.len() {
        0 => outln!("nothing found"),
        count => outln!("{}", counted(count as u64, "warning")),
    }
}

/// Renders findings for people. A note or help that was printed with a finding of the same lint is left
/// out.
pub(super) fn render(found: &[Located], mut print: impl FnMut(&str)) {
    let renderer = renderer();
    let mut told = HashSet::new();
    for located in found {
        let Finding { id, suggestion, .. } = &located.finding;
        let (note, help) = (told.insert((*id, "")), told.insert((*id, suggestion.as_str())));
        print(&located.render(&renderer, note, help));
    }
}

/// Returns a renderer with the terminal's colours.
fn renderer() -> Renderer {
    if colours() { Renderer::styled().hyperlink(false) } else { Renderer::plain() }
}

impl Located {
    fn line(&self) -> u64 {
        self.file.line(self.finding.span.start)
    }

    fn column(&self) -> u64 {
        self.file.column(self.finding.span.start)
    }

    fn render(&self, renderer: &Renderer, note: bool, help: bool) -> String {
        let Finding { id, span, message, suggestion, .. } = &self.finding;
        let (message, suggestion) = (Escaped(message).to_string(), Escaped(suggestion).to_string());
        let name = Escaped(&self.file.name).to_string();
        let start = self.file.text.get(..span.start).and_then(|before| before.rfind('\n'));
        let start = start.map_or(0, |newline| newline + 1);
        let lines = self.file.text.get(start..).and_then(|rest| rest.lines().next());
        let lines = lines.unwrap_or_default();
        let last = lines.len();
        let marked = (span.start - start).min(last)..(span.end.max(span.start) - start).min(last);
        let number = usize::try_from(self.line()).unwrap_or(usize::MAX);
        let title = Level::WARNING.primary_title(message.as_str()).id(*id);
        let group = if lines.len() > MAX_SHOWN_LINE {
            let column = usize::try_from(self.column()).unwrap_or(usize::MAX);
            title.element(Origin::path(name.as_str()).line(number).char_column(column))
        } else {
            title.element(
                Snippet::source(lines)
                    .path(name.as_str())
                    .line_start(number)
                    .annotation(AnnotationKind::Primary.span(marked)),
            )
        };
        let group = group
            .elements(note.then(|| Level::NOTE.message(self.finding.reason())))
            .elements(help.then(|| Level::HELP.message(suggestion.as_str())));
        renderer.render(&[group])
    }
}

/// Returns findings as in `--json`.
pub(super) fn findings_json(found: &[Located]) -> Vec<Value> {
    found
        .iter()
        .map(|located| {
            json!({
                "id": located.finding.id,
                "file": located.file.name,
                "line": located.line(),
                "column": located.column(),
                "message": located.finding.message,
                "reason": located.finding.reason(),
                "suggestion": located.finding.suggestion,
            })
        })
        .collect()
}
