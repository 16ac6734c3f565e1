//! Waits for changes of a log file and of its container.
//!
//! Invariant: nothing that happens after [`Changes::watch`] is missed; where the kernel or the runtime has no notice of it, the file and
//! the container are looked at again after a while.

use super::reader::LogFile;
use crate::pods::context::NodeContext;
use futures_util::stream::{BoxStream, StreamExt};
use kaji_containers::{RuntimeError, RuntimeEvent, RuntimeEventKind};
use kaji_meta::Clock;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// How often both are looked at in any case. Upstream's `logForceCheckPeriod`.
const CHECK: Duration = Duration::from_secs(1);
/// How often where the kernel gives no notice: its instances of inotify are few.
const POLL: Duration = Duration::from_millis(200);

/// What may have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The file.
    File,
    /// The container may have ended; the file may have changed, too.
    Container,
}

/// Notices of a log file and its container.
pub struct Changes {
    inotify: Option<AsyncFd<OwnedFd>>,
    /// `None` for runtimes that have none.
    events: Option<BoxStream<'static, Result<RuntimeEvent, RuntimeError>>>,
    container: String,
    clock: Arc<dyn Clock>,
}

impl Changes {
    /// Begins to watch a file's directory and a container.
    pub async fn watch(cx: &NodeContext, container: &str, place: &LogFile) -> Changes {
        let inotify =
            watch_directory(place).inspect_err(|error| tracing::debug!(%error, "a log is polled")).ok();
        let events = cx.runtime.events().await.ok();
        Changes { inotify, events, container: container.to_owned(), clock: cx.clock.clone() }
    }

    /// Waits for a change.
    ///
    /// # Errors
    /// When the kernel's notices cannot be read.
    pub async fn wait(&mut self) -> io::Result<Change> {
        let pause = if self.inotify.is_some() { CHECK } else { POLL };
        let clock = self.clock.clone();
        let mut pause = pin!(kaji_runtime::time::sleep(&*clock, pause));
        loop {
            tokio::select! {
                readable = readable(self.inotify.as_ref()) => return readable.map(|()| Change::File),
                event = next(self.events.as_mut()) => match event {
                    Some(Ok(event)) => {
                        let ended = matches!(event.kind, RuntimeEventKind::Stopped | RuntimeEventKind::Deleted);
                        if ended && event.id == self.container {
                            return Ok(Change::Container);
                        }
                    }
                    // Some were missed.
                    Some(Err(_)) => return Ok(Change::Container),
                    None => {
                        self.events = None;
                        return Ok(Change::Container);
                    }
                },
                () = &mut pause => return Ok(Change::Container),
            }
        }
    }
}

fn watch_directory(place: &LogFile) -> io::Result<AsyncFd<OwnedFd>> {
    let directory = place.open_directory()?;
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let changes = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO;
    inotify::add_watch(&inotify, format!("/proc/self/fd/{}", directory.as_raw_fd()), changes)?;
    // Its successor is unsafe for the sake of types that do not own their descriptor; this one does.
    #[allow(deprecated)]
    AsyncFd::new(inotify)
}

/// Waits for notices, and drops them: each is a reason to look at the file, whatever it says.
async fn readable(inotify: Option<&AsyncFd<OwnedFd>>) -> io::Result<()> {
    let Some(inotify) = inotify else { return std::future::pending().await };
    let mut ready = inotify.readable().await?;
    let mut buffer = [0_u8; 4096];
    loop {
        match rustix::io::read(inotify.get_ref(), &mut buffer[..]) {
            Ok(0) | Err(rustix::io::Errno::AGAIN) => break,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
    }
    ready.clear_ready();
    Ok(())
}

async fn next(
    events: Option<&mut BoxStream<'static, Result<RuntimeEvent, RuntimeError>>>,
) -> Option<Result<RuntimeEvent, RuntimeError>> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}
