//! The sections that are not lists of tables.

use std::time::Duration;

use toml::de::DeTable;

use super::{
    located::{Located, StatedList, StatedPattern},
    reader::{Reader, Value, elements, sub},
};
use crate::{
    action_set::PerAccess,
    agent_limits::{AgentLimits, MIN_MEMORY},
    check::{self, shortened},
    decision::Effect,
    diagnostics::Problem,
    duration,
    layered::Layered,
    limits::StatedLimits,
    model::{Access, is_hidden_character},
    mount::StatedMount,
    normalized::fold,
    pattern::{Comparison, Pattern, look_alike},
    scratch::{History, PathList, Repository, StatedScratch, is_one_name},
    settings::{Binary, Hardlinks, StatedSettings, Symlinks},
    size,
};

/// True if `[extensions]` can list the extension.
pub fn is_extension(text: &str) -> bool {
    let good = |c: char| {
        let is_plain = !is_hidden_character(c) && !c.is_whitespace();
        is_plain && !"./\\*?[]{}()|!,;~".contains(look_alike::meant(c).unwrap_or(c))
    };
    !text.is_empty() && text.len() <= 64 && text.chars().all(good)
}

impl Reader<'_, '_> {
    pub(super) fn policy_name(&mut self, root: &DeTable<'_>) -> Option<String> {
        self.plain_text(root.get("name")?, 100).filter(|name| !name.is_empty())
    }

    pub(super) fn mode(&mut self, root: &DeTable<'_>) -> Option<crate::Mode> {
        let word = root.get("mode")?.get_ref().as_str()?;
        [crate::Mode::Enforce, crate::Mode::Observe].into_iter().find(|m| m.as_str() == word)
    }

    pub(super) fn allowed_paths(
        &mut self,
        root: &DeTable<'_>,
    ) -> PerAccess<Option<StatedList<StatedPattern>>> {
        let section = sub(root, "allowedPaths");
        PerAccess::from_fn(|access| {
            let table = section?;
            let (key, _) = table.get_key_value(access.as_str())?;
            let items = elements(table, access.as_str())
                .filter_map(|value| self.glob(value, Comparison::Exact))
                .collect();
            Some(StatedList { line: self.line(&key.span()), items })
        })
    }

    pub(super) fn allowed_extensions(
        &mut self,
        root: &DeTable<'_>,
    ) -> PerAccess<Option<StatedList<String>>> {
        let section = sub(root, "extensions").and_then(|table| sub(table, "allow"));
        PerAccess::from_fn(|access: Access| {
            let table = section?;
            let (key, _) = table.get_key_value(access.as_str())?;
            let items = elements(table, access.as_str())
                .filter_map(|value| self.extension(value))
                .collect();
            Some(StatedList { line: self.line(&key.span()), items })
        })
    }

    pub(super) fn denied_extensions(&mut self, root: &DeTable<'_>) -> Vec<Located<String>> {
        let Some(table) = sub(root, "extensions") else { return Vec::new() };
        elements(table, "deny")
            .filter_map(|value| {
                let extension = fold(&self.extension(value)?).into_owned();
                Some(Located { line: self.line(&value.span()), value: extension })
            })
            .collect()
    }

    pub(super) fn secrets(&mut self, root: &DeTable<'_>, key: &str) -> Vec<StatedPattern> {
        let Some(table) = sub(root, "secrets") else { return Vec::new() };
        let mode = if key == "except" { Comparison::Exact } else { Comparison::Folded };
        for value in elements(table, key).filter(|value| value.get_ref().as_str() == Some(".")) {
            let problem = Problem::new("the root is no name").label("matches nothing here");
            self.report(
                value.span(),
                problem.help("to close everything, leave out `allowedPaths`"),
            );
        }
        elements(table, key).filter_map(|value| self.glob(value, mode)).collect()
    }

