//! Comparison of the settings of two policies: the differences, and which of them open something. A
//! comparison of decisions on paths does not see these.

mod network;

use std::{collections::BTreeSet, time::Duration};

use crate::{
    model::Transport,
    policy::{
        AgentAccess, AgentLimits, Limit, Limits, Mode, Policy, Retention, Scratch, Secrets,
        parts::{
            Binary, Hardlinks, History, LimitRules, MOUNT, MountSettings, Repository, SESSION,
            SecretSettings, Settings, Symlinks,
        },
    },
};

/// A setting that two policies have different values for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingChange {
    /// The key, such as `files.maxReadSize`.
    pub key: &'static str,
    /// The old value in words.
    pub old: String,
    /// The new value in words.
    pub new: String,
    /// True if the new value allows requests that the old one did not.
    pub opens: bool,
    /// True if requests are decided by it; other settings neither open nor close anything.
    pub decides: bool,
}

/// Returns the change of the mode that is called `key`, if there is one.
pub(crate) fn compare_modes(key: &'static str, old: Mode, new: Mode) -> Option<SettingChange> {
    (old != new).then(|| SettingChange {
        key,
        old: old.as_str().to_owned(),
        new: new.as_str().to_owned(),
        opens: new == Mode::Observe,
        decides: true,
    })
}

/// Returns the settings that differ between `old` and `new`, except for the mode.
pub(crate) fn compare_settings(old: &Policy, new: &Policy) -> Vec<SettingChange> {
    let mut changes = Changes(Vec::new());
    // Every field is named, so that none is forgotten when one is added.
    let Settings {
        max_read,
        max_write,
        binary_read,
        binary_write,
        symlinks,
        hardlinks_read,
        hardlinks_write,
        mount,
        scratch,
        repository,
        history,
        backups,
        agent,
        approval_timeout: _,
    } = old.settings();
    let now = new.settings();
    let size = |bytes: u64| format!("{bytes} bytes");
    changes.ordered("files.maxReadSize", max_read.value, now.max_read.value, size);
    changes.ordered("files.maxWriteSize", max_write.value, now.max_write.value, size);
    changes.ordered("files.binary.read", binary_read.value, now.binary_read.value, binary);
    changes.ordered("files.binary.write", binary_write.value, now.binary_write.value, binary);
    changes.ordered("files.symlinks", symlinks.value, now.symlinks.value, |value| {
        if value == Symlinks::Deny { "deny" } else { "beneath" }.to_owned()
    });
    let links = |value| if value == Hardlinks::Deny { "deny" } else { "allow" }.to_owned();
    changes.ordered("files.hardlinks.read", hardlinks_read.value, now.hardlinks_read.value, links);
    changes.ordered(
        "files.hardlinks.write",
        hardlinks_write.value,
        now.hardlinks_write.value,
        links,
    );
    changes.mount(mount, &now.mount);
    changes.scratch(scratch.as_ref(), now.scratch.as_ref());
    changes.ordered("git.repository", repository.value, now.repository.value, |value| {
        if value == Repository::Private { "private" } else { "workspace" }.to_owned()
    });
    changes.ordered("git.history", history.value, now.history.value, |value| {
        if value == History::Deny { "deny" } else { "allow" }.to_owned()
    });
    // A longer timeout opens nothing: the operator still decides.
    let timeout = |policy: &Policy| policy.approval_timeout().map_or("none".to_owned(), time);
    changes.beside("limits.approvalTimeout", timeout(old), timeout(new));
    changes.backups(*backups, now.backups);
    changes.agent(agent, &now.agent);
    changes.limits(&SESSION, old.limits(Transport::Cli), new.limits(Transport::Cli));
    changes.limits(&MOUNT, old.limits(Transport::Mount), new.limits(Transport::Mount));
    network::compare(&mut changes, old.network(), new.network());
    network::compare_labels(&mut changes, old.labels(), new.labels());
    changes.secrets(old, new);
    changes.0
}

