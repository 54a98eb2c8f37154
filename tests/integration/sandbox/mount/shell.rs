//! `portcullis shell`: a program on a terminal of its own, and what of it reaches the operator's.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    time::Instant,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_setfl},
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcgetattr, tcsetwinsize},
};

use super::*;

mod ends;

/// The longest time that anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(super) const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// The leader of the terminal's session, as an operator's shell is: it starts the command, stores
/// its exit code, and stays.
const LEADER: &str = r#""$@"; echo $? >"$0.new"; mv "$0.new" "$0"; exec sleep 1000"#;

/// A terminal, whose emulator is the test, and `portcullis shell` on it.
pub(super) struct Operator {
    screen: File,
    terminal: OwnedFd,
    leader: Child,
    world: TempDir,
    shown: Vec<u8>,
    /// The terminal's settings before.
    before: String,
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.leader.kill();
        let _ = self.leader.wait();
    }
}

impl SandboxWorld {
    /// `portcullis shell ARGS…` on a terminal of 30 lines and 100 columns.
    fn shell(&self, args: &[&str]) -> Operator {
        self.shell_with(args, &[("LANG", "C.UTF-8")])
    }

    fn shell_with(&self, args: &[&str], environment: &[(&str, &str)]) -> Operator {
        self.on_terminal("shell", args, environment)
    }

    /// The same with another command than `shell`.
    pub(super) fn on_terminal(
        &self,
        command: &str,
        args: &[&str],
        environment: &[(&str, &str)],
    ) -> Operator {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let screen = openpt(flags).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let terminal = ioctl_tiocgptpeer(&screen, flags).unwrap();
        let size = Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&screen, size).unwrap();
        let before = format!("{:?}", tcgetattr(&terminal).unwrap());

        let policy = self.at("policies/policy.toml");
        let words: Vec<_> = command.split(' ').chain(["--policy", &policy]).collect();
        let limited = self.limited(&[&words, args].concat());
        // Without timeout(1), which would put it in the background.
        let words: Vec<_> = limited.get_args().skip(2).collect();
        let world = TempDir::new().unwrap();
        let mut command = Command::new("setsid");
        command.args(["--ctty", "sh", "-c", LEADER]).arg(world.path().join("code"));
        command.args(words).current_dir("/").env_clear();
        command.envs(limited.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("TERM", "xterm-256color").envs(environment.iter().copied());
        let stream = || Stdio::from(terminal.try_clone().unwrap());
        let leader = command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap();
        Operator { screen: screen.into(), terminal, leader, world, shown: Vec::new(), before }
    }

    /// The same for a script.
    pub(super) fn shell_script(&self, options: &[&str], script: &str) -> Operator {
        self.shell(&[options, &["--", "sh", "-c", script]].concat())
    }
}

