//! Identification of the requesting program through `/proc`: a claim for the record, on which no
//! decision depends.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::Read as _,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{Mode, OFlags, openat};
use serde_json::{Map, Value};

use crate::command_leaders::CommandLeaders;

/// The maximum of bytes of a program's arguments in a record.
const MAX_ARGUMENTS: usize = 512;
/// The maximum of bytes read of them. The secret rules see more than is recorded, since they do not
/// match the beginning of a token.
const MAX_READ: u64 = 16 << 10;
/// Timeout of a request for the arguments.
const ARGUMENTS_TIMEOUT: Duration = Duration::from_millis(10);
/// The bit of `SIGKILL` in a thread's pending signals.
const KILL: u64 = 1 << 8;
/// Time for which a process is cached.
const CACHE_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum of cached processes.
const MAX_CACHED: usize = 1024;
/// The maximum of processes, each the parent of the one before: the last one stands for their tree.
const MAX_CHAIN: usize = 64;
/// The maximum of parents in a record.
const MAX_PARENTS: usize = 8;

/// Looks up processes.
///
/// A read of a process's arguments waits for the lock on its memory, which a thread of that process
/// may hold while it waits for this mount. So another thread reads them, and a request waits only
/// for a short time.
#[derive(Debug)]
pub(crate) struct ProcessReader {
    processes: Option<Arc<OwnedFd>>,
    leaders: Option<Arc<CommandLeaders>>,
    known: Mutex<HashMap<u32, Known>>,
    reader: Option<SyncSender<ProcessQuery>>,
}

/// Replaces secrets in the words of a command line by placeholders; returns `None` if it cannot
/// search them.
type Redact<'r> = dyn Fn(&[&str]) -> Option<Vec<String>> + 'r;

/// The facts about a thread's process.
#[derive(Debug)]
struct Known {
    /// The thread's own name: after an exec, or with a reused id, it usually differs.
    name: String,
    requester: Requester,
    at: Instant,
}

/// The process that sent a request.
#[derive(Debug, Clone)]
pub(crate) struct Requester {
    process: Map<String, Value>,
    pub(crate) tree: ProcessTree,
}

/// A tree of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ProcessTree {
    /// The kernel itself.
    Kernel,
    /// The processes of the command with this record.
    Command(u64),
    /// The descendants of this process.
    Of(u32),
}

impl Requester {
    fn with_pid(pid: u32) -> Self {
        Self { process: with_pid(pid), tree: ProcessTree::Of(pid) }
    }

    /// Returns the facts for a record; none of the kernel itself.
    pub(crate) fn facts(self) -> BTreeMap<String, Value> {
        let command = match self.tree {
            ProcessTree::Command(record) => Some(("command".to_owned(), record.into())),
            ProcessTree::Kernel => return BTreeMap::new(),
            ProcessTree::Of(_) => None,
        };
        let process = ("process".to_owned(), self.process.into());
        BTreeMap::from_iter(command.into_iter().chain([process]))
    }
}

#[derive(Debug)]
struct ProcessQuery {
    pid: u32,
    reply: SyncSender<Option<String>>,
}

impl ProcessReader {
    /// Looks up in `processes`, which is `/proc`; `leaders` are the leaders of commands.
    pub(crate) fn new(processes: Option<OwnedFd>, leaders: Option<Arc<CommandLeaders>>) -> Self {
        let processes = processes.map(Arc::new);
        let reader = processes.clone().and_then(|processes| {
            let (sender, wanted) = sync_channel(4);
            let reader = thread::Builder::new().name("mount-claims".to_owned());
            reader.spawn(move || serve(&processes, &wanted)).ok().map(|_| sender)
        });
        Self { processes, leaders, known: Mutex::default(), reader }
    }

    /// Returns the process of the thread `thread`, which is the id that the kernel gives: 0 for the
    /// kernel itself. Text that `redact` returns `None` for is left out.
    pub(crate) fn requester(&self, thread: u32, redact: &Redact<'_>) -> Requester {
        if thread == 0 {
            return Requester { process: Map::new(), tree: ProcessTree::Kernel };
        }
        self.look(thread, redact).unwrap_or_else(|| Requester::with_pid(thread))
    }