struct Changes(Vec<SettingChange>);

impl Changes {
    fn push(&mut self, key: &'static str, old: String, new: String, opens: bool) {
        if old != new {
            self.0.push(SettingChange { key, old, new, opens, decides: true });
        }
    }

    /// Adds a setting that decides nothing.
    fn beside(&mut self, key: &'static str, old: String, new: String) {
        if old != new {
            self.0.push(SettingChange { key, old, new, opens: false, decides: false });
        }
    }

    /// Adds a setting whose greater value is the laxer one.
    fn ordered<T: Ord + Copy>(
        &mut self,
        key: &'static str,
        old: T,
        new: T,
        word: impl Fn(T) -> String,
    ) {
        self.push(key, word(old), word(new), new > old);
    }

    fn agent(&mut self, old: &AgentAccess, new: &AgentAccess) {
        let AgentAccess { env, read, write, terminal, limits } = old;
        self.list("agent.env", env, &new.env);
        self.list("agent.read", read, &new.read);
        self.list("agent.write", write, &new.write);
        let words = [*terminal, new.terminal].map(|effect| effect.as_str().to_owned());
        let [before, after] = words;
        self.push("agent.terminal", before, after, new.terminal < *terminal);
        let AgentLimits { memory, cpu, .. } = *limits;
        self.limit("agent.limits.memory", memory, new.limits.memory);
        let most = [limits, &new.limits].map(AgentLimits::most_processes);
        self.ordered("agent.limits.processes", most[0], most[1], |most| most.to_string());
        self.limit("agent.limits.cpu", cpu, new.limits.cpu);
    }

    fn list(&mut self, key: &'static str, old: &[String], new: &[String]) {
        // A directory opens everything beneath it.
        let within =
            |item: &String| old.iter().any(|known| std::path::Path::new(item).starts_with(known));
        let opens = !new.iter().all(within);
        self.push(key, old.join(", "), new.join(", "), opens);
    }

    fn backups(&mut self, old: Retention, new: Retention) {
        let Retention { versions, days, size } = old;
        for (key, old, new) in [
            ("backups.keep.versions", versions, new.versions),
            ("backups.keep.days", days, new.days),
        ] {
            self.beside(key, old.to_string(), new.to_string());
        }
        // A file that cannot be backed up can be neither replaced nor removed.
        self.ordered("backups.keep.size", size, new.size, |size| format!("{size} bytes"));
    }

    fn secrets(&mut self, old: &Policy, new: &Policy) {
        // Policies that extend one without rules may have some, and have its settings.
        let SecretSettings { on_read, on_write, max_scan_time } = old.secret_bounds();
        let now = new.secret_bounds();
        self.ordered("secrets.onRead", on_read, now.on_read, |word| word.as_str().to_owned());
        self.ordered("secrets.onWrite", on_write, now.on_write, |word| word.as_str().to_owned());
        // A scan that exceeds the time is denied.
        self.ordered("secrets.maxScanTime", max_scan_time, now.max_scan_time, |most| {
            if most == Duration::MAX { "none".to_owned() } else { time(most) }
        });
        // A changed rule counts as removed: its expression does not show that it finds no less. One
        // that denies what it only warned of finds as much.
        let rules = |policy: &Policy| policy.secrets().map(Secrets::meanings).unwrap_or_default();
        let (rules, rules_now) = (rules(old), rules(new));
        let is_kept = |(id, meaning, warns): &&(String, String, bool)| {
            let has = |warns| rules_now.contains(&(id.clone(), meaning.clone(), warns));
            has(false) || (*warns && has(true))
        };
        let gone: BTreeSet<&str> =
            rules.iter().filter(|rule| !is_kept(rule)).map(|(id, ..)| &**id).collect();
        let added: BTreeSet<&str> = rules_now.difference(&rules).map(|(id, ..)| &**id).collect();
        let kept = |id: &&str| rules_now.iter().any(|(now, ..)| now == id);
        let changed = gone.iter().copied().filter(kept).map(|id| format!("{id} changed"));
        let new = added.iter().copied().filter(|id| !gone.contains(id)).map(str::to_owned);
        let now: Vec<_> = changed.chain(new).collect();
        let was: Vec<_> = gone.iter().copied().collect();
        self.push("secrets.rules", was.join(", "), now.join(", "), !gone.is_empty());
    }