impl Operator {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown).into_owned()
    }

    /// The line that was shown with this word.
    pub(super) fn line_with(&self, word: &str) -> String {
        let text = self.text();
        text.lines().find(|line| line.contains(word)).unwrap().trim().to_owned()
    }

    pub(super) fn types(&mut self, keys: &str) {
        self.screen.write_all(keys.as_bytes()).unwrap();
    }

    /// Takes what is shown within a time; false when nothing was.
    fn look(&mut self, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).unwrap();
        let found = poll(&mut [PollFd::new(&self.screen, PollFlags::IN)], Some(&limit)).unwrap();
        let mut chunk = [0; 4096];
        if found > 0 {
            let got = self.screen.read(&mut chunk).unwrap_or(0);
            self.shown.extend_from_slice(&chunk[..got]);
        }
        found > 0
    }

    /// Waits until nothing more is shown.
    #[track_caller]
    pub(super) fn rests(&mut self) {
        let began = Instant::now();
        while self.look(Duration::from_millis(500)) {
            assert!(began.elapsed() < TIMEOUT, "it does not rest: {:?}", self.text());
        }
    }

    /// Waits until a text was shown.
    #[track_caller]
    pub(super) fn sees(&mut self, text: &str) {
        self.sees_in(text, Self::text);
    }

    /// The same of what `shown` makes of it.
    #[track_caller]
    pub(super) fn sees_in(&mut self, text: &str, shown: impl Fn(&Self) -> String) {
        let began = Instant::now();
        while !shown(self).contains(text) {
            self.look(Duration::from_millis(100));
            assert!(began.elapsed() < TIMEOUT, "no {text:?} in {:?}", self.text());
            if let Some(code) = self.code() {
                while self.look(Duration::ZERO) {}
                assert!(shown(self).contains(text), "{code}, no {text:?} in {:?}", self.text());
            }
        }
    }

    /// The exit code, once the command has ended.
    fn code(&self) -> Option<i32> {
        let code = std::fs::read_to_string(self.world.path().join("code")).ok()?;
        Some(code.trim().parse().unwrap())
    }

    /// Forgets what was shown.
    pub(super) fn clear(&mut self) {
        self.shown.clear();
    }

    /// Waits for the end, and returns the exit code.
    #[track_caller]
    pub(super) fn ends(&mut self) -> i32 {
        let began = Instant::now();
        loop {
            self.look(Duration::from_millis(20));
            if let Some(code) = self.code() {
                while self.look(Duration::ZERO) {}
                return code;
            }
            assert!(began.elapsed() < TIMEOUT, "it goes on: {:?}", self.text());
        }
    }

    /// The terminal is as it was before, soon at the latest.
    #[track_caller]
    pub(super) fn is_restored(&self) {
        let began = Instant::now();
        loop {
            let now = format!("{:?}", tcgetattr(&self.terminal).unwrap());
            if now == self.before {
                return;
            }
            assert!(began.elapsed() < TIMEOUT, "{}\n{now}", self.before);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a running program has its terminal: an earlier key would be its shell's own.
    #[track_caller]
    fn has_terminal(&self, program: &str) {
        let has_it = |(pid, line): &(u32, String)| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields = stat.rsplit(") ").next().unwrap_or_default();
            let fields: Vec<_> = fields.split(' ').collect();
            // Its state, its group, and that of its terminal.
            line.starts_with(program)
                && fields.len() > 5
                && fields[0] != "T"
                && fields[2] == fields[5]
        };
        let began = Instant::now();
        while !beneath(self.leader.id()).iter().any(has_it) {
            assert!(began.elapsed() < TIMEOUT, "{:?}", beneath(self.leader.id()));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the input that the next reader of the terminal would get.
    fn left_to_read(&self) -> Vec<u8> {
        fcntl_setfl(&self.terminal, OFlags::NONBLOCK).unwrap();
        let mut left = vec![0; 1024];
        let got = rustix::io::read(&self.terminal, &mut left).unwrap_or(0);
        left.truncate(got);
        left
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.process("portcullis shell"), signal).unwrap();
    }

    /// Returns a process, by words of its command line.
    pub(super) fn process(&self, words: &str) -> Pid {
        let found = beneath(self.leader.id()).into_iter().find(|(_, line)| line.contains(words));
        Pid::from_raw(i32::try_from(found.unwrap().0).unwrap()).unwrap()
    }
}

#[test]
fn a_program_has_a_terminal_of_its_own() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let script = "tty; stty size; for fd in 0 1 2; do readlink /proc/self/fd/$fd; done; \
                      ls /dev/pts /proc/self/fd | tr '\\n' ' '; echo term=$TERM; cat file.txt; exit 7";
        let mut operator = world.shell_script(&[], script);
        assert_eq!(operator.ends(), 7, "{who:?} {:?}", operator.text());
        let text = operator.text();
        for part in [
            "/dev/pts/0\r\n30 100\r\n/dev/pts/0\r\n/dev/pts/0\r\n/dev/pts/0\r\n",
            "/dev/pts: 0 ptmx",
            "/proc/self/fd: 0 1 2 3 term=xterm-256color",
            "secret\r\n",
            "portcullis: no changes",
        ] {
            assert!(text.contains(part), "{who:?} {part:?} {text:?}");
        }
        operator.is_restored();
        assert_eq!(world.facts()["pseudoTerminal"], true);
        let records = world.records();
        let read = records.iter().find(|record| said(record, "op") == "read").unwrap();
        assert_eq!((said(read, "transport"), said(read, "path")), ("mount", "file.txt"));
    }
}

/// A name was wrapped by the terminal, and looked like a line of the summary.
#[test]
fn long_names_forged_lines_of_a_summary() {
    let world = SandboxWorld::mounted(users()[0]);
    let name = format!("{}y", "x ".repeat(100));
    let script = format!("echo x >'{name}'");
    let mut operator = world.on_terminal("exec", &["--", "sh", "-c", &script], &[]);
    assert_eq!(operator.ends(), 0, "{}", operator.text());
    let text = operator.text();
    let names = text.lines().filter(|line| line.contains("x x"));
    let (first, other): (Vec<_>, Vec<_>) = names.partition(|line| line.starts_with("  write "));
    assert!(first.len() == 1 && other.len() > 1, "{text}");
    assert!(other.iter().all(|line| line.starts_with(&" ".repeat(13))), "{text}");
    assert!(first.iter().chain(&other).all(|line| line.len() <= 100), "{text}");
}

#[test]
fn a_new_size_reaches_the_program() {
    let world = SandboxWorld::mounted(users()[0]);
    let script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.1; done";
    let mut operator = world.shell_script(&["--quiet"], script);
    operator.sees("ready");
    let size = Winsize { ws_row: 41, ws_col: 132, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&operator.screen, size).unwrap();
    operator.sees("41 132");
    assert_eq!(operator.ends(), 0);
}

