//! Connections through the proxy of `portcullis exec` against the same connections with nothing between,
//! and through tinyproxy.
//!
//! One workload runs in the sandbox, the other ones outside; they take turns. The server is in this process.
#![expect(clippy::disallowed_methods, reason = "sets files up, and looks at /proc")]

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::{
    Outcome,
    measure::{Bound, Pair, each, interleave, nanoseconds, report},
    memory::{descendant, resident},
    workload::{self, Workload},
    world::World,
};

const ROUNDS: usize = 41;
/// Small requests of a round.
const REQUESTS: u32 = 20;
/// Bytes of a stream.
const STREAM: usize = 128 << 20;
const STREAMS: usize = 9;
const IDLE: usize = 2000;
/// Bytes that go through an idle tunnel before it is idle.
const BEFORE_IDLE: usize = 20_000;
/// Longer than the proxy waits for the first bytes of a tunnel.
const PAST_FIRST_BYTES: Duration = Duration::from_secs(11);
const SMALL: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
/// The proxy in the sandbox.
const PROXY: &str = "127.0.0.1:3128";

pub(crate) fn run() -> Outcome<()> {
    let server = serve()?;
    let world = World::new()?;
    let mut direct = outside(&world, "-", server)?;
    let mut proxied = inside(&world, &world.state(), server)?;
    let mut small = |subject: &str, proxied: &mut Workload| {
        let pair = interleave(ROUNDS, || proxied.time("small"), || direct.time("small"))?;
        tell_small(subject, &pair);
        Outcome::Ok(())
    };
    small("egress", &mut proxied)?;
    // There a sync is nearly free: the difference is what the durable record costs.
    let (other, memory) = (World::new()?, tempfile::tempdir_in("/dev/shm")?);
    fs::set_permissions(memory.path(), PermissionsExt::from_mode(0o700))?;
    let mut unsynced = inside(&other, memory.path(), server)?;
    small("in memory", &mut unsynced)?;
    unsynced.end()?;
    streams(&world, server, &mut proxied)?;
    proxied.time("idle")?;
    thread::sleep(PAST_FIRST_BYTES);
    let carrying = resident(descendant(proxied.id(), "egress-process")?)?;
    let deciding = resident(descendant(proxied.id(), "gateway-process")?)?;
    proxied.time("answered")?;
    let details = format!("the gateway process beside it {deciding:.2} MiB");
    let unit = "MiB, 2,000 idle";
    report("egress", carrying, unit, Bound::AtMost(64.0), &details);
    proxied.end()?;
    direct.end()
}

fn tell_small(subject: &str, pair: &Pair) {
    let more = (pair.ours.median() - pair.bare.median()) / 1e6;
    let details = format!(
        "proxy {:.2} ms ({}), direct {:.3} ms ({})",
        pair.ours.median() / 1e6,
        pair.ours.quartiles(1e6),
        pair.bare.median() / 1e6,
        pair.bare.quartiles(1e6)
    );
    report(subject, more, "ms over direct", Bound::AtMost(1.0), &details);
}

/// One stream, by ours and by tinyproxy, if that is there.
fn streams(world: &World, server: SocketAddr, proxied: &mut Workload) -> Outcome<()> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let settings = format!(
        "Port {port}\nListen 127.0.0.1\nAllow 127.0.0.1\nTimeout 60\nMaxClients 20\nLogLevel Critical\n"
    );
    let file = world.base().join("tinyproxy.conf");
    fs::write(&file, settings)?;
    let tinyproxy = Command::new("tinyproxy").arg("-d").arg("-c").arg(&file).spawn();
    let mut tinyproxy = match tinyproxy {
        Ok(tinyproxy) => tinyproxy,
        Err(error) => {
            println!("stream     not measured: tinyproxy: {error}");
            return Ok(());
        }
    };
    let listens = (0..200).any(|_| {
        thread::sleep(Duration::from_millis(10));
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let measured = (|| {
        if !listens {
            return Err("tinyproxy does not listen".into());
        }
        let mut other = outside(world, &format!("127.0.0.1:{port}"), server)?;
        let pair = interleave(STREAMS, || proxied.time("stream"), || other.time("stream"))?;
        other.end()?;
        Outcome::Ok(pair)
    })();
    tinyproxy.kill()?;
    tinyproxy.wait()?;
    let pair = measured?;
    let rate = |time: f64| (STREAM >> 20) as f64 / (time / 1e9);
    let details = format!(
        "quartiles {} of the ratio of times; {:.0} and {:.0} MiB/s",
        pair.ratio.quartiles(1.0),
        rate(pair.ours.median()),
        rate(pair.bare.median())
    );
    let speed = 1.0 / pair.ratio.median();
    report("stream", speed, "of tinyproxy's speed", Bound::AtLeast(0.6), &details);
    Ok(())
}

/// A server that answers one request of each connection.
fn serve() -> Outcome<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(stream));
        }
    });
    Ok(address)
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let (mut head, mut chunk) = (Vec::new(), [0; 4096]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut chunk)? {
            0 => return Ok(()),
            got => head.extend_from_slice(chunk.get(..got).unwrap_or_default()),
        }
    }
    if !head.starts_with(b"GET /stream ") {
        return stream.write_all(SMALL);
    }
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {STREAM}\r\nConnection: close\r\n\r\n")?;
    let block = vec![b'x'; 1 << 18];
    for _ in 0..STREAM / block.len() {
        stream.write_all(&block)?;
    }
    Ok(())
}

