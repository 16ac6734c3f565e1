//! A message bus with systemd-logind on it, at a socket of a test's own.

use kaji_kubelet::node::shutdown::logind::LogindPaths;
use kaji_kubelet::node::shutdown::wire::{self, Message, Value};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

/// The unique name of logind's connection.
pub const LOGIND: &str = ":1.7";

/// What the bus knows.
#[derive(Default)]
struct State {
    /// Calls, and the texts that came with them.
    calls: Vec<String>,
    /// `InhibitDelayMaxUSec`
    most_delay: u64,
    /// The far ends of the locks that were given.
    locks: Vec<StdStream>,
}

pub struct FakeLogind {
    state: Arc<Mutex<State>>,
    signals: mpsc::UnboundedSender<(String, bool)>,
    pub paths: LogindPaths,
}

impl FakeLogind {
    /// Listens in a directory; logind waits for so many seconds at first.
    pub fn start(dir: &Path, seconds: u64) -> FakeLogind {
        let paths = LogindPaths { bus: dir.join("bus"), settings: dir.join("logind.conf.d") };
        let state = Arc::new(Mutex::new(State { most_delay: seconds * 1_000_000, ..State::default() }));
        let (signals, mut queue) = mpsc::unbounded_channel();
        let listener = UnixListener::bind(&paths.bus).unwrap();
        let (shared, settings) = (state.clone(), paths.settings.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serve(stream, &shared, &settings, &mut queue).await;
            }
        });
        FakeLogind { state, signals, paths }
    }

    /// Sends `PrepareForShutdown` from a connection of this name.
    pub fn prepare(&self, sender: &str, begins: bool) {
        self.signals.send((sender.to_owned(), begins)).unwrap();
    }

    /// How many of the locks that were given are held.
    pub fn held(&self) -> usize {
        let state = self.state.lock().unwrap();
        let held = state.locks.iter().filter(|lock| {
            let mut near: &StdStream = lock;
            // A released lock is at its end; a held one has nothing to read.
            !matches!(near.read(&mut [0]), Ok(0))
        });
        held.count()
    }

    pub fn calls(&self) -> Vec<String> {
        self.state.lock().unwrap().calls.clone()
    }
}

/// The stream, and what the client sent behind the last line already.
async fn authenticate(stream: UnixStream) -> (UnixStream, Vec<u8>) {
    let mut stream = BufReader::new(stream);
    assert_eq!(stream.read_u8().await.unwrap(), 0);
    for answer in ["OK 1234\r\n", "AGREE_UNIX_FD\r\n", ""] {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        let expected = ["AUTH EXTERNAL ", "NEGOTIATE_UNIX_FD", "BEGIN"];
        assert!(expected.iter().any(|start| line.starts_with(start)), "{line}");
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
    let rest = stream.buffer().to_vec();
    (stream.into_inner(), rest)
}

async fn serve(
    stream: UnixStream,
    state: &Mutex<State>,
    settings: &Path,
    signals: &mut mpsc::UnboundedReceiver<(String, bool)>,
) {
    let (mut stream, mut unread) = authenticate(stream).await;
    let mut buffer = [0; 4096];
    loop {
        while let Some((call, length)) = Message::decode(&unread).unwrap() {
            unread.drain(..length);
            answer(&stream, &call, &mut state.lock().unwrap(), settings);
        }
        tokio::select! {
            read = stream.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(read) => unread.extend_from_slice(&buffer[..read]),
            },
            Some((sender, begins)) = signals.recv() => {
                let signal = Message {
                    kind: wire::SIGNAL,
                    serial: 99,
                    path: Some("/org/freedesktop/login1".into()),
                    interface: Some("org.freedesktop.login1.Manager".into()),
                    member: Some("PrepareForShutdown".into()),
                    sender: Some(sender),
                    body: vec![Value::Bool(begins)],
                    ..Message::default()
                };
                stream.write_all(&signal.encode()).await.unwrap();
            }
        }
    }
}

fn answer(stream: &UnixStream, call: &Message, state: &mut State, settings: &Path) {
    let member = call.member.as_deref().unwrap();
    let texts: Vec<&str> = call
        .body
        .iter()
        .filter_map(|v| if let Value::Text(text) = v { Some(text.as_str()) } else { None })
        .collect();
    state.calls.push(format!("{member} {}", texts.join(" ")).trim_end().to_owned());
    let mut reply =
        Message { kind: wire::RETURN, serial: 1, reply_serial: Some(call.serial), ..Message::default() };
    let mut lock = None;
    match member {
        "Hello" => reply.body = vec![Value::Text(":1.9".into())],
        "AddMatch" => {}
        "GetNameOwner" => reply.body = vec![Value::Text(LOGIND.into())],
        "Get" => reply.body = vec![Value::Variant(Box::new(Value::Long(state.most_delay)))],
        "KillUnit" => {
            let text = std::fs::read_to_string(settings.join("99-kubelet.conf")).unwrap();
            let seconds = text.lines().find_map(|line| line.strip_prefix("InhibitDelayMaxSec=")).unwrap();
            state.most_delay = seconds.parse::<u64>().unwrap() * 1_000_000;
        }
        "Inhibit" => {
            let (near, far) = StdStream::pair().unwrap();
            near.set_nonblocking(true).unwrap();
            state.locks.push(near);
            lock = Some(far);
            reply.descriptor_count = 1;
            reply.body = vec![Value::Descriptor(0)];
        }
        other => {
            reply.kind = wire::ERROR;
            reply.error = Some("org.freedesktop.DBus.Error.UnknownMethod".into());
            reply.body = vec![Value::Text(format!("no method {other}"))];
        }
    }
    let descriptors: Vec<_> = lock.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    }
    // Replies are shorter than the buffer of the socket.
    let bytes = reply.encode();
    let sent = sendmsg(stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
    assert_eq!(sent, bytes.len());
}