#[test]
fn a_shell_has_job_control() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let bash = ["--agent-env", "PS1=ready> ", "--", "bash", "--norc", "--noprofile", "-i"];
        let mut operator = world.shell(&bash);
        operator.sees("ready> ");
        assert!(!operator.text().contains("job control"), "{:?}", operator.text());
        // A single program: a key between two of them would be the shell's own.
        operator.types("sh -c 'echo begun; exec sleep 1000'\r");
        operator.sees("\rbegun\r\n");
        operator.has_terminal("sleep 1000");
        operator.types(CTRL_C);
        operator.types("echo code=$?\r");
        // Input before the prompt is not edited by the shell.
        operator.sees("code=130\r\n\x1b[?2004hready> ");
        operator.clear();
        operator.types("sh -c 'echo begun; exec sleep 1000'\r");
        operator.sees("\rbegun\r\n");
        operator.has_terminal("sleep 1000");
        operator.types(CTRL_Z);
        operator.sees("Stopped");
        operator.sees("\r\n\x1b[?2004hready> ");
        operator.clear();
        operator.types("fg\r");
        // The shell prints this just before it gives the program the terminal.
        operator.sees("\rsh -c 'echo begun; exec sleep 1000'\r\n");
        operator.has_terminal("sleep 1000");
        operator.types(CTRL_C);
        operator.types("echo again=$?\r");
        operator.sees("again=130");
        operator.types("echo changed >made.txt\rexit 3\r");
        assert_eq!(operator.ends(), 3, "{who:?} {:?}", operator.text());
        operator.is_restored();
        assert!(operator.text().contains("write    made.txt"), "{:?}", operator.text());
        assert_eq!(std::fs::read_to_string(world.at("ws/made.txt")).unwrap(), "changed\n");
    }
}

#[test]
fn what_is_on_no_list_does_not_reach_the_operators_terminal() {
    let world = SandboxWorld::mounted(users()[0]);
    let script = r"printf '\033[1;31mred\033[0m \033[2;3H\033[?2004h'
        printf '\033]52;c;cHduZWQ=\007\033]0;a title\033\\\033]8;;http://example.org\007link\033]8;;\007'
        printf '\033[6n\033[>c\033[?1$p\033[18t\033[>q\005\033Z\033P$qm\033\\\033P+q544e\033\\\033[?u'
        printf '\033_apc\033\\\033^pm\033\\\033Xsos\033\\\2336n\302\2336n\033[3J\033c'
        printf 'German \303\234 done\n'";
    let mut operator = world.shell_script(&["--quiet"], script);
    assert_eq!(operator.ends(), 0);
    let text = operator.text();
    assert!(text.contains("\x1b[1;31mred\x1b[m \x1b[2;3H\x1b[?2004hlink"), "{text:?}");
    assert!(text.contains("German Ü done\r\n"), "{text:?}");
    assert!(text.contains("\x1b[?2004l\x1b[m"), "{text:?}");
    for part in
        ["\x1b]", "\x1bP", "\x1b_", "\x1b^", "\x1bX", "\x1bZ", "\x1bc", "\x05", "title", "\u{9b}"]
    {
        assert!(!text.contains(part), "{part:?} {text:?}");
    }
    for end in ["n", "c", "p", "t", "q", "u", "3J"] {
        let found = text.split("\x1b[").skip(1).any(|sequence| {
            let body = sequence.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
            body.starts_with(end) || sequence.starts_with(end)
        });
        assert!(!found, "{end} {text:?}");
    }
}

/// A sequence that was dropped, or brought back what was saved, made the change before it forgotten:
/// the operator's shell was concealed, or inserted. The summary was mixed with the program's text.
#[test]
fn a_program_hid_the_summary_and_left_the_terminal_changed() {
    let world = SandboxWorld::mounted(users()[0]);
    const BOTTOM: &str = "\x1b[999;1H\r\n\r\x1b[Jportcullis: no changes";
    for (script, last, undone) in [
        (
            r"printf '\033[8m\0337\033[m\0338\033[?1049h\033[m\033[4h\033[20l\033[5;8r\033[1:2r'
            printf '\033[3 q\033[7 q'",
            "\x1b[3 q",
            format!("\x1b[?1049l\x1b[r\x1b[4l\x1b[0 q\x1b[m{BOTTOM}"),
        ),
        (r"printf '%64s(all is well)\r\n\n\n\033[9A' ''", "\x1b[9A", BOTTOM.to_owned()),
        (
            r"printf '%64s(all is well)\r' ''",
            "(all is well)\r",
            "\r\n\r\x1b[Jportcullis: no changes".to_owned(),
        ),
    ] {
        let mut operator = world.shell_script(&[], script);
        assert_eq!(operator.ends(), 0, "{:?}", operator.text());
        let text = operator.text();
        let end = text.rsplit_once(last).map(|(_, end)| end);
        assert!(end.is_some_and(|end| end.starts_with(&undone)), "{script}: {text:?}");
    }
}

