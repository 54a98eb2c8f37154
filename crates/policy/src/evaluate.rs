//! Evaluation of a policy. It is total: every query has a decision, and nothing here fails.

use super::{
    Decision, Effect, Object, ObjectKind, Policy, Query, Scratch,
    normalized::NormalizedForms,
    stages::{NAMES, OBJECTS, PreparedQuery, Stage, default_deny},
};
use crate::model::{Access, AgentName, OperationKind, Transport, WorkspacePath};

/// The rule of decisions on commands.
const TERMINAL: &str = "agent.terminal";
/// Objects of the workspace's git repository, which are in one file each or together in a pack.
const GIT_OBJECTS: [&str; 2] = [".git/objects/00/x", ".git/objects/pack/x.pack"];

impl Policy {
    /// Decides by name.
    pub fn evaluate(&self, query: &Query<'_>) -> Decision {
        self.staged(&NAMES, query, None)
    }

    /// Decides by name, and by the object if it is known, on what the operator brings back.
    /// `names.hidden` does not apply: the name was there before an agent changed it.
    pub fn evaluate_returning(&self, query: &Query<'_>, object: Option<&Object>) -> Decision {
        let [Stage::HiddenNames, stages @ ..] = &NAMES else { return default_deny() };
        self.staged(stages, query, object)
    }

    /// Decides by name, with the entry of that name if it is known.
    fn named(&self, query: &Query<'_>, object: Option<&Object>) -> Decision {
        let forms = NormalizedForms::of(query.path);
        let subject = PreparedQuery::new(query, &forms);
        self.answer(self.walk(&NAMES, &subject, object, false, |_, _| {}))
    }

    /// Decides by the object that the path resolves to, not by name: both
    /// [`evaluate`](Self::evaluate) and this must allow.
    pub fn evaluate_object(&self, query: &Query<'_>, object: &Object) -> Decision {
        let forms = NormalizedForms::of(query.path);
        let subject = PreparedQuery::new(query, &forms);
        let outcome = self.walk(&OBJECTS, &subject, Some(object), false, |_, _| {});
        if outcome.finding.is_some() { self.answer(outcome) } else { self.no_objection() }
    }

    /// Decides on an entry beneath the requested path like on a request for the entry: by its name,
    /// and then by its object.
    pub fn evaluate_entry(&self, query: &Query<'_>, object: &Object) -> Decision {
        self.staged(&NAMES, query, Some(object))
    }

    /// Adds the decisions of the other rules that ask about the names, if one of them decided.
    pub(crate) fn with_others(&self, decision: Decision, subject: &PreparedQuery<'_>) -> Decision {
        if !decision.is_ask() {
            return decision;
        }
        Decision { others: self.asking(subject).skip(1).collect(), ..decision }
    }

    fn staged(&self, names: &[Stage], query: &Query<'_>, object: Option<&Object>) -> Decision {
        let forms = NormalizedForms::of(query.path);
        let subject = PreparedQuery::new(query, &forms);
        let decision = self.answer(self.walk(names, &subject, None, false, |_, _| {}));
        let decision = self.with_others(decision, &subject);
        if object.is_none() || decision.is_deny() {
            return decision;
        }
        let outcome = self.walk(&OBJECTS, &subject, object, false, |_, _| {});
        if outcome.finding.is_some() { decision.and(self.answer(outcome)) } else { decision }
    }

    /// Decides by content: for [`Access::Read`] all bytes of the file of which some are disclosed,
    /// for [`Access::Write`] all bytes that the file will have. The limits are those of
    /// `transport`.
    pub fn evaluate_content(
        &self,
        query: &Query<'_>,
        transport: Transport,
        content: &[u8],
    ) -> Decision {
        match self.content_denial(query.access, transport, content) {
            Some(finding) => finding.decision(Effect::Deny, self),
            None => self.no_objection(),
        }
    }

    /// Decides on commands in the agent's sandbox, all alike.
    pub fn evaluate_command(&self) -> Decision {
        let effect = self.settings.agent.terminal;
        let reason = match effect {
            Effect::Allow => None,
            Effect::Ask => Some("the policy asks about each command"),
            Effect::Deny => Some("the policy allows no terminals"),
        };
        let reason = reason.map(str::to_owned);
        Decision { reason, ..Decision::new(effect, TERMINAL) }
    }