    pub(super) fn settings(&mut self, root: &DeTable<'_>) -> StatedSettings {
        let mut stated = StatedSettings::default();
        if let Some(files) = sub(root, "files") {
            stated.max_read = files.get("maxReadSize").and_then(|value| self.size(value));
            stated.max_write = files.get("maxWriteSize").and_then(|value| self.size(value));
            stated.symlinks = self.word(
                files,
                "symlinks",
                &[("beneath", Symlinks::Beneath), ("deny", Symlinks::Deny)],
            );
            let binary = [("deny", Binary::Deny), ("base64", Binary::Base64)];
            if let Some(table) = sub(files, "binary") {
                stated.binary_read = self.word(table, "read", &binary);
                stated.binary_write = self.word(table, "write", &binary);
            }
            let hardlinks = [("deny", Hardlinks::Deny), ("allow", Hardlinks::Allow)];
            if let Some(table) = sub(files, "hardlinks") {
                stated.hardlinks_read = self.word(table, "read", &hardlinks);
                stated.hardlinks_write = self.word(table, "write", &hardlinks);
            }
        }
        if let Some(keep) = sub(root, "backups").and_then(|backups| sub(backups, "keep")) {
            let number = |key| keep.get(key).and_then(|value| check::integer(value.get_ref()));
            stated.versions = number("versions");
            stated.days = number("days");
            stated.size =
                keep.get("size").and_then(|value| self.size(value)).map(|layered| layered.value);
        }
        if let Some(limits) = sub(root, "limits") {
            stated.limits = self.limits(limits);
            stated.approval_timeout =
                limits.get("approvalTimeout").and_then(|value| self.duration(value));
        }
        if let Some(mount) = sub(root, "mount") {
            stated.mount = self.mount(mount);
        }
        if let Some(scratch) = sub(root, "scratch") {
            stated.scratch = self.scratch(scratch);
        }
        if let Some(git) = sub(root, "git") {
            let words = [("private", Repository::Private), ("workspace", Repository::Workspace)];
            stated.repository = self.word(git, "repository", &words);
            let words = [("deny", History::Deny), ("allow", History::Allow)];
            stated.history = self.word(git, "history", &words);
        }
        if let Some(agent) = sub(root, "agent") {
            self.agent(agent, &mut stated);
        }
        stated
    }

    fn limits(&mut self, table: &DeTable<'_>) -> StatedLimits {
        StatedLimits {
            operations_per_second: self.number(table, "operationsPerSecond"),
            bytes_written: table.get("bytesWritten").and_then(|value| self.size(value)),
            files_removed: self.number(table, "filesRemoved"),
            denials: self.number(table, "denials"),
        }
    }

    fn mount(&mut self, table: &DeTable<'_>) -> StatedMount {
        let binary = [("deny", Binary::Deny), ("allow", Binary::Base64)];
        let words = sub(table, "binary");
        let [binary_read, binary_write] =
            ["read", "write"].map(|key| self.word(words?, key, &binary));
        StatedMount {
            max_read: table.get("maxReadSize").and_then(|value| self.size(value)),
            max_write: table.get("maxWriteSize").and_then(|value| self.size(value)),
            binary_read,
            binary_write,
            limits: self.limits(table),
        }
    }

    fn scratch(&mut self, table: &DeTable<'_>) -> StatedScratch {
        let mut stated = StatedScratch {
            max_size: table.get("maxSize").and_then(|value| self.size(value)),
            keep: table.get("keep").and_then(|value| value.get_ref().as_bool()),
            ..StatedScratch::default()
        };
        if !table.contains_key("paths") {
            return stated;
        }
        let mut list = PathList { texts: Vec::new(), patterns: Vec::new() };
        for value in elements(table, "paths") {
            let Some(glob) = self.glob(value, Comparison::Exact) else { continue };
            if !glob.alternatives.iter().all(is_one_name) {
                let problem = Problem::new("a scratch directory is given by its own name")
                    .label("not one name, or any name")
                    .help(
                        "name the directory itself, such as \"target\": it is meant at any depth",
                    );
                self.report(value.span(), problem);
                continue;
            }
            list.texts.extend(value.get_ref().as_str().map(str::to_owned));
            list.patterns.extend(glob.alternatives.into_iter().map(Pattern::at_any_depth));
        }
        stated.lists.push(list);
        stated
    }

    fn agent(&mut self, agent: &DeTable<'_>, stated: &mut StatedSettings) {
        if agent.contains_key("env") {
            let names = elements(agent, "env").filter_map(|value| self.variable(value));
            stated.env = Some(names.collect());
        }
        for (key, paths) in [("read", &mut stated.read), ("write", &mut stated.write)] {
            if agent.contains_key(key) {
                let list = elements(agent, key).filter_map(|value| self.host_path(value));
                *paths = Some(list.collect());
            }
        }
        stated.terminal = self
            .word(agent, "terminal", &Effect::ALL.map(|effect| (effect.as_str(), effect)))
            .map(|layered| layered.value);
        stated.agent_limits =
            sub(agent, "limits").map(|limits| self.agent_limits(limits)).unwrap_or_default();
    }

