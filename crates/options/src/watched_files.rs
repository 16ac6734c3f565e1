//! Detects changes of files that flags name, while the cluster runs.
//!
//! Invariant: every content that stays for a second is reported, and each only once.

use std::{
    fs::Metadata,
    path::PathBuf,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::watch,
    time::{Interval, MissedTickBehavior, interval},
};

/// How often the files' metadata are compared.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Polls after which files are read even if their metadata are the same. In all: upstream's minute.
const READ_AFTER: u32 = 60;
/// Polls after which a content that could not be used is reported once more. In all: upstream's ten seconds.
const RETRY_AFTER: u32 = 10;

/// What distinguishes versions of a file without reading it: inode, modification time, length.
#[derive(PartialEq, Eq)]
struct Stat(u64, Option<SystemTime>, u64);

fn stat(metadata: &Metadata) -> Stat {
    use std::os::unix::fs::MetadataExt;
    Stat(metadata.ino(), metadata.modified().ok(), metadata.len())
}

/// Files that are used together.
pub struct WatchedFiles {
    paths: Vec<PathBuf>,
    /// The contents that were reported last.
    reported: Option<Vec<Vec<u8>>>,
    stats: Option<Vec<Option<Stat>>>,
    /// Polls until the files are read in any case.
    polls_left: u32,
    ticks: Option<Interval>,
    poll_interval: Duration,
}

impl WatchedFiles {
    /// Watches files, with the contents that are in use.
    pub fn new(files: impl IntoIterator<Item = (PathBuf, Vec<u8>)>) -> WatchedFiles {
        let (paths, reported) = files.into_iter().unzip();
        WatchedFiles {
            paths,
            reported: Some(reported),
            stats: None,
            polls_left: READ_AFTER,
            ticks: None,
            poll_interval: POLL_INTERVAL,
        }
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Their names, for messages.
    pub fn names(&self) -> String {
        let names: Vec<String> = self.paths.iter().map(|p| p.display().to_string()).collect();
        names.join(", ")
    }

    /// Reports the same content once more after ten seconds, because the reason why it could not be used may pass.
    pub fn retry(&mut self) {
        self.reported = None;
        self.polls_left = RETRY_AFTER;
    }

    /// Waits for new contents, in the order of the files. `None` once `stop` is true.
    pub async fn changed(
        &mut self,
        stop: &mut watch::Receiver<bool>,
    ) -> Option<Result<Vec<Vec<u8>>, std::io::Error>> {
        loop {
            let ticks = self.ticks.get_or_insert_with(|| {
                let mut ticks = interval(self.poll_interval);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                ticks
            });
            tokio::select! {
                biased;
                _ = ticks.tick() => {}
                _ = stop.wait_for(|stop| *stop) => return None,
            }
            let paths = self.paths.clone();
            // On a thread that may block on the file system.
            let read_stats =
                move || paths.iter().map(|p| std::fs::metadata(p).ok().as_ref().map(stat)).collect();
            let now: Option<Vec<_>> = kaji_store::blocking(read_stats).await.ok();
            self.polls_left -= 1;
            if now == self.stats && self.polls_left > 0 {
                continue;
            }
            self.stats = now;
            self.polls_left = READ_AFTER;
            let paths = self.paths.clone();
            let read = move || paths.iter().map(std::fs::read).collect::<Result<Vec<_>, _>>();
            match kaji_store::blocking(read).await.map_err(std::io::Error::other).flatten() {
                Ok(found) if self.reported.as_ref() == Some(&found) => {}
                Ok(found) => {
                    self.reported = Some(found.clone());
                    return Some(Ok(found));
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reports_every_content_once() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, "1").unwrap();
        std::fs::write(&b, "1").unwrap();
        let held = |text: &str| text.as_bytes().to_vec();
        let mut files = WatchedFiles::new([(a.clone(), held("1")), (b.clone(), held("1"))]);
        files.poll_interval = Duration::from_millis(1);
        let (sender, mut stop) = watch::channel(false);
        std::fs::write(&b, "22").unwrap();
        assert_eq!(files.changed(&mut stop).await.unwrap().unwrap(), [held("1"), held("22")]);
        files.retry();
        assert_eq!(files.changed(&mut stop).await.unwrap().unwrap(), [held("1"), held("22")]);
        std::fs::remove_file(&a).unwrap();
        assert!(files.changed(&mut stop).await.unwrap().is_err());
        std::fs::write(&a, "333").unwrap();
        assert_eq!(files.changed(&mut stop).await.unwrap().unwrap(), [held("333"), held("22")]);
        sender.send_replace(true);
        assert!(files.changed(&mut stop).await.is_none());
    }
}