    /// True if programs of `agent` in a mount can read the objects of the workspace's git
    /// repository: all that was ever committed, past the rules on its files.
    pub fn shows_git_objects(&self, agent: &AgentName) -> bool {
        let may_be_read = |path: &str| {
            let (operation, access) = (OperationKind::Read, Access::Read);
            WorkspacePath::parse(path).is_ok_and(|path| {
                self.evaluate(&Query { agent, operation, access, path: &path }).is_allow()
            })
        };
        !self.scratch().is_some_and(Scratch::repositories)
            && GIT_OBJECTS.into_iter().any(may_be_read)
    }

    /// Decides whether a rename discloses something: entries that may not be read or listed, or
    /// only with an approval, may not be renamed to where they may. It allows everything else, so
    /// it only adds to the decisions on the old and the new name. Of `object`, which moves, only
    /// properties that depend on its name count: that it cannot be read at present, under either
    /// name, is no excuse.
    pub fn evaluate_move(
        &self,
        agent: &AgentName,
        from: &WorkspacePath,
        to: &WorkspacePath,
        object: Option<&Object>,
    ) -> Decision {
        let disclosure = self.disclosure(agent, from, to, object);
        match object {
            Some(_) => disclosure,
            None => self.evaluate_move_by_name(agent, from, to).and(disclosure),
        }
    }

    /// True if the agent may list and read the path, by its name and without an approval.
    pub fn may_look(&self, agent: &AgentName, path: &WorkspacePath) -> bool {
        [(OperationKind::Stat, Access::List), (OperationKind::Read, Access::Read)].iter().all(
            |(operation, access)| {
                let query = Query { agent, operation: *operation, access: *access, path };
                self.evaluate(&query).is_allow()
            },
        )
    }

    /// Decides on a move as [`evaluate_move`](Self::evaluate_move) does, before it is known what
    /// moves: denies only what is denied for every object. An object matters if extensions decide,
    /// and then in one respect: whether it is a directory.
    pub fn evaluate_move_by_name(
        &self,
        agent: &AgentName,
        from: &WorkspacePath,
        to: &WorkspacePath,
    ) -> Decision {
        let of = |kind| {
            let object = Object { kind, links: 1, through_symlink: false };
            self.disclosure(agent, from, to, Some(&object))
        };
        let decision = of(ObjectKind::Directory);
        match decision.is_deny() && of(ObjectKind::File).is_deny() {
            true => decision,
            false => self.no_objection(),
        }
    }

    /// Decides on a move by the names and, if it is known, the object.
    fn disclosure(
        &self,
        agent: &AgentName,
        from: &WorkspacePath,
        to: &WorkspacePath,
        object: Option<&Object>,
    ) -> Decision {
        let disclosures = [
            (OperationKind::Read, Access::Read, "read"),
            (OperationKind::List, Access::List, "listed"),
        ];
        let mut answer = self.no_objection();
        for (operation, access, done) in disclosures {
            let ask = |path| self.named(&Query { agent, operation, access, path }, object);
            answer = answer.and(self.opening(ask(from), ask(to), done));
        }
        answer
    }

    /// Decides on a search or a subscription at the path of `query`, on which `decision` was made.
    /// Entries beneath it are decided one by one, so it may begin at a directory that nothing
    /// allows, and leaves out entries that require an approval.
    pub fn search_root(&self, query: &Query<'_>, decision: Decision) -> Decision {
        match decision.effect {
            Effect::Ask if query.operation == OperationKind::Watch => {
                // The operator cannot be asked about each change.
                decision.denying().with_reason("a person would have to be asked about each change")
            }
            Effect::Ask => Decision { effect: Effect::Allow, ..decision },
            Effect::Deny if decision.is_default_deny() && self.may_allow_beneath(query) => {
                let reason = "nothing allows this directory, but something beneath it";
                Decision::new(Effect::Allow, "search.beneath").with_reason(reason)
            }
            Effect::Allow | Effect::Deny => decision,
        }
    }

    /// Returns the decision for reversing a change of a batch in which another one failed: the
    /// change was allowed, and must not remain.
    pub fn batch_rollback(&self) -> Decision {
        let reason = "another change of the batch could not be made";
        Decision::new(Effect::Allow, "batch").with_reason(reason)
    }

