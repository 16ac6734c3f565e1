//! Follows files that flags name, while the cluster runs.
//!
//! Invariant: whoever follows hears of every content that stays for a second, and of each once.

use std::{
    fs::Metadata,
    path::PathBuf,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::watch,
    time::{Interval, MissedTickBehavior, interval},
};

/// How often somebody asks whether a file is another than before.
const GLANCE: Duration = Duration::from_secs(1);
/// Glances after which files are read even if they seem to be the same. Together: upstream's minute.
const READ: u32 = 60;
/// Glances after which a content that could not be used yet is told once more. Together: upstream's ten seconds.
const AGAIN: u32 = 10;

/// What tells files apart without reading them.
#[derive(PartialEq, Eq)]
struct Looks(u64, Option<SystemTime>, u64);

fn looks(metadata: &Metadata) -> Looks {
    use std::os::unix::fs::MetadataExt;
    Looks(metadata.ino(), metadata.modified().ok(), metadata.len())
}

/// Files that belong together.
pub(crate) struct Followed {
    paths: Vec<PathBuf>,
    /// What they held when it was last told.
    held: Option<Vec<Vec<u8>>>,
    seen: Option<Vec<Option<Looks>>>,
    /// Until they are read in any case.
    glances: u32,
    ticks: Option<Interval>,
    glance: Duration,
}

impl Followed {
    /// Files whose contents are known.
    pub fn new(files: impl IntoIterator<Item = (PathBuf, Vec<u8>)>) -> Followed {
        let (paths, held) = files.into_iter().unzip();
        Followed { paths, held: Some(held), seen: None, glances: READ, ticks: None, glance: GLANCE }
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

    /// Tells the same content once more after a while: what is wrong with it may pass.
    pub fn again(&mut self) {
        self.held = None;
        self.glances = AGAIN;
    }

    /// Waits until they hold something new, in the order in which they were named. `None` when told to stop.
    pub async fn changed(
        &mut self,
        stop: &mut watch::Receiver<bool>,
    ) -> Option<Result<Vec<Vec<u8>>, std::io::Error>> {
        loop {
            let ticks = self.ticks.get_or_insert_with(|| {
                let mut ticks = interval(self.glance);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                ticks
            });
            tokio::select! {
                _ = ticks.tick() => {}
                _ = stop.wait_for(|stop| *stop) => return None,
            }
            let paths = self.paths.clone();
            // On a thread that may wait for the file system.
            let look = move || paths.iter().map(|p| std::fs::metadata(p).ok().as_ref().map(looks)).collect();
            let now: Option<Vec<_>> = tokio::task::spawn_blocking(look).await.ok();
            self.glances -= 1;
            if now == self.seen && self.glances > 0 {
                continue;
            }
            self.seen = now;
            self.glances = READ;
            let paths = self.paths.clone();
            let read = move || paths.iter().map(std::fs::read).collect::<Result<Vec<_>, _>>();
            match tokio::task::spawn_blocking(read).await.map_err(std::io::Error::other).flatten() {
                Ok(found) if self.held.as_ref() == Some(&found) => {}
                Ok(found) => {
                    self.held = Some(found.clone());
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
    async fn every_content_once() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, "1").unwrap();
        std::fs::write(&b, "1").unwrap();
        let held = |text: &str| text.as_bytes().to_vec();
        let mut files = Followed::new([(a.clone(), held("1")), (b.clone(), held("1"))]);
        files.glance = Duration::from_millis(1);
        let (told, mut stop) = watch::channel(false);
        std::fs::write(&b, "22").unwrap();
        assert_eq!(files.changed(&mut stop).await.unwrap().unwrap(), [held("1"), held("22")]);
        files.again();
        assert_eq!(files.changed(&mut stop).await.unwrap().unwrap(), [held("1"), held("22")]);
        std::fs::remove_file(&a).unwrap();
        assert!(files.changed(&mut stop).await.unwrap().is_err());
        std::fs::write(&a, "333").unwrap();
        assert_eq!(files.changed(&mut stop).await.unwrap().unwrap(), [held("333"), held("22")]);
        told.send_replace(true);
        assert!(files.changed(&mut stop).await.is_none());
    }
}