/// A workload that makes requests outside of a sandbox, through `proxy` unless that is `-`.
fn outside(world: &World, proxy: &str, server: SocketAddr) -> Outcome<Workload> {
    let mut command = Command::new(workload::program(world)?);
    Workload::start(command.args(["requests", proxy, &server.to_string()]), "small")
}

/// A workload that makes requests in a sandbox.
fn inside(world: &World, state: &Path, server: SocketAddr) -> Outcome<Workload> {
    let policy = world.base().join("policy.toml");
    let rule = format!(
        "schema = 1\nname = \"b\"\nversion = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\n\
         [[network.rules]]\nid = \"local\"\neffect = \"allow\"\nhosts = [\"127.0.0.1\"]\nports = [{}]\n",
        server.port()
    );
    fs::write(&policy, rule)?;
    let program = workload::program(world)?;
    let mut command = world.command(&["exec", "--quiet"]);
    command.env("PORTCULLIS_STATE", state);
    command.arg("--policy").arg(&policy);
    command.arg("--agent-read").arg(world.base().join("programs"));
    command.arg("--").arg(&program);
    Workload::start(command.args(["requests", PROXY, &server.to_string()]), "small")
}

/// The workload itself. `proxy` is `-` for none.
pub(crate) fn requests(proxy: &str, server: &str) -> Outcome<()> {
    let proxy = Some(proxy).filter(|proxy| *proxy != "-");
    let mut held = Vec::new();
    workload::serve(|task| match task {
        "small" => each(REQUESTS, || fetch(proxy, server, "/").map(drop)),
        "stream" => {
            let begun = Instant::now();
            match fetch(proxy, server, "/stream")? {
                got if got > STREAM => Ok(nanoseconds(begun.elapsed())),
                got => Err(format!("{got} bytes").into()),
            }
        }
        "idle" => {
            let begun = Instant::now();
            for _ in 0..IDLE {
                held.push(tunnel(proxy.unwrap_or(server), server)?);
            }
            Ok(nanoseconds(begun.elapsed()))
        }
        "answered" => each(u32::try_from(held.len())?, || {
            let mut stream = held.pop().ok_or("no tunnel")?;
            stream.write_all(b"\r\n\r\n")?;
            let mut reply = [0; 12];
            stream.read_exact(&mut reply)?;
            if &reply == b"HTTP/1.1 200" { Ok(()) } else { Err("not answered".into()) }
        }),
        other => Err(format!("`{other}`?").into()),
    })
}

/// Makes one request on a connection of its own; the length of the reply.
fn fetch(proxy: Option<&str>, server: &str, path: &str) -> Outcome<usize> {
    let mut stream = TcpStream::connect(proxy.unwrap_or(server))?;
    let target = proxy.map(|_| format!("http://{server}{path}"));
    let target = target.as_deref().unwrap_or(path);
    let head = format!("GET {target} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let (mut length, mut chunk) = (0, vec![0; 1 << 18]);
    let mut is_ok = None;
    loop {
        let got = stream.read(&mut chunk)?;
        is_ok = is_ok.or_else(|| Some(chunk.get(..12)? == b"HTTP/1.1 200"));
        length += got;
        if got == 0 {
            break;
        }
    }
    if is_ok == Some(true) { Ok(length) } else { Err("refused".into()) }
}

/// An open tunnel through which nothing goes any more: a request is there but for its end.
fn tunnel(proxy: &str, server: &str) -> Outcome<TcpStream> {
    let mut stream = TcpStream::connect(proxy)?;
    write!(stream, "CONNECT {server} HTTP/1.1\r\n\r\n")?;
    let mut reply = Vec::new();
    while !reply.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        reply.extend(byte);
    }
    if !reply.starts_with(b"HTTP/1.1 200") {
        return Err("refused".into());
    }
    let head =
        format!("POST / HTTP/1.1\r\nHost: {server}\r\nContent-Length: {}\r\n\r\n", BEFORE_IDLE + 4);
    stream.write_all(&[head.as_bytes(), &[b'x'; BEFORE_IDLE]].concat())?;
    Ok(stream)
}