    fn agent_limits(&mut self, table: &DeTable<'_>) -> AgentLimits {
        let memory = table.get("memory").and_then(|value| {
            let size = self.size(value)?.value;
            if size < MIN_MEMORY {
                let problem = Problem::new("a limit of memory with which no program starts")
                    .label("less than 64MiB")
                    .help("an agent of Node.js needs 1GiB or more, a compiler often several");
                self.report(value.span(), problem);
            }
            Some(size)
        });
        let number = |key| self.number(table, key).map(|layered| layered.value);
        AgentLimits { memory, processes: number("processes"), cpu: number("cpu") }
    }

    pub(super) fn word<T: Copy>(
        &self,
        table: &DeTable<'_>,
        key: &str,
        words: &[(&str, T)],
    ) -> Option<Layered<T>> {
        let value = table.get(key)?;
        let text = value.get_ref().as_str()?;
        let (_, meaning) = words.iter().find(|(word, _)| *word == text)?;
        Some(Layered { value: *meaning, location: Some((0, self.line(&value.span()))) })
    }

    pub(super) fn number(&self, table: &DeTable<'_>, key: &str) -> Option<Layered<u64>> {
        let value = table.get(key)?;
        let number = check::integer(value.get_ref())?;
        Some(Layered { value: number, location: Some((0, self.line(&value.span()))) })
    }

    pub(super) fn size(&mut self, value: &Value<'_>) -> Option<Layered<u64>> {
        let text = value.get_ref().as_str()?;
        let location = Some((0, self.line(&value.span())));
        let size = size::parse(text);
        if size.is_none() {
            let problem = Problem::new(format!("bad size \"{}\"", shortened(text)))
                .label("expected a whole number and a unit, such as \"10MiB\"")
                .help("units are B, KiB, MiB, GiB and TiB");
            self.report(value.span(), problem);
        }
        Some(Layered { value: size?, location })
    }

    fn duration(&mut self, value: &Value<'_>) -> Option<Layered<Duration>> {
        let text = value.get_ref().as_str()?;
        let location = Some((0, self.line(&value.span())));
        let time = duration::parse_duration(text)
            .filter(|time| (Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(time));
        if time.is_none() {
            let problem = Problem::new(format!("bad time \"{}\"", shortened(text)))
                .label("expected a whole number and a unit, such as \"2m\"")
                .help("from \"1s\" to \"24h\"; units are s, m and h");
            self.report(value.span(), problem);
        }
        Some(Layered { value: time?, location })
    }

    fn extension(&mut self, value: &Value<'_>) -> Option<String> {
        let text = value.get_ref().as_str()?;
        if is_extension(text) {
            return Some(text.to_owned());
        }
        let problem = Problem::new(format!("bad extension \"{}\"", shortened(text)))
            .label("expected one extension without dots or wildcards, such as \"pem\"");
        let bare = text.trim_start_matches(['*', '.']);
        let problem =
            if is_extension(bare) { problem.help(format!("write \"{bare}\"")) } else { problem };
        self.report(value.span(), problem);
        None
    }

    fn variable(&mut self, value: &Value<'_>) -> Option<String> {
        let text = value.get_ref().as_str()?;
        let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !text.is_empty()
            && text.len() <= 128
            && text.chars().all(good)
            && !text.starts_with(|c: char| c.is_ascii_digit())
        {
            return Some(text.to_owned());
        }
        let problem = Problem::new(format!("bad environment variable \"{}\"", shortened(text)))
            .label("expected a name such as \"PATH\": letters, digits and `_`")
            .help(
                "the value comes from the environment of the gateway; variables pass by name only",
            );
        self.report(value.span(), problem);
        None
    }

    fn host_path(&mut self, value: &Value<'_>) -> Option<String> {
        let text = value.get_ref().as_str()?;
        let label = match text.strip_prefix('/') {
            None => "expected an absolute path",
            Some("") => "`/` contains the workspace and the gateway's own state",
            Some(rest) if rest.split('/').any(|part| matches!(part, "" | "." | "..")) => {
                "expected a path without `.`, `..`, empty components or a slash at the end"
            }
            Some(rest)
                if rest.contains(['*', '?'])
                    || rest.split('/').any(|part| part == "~" || part.starts_with('$')) =>
            {
                "nothing is expanded: expected the path itself"
            }
            Some(_) if text.contains('\0') || text.len() > 4095 => "this cannot be a path",
            Some(_) => return Some(text.to_owned()),
        };
        let problem = Problem::new(format!("bad path \"{}\"", shortened(text))).label(label);
        self.report(value.span(), problem);
        None
    }
}
