//! Names that lead to globally routable addresses of the machine's own network.

use super::*;

/// A network with one neighbour, whom nobody answers for.
const NETWORK: &str = "ip link set lo up && ip link add v0 type veth peer name v1 && \
    ip link set v0 up && ip link set v1 up && ip addr add 203.0.112.1/24 dev v0 && \
    ip addr add 2a00:1450:4001::1/64 dev v0 nodad && exec \"$@\"";

const FETCH: &str = "for host in four six named; do \
    curl -sS -m 60 -o reply -w '%{http_code} ' http://$host.example:8080/; done";

/// Neighbours with globally routable addresses were reached by any name.
#[test]
fn a_name_led_to_a_neighbour() {
    let net = Net::with_policy(&format!(
        "{ALL}[[network.rules]]\nid = \"sites\"\neffect = \"allow\"\nports = [8080]\n\
         hosts = [\"*.example\", \"203.0.112.3\"]\n"
    ));
    let hosts =
        "203.0.112.2 four.example\n2a00:1450:4001::2 six.example\n203.0.112.3 named.example\n";
    std::fs::write(net.world.base().join("hosts"), hosts).unwrap();
    let inner = net.command(&[], &["sh", "-c", FETCH]);
    let own: &[&str] = match rustix::process::geteuid().is_root() {
        true => &["--net"],
        false => &["--net", "--user", "--map-root-user"],
    };
    let got = Command::new("unshare")
        .args(own)
        .args(["sh", "-c", NETWORK, "sh"])
        .arg(inner.get_program())
        .args(inner.get_args())
        .env_clear()
        .envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(net.world.base())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let records = net.connects();
    let addresses = |key: &str, value: &str| {
        let found = records.iter().filter(|record| record[key] == value);
        found.map(|record| record["facts"]["address"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(addresses("decision", "deny"), ["203.0.112.2", "2a00:1450:4001::2"], "{got:?}");
    assert_eq!(addresses("rule", "network.address").len(), 2, "{records:?}");
    assert_eq!(addresses("kind", "intent"), ["203.0.112.3"], "{got:?}");
    assert!(got.stdout.starts_with(b"403 403 50"), "{got:?}");
}