    /// Returns true if the process of a thread is being killed: the kernel then has `SIGKILL`
    /// pending for each thread, whatever the signal was.
    pub(crate) fn is_killed(&self, thread: u32) -> bool {
        let status = self.processes.as_deref().filter(|_| thread != 0).and_then(|processes| {
            // This read takes no lock on the memory of the process.
            read(processes, thread, "status", MAX_READ)
        });
        let pending = status
            .as_deref()
            .and_then(|status| u64::from_str_radix(field(status, "SigPnd:")?, 16).ok());
        pending.is_some_and(|pending| pending & KILL != 0)
    }

    fn look(&self, thread: u32, redact: &Redact<'_>) -> Option<Requester> {
        let processes = self.processes.as_deref()?;
        let name = read(processes, thread, "comm", 64);
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&thread)
            // A process that has just ended keeps its facts.
            && name.as_ref().is_none_or(|name| known.name == *name)
            && known.at.elapsed() < CACHE_TIMEOUT
        {
            return Some(known.requester.clone());
        }
        let name = name?;
        let status = read(processes, thread, "status", 256)?;
        let pid = field(&status, "Tgid:")?.parse().ok()?;
        let program = if pid == thread { name.clone() } else { read(processes, pid, "comm", 64)? };
        let mut process = with_pid(pid);
        if let Some(program) = redact(&[program.trim_end_matches('\n')]) {
            process.insert("program".to_owned(), program.concat().into());
        }
        let chain = self.chain(processes, pid);
        let parents = chain.iter().skip(1).take(MAX_PARENTS).map(|one| one.name.as_str());
        let parents = redact(&parents.collect::<Vec<_>>()).unwrap_or_default();
        if !parents.is_empty() {
            process.insert("parents".to_owned(), parents.into());
        }
        let command = self.leaders.as_ref().and_then(|leaders| {
            let belongs: Vec<_> = chain.iter().flat_map(|one| [one.group, one.pid]).collect();
            leaders.record_of(&belongs)
        });
        let eldest = chain.last().map_or(pid, |eldest| eldest.pid);
        let tree = command.map_or(ProcessTree::Of(eldest), ProcessTree::Command);
        let Some(arguments) = self.ask(pid) else { return Some(Requester { process, tree }) };
        if let Some(arguments) = recorded(&arguments, redact) {
            process.insert("arguments".to_owned(), arguments.into());
        }
        let mut known = lock();
        if known.len() >= MAX_CACHED {
            known.clear();
        }
        let (at, requester) = (Instant::now(), Requester { process, tree });
        known.insert(thread, Known { name, requester: requester.clone(), at });
        Some(requester)
    }

    /// Returns a process, its parent and so on, up to process 1, which has none.
    fn chain(&self, processes: &OwnedFd, pid: u32) -> Vec<Process> {
        let mut next = pid;
        let one = || {
            let found = (next > 1).then(|| Process::look(processes, next))??;
            next = found.parent;
            Some(found)
        };
        std::iter::from_fn(one).take(MAX_CHAIN).collect()
    }

    fn ask(&self, pid: u32) -> Option<String> {
        let (reply, answer) = sync_channel(1);
        self.reader.as_ref()?.try_send(ProcessQuery { pid, reply }).ok()?;
        answer.recv_timeout(ARGUMENTS_TIMEOUT).ok()?
    }
}

/// Returns the arguments for a record; in `text` each ends in NUL.
fn recorded(text: &str, redact: &Redact<'_>) -> Option<Vec<String>> {
    // A cut argument may begin with a token that no rule matches.
    let is_cut = text.len() as u64 >= MAX_READ;
    let text = if is_cut { text.rsplit_once('\0')?.0 } else { text.trim_end_matches('\0') };
    let (mut arguments, mut room) = (Vec::new(), MAX_ARGUMENTS);
    let words: Vec<_> = text.split('\0').collect();
    for mut argument in redact(&words)? {
        argument.truncate(argument.floor_char_boundary(room));
        room = room.saturating_sub(argument.len() + 1);
        arguments.push(argument);
        if room == 0 {
            break;
        }
    }
    Some(arguments)
}

/// A process, as `/proc/PID/status` describes it.
struct Process {
    pid: u32,
    name: String,
    parent: u32,
    group: u32,
}

