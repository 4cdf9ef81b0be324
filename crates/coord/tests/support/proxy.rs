//! Stands between a client and etcd, passes everything on, and does something to one transaction when told to.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

/// What happens to the next transaction. The function is called before the client learns of it.
pub enum Fate {
    /// It is carried out, and the connection closed without an answer.
    AnswerLost(Box<dyn FnOnce() + Send>),
    /// It does not arrive, and the connection is closed.
    RequestLost(Box<dyn FnOnce() + Send>),
    /// It arrives when the sender says so, and its answer goes nowhere.
    RequestLate(Receiver<()>),
}

pub struct Proxy {
    pub endpoint: String,
    next: Arc<Mutex<Option<Fate>>>,
    swallows: Arc<AtomicBool>,
}

impl Proxy {
    /// In front of the etcd at `target` (`http://host:port`). Its threads end with the test's process.
    pub fn start(target: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let next = Arc::new(Mutex::new(None));
        let swallows = Arc::new(AtomicBool::new(false));
        let is_swallowing = swallows.clone();
        let (target, fates) = (target.trim_start_matches("http://").to_owned(), next.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (target, fates, swallows) = (target.clone(), fates.clone(), is_swallowing.clone());
                std::thread::spawn(move || serve(client, &target, &fates, &swallows));
            }
        });
        Proxy { endpoint, next, swallows }
    }

    pub fn next_transaction(&self, fate: Fate) {
        *self.next.lock().unwrap() = Some(fate);
    }

    /// Whether transactions from now on neither arrive nor are answered, with the connection open.
    pub fn swallow_transactions(&self, yes: bool) {
        self.swallows.store(yes, Ordering::SeqCst);
    }

    /// Whether what was to happen has begun.
    pub fn has_happened(&self) -> bool {
        self.next.lock().unwrap().is_none()
    }
}

/// One request for each connection: the answer says that it is closed.
fn serve(mut client: TcpStream, target: &str, fates: &Mutex<Option<Fate>>, swallows: &AtomicBool) {
    let Some(request) = read_request(&mut client) else { return };
    let is_transaction = request.starts_with(b"POST /v3/kv/txn");
    if is_transaction && swallows.load(Ordering::SeqCst) {
        // Until the client closes the connection.
        let _ = client.read(&mut [0]);
        return;
    }
    let fate = if is_transaction { fates.lock().unwrap().take() } else { None };
    match fate {
        None => {
            let answer = forward(target, &request);
            let _ = client.write_all(&answer);
        }
        Some(Fate::AnswerLost(then)) => {
            forward(target, &request);
            then();
        }
        Some(Fate::RequestLost(then)) => then(),
        Some(Fate::RequestLate(when)) => {
            when.recv().unwrap();
            forward(target, &request);
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}

/// Head and body, with the wish to close the connection.
fn read_request(client: &mut TcpStream) -> Option<Vec<u8>> {
    let (mut bytes, mut part) = (Vec::new(), [0; 65536]);
    loop {
        let got = client.read(&mut part).ok().filter(|got| *got > 0)?;
        bytes.extend_from_slice(&part[..got]);
        let Some(head) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
        let body: usize =
            text.lines().find_map(|line| line.strip_prefix("content-length:"))?.trim().parse().ok()?;
        if bytes.len() == head + 4 + body {
            bytes.splice(head..head, b"\r\nConnection: close".iter().copied());
            return Some(bytes);
        }
    }
}

fn forward(target: &str, request: &[u8]) -> Vec<u8> {
    let mut etcd = TcpStream::connect(target).unwrap();
    etcd.write_all(request).unwrap();
    let mut answer = Vec::new();
    etcd.read_to_end(&mut answer).unwrap();
    answer
}