    fn mount(&mut self, old: &MountSettings, new: &MountSettings) {
        let MountSettings { max_read, max_write, binary_read, binary_write } = *old;
        let size = |bytes: u64| format!("{bytes} bytes");
        self.ordered("mount.maxReadSize", max_read.value, new.max_read.value, size);
        self.ordered("mount.maxWriteSize", max_write.value, new.max_write.value, size);
        let word = |value| if value == Binary::Deny { "deny" } else { "allow" }.to_owned();
        self.ordered("mount.binary.read", binary_read.value, new.binary_read.value, word);
        self.ordered("mount.binary.write", binary_write.value, new.binary_write.value, word);
    }

    fn scratch(&mut self, old: Option<&Scratch>, new: Option<&Scratch>) {
        let paths = |scratch: Option<&Scratch>| -> Vec<Vec<String>> {
            scratch.into_iter().flat_map(Scratch::paths).map(<[String]>::to_vec).collect()
        };
        let words = |lists: &[Vec<String>]| match lists {
            [] => "none".to_owned(),
            lists => lists.iter().map(|list| list.join(", ")).collect::<Vec<_>>().join(" and "),
        };
        let (before, after) = (paths(old), paths(new));
        // Each old list must have a new one without other patterns; all else may be more.
        let narrows = after.is_empty()
            || before.iter().all(|list| {
                after.iter().any(|new| new.iter().all(|pattern| list.contains(pattern)))
            }) && !before.is_empty();
        self.push("scratch.paths", words(&before), words(&after), !narrows);
        if let (Some(old), Some(new)) = (old, new) {
            let size = |bytes: u64| format!("{bytes} bytes");
            self.ordered("scratch.maxSize", old.max_size(), new.max_size(), size);
            let word = |keep: bool| keep.to_string();
            self.ordered("scratch.keep", old.keep(), new.keep(), word);
        }
    }

    fn limits(&mut self, rules: &LimitRules, old: &Limits, new: &Limits) {
        let Limits { operations_per_second, bytes_written, files_removed, denials } = old;
        for (key, old, new) in [
            (rules.operations_per_second, operations_per_second, &new.operations_per_second),
            (rules.bytes_written, bytes_written, &new.bytes_written),
            (rules.files_removed, files_removed, &new.files_removed),
            (rules.denials, denials, &new.denials),
        ] {
            let maximum = |limit: &Option<Limit>| limit.as_ref().map(|limit| limit.maximum);
            self.limit(key, maximum(old), maximum(new));
        }
    }

    /// Adds a limit; `None` stands for unlimited.
    fn limit(&mut self, key: &'static str, old: Option<u64>, new: Option<u64>) {
        let word = |most: Option<u64>| most.map_or("none".to_owned(), |most| most.to_string());
        let opens = old.is_some_and(|old| new.is_none_or(|new| new > old));
        self.push(key, word(old), word(new), opens);
    }
}

fn time(time: Duration) -> String {
    match time.subsec_millis() {
        0 => format!("{} seconds", time.as_secs()),
        _ => format!("{} milliseconds", time.as_millis()),
    }
}

fn binary(value: Binary) -> String {
    if value == Binary::Deny { "deny" } else { "base64" }.to_owned()
}

#[cfg(test)]
mod tests {
    use crate::policy::{PolicySource, compile};

    use super::*;

