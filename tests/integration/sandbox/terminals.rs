//! Pseudo-terminals in the sandbox, and the operator's terminal.

use super::*;

/// Starts what follows on a new terminal, whose name it gets as its last argument.
const ON_A_TERMINAL: &str = "import pty, sys\n\
    code = pty.spawn(['/bin/sh', '-c', 'exec \"$@\" \"$(tty)\"', 'sh', *sys.argv[2:]])\n\
    sys.exit(code >> 8)";

fn from_a_terminal(world: &SandboxWorld, options: &[&str]) -> BTreeMap<String, String> {
    let scripts = tools().join("agent");
    let script = scripts.join("hostile.py");
    let read = ["run", "--agent-read", scripts.to_str().unwrap()];
    let agent = ["--", "/usr/bin/python3", script.to_str().unwrap(), "terminals"];
    let inner = world.command(&[&read, options, &agent].concat());
    let ended = wrapped("/usr/bin/python3", &["-c", ON_A_TERMINAL], world, &inner);
    // A terminal has one stream.
    let ended = AgentOutput { stderr: ended.stdout.clone(), ..ended };
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.attempts()
}

/// Shells of Gemini CLI and Qwen Code did not start.
#[test]
fn programs_in_the_sandbox_could_open_no_pseudo_terminal() {
    for who in users() {
        let attempts = from_a_terminal(&SandboxWorld::new(who), &[]);
        for (name, meant) in [
            ("list", "ptmx"),
            ("name", "/dev/pts/0"),
            ("set the size", "ok"),
            ("get the size", "(34, 12)"),
            ("a shell", "/dev/pts/1,reached,"),
        ] {
            assert_eq!(attempts[name], meant, "{who:?} {name}");
        }
    }
}

#[test]
fn an_agent_with_terminals_does_not_reach_the_operators() {
    for who in users() {
        let attempts = from_a_terminal(&SandboxWorld::new(who), &[]);
        for (name, meant) in [
            ("the operator's terminal", "ENOENT"),
            ("the controlling terminal", "ENXIO"),
            ("type into it", "EPERM"),
            ("use the console", "EPERM"),
            ("change the line discipline", "EPERM"),
        ] {
            assert_eq!(attempts[name], meant, "{who:?} {name}");
        }
    }
    let attempts = from_a_terminal(&SandboxWorld::new(users()[0]), &["--unconfined"]);
    assert_eq!(attempts["the operator's terminal"], "ok");
}
