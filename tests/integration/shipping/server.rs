//! An HTTP server that stores files and replies as the test determines.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

/// A server of one test.
pub(super) struct Server {
    pub(super) port: u16,
    pub(super) shared: Arc<Shared>,
}

/// Paths and contents.
type Pieces = Vec<(String, Vec<u8>)>;

#[derive(Default)]
pub(super) struct Shared {
    /// The reply to a PUT.
    answer: Mutex<Vec<u8>>,
    /// The heads of requests.
    heads: Mutex<Vec<String>>,
    /// The status of replies to reads: empty if the files are returned, `drop` if there is no reply.
    pub(super) reads: Mutex<String>,
    /// The files by their paths in addresses.
    pub(super) files: Mutex<BTreeMap<String, Vec<u8>>>,
    /// The pieces that were received while this was not `None`. They had no reply, and are not
    /// stored.
    pub(super) held: Mutex<Option<Pieces>>,
}

impl Server {
    /// Starts a server that accepts each file, and refuses reads.
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self { port: listener.local_addr().unwrap().port(), shared: Arc::default() };
        let shared = Arc::clone(&server.shared);
        server.says("201 Created", "", "");
        server.reads("405 No");
        thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || serve(stream.unwrap(), &shared));
            }
        });
        server
    }

    pub(super) fn says(&self, status: &str, header: &str, body: &str) {
        *self.shared.answer.lock().unwrap() = reply(status, header, body.as_bytes());
    }

    pub(super) fn reads(&self, status: &str) {
        status.clone_into(&mut self.shared.reads.lock().unwrap());
    }

    pub(super) fn heads(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.heads.lock().unwrap())
    }

    /// Writes the files of a copy beneath the directory `to`.
    pub(super) fn fetch(&self, copy: &str, to: &Path) {
        for (path, bytes) in &*self.shared.files.lock().unwrap() {
            let Some((_, name)) = path.split_once(&format!("/{copy}/")) else { continue };
            let file = to.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, bytes).unwrap();
        }
    }
}

fn reply(status: &str, header: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{header}\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn serve(mut stream: TcpStream, shared: &Shared) {
    let mut bytes = Vec::new();
    let head = loop {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).unwrap_or(0);
        if read == 0 {
            return;
        }
        bytes.extend_from_slice(&buffer[..read]);
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
    });
    let length = length.unwrap_or(0);
    let mut body = bytes.split_off(head);
    while body.len() < length {
        let mut buffer = vec![0; (length - body.len()).min(65_536)];
        match stream.read(&mut buffer).unwrap_or(0) {
            0 => return,
            read => body.extend_from_slice(&buffer[..read]),
        }
    }
    let mut words = text.split([' ', '?']);
    let (method, path) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
    // Content that a target does not return is not seen.
    shared.heads.lock().unwrap().push(text);
    let _ = stream.write_all(&answer(shared, &method, path, body));
}

/// Returns the bytes of the reply to a request.
fn answer(shared: &Shared, method: &str, path: String, body: Vec<u8>) -> Vec<u8> {
    match method {
        "PUT" => {
            if let Some(held) = &mut *shared.held.lock().unwrap()
                && path.contains("/tail/")
            {
                held.push((path, body));
                return Vec::new();
            }
            let answer = shared.answer.lock().unwrap().clone();
            if answer.starts_with(b"HTTP/1.1 2") {
                shared.files.lock().unwrap().insert(path, body);
            }
            answer
        }
        "GET" | "HEAD" => match shared.reads.lock().unwrap().as_str() {
            "" => match shared.files.lock().unwrap().get(&path) {
                Some(bytes) => {
                    let header = "etag: \"e\"\r\nlast-modified: Tue, 01 Dec 2026 00:00:00 GMT\r\n";
                    let mut whole = reply("200 OK", header, bytes);
                    if method == "HEAD" {
                        whole.truncate(whole.len() - bytes.len());
                    }
                    whole
                }
                None => reply("404 Not Found", "", b""),
            },
            "drop" => Vec::new(),
            refusal => reply(refusal, "", b""),
        },
        _ => reply("405 No", "", b""),
    }
}
