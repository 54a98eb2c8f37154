//! Requests by the route of a credential against the same ones by a tunnel of the proxy, in which curl
//! itself speaks TLS.
//!
//! Both run in one sandbox and take turns. The server is `openssl s_server`; the times are curl's.
#![expect(clippy::disallowed_methods, reason = "sets files up")]

use std::{
    fs::{self, File},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use crate::{
    Outcome,
    measure::{Bound, interleave, report},
    workload::{self, Workload},
    world::World,
};

const ROUNDS: usize = 15;
/// Small requests of a round, each on a connection of its own to the server.
const REQUESTS: usize = 20;
/// Bytes of a stream.
const STREAM: u64 = 128 << 20;
const KEY: &str = "sk-benchmark-0123456789abcdef0123456789abcdef";

pub(crate) fn run() -> Outcome<()> {
    let world = World::new()?;
    let programs = world.base().join("programs");
    workload::program(&world)?;
    certify(&programs)?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let _server = serve(&programs, port)?;
    measure(&world, port)
}

/// A server that ends when this is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn measure(world: &World, port: u16) -> Outcome<()> {
    let mut inside = inside(world, port)?;
    for (subject, tunnel, credential) in [
        ("requests", "small tunnel", "small credential"),
        ("stream", "stream tunnel", "stream credential"),
    ] {
        // The two need the workload in turn.
        let workload = std::cell::RefCell::new(&mut inside);
        let pair = interleave(
            ROUNDS,
            || workload.borrow_mut().time(credential),
            || workload.borrow_mut().time(tunnel),
        )?;
        let details = format!(
            "{:.2} ms ({}) by the credential, {:.2} ms ({}) by a tunnel",
            pair.ours.median() / 1e6,
            pair.ours.quartiles(1e6),
            pair.bare.median() / 1e6,
            pair.bare.quartiles(1e6)
        );
        let speed = 1.0 / pair.ratio.median();
        report(subject, speed, "of a tunnel's speed", Bound::AtLeast(0.5), &details);
    }
    inside.end()
}

/// Makes an authority, and a certificate of it for this machine's loopback.
fn certify(directory: &Path) -> Outcome<()> {
    let make = |name: &str, more: &[&str]| {
        let status = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-nodes", "-days", "30", "-subj", "/CN=benchmark"])
            .args(more)
            .args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem")])
            .current_dir(directory)
            .stderr(Stdio::null())
            .status()?;
        if status.success() { Ok(()) } else { Err(format!("openssl: {status}").into()) }
    };
    let names = "subjectAltName=DNS:localhost,IP:127.0.0.1";
    let of_ca = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", names];
    make("ca", &[])?;
    make("server", &[&of_ca[..], &["-addext", "basicConstraints=critical,CA:FALSE"]].concat())
}

/// Serves the files `small` and `stream` over TLS.
fn serve(directory: &Path, port: u16) -> Outcome<Server> {
    fs::write(directory.join("small"), "hello")?;
    File::create(directory.join("stream"))?.set_len(STREAM)?;
    let child = Command::new("openssl")
        .args(["s_server", "-quiet", "-WWW", "-accept", &format!("127.0.0.1:{port}")])
        .args(["-cert", "server.pem", "-key", "server.key"])
        .current_dir(directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let server = Server(child);
    for _ in 0..200 {
        thread::sleep(Duration::from_millis(10));
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Ok(server);
        }
    }
    Err("openssl does not listen".into())
}

/// A workload that runs curl in a sandbox with a credential for the server.
fn inside(world: &World, port: u16) -> Outcome<Workload> {
    let (policy, config) = (world.base().join("policy.toml"), world.base().join("portcullis.toml"));
    let programs = world.base().join("programs");
    let rules = format!(
        "schema = 1\nname = \"b\"\nversion = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\n\
         [network]\ncredentials = [\"server\"]\n[[network.rules]]\nid = \"local\"\neffect = \"allow\"\n\
         hosts = [\"localhost\", \"127.0.0.1\"]\nports = [{port}]\n"
    );
    fs::write(&policy, rules)?;
    let credential = format!(
        "[[credentials]]\nid = \"server\"\nhost = \"localhost\"\nport = {port}\nheader = \"x-api-key\"\n\
         from = \"env:BENCHMARK_KEY\"\nenv = \"SERVER_KEY\"\nbaseUrl = \"SERVER_URL\"\n\
         methods = [\"GET\"]\npaths = [\"/*\"]\nca = \"{}\"\n",
        programs.join("ca.pem").display()
    );
    fs::write(&config, credential)?;
    let mut command = world.command(&["exec", "--quiet"]);
    command.env("BENCHMARK_KEY", KEY);
    command.arg("--policy").arg(&policy).arg("--config").arg(&config);
    command.arg("--agent-read").arg(&programs).arg("--").arg(programs.join("workload"));
    command.arg("curl").arg(programs.join("ca.pem")).arg(port.to_string());
    Workload::start(&mut command, "small tunnel")
}

/// The workload itself.
pub(crate) fn requests(ca: &str, port: &str) -> Outcome<()> {
    let (url, key) = (std::env::var("SERVER_URL")?, std::env::var("SERVER_KEY")?);
    let (tunnel, key) = (format!("https://127.0.0.1:{port}"), format!("x-api-key: {key}"));
    workload::serve(|task| {
        let (what, way) = task.split_once(' ').ok_or("no such task")?;
        let base = if way == "tunnel" { &tunnel } else { &url };
        let count = if what == "small" { REQUESTS } else { 1 };
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--fail", "--cacert", ca, "-H", &key, "-w", "%{time_total} "]);
        if way == "tunnel" {
            // The proxy is not meant for loopback, where the sandbox's own programs listen.
            curl.args(["--noproxy", ""]);
        }
        for _ in 0..count {
            curl.args(["-o", "/dev/null", &format!("{base}/{what}")]);
        }
        let output = curl.output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        let times = String::from_utf8(output.stdout)?;
        let times = times.split_whitespace().map(str::parse::<f64>);
        let seconds = times.sum::<Result<f64, _>>()?;
        Ok(seconds * 1e9 / count as f64)
    })
}