    fn changes(old: &str, new: &str) -> Vec<(&'static str, bool)> {
        let policy = |text: &str| {
            compile(&PolicySource::from_text("p", &format!("schema = 1\n{text}"))).unwrap()
        };
        let changes = compare_settings(&policy(old), &policy(new));
        changes.into_iter().map(|change| (change.key, change.opens)).collect()
    }

    #[test]
    fn what_a_setting_opens() {
        assert_eq!(changes("", ""), []);
        let lax = "[files]\nmaxReadSize = \"1GiB\"\nbinary = { read = \"base64\" }\n\
            [agent]\nread = [\"/usr/lib\", \"/srv\"]\n";
        let opened = changes("", lax);
        let keys = ["files.maxReadSize", "files.binary.read", "agent.read"];
        assert_eq!(opened, keys.map(|key| (key, true)));
        let closed = changes(lax, "");
        assert!(closed.contains(&("files.maxReadSize", false)));
    }

    #[test]
    fn a_rule_that_finds_something_else_under_its_id_opens() {
        let rule = |rest: &str| format!("[[secrets.rules]]\nid = \"k\"\n{rest}\n");
        let old = rule("regex = 'tok_([a-z]{32})'");
        for other in [
            "regex = 'tok_([a-z]{3200})'",
            "regex = 'tok_([a-z]{32})'\nkeywords = [\"token\"]",
            "regex = 'tok_([a-z]{32})'\nentropy = 4.5",
            "regex = 'tok_([a-z]{32})'\ngroup = 0",
            "regex = 'tok_([a-z]{32})'\nwarnOnly = true",
        ] {
            assert_eq!(changes(&old, &rule(other)), [("secrets.rules", true)], "{other}");
        }
        assert_eq!(changes(&old, &rule("regex = 'tok_([a-z]{32})'\ndescription = \"d\"")), []);
        let more = format!("{old}[[secrets.rules]]\nid = \"m\"\nregex = 'm'\n");
        assert_eq!(changes(&old, &more), [("secrets.rules", false)]);
        let policy = |text: &str| {
            compile(&PolicySource::from_text("p", &format!("schema = 1\n{text}"))).unwrap()
        };
        let changed =
            compare_settings(&policy(&more), &policy(&rule("regex = 'tok_([a-z]{8})'"))).remove(0);
        assert_eq!(changed.old, "secrets.rules.k, secrets.rules.m");
        assert_eq!(changed.new, "secrets.rules.k changed");
    }

    #[test]
    fn a_limit_that_goes_away_opens() {
        let limited = "[limits]\nfilesRemoved = 5\n";
        assert_eq!(changes(limited, ""), [("limits.filesRemoved", true)]);
        assert_eq!(changes("", limited), [("limits.filesRemoved", false)]);
        assert_eq!(
            changes(limited, "[limits]\nfilesRemoved = 4\n"),
            [("limits.filesRemoved", false)]
        );
        let key = "agent.limits.processes";
        let limited = |most: u64| format!("[agent.limits]\nprocesses = {most}\n");
        assert_eq!(changes("", &limited(4097)), [(key, true)]);
        assert_eq!(changes("", &limited(4096)), []);
        assert_eq!(changes(&limited(4097), ""), [(key, false)]);
        let memory = "[agent.limits]\nmemory = \"1GiB\"\n";
        assert_eq!(changes(memory, ""), [("agent.limits.memory", true)]);
    }

    #[test]
    fn more_scratch_opens() {
        let (one, two) =
            ("[scratch]\npaths = [\"a\"]\nkeep = false", "[scratch]\npaths = [\"a\", \"b\"]");
        assert_eq!(changes(one, two), [("scratch.paths", true), ("scratch.keep", true)]);
        assert_eq!(changes(two, one), [("scratch.paths", false), ("scratch.keep", false)]);
        assert_eq!(changes("", one), [("scratch.paths", true), ("scratch.keep", false)]);
        assert_eq!(changes(one, ""), [("scratch.paths", false), ("scratch.keep", true)]);
    }

