//! Programs that people use, against a server with a certificate of the tests.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
};

use super::{credentials::Keyed, *};

/// A server over TLS for the files of a directory.
const FILES: &str = r#"
import functools, http.server, ssl, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
files = functools.partial(Handler, directory=sys.argv[3])
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), files)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

/// Makes a repository for `git`, an index for `pip` and one for cargo, and a package for `npm`.
const CONTENT: &str = r#"
import hashlib, json, os, subprocess, sys, tarfile, zipfile
os.makedirs(sys.argv[1])
os.chdir(sys.argv[1])
open("file.txt", "w").write("text\n")
def git(*words):
    subprocess.run(["git", *words], check=True)
git("init", "-q", "work")
git("-C", "work", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "--allow-empty", "-m", "one")
git("clone", "-q", "--bare", "work", "repository.git")
git("-C", "repository.git", "update-server-info")
os.makedirs("simple/thing")
name = "thing-1.0-py3-none-any.whl"
with zipfile.ZipFile("simple/thing/" + name, "w") as wheel:
    wheel.writestr("thing.py", "")
    wheel.writestr("thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    wheel.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("thing-1.0.dist-info/RECORD", "")
open("simple/thing/index.html", "w").write(f'<a href="{name}">{name}</a>')
os.makedirs("package")
open("package/package.json", "w").write(json.dumps({"name": "thing", "version": "1.0.0"}))
with tarfile.open("thing.tgz", "w:gz") as package:
    package.add("package")
os.makedirs("thing-1.0.0/src")
open("thing-1.0.0/Cargo.toml", "w").write('[package]\nname = "thing"\nversion = "1.0.0"\n')
open("thing-1.0.0/src/lib.rs", "w").close()
with tarfile.open("thing-1.0.0.crate", "w:gz") as package:
    package.add("thing-1.0.0")
os.makedirs("index/th/in")
digest = hashlib.sha256(open("thing-1.0.0.crate", "rb").read()).hexdigest()
entry = {"name": "thing", "vers": "1.0.0", "deps": [], "cksum": digest, "features": {}, "yanked": False}
open("index/th/in/thing", "w").write(json.dumps(entry) + "\n")
"#;

/// Programs in the sandbox; `$1` is the URL of the server, `$2` that by another name.
const PROGRAMS: &str = r#"
export SSL_CERT_FILE=$PWD/ca.pem CURL_CA_BUNDLE=$PWD/ca.pem GIT_SSL_CAINFO=$PWD/ca.pem
export npm_config_update_notifier=false NODE_EXTRA_CA_CERTS=$PWD/ca.pem npm_config_cafile=$PWD/ca.pem PIP_CERT=$PWD/ca.pem
curl -sS "$1/file.txt" || echo "curl failed"
curl -sS "$2/file.txt"; echo "other host: $?"
git clone -q "$1/repository.git" "$HOME/clone" && git -C "$HOME/clone" log --format=%s || echo "git failed"
fetch='import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode().strip())'
/usr/bin/python3 -c "$fetch" "$1/file.txt" || echo "urllib failed"
"$PEERS/python" -m pip download -q --disable-pip-version-check --no-deps -d "$HOME" -i "$1/simple/" thing ||
    echo "pip failed"
fetch='import sys, requests, httpx
print(requests.get(sys.argv[1], verify="ca.pem").text.strip(), httpx.get(sys.argv[1]).text.strip())'
"$PEERS/python" -c "$fetch" "$1/file.txt" || echo "requests failed"
fetch='fetch(process.argv[1]).then(got => got.text()).then(text => console.log(text.trim()), error => console.log(error.cause.code))'
for node in $NODES; do
    "$node" -e "$fetch" "$1/file.txt" || echo "node failed"
done
mkdir -p "$HOME/project/src" "$HOME/project/.cargo" && (
    export CARGO_HOME=$HOME/cargo CARGO_HTTP_CAINFO=$PWD/ca.pem PATH=$TOOLCHAIN/bin:$PATH
    cd "$HOME/project" && touch src/lib.rs
    printf '[package]\nname = "p"\n[dependencies]\nthing = { version = "1", registry = "site" }\n' >Cargo.toml
    printf '[registries.site]\nindex = "sparse+%s/index/"\n' "$1" >.cargo/config.toml
    cargo fetch -q && ls "$CARGO_HOME"/registry/cache/*/
) || echo "cargo failed"
if [ "$JAVA" ]; then
    "$JAVA/bin/keytool" -importcert -noprompt -alias it -file ca.pem -keystore "$HOME/store" -storepass changeit &&
        printf '%s' "$FETCH_JAVA" >"$HOME/Fetch.java" &&
        "$JAVA/bin/java" -Djavax.net.ssl.trustStore="$HOME/store" -Djavax.net.ssl.trustStorePassword=changeit \
            "$HOME/Fetch.java" "$1/file.txt" || echo "java failed"
fi
cd "$HOME" && npm pack --silent "$1/thing.tgz" || echo "npm failed"
ls "$HOME"
"#;

const FETCH_JAVA: &str = r#"
public class Fetch {
    public static void main(String[] words) throws Exception {
        try (var body = new java.net.URI(words[0]).toURL().openStream()) {
            System.out.println("java " + new String(body.readAllBytes()).trim());
        }
    }
}
"#;

struct Files {
    server: Child,
    port: u32,
}

impl Files {
    fn serve(directory: &Path) -> Self {
        let certificate = directory.join("ca.pem");
        let key = directory.join("key.pem");
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-nodes", "-days", "30", "-subj", "/CN=site.example"])
            .args(["-addext", "subjectAltName=DNS:site.example,DNS:other.example"])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let mut server = Command::new("/usr/bin/python3")
            .args(["-c", FILES])
            .args([&certificate, &key])
            .arg(directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Self { server, port: line.trim().parse().unwrap() }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The Rust toolchain that runs the tests.
fn toolchain() -> PathBuf {
    let cargo = std::env::var_os("CARGO").expect("cargo runs the tests");
    let cargo = std::fs::canonicalize(cargo).unwrap();
    cargo.ancestors().nth(2).unwrap().to_owned()
}

/// Node 24 and Node 20 of the tests: one that reads the variables which name a proxy, and one that does
/// not.
fn nodes() -> [PathBuf; 2] {
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/node_modules");
    ["node-linux", "node-20-linux"].map(|name| {
        let mut found = ["x64", "arm64"]
            .map(|arch| packages.join(format!("{name}-{arch}/bin/node")))
            .into_iter();
        let found = found.find(|node| node.exists());
        found.unwrap_or_else(|| panic!("no {name}; see tests/peers/README.md"))
    })
}

/// The directory of Java on this machine, if there is one, and that of its settings.
fn java() -> Option<[PathBuf; 2]> {
    let program = std::fs::canonicalize("/usr/bin/java").ok()?;
    let home = program.ancestors().nth(2)?.to_owned();
    let settings = std::fs::canonicalize(home.join("conf/security/java.security")).ok()?;
    home.join("bin/javac").exists().then_some([home, settings.ancestors().nth(2)?.to_owned()])
}

#[test]
fn programs_that_people_use_work_over_tls() {
    let place = tempfile::TempDir::new().unwrap();
    let directory = place.path().join("files");
    let made =
        Command::new("/usr/bin/python3").args(["-c", CONTENT]).arg(&directory).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let files = Files::serve(&directory);
    let net = Net::new(files.port, "");
    let index =
        format!(r#"{{ "dl": "https://site.example:{}/{{crate}}-{{version}}.crate" }}"#, files.port);
    std::fs::write(directory.join("index/config.json"), index).unwrap();
    std::fs::copy(directory.join("ca.pem"), net.world.path("ca.pem")).unwrap();
    let [site, other] =
        ["site", "other"].map(|name| format!("https://{name}.example:{}", files.port));
    let peers = crate::fast_agent::peers();
    let python = crate::fast_agent_confined::python(&peers);
    let [node_24, node_20] = nodes();
    let nodes = [node_24, crate::serve_clients::node(), node_20];
    let (java, toolchain) = (java(), toolchain());
    let readable = [peers.as_path(), &python, &toolchain].into_iter();
    let readable = readable.chain(nodes.iter().map(|node| node.parent().unwrap()));
    let readable = readable.chain(java.iter().flatten().map(PathBuf::as_path));
    let mut variables = vec![
        format!("PEERS={}/bin", peers.display()),
        format!("NODES={}", nodes.each_ref().map(|node| node.to_str().unwrap()).join(" ")),
        format!("TOOLCHAIN={}", toolchain.display()),
    ];
    if let Some([home, _]) = &java {
        variables.extend([format!("JAVA={}", home.display()), format!("FETCH_JAVA={FETCH_JAVA}")]);
    }
    let readable = readable.flat_map(|path| ["--agent-read", path.to_str().unwrap()]);
    let variables = variables.iter().flat_map(|variable| ["--agent-env", variable.as_str()]);
    let options: Vec<_> = readable.chain(variables).collect();
    let command = ["sh", "-c", PROGRAMS, "sh", &site, &other];
    let got = net.command(&options, &command).output().unwrap();
    let said = String::from_utf8_lossy(&got.stdout);
    let lines: Vec<_> = said.lines().collect();
    assert!(!said.contains("failed"), "{got:?}");
    let expected = ["text", "other host: 56", "one", "text", "text text"];
    // The machine has the name, and the sandbox no server at its address.
    let of_nodes = ["text", "text", "ECONNREFUSED"];
    let expected = [&expected[..], &of_nodes, &["thing-1.0.0.crate"]].concat();
    assert_eq!(lines.get(..9), Some(&expected[..]), "{got:?}");
    assert!(java.is_none() || lines.contains(&"java text"), "{got:?}");
    for name in ["thing-1.0-py3-none-any.whl", "thing-1.0.0.tgz"] {
        assert!(lines.contains(&name), "{got:?}");
    }
    let records = net.connects();
    let denied = records.iter().filter(|record| record["decision"] == "deny");
    let denied: Vec<_> = denied.map(|record| &record["facts"]["host"]).collect();
    assert_eq!(denied, ["other.example"]);
    let outcomes: Vec<_> = records.iter().filter(|record| record["kind"] == "outcome").collect();
    assert!(outcomes.len() >= 10, "{outcomes:?}");
    assert!(outcomes.iter().all(|record| record["result"] == "ok"), "{outcomes:?}");
}

/// Node that reads a proxy's variables and Node that does not: both speak with loopback itself.
#[test]
fn node_uses_a_credential_by_its_base_url() {
    let keyed = Keyed::new("h2");
    let script = "fetch(process.env.MODEL_URL + '/v1/messages', {\
        method: 'POST', headers: {'x-api-key': process.env.MODEL_API_KEY}, body: 'text'\
        }).then(got => got.json()).then(seen => console.log(seen.headers['x-api-key'], seen.bytes))";
    for node in nodes() {
        let directory = node.parent().unwrap().to_str().unwrap();
        let command = [node.to_str().unwrap(), "-e", script];
        let got = keyed.command(&["--agent-read", directory], &command).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&got.stdout), "KEY 4\n", "{got:?}");
    }
    assert_eq!(keyed.outcomes().len(), 2);
}

/// Fetches `$2` with the client hello of Chrome and that of Firefox, and with that of Chrome as the
/// refusal advises; `$1` is the certificate.
const BROWSERS: &str = r#"
import sys
from curl_cffi import CurlOpt, requests
for name, options in ("chrome", {}), ("firefox", {}), ("chrome", {CurlOpt.ECH: "false"}):
    try:
        print(requests.get(sys.argv[2], impersonate=name, curl_options=options, verify=sys.argv[1]).text.strip())
    except requests.exceptions.RequestException:
        print("refused")
"#;

#[test]
#[ignore = "`tests/run.sh full` installs it"]
fn clients_that_hide_the_name_as_browsers_do_are_refused() {
    let environment = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/agents/more/.venv");
    let place = tempfile::TempDir::new().unwrap();
    std::fs::write(place.path().join("file.txt"), "text\n").unwrap();
    let files = Files::serve(place.path());
    let net = Net::new(files.port, "");
    std::fs::copy(place.path().join("ca.pem"), net.world.path("ca.pem")).unwrap();
    let python = crate::fast_agent_confined::python(&environment);
    let readable = [environment.as_path(), &python];
    let options = readable.map(|path| ["--agent-read", path.to_str().unwrap()]).concat();
    let program = environment.join("bin/python");
    let url = format!("https://site.example:{}/file.txt", files.port);
    let command = [program.to_str().unwrap(), "-c", BROWSERS, "ca.pem", &url];
    let got = net.command(&options, &command).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&got.stdout), "refused\nrefused\ntext\n", "{got:?}");
    let records = net.connects();
    let refused = records.iter().filter(|record| record["result"] == "refused");
    let reasons: Vec<_> = refused.map(|record| record["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons.len(), 2, "{records:?}");
    assert!(reasons.iter().all(|reason| reason.contains("--ech false")), "{reasons:?}");
}