    /// Decides on a move from `old` to `new`, which must not open an entry that `old` closes.
    fn opening(&self, old: Decision, new: Decision, done: &str) -> Decision {
        let reason = Some(format!("what may not be {done} may not be renamed to where it may"));
        if old.effect > new.effect {
            return Decision { reason, ..old.denying() };
        }
        if old.enforced() > new.enforced() {
            return Decision { reason, effect: Effect::Allow, would_deny: true, ..old };
        }
        self.no_objection()
    }

    /// Decides on an entire operation by its names, as the gateway does before it accesses the
    /// disk: every access on every path. `to` is the new name of a rename. With `object` its facts
    /// are decided on, too. Returns the first denial, else the first decision to ask, else the
    /// first allowance.
    pub fn decide(
        &self,
        agent: &AgentName,
        operation: OperationKind,
        path: &WorkspacePath,
        to: Option<&WorkspacePath>,
        object: Option<&Object>,
    ) -> Decision {
        let mut answer: Option<Decision> = None;
        let mut add = |decision: Decision| {
            let both = match answer.take() {
                Some(before) => before.and(decision),
                None => decision,
            };
            answer = Some(both.clone());
            both
        };
        for (access, path) in path_accesses(operation, path, to) {
            let query = Query { agent, operation, access, path };
            let mut so_far = add(self.evaluate(&query));
            if let (false, Some(object)) = (so_far.is_deny(), object) {
                let moves = (operation, access) == (OperationKind::Rename, Access::Write);
                let links = if moves { 1 } else { object.links };
                so_far = add(self.evaluate_object(&query, &Object { links, ..*object }));
            }
            if so_far.is_deny() {
                return so_far;
            }
        }
        if let (OperationKind::Rename, Some(to)) = (operation, to) {
            let is_link = object.is_some_and(|object| object.kind == ObjectKind::Symlink);
            // No agent moves a link that could not be moved back.
            for path in [to, path].into_iter().filter(|_| is_link) {
                let so_far = add(self.evaluate_link(agent, path));
                if so_far.is_deny() {
                    return so_far;
                }
            }
            return add(self.evaluate_move(agent, path, to, object));
        }
        answer.unwrap_or_else(default_deny)
    }
}

