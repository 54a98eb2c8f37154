//! Bad input: the service survives, and others keep being served.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use super::rig::{Service, Site, status};
use crate::common::Stop;

fn site() -> Site {
    Site::new(&["shop"])
}

/// A service that waits for a head for a few seconds: longer than a busy machine takes from a
/// connection to its head.
fn impatient_site() -> Site {
    let mut site = Site::new(&["shop"]);
    site.settings = "limits = { headSeconds = 5, connections = 600 }".to_owned();
    site
}

/// Runs a session while `attack` runs, and checks that it is served.
fn beside(service: &Service, token: &str, attack: impl FnOnce()) {
    let ended = AtomicBool::new(false);
    let mut session = service.session(token, "shop");
    let served = thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut served = 0;
            while !ended.load(Ordering::Relaxed) {
                assert_eq!(session.read("file.txt").unwrap(), "of shop\n");
                served += 1;
            }
            served
        });
        let stop = Stop(&ended);
        attack();
        drop(stop);
        reading.join().unwrap()
    });
    assert!(served > 0);
    assert_eq!(service.get("/healthz", &[]).0, 200);
}

fn ended(mut stream: TcpStream) -> String {
    let mut reply = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8_lossy(&reply).into_owned()
}

#[test]
fn heads_that_come_drop_by_drop_or_never_are_cut_off() {
    let site = impatient_site();
    let service = site.serve();
    beside(&service, site.token("all"), || {
        let mut slow: Vec<_> = (0..100).map(|_| service.connect()).collect();
        for stream in &mut slow {
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: loc").unwrap();
        }
        for stream in slow {
            assert!(!ended(stream).contains("200 OK"));
        }
    });
}

#[test]
fn heads_that_are_huge_or_no_http_are_refused() {
    let site = site();
    let service = site.serve();
    beside(&service, site.token("all"), || {
        let mut stream = service.connect();
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ");
        let huge = vec![b'x'; 1 << 20];
        let _ = stream.write_all(&huge);
        assert_eq!(status(&ended(stream)), 431);
        let many: String = (0..200).map(|n| format!("X-{n}: y\r\n")).collect();
        let mut stream = service.connect();
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n{many}\r\n").unwrap();
        assert_eq!(status(&ended(stream)), 431);
        // A request that comes in one piece was bounded by more than its limit.
        for (size, code) in [(600, 200), (700, 431)] {
            let large: String =
                (0..50).map(|n| format!("X-{n:02}: {}\r\n", "y".repeat(size - 8))).collect();
            let mut stream = service.connect();
            let head = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
            write!(stream, "{head}{large}\r\n").unwrap();
            assert_eq!(status(&ended(stream)), code, "{size}");
        }
        for bad in [
            &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"\0\0\0\0\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: local\x01host\r\n\r\n",
        ] {
            let mut stream = service.connect();
            stream.write_all(bad).unwrap();
            let reply = ended(stream);
            assert!(!reply.contains("200 OK"), "{bad:?} {reply}");
        }
    });
}

#[test]
fn ten_thousand_wrong_tokens_are_refused_and_counted() {
    let site = site();
    let service = site.serve();
    let token = site.token("all").to_owned();
    let begun = Instant::now();
    beside(&service, &token, || {
        let attack = |from: u32| {
            let mut stream = BufReader::new(service.connect());
            for n in from..from + 2500 {
                let request = format!(
                    "GET /workspaces/shop/mcp HTTP/1.1\r\nHost: localhost\r\n\
                     Authorization: Bearer pcl_{n}\r\n\r\n"
                );
                stream.get_mut().write_all(request.as_bytes()).unwrap();
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    assert!(stream.read_line(&mut head).unwrap() > 0);
                }
                assert!(matches!(status(&head), 401 | 429), "{head}");
                let length = head.split("content-length: ").nth(1).unwrap();
                let length: usize = length.lines().next().unwrap().parse().unwrap();
                stream.read_exact(&mut vec![0; length]).unwrap();
            }
        };
        thread::scope(|scope| {
            for part in 0..4 {
                scope.spawn(move || attack(part * 2500));
            }
        });
    });
    let page = service.numbers(&token);
    let refused = |reason: &str| -> u64 {
        let line = format!("portcullis_refused_total{{reason=\"{reason}\"}} ");
        let rest = page.split(&line).nth(1).unwrap();
        rest.lines().next().unwrap().parse().unwrap()
    };
    assert_eq!(refused("unauthorised") + refused("throttled"), 10_000, "{page}");
    service.stop();
    // All of them are in the log, in a few records.
    let records = site.records("serve");
    let logins: Vec<_> = records.iter().filter(|record| record["op"] == "login").collect();
    let seen: u64 =
        logins.iter().map(|record| record["facts"]["attempts"].as_u64().unwrap_or(1)).sum();
    assert_eq!(seen, 10_000);
    // In each minute.
    let minutes = usize::try_from(begun.elapsed().as_secs() / 60).unwrap() + 1;
    assert!(logins.len() < 200 * minutes, "{}", logins.len());
}

#[test]
fn connections_that_are_half_open_or_take_every_place_go_away() {
    let site = impatient_site();
    let service = site.serve();
    let token = site.token("all").to_owned();
    beside(&service, &token, || {
        let idle: Vec<_> = (0..700).map(|_| service.connect()).collect();
        for stream in idle.iter().take(50) {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        // Silent connections are closed; then there is room.
        assert_eq!(service.get("/healthz", &[]).0, 200);
        drop(idle);
    });
}

#[test]
fn many_sessions_come_and_go() {
    let site = site();
    let service = site.serve();
    let token = site.token("all").to_owned();
    beside(&service, &token, || {
        for _ in 0..10 {
            let sessions: Vec<_> = (0..50).map(|_| service.open(&token, "shop").unwrap()).collect();
            drop(sessions);
        }
        // Some that send rubbish, a megabyte of it, or go in the middle of a frame.
        for bad in [&b"{\"channel\""[..], b"\xff\xff", &vec![b'['; 1 << 20]] {
            let mut session = service.open(&token, "shop").unwrap();
            session.say(bad).unwrap();
            let mut session = service.open(&token, "shop").unwrap();
            session.stream.get_mut().write_all(bad).unwrap();
        }
    });
    service.stop();
    let state = site.state("shop");
    site.world.run(&["audit", "verify", "--state", state.to_str().unwrap()]).ok();
}
