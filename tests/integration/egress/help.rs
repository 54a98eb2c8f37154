//! Denials of hosts: what the operator and the program are told, and when.

use super::*;

/// Returns what a command printed on standard error.
fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs the command between backticks that ends a line of help.
fn explained(net: &Net, line: &str) -> String {
    let (_, rest) = line.split_once("`portcullis ").unwrap_or_else(|| panic!("{line}"));
    let (command, _) = rest.split_once('`').unwrap();
    let words: Vec<_> = command.split(' ').map(|word| word.trim_matches('\'')).collect();
    net.world.run(&words).ok().text().to_owned()
}

/// curl says of a tunnel only that the status was 403, so nobody was told.
#[test]
fn a_denied_host_is_told_once_on_standard_error() {
    let net = Net::new(443, "");
    let script =
        "for n in 1 2; do curl -sS https://other.example/; curl -sS https://more.example/; done";
    let output = net.exec(&["sh", "-c", script]);
    let told = stderr(&output);
    for host in ["other.example", "more.example"] {
        let line = format!("portcullis: denied: a connection to `{host}:443`, by rule `default`: ");
        assert_eq!(told.matches(&line).count(), 1, "{told}");
    }
    let help = told.lines().find(|line| line.contains("  help: ")).unwrap();
    assert!(help.contains("the operator can allow it in `[[network.rules]]`"), "{help}");
    assert!(explained(&net, help).contains("denied by `default`"), "{help}");
    // So does the summary, at the end.
    let output = net.portcullis(&["exec", "--", "curl", "-sS", "https://other.example/"]).output();
    let told = stderr(&output.unwrap());
    let last = told.lines().rfind(|line| line.starts_with("  help: other.example:443: ")).unwrap();
    assert!(explained(&net, last).contains("denied by `default`"), "{last}");
}

/// curl says of a tunnel only that the status was 502, so nobody was told.
#[test]
fn nobody_was_told_of_a_host_that_cannot_be_reached() {
    let net = Net::new(1, "");
    let url = "https://site.example:1/";
    let told = stderr(&net.exec(&["curl", "-sS", url, url]));
    let line = "portcullis: warning: a connection to `site.example:1` failed: ";
    assert_eq!(told.matches(line).count(), 1, "{told}");
    assert_eq!(net.connects().iter().filter(|record| record["kind"] == "outcome").count(), 2);
}

/// It ended with the advice to give the agent another directory.
#[test]
fn an_agent_that_ends_for_a_denied_host_is_told_so() {
    let net = Net::new(443, "");
    let run = ["run", "--", "sh", "-c", "curl -sS https://other.example/"];
    let run = || stderr(&net.portcullis(&run).output().unwrap());
    // On a busy machine one takes longer than an agent that never worked.
    let told = (0..20).map(|_| run()).find(|told| told.contains("ended at once")).unwrap();
    assert!(told.contains("denied: a connection to `other.example:443`"), "{told}");
    assert!(!told.contains("--agent-read DIR"), "{told}");
}

/// The messages would be as many as the names that an agent tries.
#[test]
fn a_flood_of_denied_hosts_is_told_in_few_lines() {
    let net = Net::new(443, "");
    let script = "for n in $(seq 60); do curl -sS http://h$n.example/ >/dev/null; done";
    let told = stderr(&net.exec(&["sh", "-c", script]));
    assert_eq!(told.matches("portcullis: denied: ").count(), 32, "{told}");
    assert_eq!(told.matches("more connections were denied").count(), 1, "{told}");
}

/// All of them were told that a rule can allow it, and got a command that said the opposite.
#[test]
fn help_depends_on_the_rule() {
    let server = Server::http();
    let port = server.port;
    let denies = "[[network.rules]]\nid = \"never\"\neffect = \"deny\"\nhosts = [\"sub.site.example\"]\n\
        [[labels]]\nid = \"customers\"\npaths = [\"data/**\"]\n\
        [[network.rules]]\nid = \"closed\"\neffect = \"deny\"\nwhenRead = [\"customers\"]\n\
        hosts = [\"*\"]\nreason = \"customers first\"\n[mount]\n";
    let net = Net::new(port, denies);
    net.world.file("data/a.csv", "alice\n");
    let script = format!(
        "for host in private.example sub.site.example; do curl -sS http://$host:{port}/; done\n\
         cat data/a.csv\ncurl -sS http://site.example:{port}/"
    );
    let output = net.exec(&["sh", "-c", &script]);
    let (said, told) = (String::from_utf8_lossy(&output.stdout).into_owned(), stderr(&output));
    for (advice, explain, decision) in [
        (
            "`hosts = [\"private.example\", \"10.1.2.3\"]`",
            format!("private.example:{port} --address 10.1.2.3"),
            "denied by `network.address`",
        ),
        ("change the rule `never`", format!("sub.site.example:{port}"), "denied by `never`"),
        (
            "or exempt the host by `except` in the rule `closed`",
            format!("site.example:{port} --read data/a.csv"),
            "denied by `closed`",
        ),
    ] {
        let command =
            format!("`portcullis policy explain connect {explain} --agent exec --policy FILE`");
        let heard =
            said.lines().find(|line| line.contains(advice)).unwrap_or_else(|| panic!("{said}"));
        assert!(heard.contains(&command), "{heard}");
        let line =
            told.lines().find(|line| line.contains(advice)).unwrap_or_else(|| panic!("{told}"));
        assert!(explained(&net, line).contains(decision), "{line}");
    }
    // The summary's help on a tunnel that the read closed was that of a rule without a condition.
    let script = format!(
        "proxy=${{http_proxy##*:}}; exec 9<>/dev/tcp/127.0.0.1/${{proxy%/}}\n\
         printf 'CONNECT site.example:{port} HTTP/1.1\\r\\nHost: site.example:{port}\\r\\n\\r\\n' >&9\n\
         head -c 12 <&9; cat data/a.csv"
    );
    let output = net.portcullis(&["exec", "--", "bash", "-c", &script]).output().unwrap();
    assert!(output.stdout.starts_with(b"HTTP/1.1 200"), "{output:?}");
    let told = stderr(&output).split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, summary) = told.split_once("denied connect").unwrap_or_else(|| panic!("{told}"));
    assert!(summary.contains("--read data/a.csv"), "{told}");
    // No program is told a path of the host.
    assert!(!said.contains(net.world.base().to_str().unwrap()), "{said}");
    // The reason of the rule stood in the label's place.
    assert!(said.contains("customers first (content labelled `customers` was read)"), "{said}");
}

/// The command named the preset by its name, which is that of no preset, or of another one.
#[test]
fn the_preset_of_a_file_is_explained_by_the_file() {
    let net = Net::with_policy(ALL);
    let file = net.world.base().join("preset.toml");
    let lines = "name = \"it\"\ntitle = \"It\"\nhosts = [\"site.example\"]\n";
    std::fs::write(&file, lines).unwrap();
    // Relative to the directory of the command.
    let args = ["exec", "--preset", "./preset.toml", "--", "curl", "-sS", "http://other.example/"];
    let output = net.portcullis(&args).output().unwrap();
    let (said, told) = (String::from_utf8_lossy(&output.stdout).into_owned(), stderr(&output));
    assert!(said.contains(" --preset FILE "), "{said}");
    let option = format!(" --preset {} ", file.display());
    let line = told.lines().find(|line| line.contains(&option)).unwrap_or_else(|| panic!("{told}"));
    assert!(explained(&net, line).contains("denied by `default`"), "{line}");
}