/// Returns the accesses that an operation needs, each with its path. `to` is the new name of a
/// rename, and is ignored otherwise.
pub fn path_accesses<'a>(
    operation: OperationKind,
    path: &'a WorkspacePath,
    to: Option<&'a WorkspacePath>,
) -> Vec<(Access, &'a WorkspacePath)> {
    let mut accesses: Vec<_> = operation.accesses().iter().map(|access| (*access, path)).collect();
    if operation == OperationKind::Rename {
        accesses.extend(to.map(|to| (Access::Write, to)));
    }
    accesses
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        PolicySource, compile,
        pattern::{Comparison, parse},
    };

    fn path(text: &str) -> WorkspacePath {
        WorkspacePath::parse(text).unwrap()
    }

    #[test]
    fn the_objects_of_a_repository_are_shown_where_they_are_the_workspaces_and_may_be_read() {
        let shows = |text: &str| {
            let text = format!("schema = 1\n{text}");
            let policy = compile(&PolicySource::from_text("p", &text)).unwrap();
            policy.shows_git_objects(&"agent".parse().unwrap())
        };
        let workspace = "[git]\nrepository = \"workspace\"\n";
        let all = "[allowedPaths]\nread = [\"**\"]\n";
        let denied = "[[rules]]\nid = \"r\"\neffect = \"deny\"\npaths = [\".git\"]\n";
        let packs = "[extensions]\nallow = { read = [\"pack\"] }\n";
        assert!(shows(&[all, workspace].concat()) && shows(&[all, packs, workspace].concat()));
        assert!(!shows(all) && !shows(workspace) && !shows(&[all, denied, workspace].concat()));
        assert!(shows(&[all, workspace, "[scratch]\npaths = [\"target\"]\n"].concat()));
    }

    #[test]
    fn what_may_not_be_read_may_not_be_renamed_to_where_it_may() {
        let text = "schema = 1\n[allowedPaths]\nread = [\"open/**\"]\nwrite = [\"**\"]\nremove = [\"**\"]\n";
        let policy = compile(&PolicySource::from_text("p", text)).unwrap();
        let agent = "agent".parse().unwrap();
        let rename = |from: &str, to: &str| {
            policy.decide(&agent, OperationKind::Rename, &path(from), Some(&path(to)), None)
        };
        assert_eq!(rename("closed/a", "open/a").rule, "allowedPaths.read");
        assert!(!rename("closed/a", "open/a").is_allow());
        assert!(rename("closed/a", "closed/b").is_allow());
        assert!(rename("open/a", "closed/a").is_allow());
    }

    #[test]
    fn a_move_is_denied_by_name_only_if_it_is_for_every_object() {
        let text = "schema = 1\n[allowedPaths]\nread = [\"open/**\"]\n[extensions]\nallow = { read = [\"txt\"] }\n";
        let policy = compile(&PolicySource::from_text("p", text)).unwrap();
        let agent = "agent".parse().unwrap();
        let moved = |from: &str, to: &str| {
            let by_name = policy.evaluate_move_by_name(&agent, &path(from), &path(to));
            let of = |kind| {
                let object = Object { kind, links: 1, through_symlink: false };
                policy.evaluate_move(&agent, &path(from), &path(to), Some(&object)).is_deny()
            };
            (by_name.is_deny(), of(ObjectKind::Directory), of(ObjectKind::File))
        };
        assert_eq!(moved("open/a.bin", "open/a.txt"), (false, false, true));
        assert_eq!(moved("closed/a.txt", "open/a.bin"), (false, true, false));
        assert_eq!(moved("closed/a.bin", "open/a.txt"), (true, true, true));
        assert_eq!(moved("open/a.txt", "open/b.txt"), (false, false, false));
    }

    /// A rename of the directory and back disclosed all its names.
    #[test]
    fn what_may_not_be_listed_may_not_be_renamed_to_where_it_may() {
        let text = "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\n\
                    remove = [\"**\"]\n[[rules]]\nid = \"blind\"\neffect = \"EFFECT\"\n\
                    operations = [\"list\"]\npaths = [\"blind/**\"]\n";
        for effect in ["deny", "ask"] {
            let text = text.replace("EFFECT", effect);
            let policy = compile(&PolicySource::from_text("p", &text)).unwrap();
            let agent = "agent".parse().unwrap();
            let rename = |from: &str, to: &str| {
                policy.decide(&agent, OperationKind::Rename, &path(from), Some(&path(to)), None)
            };
            for from in ["blind", "blind/a"] {
                let denied = rename(from, "open");
                assert!(denied.is_deny() && denied.rule == "blind", "{denied:?}");
                assert!(denied.reason.unwrap().contains("listed"));
            }
            assert!(rename("blind/a", "blind/b").is_allow());
            assert!(rename("open", "blind/b").is_allow());
        }
    }

    fn denying(pattern: &str) -> Option<Policy> {
        let text = format!(
            "schema = 1\n[allowedPaths]\nread = [\"**\"]\n\
             [[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = ['{pattern}']\n"
        );
        compile(&PolicySource::from_text("p", &text)).ok()
    }

    fn denied(policy: &Policy, name: &str) -> bool {
        let agent = "agent".parse().unwrap();
        policy.decide(&agent, OperationKind::Read, &path(name), None, None).rule == "no"
    }

    #[test]
    fn a_denial_of_one_character_holds_for_one_that_folds_to_two() {
        for (pattern, yes, no) in [
            (
                "priv/file?.txt",
                vec!["priv/file1.txt", "priv/fileß.txt", "priv/fileﬁ.txt"],
                vec!["priv/file.txt", "priv/file12.txt"],
            ),
            (
                "stra\u{df}e/?x",
                vec!["STRASSE/ßX", "straße/\u{130}x", "straße/ax"],
                vec!["straße/x"],
            ),
            ("file?.txt", vec!["fileß.txt.", "file\u{200b}ß.txt", "filee\u{301}.txt"], vec![]),
            ("file??.txt", vec!["filee\u{301}.txt", "fileß.txt"], vec!["filee.txt"]),
            ("**/cl[ß]ass", vec!["clßass", "a/CLẞASS"], vec!["class"]),
            ("x[µ]", vec!["xµ", "xμ", "XΜ"], vec!["xm"]),
            ("z[ſ]", vec!["zſ", "zs", "zS"], vec!["zf"]),
            // Denials ignore case, so that of one case suffices.
            ("x[!s]", vec!["xß", "xa", "xs", "xS"], vec!["x"]),
            ("x[!sS]", vec!["xß", "xa"], vec!["xs", "xS"]),
            // A mark follows the text, and the folded name has both as one character.
            ("cafe*", vec!["cafe\u{301}.txt", "Cafe\u{301}"], vec!["caf\u{e9}.txt"]),
            ("*\u{301}x", vec!["e\u{301}x"], vec!["ex"]),
            ("*cle*", vec!["x-cle\u{301}-y", "cle\u{301}"], vec!["x-cl\u{e9}-y"]),
        ] {
            let policy = denying(pattern).unwrap();
            for name in yes {
                assert!(denied(&policy, name), "{pattern} {name:?}");
            }
            for name in no {
                assert!(!denied(&policy, name), "{pattern} {name:?}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// A denial covers every name that the same pattern allows, since denials see names
        /// unchanged, too.
        #[test]
        fn a_denial_holds_for_whatever_the_same_pattern_allows(
            pattern in "(a|s|ß|ſ|É|e\u{301}|µ|\\?|\\*|\\[ßµ\\]|\\[a-ÿ\\]|\\[!s\\]|\\[!a-z\\]){1,5}(/(\\*\\*|s\\?|\\?\\*|ß)){0,2}",
            name in "(a|s|S|ß|ẞ|ſ|µ|ﬁ|İ|é|É|e\u{301}|\u{301}){1,5}(/(sß|ß|ſs|s\u{301})){0,2}",
        ) {
            let Some(policy) = denying(&pattern) else { return Ok(()) };
            let allowed = parse(&pattern, Comparison::Exact).unwrap();
            if allowed.iter().any(|pattern| pattern.matches(name.split('/'))) {
                prop_assert!(denied(&policy, &name), "{} {:?}", pattern, name);
            }
        }
    }

    #[test]
    fn content_is_judged_to_its_end() {
        let text = "schema = 1\n[files]\nmaxReadSize = \"1KiB\"\nbinary = { write = \"base64\" }\n";
        let policy = compile(&PolicySource::from_text("p", text)).unwrap();
        let agent = "agent".parse().unwrap();
        let judge = |access, content: &[u8]| {
            let operation = OperationKind::Edit;
            let query = Query { agent: &agent, operation, access, path: &path("a") };
            policy.evaluate_content(&query, Transport::Cli, content).rule
        };
        let mut late = vec![b'a'; 1024];
        assert_eq!(judge(Access::Read, &late), "files");
        *late.last_mut().unwrap() = 0;
        assert_eq!(judge(Access::Read, &late), "files.binary.read");
        assert_eq!(judge(Access::Write, &late), "files");
        late.push(b'a');
        assert_eq!(judge(Access::Read, &late), "files.maxReadSize");
        assert_eq!(policy.max_size(Access::Read, Transport::Cli), 1024);
    }

    #[test]
    fn the_mount_has_limits_of_its_own() {
        let judge = |text: &str, transport, access, content: &[u8]| {
            let policy = compile(&PolicySource::from_text("p", &format!("schema = 1\n{text}")));
            let (agent, operation) = ("agent".parse().unwrap(), OperationKind::Read);
            let query = Query { agent: &agent, operation, access, path: &path("a") };
            policy.unwrap().evaluate_content(&query, transport, content).rule
        };
        let files = "[files]\nmaxReadSize = \"4B\"\n";
        assert_eq!(judge(files, Transport::Acp, Access::Read, b"12345"), "files.maxReadSize");
        assert_eq!(judge(files, Transport::Mount, Access::Read, b"12345"), "files");
        assert_eq!(judge("", Transport::Mount, Access::Read, b"\0"), "files");
        assert_eq!(judge("", Transport::Mount, Access::Write, b"\0"), "files");
        let mount =
            "[mount]\nmaxReadSize = \"4B\"\nmaxWriteSize = \"1B\"\nbinary = { read = \"deny\" }\n";
        assert_eq!(judge(mount, Transport::Mount, Access::Read, b"12345"), "mount.maxReadSize");
        assert_eq!(judge(mount, Transport::Mount, Access::Write, b"12"), "mount.maxWriteSize");
        assert_eq!(judge(mount, Transport::Mount, Access::Read, b"\0"), "mount.binary.read");
        assert_eq!(judge(mount, Transport::Mount, Access::Write, b"\0"), "files");
        assert_eq!(judge(mount, Transport::Files, Access::Read, b"12345"), "files");
    }
}
