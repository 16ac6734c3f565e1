//! A KMS plugin inside a test: API v2 over a unix socket, written without the client's libraries (hyper and bytes
//! alone), so that both cannot be wrong in the same way. Its faults can be switched on, and it can be stopped and started again.
#![allow(dead_code, reason = "shared by several tests, none of which needs all of it")]

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::{HeaderMap, Request, Response, body::Frame, body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::{net::UnixListener, task::JoinSet};

/// What it does with calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// As it should.
    Well,
    /// Never answers.
    Hangs,
    /// Answers bytes that are no message.
    Garbage,
    /// Answers with this gRPC status and `no`.
    Refuses(u16),
    /// Writes bytes that are no HTTP/2, and hangs up.
    Speechless,
}

/// What it answers and was asked.
#[derive(Clone, Debug)]
pub struct State {
    pub mood: Mood,
    /// Of `Status`.
    pub version: String,
    pub healthz: String,
    pub key_id: String,
    /// Of `Encrypt`, where it is not that of `Status`.
    pub other_key_id: Option<String>,
    /// Keys that it has lost.
    pub lost: Vec<String>,
    /// An annotation that it adds and requires back.
    pub annotation: Option<(String, String)>,
    /// Methods called.
    pub calls: Vec<String>,
}

struct Running {
    _tasks: JoinSet<()>,
}

/// The plugin. It ends with this.
pub struct Plugin {
    pub path: PathBuf,
    state: Arc<Mutex<State>>,
    running: Option<Running>,
}

impl Plugin {
    /// One that is not running yet.
    pub fn new(dir: &Path) -> Plugin {
        let state = State {
            mood: Mood::Well,
            version: "v2".into(),
            healthz: "ok".into(),
            key_id: "key-1".into(),
            other_key_id: None,
            lost: vec![],
            annotation: None,
            calls: vec![],
        };
        Plugin { path: dir.join("kms.sock"), state: Arc::new(Mutex::new(state)), running: None }
    }

    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// How often a method was called.
    pub fn calls(&self, method: &str) -> usize {
        self.state().calls.iter().filter(|m| *m == method).count()
    }

