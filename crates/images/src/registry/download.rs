//! A blob as a blocking reader: resumed by ranges when its connection breaks.

use super::{Answer, Repository};
use crate::digest::Digest;
use crate::error::ImageError;
use bytes::{Buf, Bytes};
use futures_util::future::BoxFuture;
use http::StatusCode;
use std::io::{self, Read};
use std::time::Duration;
use tokio::sync::mpsc;

/// Attempts without a byte in between.
pub(super) const ATTEMPTS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Parts of a body between the connection and the thread that unpacks it.
const QUEUE: usize = 16;

/// Waits between attempts. Injected, so that tests do not.
pub trait Delay: Send + Sync + 'static {
    /// Resolves after this time.
    fn wait(&self, time: Duration) -> BoxFuture<'_, ()>;
}

/// Waits by tokio's timer.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioDelay;

impl Delay for TokioDelay {
    fn wait(&self, time: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(time))
    }
}

pub(super) fn pause(attempt: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << attempt.min(8)).min(LONGEST_PAUSE)
}

/// Whether another attempt may succeed.
pub(super) fn may_pass(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}

/// The sending half of a download: to be polled while a thread reads the other half.
pub(crate) struct Download<'a> {
    repository: &'a Repository,
    digest: &'a Digest,
    /// Bytes of the blob, as its descriptor says.
    size: u64,
    sender: mpsc::Sender<Result<Bytes, ImageError>>,
}

/// The reading half.
pub(crate) struct DownloadReader {
    receiver: mpsc::Receiver<Result<Bytes, ImageError>>,
    rest: Bytes,
}

impl<'a> Download<'a> {
    pub fn new(repository: &'a Repository, digest: &'a Digest, size: u64) -> (Download<'a>, DownloadReader) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let reader = DownloadReader { receiver, rest: Bytes::new() };
        (Download { repository, digest, size, sender }, reader)
    }

    /// Downloads the blob. `received` is called with the number of bytes of each part. Ends when the reader is gone; errors
    /// go to the reader.
    pub async fn run(self, mut received: impl FnMut(u64)) {
        let (mut offset, mut attempt) = (0, 0);
        loop {
            let before = offset;
            let error = match self.once(&mut offset, &mut received).await {
                Ok(()) => return,
                Err(error) => error,
            };
            attempt = if offset > before { 1 } else { attempt + 1 };
            if attempt > ATTEMPTS || !matches!(error, ImageError::Unavailable(_)) {
                // A reader that is gone needs no error.
                drop(self.sender.send(Err(error)).await);
                return;
            }
            tracing::debug!(digest = %self.digest, offset, %error, "a download is resumed");
            self.repository.registries.delay.wait(pause(attempt)).await;
        }
    }

    async fn once(&self, offset: &mut u64, received: &mut impl FnMut(u64)) -> Result<(), ImageError> {
        let (mut answer, begin): (Answer, u64) = self.repository.blob(self.digest, *offset).await?;
        // A registry without ranges begins anew.
        let mut skip = *offset - begin;
        while let Some(chunk) = answer.chunk().await {
            let mut chunk = chunk?;
            let skipped = skip.min(chunk.len() as u64);
            skip -= skipped;
            chunk.advance(usize::try_from(skipped).unwrap_or(chunk.len()));
            if chunk.is_empty() {
                continue;
            }
            *offset += chunk.len() as u64;
            if *offset > self.size {
                return Err(ImageError::Digest(format!(
                    "layer {} has more than {} bytes: failed precondition",
                    self.digest, self.size
                )));
            }
            received(chunk.len() as u64);
            if self.sender.send(Ok(chunk)).await.is_err() {
                return Ok(());
            }
        }
        if *offset < self.size {
            return Err(ImageError::Unavailable(format!(
                "failed to copy: layer {} ended after {offset} of {} bytes: unexpected EOF",
                self.digest, self.size
            )));
        }
        Ok(())
    }
}

impl Read for DownloadReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.receiver.blocking_recv() {
                Some(Ok(bytes)) => self.rest = bytes,
                Some(Err(error)) => return Err(io::Error::other(error)),
                None => return Ok(0),
            }
        }
        let most = buffer.len().min(self.rest.len());
        self.rest.copy_to_slice(&mut buffer[..most]);
        Ok(most)
    }
}
