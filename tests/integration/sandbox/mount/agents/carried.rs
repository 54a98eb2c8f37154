//! Three sessions of an agent: the first reads labelled content and writes what it has learned into
//! other files, the others use these. The replay says what labels would close.

use std::{io::Read as _, thread};

use super::{
    table::{claude_code, codex, fast_agent, gemini_cli, opencode, qwen_code},
    *,
};

/// The rules of hosts of the sessions.
const HOSTS: &str = "schema = 1\nname = \"NAME\"\nextends = [\"default\"]\n\
    [git]\nrepository = \"REPOSITORY\"\n[[network.rules]]\nid = \"hosts\"\neffect = \"allow\"\nhosts = [\"127.0.0.2\", \"127.0.0.3\"]\n\
    ports = [PORTS]\n";

/// The labels under which they are replayed.
const LABELS: &str = "[[labels]]\nid = \"rows\"\npaths = [\"data/**\"]\n\
    [[network.rules]]\nid = \"after-rows\"\neffect = \"deny\"\nwhenRead = [\"rows\"]\nhosts = [\"*\"]\n\
    except = [\"127.0.0.2\"]\n";

/// Answers each request, in place of a registry of packages.
fn registry() -> u16 {
    let listener = TcpListener::bind("127.0.0.3:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nfound");
        }
    });
    port
}

/// The plans of the sessions.
fn sessions(world: &SandboxWorld, tools: Tools, registry: u16) -> [Plan; 3] {
    let shell = |command: &str| json!({"do": "shell", "command": command});
    let read = |name: &str| match tools {
        Tools::Files => json!({"do": "read", "path": world.at(&format!("ws/{name}"))}),
        _ => shell(&format!("cat {name}")),
    };
    let edit = |old: &str, new: &str| match tools {
        Tools::Files => {
            json!({"do": "edit", "path": world.at("ws/calc.py"), "old": old, "new": new})
        }
        _ => shell(&format!("sed -i 's/{old}/{new}/' calc.py")),
    };
    let fetch = || ("fetch", shell(&format!("curl -sS --noproxy '' http://127.0.0.3:{registry}/")));
    let test = || ("test", shell("PYTHONDONTWRITEBYTECODE=1 python3 -m unittest 2>&1 | tail -4"));
    let fixes = vec![
        ("read", read("test_calc.py")),
        ("data", shell("cat data/rows.csv")),
        ("code", read("calc.py")),
        ("edit", edit("return a - b", "return a + b")),
        test(),
        ("notes", shell("echo the rows are sums >notes.md")),
        ("commit", shell("git commit -qam fixed")),
        fetch(),
    ];
    let continues = vec![
        fetch(),
        ("code", read("calc.py")),
        ("edit", edit("return a + b", "return b + a")),
        test(),
        fetch(),
    ];
    let other = vec![("read", read("test_calc.py")), fetch()];
    [fixes, continues, other]
}

/// Runs the sessions with a repository; a private one is made in each, since their policies differ.
/// Returns the number of connections that labels close, and
/// what their replay says of labels that are carried on.
fn replayed(agent: &Agent, who: As, repository: &str) -> (u64, Value) {
    let hosts = HOSTS.replace("REPOSITORY", repository);
    let world = project(who);
    // Else git reads it for the private repository.
    std::fs::write(world.at("ws/.gitignore"), "data/\n").unwrap();
    std::fs::create_dir(world.at("ws/data")).unwrap();
    std::fs::write(world.at("ws/data/rows.csv"), "1,2,3\n").unwrap();
    let registry = registry();
    let mut ports = registry.to_string();
    for plan in sessions(&world, agent.tools, registry) {
        let model = Model::start(&world, plan);
        ports += &format!(", {}", model.port);
        let policy = hosts.replace("PORTS", &ports).replace("NAME", "recorded");
        std::fs::write(world.at("policies/recorded.toml"), policy).unwrap();
        if is_root() && who != As::Root {
            world.give_away();
        }
        let policy = world.at("policies/recorded.toml");
        if let Some(file) = &agent.home {
            world.put_home(agent, &model, file);
        }
        let args = [&["exec", "--policy", &policy, "--"], &agent.command[..]].concat();
        let mut exec = world.with_agent(agent, &model, &args);
        let ended = end(exec.stdin(Stdio::null()).spawn().unwrap());
        assert_eq!(ended.code, 0, "{ended:?}");
        let (_, results) = model.heard();
        assert!(results["fetch"].contains("found"), "{results:#?}");
    }
    let tried = hosts.replace("PORTS", &ports).replace("NAME", "tried") + LABELS;
    std::fs::write(world.at("policies/tried.toml"), tried).unwrap();
    let tried = world.at("policies/tried.toml");
    let found: Value =
        serde_json::from_str(&world.operator(&["policy", "replay", &tried, "--json"])).unwrap();
    let enforced: Vec<_> = found["changes"].as_array().unwrap().iter().collect();
    let enforced = enforced.iter().filter(|change| change["new"]["rule"] == "after-rows");
    let enforced: u64 = enforced.map(|change| change["records"].as_u64().unwrap()).sum();
    (enforced, found["propagation"].clone())
}

/// Compares what replays say with the row of the agent in the book.
fn carries_on(agent: fn(As) -> Agent) {
    let who = users()[0];
    let agent = agent(who);
    let (enforced, private) = replayed(&agent, who, "private");
    let (again, without) = replayed(&agent, who, "workspace");
    assert_eq!(again, enforced);
    let row = format!(
        "| `{}` | {enforced} | {} | {} | {} |",
        agent.preset,
        private["files"]["connections"],
        without["files"]["connections"],
        without["sessions"]["connections"],
    );
    assert_eq!(private["sessions"]["connections"], without["sessions"]["connections"]);
    let book = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/network.md"));
    assert!(book.unwrap().contains(&row), "{row}\n{private:#}\n{without:#}");
}

#[test]
fn claude_code_carries_labels_on() {
    carries_on(claude_code);
}

#[test]
fn gemini_cli_carries_labels_on() {
    carries_on(gemini_cli);
}

#[test]
fn fast_agent_carries_labels_on() {
    carries_on(fast_agent);
}

#[test]
#[ignore = "`tests/run.sh full` installs it"]
fn codex_carries_labels_on() {
    carries_on(codex);
}

#[test]
#[ignore = "`tests/run.sh full` installs it"]
fn opencode_carries_labels_on() {
    carries_on(opencode);
}

#[test]
#[ignore = "`tests/run.sh full` installs it"]
fn qwen_code_carries_labels_on() {
    carries_on(qwen_code);
}