    /// Listens. Keeps what it knows from a former run.
    pub fn start(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let listener = UnixListener::bind(&self.path).unwrap();
        let mut tasks = JoinSet::new();
        let state = self.state.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(stream, state.clone()));
            }
        });
        self.running = Some(Running { _tasks: tasks });
    }

    /// Ends it, with its connections.
    pub fn crash(&mut self) {
        self.running = None;
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn serve(stream: tokio::net::UnixStream, state: Arc<Mutex<State>>) {
    let mood = state.lock().unwrap().mood;
    if mood == Mood::Speechless {
        let _ = stream.writable().await;
        let _ = stream.try_write(b"220 this is not the service that you are looking for\r\n");
        return;
    }
    let service = service_fn(move |request| answer(request, state.clone()));
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

async fn answer(request: Request<Incoming>, state: Arc<Mutex<State>>) -> Result<Response<Body>, Infallible> {
    let method = request.uri().path().rsplit('/').next().unwrap().to_owned();
    assert_eq!(request.headers()["content-type"], "application/grpc");
    assert_eq!(request.headers()["te"], "trailers");
    assert_eq!(request.uri().path(), format!("/v2.KeyManagementService/{method}"));
    assert_eq!(request.uri().authority().unwrap(), "localhost");
    let body = request.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    // One message, not compressed, of the length that it says.
    assert_eq!(body[0], 0);
    assert_eq!(u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize, body.len() - 5);
    let mood = {
        let mut state = state.lock().unwrap();
        state.calls.push(method.clone());
        state.mood
    };
    let message = match mood {
        Mood::Hangs => std::future::pending().await,
        Mood::Garbage => Ok(vec![0xff; 9]),
        Mood::Refuses(code) => Err((code, "no".to_owned())),
        Mood::Well | Mood::Speechless => reply(&method, &body[5..], &state.lock().unwrap()),
    };
    let mut trailers = HeaderMap::new();
    let mut frames: Vec<Result<Frame<Bytes>, Infallible>> = vec![];
    match message {
        Ok(message) => {
            let mut framed = vec![0];
            framed.extend((message.len() as u32).to_be_bytes());
            framed.extend(message);
            frames.push(Ok(Frame::data(framed.into())));
            trailers.insert("grpc-status", 0.into());
        }
        Err((code, text)) => {
            trailers.insert("grpc-status", code.into());
            trailers.insert("grpc-message", text.replace(' ', "%20").parse().unwrap());
        }
    }
    frames.push(Ok(Frame::trailers(trailers)));
    let body = StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync();
    Ok(Response::builder().header("content-type", "application/grpc").body(body).unwrap())
}

/// What is "encrypted" is turned by the key's id, so that another key does not open it.
fn turn(key_id: &str, data: &[u8]) -> Vec<u8> {
    data.iter().zip(key_id.bytes().cycle()).map(|(d, k)| d ^ k ^ 0x5a).collect()
}

fn reply(method: &str, request: &[u8], state: &State) -> Result<Vec<u8>, (u16, String)> {
    let fields = fields(request);
    let get = |n: u32| fields.iter().find(|(f, _)| *f == n).map(|(_, v)| v.clone()).unwrap_or_default();
    let text = |n: u32| String::from_utf8(get(n)).unwrap();
    let annotation = |out: &mut Vec<u8>| {
        if let Some((name, value)) = &state.annotation {
            let mut entry = vec![];
            put(&mut entry, 1, name.as_bytes());
            put(&mut entry, 2, value.as_bytes());
            put(out, 3, &entry);
        }
    };
    let mut out = vec![];
    match method {
        "Status" => {
            put(&mut out, 1, state.version.as_bytes());
            put(&mut out, 2, state.healthz.as_bytes());
            put(&mut out, 3, state.key_id.as_bytes());
        }
        "Encrypt" => {
            assert_eq!(text(2).len(), 36, "a uid");
            let key_id = state.other_key_id.as_ref().unwrap_or(&state.key_id);
            put(&mut out, 1, &turn(key_id, &get(1)));
            put(&mut out, 2, key_id.as_bytes());
            annotation(&mut out);
        }
        "Decrypt" => {
            assert_eq!(text(2).len(), 36, "a uid");
            let key_id = text(3);
            if state.lost.contains(&key_id) {
                return Err((5, format!("there is no {key_id}")));
            }
            let mut wanted = vec![];
            annotation(&mut wanted);
            assert_eq!(
                fields.iter().filter(|(n, _)| *n == 4).map(|(_, v)| v.clone()).collect::<Vec<_>>(),
                self::fields(&wanted).into_iter().map(|(_, v)| v).collect::<Vec<_>>(),
                "annotations come back"
            );
            put(&mut out, 1, &turn(&key_id, &get(1)));
        }
        other => return Err((12, format!("unknown method {other}"))),
    }
    Ok(out)
}

/// A field of bytes; empty ones are left out.
fn put(out: &mut Vec<u8>, number: u8, value: &[u8]) {
    if value.is_empty() {
        return;
    }
    out.push(number << 3 | 2);
    let mut n = value.len();
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out.extend(value);
}

/// A message with fields of type bytes only.
fn fields(mut message: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut out = vec![];
    while let [tag, rest @ ..] = message {
        assert_eq!(tag & 7, 2);
        let (mut len, mut shift, mut at) = (0usize, 0, 0);
        loop {
            len |= usize::from(rest[at] & 0x7f) << shift;
            shift += 7;
            at += 1;
            if rest[at - 1] & 0x80 == 0 {
                break;
            }
        }
        out.push((u32::from(tag >> 3), rest[at..at + len].to_vec()));
        message = &rest[at + len..];
    }
    out
}
