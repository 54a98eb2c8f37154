//! Names whose addresses a name server changes.

use super::*;

/// A port on a network that nobody else has.
const PORT: u32 = 8080;

/// Asks for one URL after the other, and prints the statuses.
const FETCH: &str = "for host in rebind rebind rebind two denied; do \
    curl -sS -o reply -w '%{http_code} ' http://$host.example:8080/; done";

/// The network, its name server and the server on it.
const NAMES: &str = include_str!("names.py");

#[test]
fn a_connection_goes_to_the_address_that_was_decided_on() {
    let net = Net::with_policy(&format!(
        "{ALL}[[network.rules]]\nid = \"sites\"\neffect = \"allow\"\nports = [{PORT}]\n\
         hosts = [\"rebind.example\", \"two.example\", \"127.0.0.2\"]\n"
    ));
    let (etc, log) = (net.own_etc(), net.world.base().join("names.log"));
    // It may be a link to a file elsewhere.
    std::fs::remove_file(etc.join("resolv.conf")).ok();
    std::fs::write(etc.join("resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
    std::fs::write(etc.join("nsswitch.conf"), "hosts: files dns\n").unwrap();
    let inner = net.command(&[], &["sh", "-c", FETCH]);
    let own: &[&str] = match rustix::process::geteuid().is_root() {
        true => &["--net"],
        false => &["--net", "--user", "--map-root-user"],
    };
    let got = Command::new("unshare")
        .args(own)
        .args(["/usr/bin/python3", "-c", NAMES])
        .arg(PORT.to_string())
        .arg(&log)
        .arg(inner.get_program())
        .args(inner.get_args())
        .env_clear()
        .envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env("ETC", &etc)
        .current_dir(net.world.base())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&got.stdout), "200 403 200 200 403 ", "{got:?}");

    let log = std::fs::read_to_string(log).unwrap();
    let of = |word: &str| {
        let lines = log.lines().filter_map(|line| line.split_once(' '));
        lines.filter(|(kind, _)| *kind == word).map(|(_, what)| what.to_owned()).collect::<Vec<_>>()
    };
    // Each connection has one look-up, and the name server hears nothing of a denied name.
    let asked = ["rebind.example", "rebind.example", "rebind.example", "two.example"];
    assert_eq!(of("asked"), asked, "{log}");
    assert_eq!(of("reached"), ["127.0.0.2", "127.0.0.2", "127.0.0.2"], "{log}");

    let records = net.connects();
    let intents = records.iter().filter(|record| record["kind"] == "intent");
    let decided: Vec<_> = intents.map(|record| &record["facts"]["address"]).collect();
    assert_eq!(decided, ["127.0.0.2", "127.0.0.2", "127.0.0.2"]);
    let denied = |host: &str| {
        let denied = records.iter().filter(|record| record["decision"] == "deny");
        let of_host = denied.filter(|record| record["facts"]["host"] == host);
        of_host.map(|record| record["facts"]["address"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(denied("rebind.example"), ["127.0.0.1"]);
    assert_eq!(denied("two.example"), ["127.0.0.1"]);
    assert_eq!(denied("denied.example"), [Value::Null]);
}

/// Nothing was on record but that the name is allowed, and nobody could see why nothing came of it.
#[test]
fn a_name_that_leads_nowhere_has_its_error_on_record() {
    // A port at which no service of the machine listens.
    let net = Net::with_policy(&format!(
        "{ALL}[[network.rules]]\nid = \"sites\"\neffect = \"allow\"\nports = [1]\n\
         hosts = [\"nowhere.example\", \"private.example\", \"127.0.0.1\"]\n"
    ));
    let etc = net.own_etc();
    std::fs::write(etc.join("nsswitch.conf"), "hosts: files\n").unwrap();
    let script = "for host in nowhere.example private.example 127.0.0.1; do \
        curl -sS --noproxy '' -o reply -w '%{http_code} ' http://$host:1/; done";
    let mut command = net.command(&[], &["sh", "-c", script]);
    let got = command.env("ETC", &etc).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&got.stdout), "502 403 502 ", "{got:?}");
    let records = net.connects();
    let of = |host: &str| {
        let of_host = records.iter().filter(|record| record["facts"]["host"] == host);
        let said = ["kind", "decision", "result"];
        let said = of_host.map(|record| said.map(|name| record[name].as_str().unwrap_or("-")));
        said.collect::<Vec<_>>()
    };
    let name = ["decision", "allow", "ok"];
    let nothing = ["decision", "allow", "unreachable"];
    assert_eq!(of("nowhere.example"), [name, nothing]);
    assert_eq!(of("private.example"), [name, ["decision", "deny", "denied"], nothing]);
    // A connection that was tried has an outcome.
    let tried = [["intent", "allow", "-"], ["outcome", "-", "unreachable"]];
    assert_eq!(of("127.0.0.1"), [name, tried[0], tried[1]]);
    let reasons = records.iter().filter(|record| record["result"] == "unreachable");
    assert!(reasons.clone().all(|record| record["reason"].is_string()));
    let decided = reasons.clone().filter(|record| record["kind"] == "decision");
    assert!(
        decided.clone().count() == 2 && decided.clone().all(|record| record["rule"] == "sites")
    );
    let reasons: Vec<_> = reasons.map(|record| record["reason"].as_str().unwrap()).collect();
    assert!(reasons[1].contains("network.address"), "{reasons:?}");
    net.world.run(&["audit", "verify"]).ok();
    // It is no further request.
    let replayed = net.world.run(&["policy", "replay", "read-only", "--json"]).ok().json();
    let changes = replayed["changes"].as_array().unwrap().iter();
    let closed = changes.filter(|change| change["operation"] == "connect");
    let closed: Vec<_> = closed.map(|change| change["records"].as_u64().unwrap()).collect();
    assert_eq!(closed, [1, 1, 1], "{replayed}");
}
