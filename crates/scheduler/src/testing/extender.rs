//! An extender for tests: an HTTP server on the loopback that answers what the test says, and keeps what it was asked.

use serde_json::Value;
use std::sync::{Arc, Mutex};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// What to answer to a verb and its arguments: code and text; no answer at all for `None`.
type Say = dyn Fn(&str, &Value) -> Option<(u16, String)> + Send + Sync;

/// The server.
pub struct FakeExtender {
    /// Its address.
    pub url: String,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

impl FakeExtender {
    /// Answers with JSON.
    pub async fn start(say: impl Fn(&str, &Value) -> Value + Send + Sync + 'static) -> Self {
        Self::raw(move |verb, args| Some((200, say(verb, args).to_string()))).await
    }

    /// Answers with anything.
    pub async fn raw(say: impl Fn(&str, &Value) -> Option<(u16, String)> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/ext", listener.local_addr().unwrap());
        let say: Arc<Say> = Arc::new(say);
        let asked: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let kept = asked.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, say.clone(), kept.clone()));
            }
        });
        FakeExtender { url, asked }
    }

    /// What it was asked since the last call: verbs and arguments.
    pub fn asked(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

async fn serve(mut stream: TcpStream, say: Arc<Say>, kept: Arc<Mutex<Vec<(String, Value)>>>) {
    while let Some((verb, args)) = request(&mut stream).await {
        let answer = say(&verb, &args);
        kept.lock().unwrap().push((verb, args));
        let Some((code, text)) = answer else { return std::future::pending().await };
        let head = format!("HTTP/1.1 {code} X\r\ncontent-length: {}\r\n\r\n", text.len());
        if stream.write_all((head + &text).as_bytes()).await.is_err() {
            return;
        }
    }
}

/// A request's verb, which follows the prefix, and its body.
async fn request(stream: &mut TcpStream) -> Option<(String, Value)> {
    let mut all = vec![];
    loop {
        let text = String::from_utf8_lossy(&all).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                assert!(head.contains("content-type: application/json"), "{head}");
                let verb = head.strip_prefix("POST /ext/")?.split(' ').next()?.to_owned();
                return Some((verb, serde_json::from_str(body).unwrap()));
            }
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(read) if read > 0 => all.extend_from_slice(&piece[..read]),
            _ => return None,
        }
    }
}