/// Bytes that a terminal without UTF-8 would take for control characters.
#[test]
fn a_terminal_of_another_encoding_gets_ascii() {
    let world = SandboxWorld::mounted(users()[0]);
    let script = ["--quiet", "--", "printf", r"\303\2336n done"];
    let mut operator = world.shell_with(&script, &[("LANG", "de_DE.ISO-8859-1")]);
    assert_eq!(operator.ends(), 0);
    assert!(operator.text().contains("?6n done"), "{:?}", operator.text());
    assert!(operator.text().is_ascii(), "{:?}", operator.text());
}

#[test]
fn a_program_that_asks_what_its_terminal_is_has_an_answer() {
    let world = SandboxWorld::mounted(users()[0]);
    let script = r"stty raw -echo; printf '\033[c'; head -c 9 | od -An -c | tr -d ' '";
    let mut operator = world.shell_script(&["--quiet"], script);
    operator.sees("033[?62;22c");
    assert_eq!(operator.ends(), 0);
    assert!(!operator.text().contains("\x1b[c") && operator.left_to_read().is_empty());
}

#[test]
fn no_program_types_into_a_terminal_or_changes_its_line_discipline() {
    const SCRIPT: &str = "import errno, fcntl\n\
        for name, request in ('type', 0x5412), ('console', 0x541c), ('discipline', 0x5423):\n\
        \x20   try: fcntl.ioctl(0, request, b'x'); print(name, 'ok')\n\
        \x20   except OSError as error: print(name, errno.errorcode[error.errno])\n";
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let mut operator = world.shell(&["--quiet", "--", "python3", "-c", SCRIPT]);
        assert_eq!(operator.ends(), 0, "{:?}", operator.text());
        let expected = "type EPERM\r\nconsole EPERM\r\ndiscipline EPERM\r\n";
        assert!(operator.text().contains(expected), "{who:?} {:?}", operator.text());
    }
}

#[test]
fn without_a_terminal_it_names_exec() {
    let world = SandboxWorld::new(users()[0]);
    let ended = end(world.limited(&["shell", "--", "true"]).spawn().unwrap());
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("portcullis exec"), "{ended:?}");
    assert!(!world.base().join("state/audit").exists());
}

#[test]
fn the_operators_shell_runs_if_it_is_there() {
    let world = SandboxWorld::mounted(users()[0]);
    let own = world.at("no-shell");
    for (shell, runs) in [("/bin/bash", "/bin/bash"), (&own, "/bin/sh"), ("bash", "/bin/sh")] {
        let mut operator = world.shell_with(&["--quiet"], &[("SHELL", shell)]);
        operator.types("echo \"it is $0\"; exit 4\r");
        operator.sees(&format!("it is {runs}"));
        assert_eq!(operator.ends(), 4);
    }
}

#[test]
fn a_preset_says_what_runs_on_a_terminal() {
    let world = SandboxWorld::mounted(users()[0]);
    let text = "name = \"mine\"\ntitle = \"Mine\"\nterminal = [\"sh\", \"-c\", \"echo by preset; exit 5\"]\n";
    std::fs::write(world.at("mine.toml"), text).unwrap();
    let preset = world.at("mine.toml");
    let mut operator = world.shell(&["--preset", &preset]);
    assert_eq!(operator.ends(), 5, "{:?}", operator.text());
    assert!(operator.text().contains("by preset"), "{:?}", operator.text());
    let mut operator = world.shell(&["--preset", &preset, "--", "sh", "-c", "exit 6"]);
    assert_eq!(operator.ends(), 6, "{:?}", operator.text());
    // A program without ACP is of no use to an editor.
    let ended = end(world.command(&["run", "--preset", &preset]).spawn().unwrap());
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("portcullis shell --preset mine"), "{ended:?}");
}

#[test]
fn vim_edits_a_file_on_it() {
    if !Path::new("/usr/bin/vim").exists() {
        // The other tests do what it does.
        return;
    }
    let world = SandboxWorld::mounted(users()[0]);
    let mut operator = world.shell(&["--", "vim", "-u", "NONE", "-n", "file.txt"]);
    operator.sees("secret");
    operator.types("Aand more\x1b:wq\r");
    assert_eq!(operator.ends(), 0, "{:?}", operator.text());
    operator.is_restored();
    assert_eq!(std::fs::read_to_string(world.at("ws/file.txt")).unwrap(), "secretand more\n");
    assert!(operator.text().contains("\x1b[?1049l"), "{:?}", operator.text());
}