    #[test]
    fn the_workspaces_repository_opens() {
        let workspace = "[git]\nrepository = \"workspace\"";
        assert_eq!(changes("", workspace), [("git.repository", true)]);
        assert_eq!(changes(workspace, ""), [("git.repository", false)]);
        assert_eq!(changes("", "[git]\nrepository = \"private\""), []);
    }

    #[test]
    fn a_wider_mount_opens() {
        let narrow =
            "[mount]\nmaxReadSize = \"1MiB\"\nbinary = { write = \"deny\" }\ndenials = 3\n";
        let changed = |opens| {
            ["mount.maxReadSize", "mount.binary.write", "mount.denials"].map(|key| (key, opens))
        };
        assert_eq!(changes(narrow, ""), changed(true));
        assert_eq!(changes("", narrow), changed(false));
    }

    #[test]
    fn more_time_to_look_for_secrets_opens() {
        let looks = |time: &str| {
            format!("[secrets]\n{time}[[secrets.rules]]\nid = \"k\"\nregex = 'tok_[a-z]{{32}}'\n")
        };
        let (short, long) = (looks("maxScanTime = \"1500ms\"\n"), looks("maxScanTime = \"11s\"\n"));
        assert_eq!(changes(&short, &long), [("secrets.maxScanTime", true)]);
        assert_eq!(changes(&long, &short), [("secrets.maxScanTime", false)]);
        // The default is ten seconds.
        assert_eq!(changes(&looks(""), &long), [("secrets.maxScanTime", true)]);
        // A policy that extends one without rules may have some.
        assert!(changes(&short, "").contains(&("secrets.maxScanTime", true)));
        assert!(changes("", &short).contains(&("secrets.maxScanTime", false)));
        let settings = "[secrets]\nmaxScanTime = \"1s\"\nonRead = \"redact\"\n";
        let changed = ["secrets.onRead", "secrets.onWrite", "secrets.maxScanTime"];
        assert_eq!(changes("", settings), changed.map(|key| (key, false)));
        assert_eq!(changes(settings, ""), changed.map(|key| (key, true)));
    }

    #[test]
    fn what_is_kept_neither_opens_nor_closes() {
        let policy = |text: &str| {
            compile(&PolicySource::from_text("p", &format!("schema = 1\n{text}"))).unwrap()
        };
        let few = "[backups]\nkeep = { versions = 2, days = 1 }\n\
            [limits]\napprovalTimeout = \"1m\"\n";
        let found = compare_settings(&policy(""), &policy(few));
        let keys: Vec<_> = found.iter().map(|change| change.key).collect();
        let expected = ["limits.approvalTimeout", "backups.keep.versions", "backups.keep.days"];
        assert_eq!(keys, expected);
        assert!(found.iter().all(|change| !change.opens && !change.decides), "{found:?}");
    }

    #[test]
    fn more_room_for_backups_has_larger_files_replaced() {
        let size = |size: &str| format!("[backups]\nkeep = {{ size = \"{size}\" }}\n");
        assert_eq!(changes(&size("1GiB"), &size("3GiB")), [("backups.keep.size", true)]);
        assert_eq!(changes(&size("3GiB"), &size("1GiB")), [("backups.keep.size", false)]);
        assert_eq!(changes(&size("1GiB"), ""), [("backups.keep.size", true)]);
    }

    /// Its findings have no record any more.
    #[test]
    fn a_rule_that_only_warned_and_goes_away_opens() {
        let rule = |warns: bool| {
            format!("[[secrets.rules]]\nid = \"k\"\nregex = 'tok'\nwarnOnly = {warns}\n")
        };
        assert_eq!(changes(&rule(true), "").last(), Some(&("secrets.rules", true)));
        assert_eq!(changes(&rule(false), &rule(true)), [("secrets.rules", true)]);
        assert_eq!(changes(&rule(true), &rule(false)), [("secrets.rules", false)]);
    }
}