impl Process {
    /// Reads no `stat`: that waits for the end of an `execve(2)` in progress, which waits for this
    /// mount where it closes files.
    fn look(processes: &OwnedFd, pid: u32) -> Option<Self> {
        let status = read(processes, pid, "status", MAX_READ)?;
        let number = |name| field(&status, name)?.split_ascii_whitespace().next()?.parse().ok();
        let name = field(&status, "Name:")?.to_owned();
        Some(Self { pid, name, parent: number("PPid:")?, group: number("NSpgid:")? })
    }
}

/// Returns a field of `/proc/PID/status`.
fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn with_pid(pid: u32) -> Map<String, Value> {
    Map::from_iter([("pid".to_owned(), pid.into())])
}

fn serve(processes: &OwnedFd, wanted: &Receiver<ProcessQuery>) {
    for ProcessQuery { pid, reply } in wanted {
        // The requester may have timed out.
        let _ = reply.try_send(read(processes, pid, "cmdline", MAX_READ));
    }
}

/// Reads the beginning of a file of `/proc/PID`.
fn read(processes: &OwnedFd, pid: u32, name: &str, limit: u64) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(processes, format!("{pid}/{name}"), flags, Mode::empty()).ok()?;
    let mut bytes = Vec::new();
    File::from(file).take(limit).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn proc() -> OwnedFd {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open("/proc", flags, Mode::empty()).unwrap()
    }

    #[expect(clippy::unnecessary_wraps, reason = "it is one that looks at everything")]
    fn as_it_is(words: &[&str]) -> Option<Vec<String>> {
        Some(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn arguments_are_redacted_before_they_are_cut() {
        let hide = |words: &[&str]| {
            let hidden = words.iter().map(|word| word.replace("token-0123456789", "[hidden]"));
            Some(hidden.collect())
        };
        let padding = "x".repeat(MAX_ARGUMENTS - 5);
        let line = format!("{padding}\0token-0123456789\0more\0");
        assert_eq!(recorded(&line, &hide).unwrap(), [padding.as_str(), "[hid"]);
        let long = format!("cat\0{}", "y".repeat(MAX_READ as usize));
        assert_eq!(recorded(&long, &hide).unwrap(), ["cat"]);
        assert_eq!(recorded("cat\0file\0", &|_| None), None);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "looks at /proc")]
    fn a_process_is_named() {
        let pid = std::process::id();
        let reader = ProcessReader::new(Some(proc()), None);
        // A read of the arguments has a timeout, which a busy machine exceeds.
        let mut tries =
            std::iter::repeat_with(|| reader.requester(pid, &as_it_is).facts()).take(1000);
        let facts = tries.find(|facts| facts["process"].get("arguments").is_some()).unwrap();
        let process = &facts["process"];
        assert_eq!(process["pid"], pid);
        let own = std::env::args().next().unwrap();
        assert_eq!(process["arguments"][0].as_str(), Some(own.as_str()));
        assert!(own.contains(process["program"].as_str().unwrap().get(..5).unwrap()));
        let parent = std::os::unix::process::parent_id();
        let parent = std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap();
        assert_eq!(process["parents"][0], parent.trim_end());
        assert!(process["parents"].as_array().unwrap().len() <= MAX_PARENTS);
    }

    #[test]
    fn a_thread_is_part_of_its_process() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let facts = ProcessReader::new(Some(proc()), None).requester(thread, &as_it_is).facts();
        assert_eq!(facts["process"]["pid"], std::process::id());
        assert_ne!(thread, std::process::id());
    }

    #[test]
    fn a_process_belongs_to_the_command_that_one_of_its_ancestors_leads() {
        let leaders = Arc::new(CommandLeaders::default());
        let process_reader = ProcessReader::new(Some(proc()), Some(Arc::clone(&leaders)));
        let own = std::process::id();
        leaders.settle(100, Some(std::os::unix::process::parent_id()));
        assert_eq!(process_reader.requester(own, &as_it_is).facts()["command"], 100);
        leaders.forget(100);
        let reader = ProcessReader::new(Some(proc()), Some(leaders));
        assert_eq!(reader.requester(own, &as_it_is).facts().get("command"), None);
    }

    #[test]
    fn without_proc_there_is_the_id() {
        let facts = ProcessReader::new(None, None).requester(7, &as_it_is).facts();
        assert_eq!(facts["process"], json!({"pid": 7}));
        let of_kernel = ProcessReader::new(Some(proc()), None).requester(0, &as_it_is);
        assert!(of_kernel.facts().is_empty());
    }
}
