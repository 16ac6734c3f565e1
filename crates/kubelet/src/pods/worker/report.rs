//! Writing a pod's status to the API. Upstream's `status_manager.go`.
//!
//! Invariants: the newest status is the one that is written; a write that failed is tried again; statuses that say the same are
//! written once.

use crate::metrics::families::STATUS_WRITES;
use crate::pods::context::{ApiError, NodeContext, PodRef};
use crate::pods::core::{Pod, PodStatus};
use crate::pods::observed::ObservedContainer;
use crate::pods::start::pod_ref;
use crate::pods::{log_record, log_rotation};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The first and the longest pause between tries.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Writes one pod's status in a task of its own, so that a slow API holds up no container.
pub(super) struct StatusWriter {
    cx: Arc<NodeContext>,
    newest: watch::Sender<PodStatus>,
    written: watch::Receiver<Option<PodStatus>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for StatusWriter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl StatusWriter {
    /// `shown` is what the API shows.
    pub(super) fn start(cx: Arc<NodeContext>, pod: PodRef, shown: PodStatus) -> StatusWriter {
        let (newest, mut changes) = watch::channel(shown.clone());
        let (done, written) = watch::channel(None);
        let context = cx.clone();
        let task = tokio::spawn(async move {
            let mut shown = shown;
            let mut pause = PAUSE.0;
            while changes.changed().await.is_ok() {
                loop {
                    let status = changes.borrow_and_update().clone();
                    if status == shown {
                        done.send_replace(Some(status));
                        break;
                    }
                    let began = tokio::time::Instant::now();
                    match context.api.patch_status(&pod, &shown, &status).await {
                        Ok(()) => {
                            context.metrics.observe(&STATUS_WRITES, &[], began.elapsed());
                            shown = status.clone();
                            pause = PAUSE.0;
                            done.send_replace(Some(status));
                        }
                        Err(ApiError::Gone) => {
                            done.send_replace(Some(status));
                            break;
                        }
                        Err(error) => {
                            tracing::warn!(pod = pod.name, namespace = pod.namespace, %error, "the status could not be written");
                            kaji_runtime::time::sleep(&*context.clock, pause).await;
                            pause = (pause * 2).min(PAUSE.1);
                        }
                    }
                }
            }
        });
        StatusWriter { cx, newest, written, task }
    }

    /// Hands over the newest status.
    pub(super) fn write(&self, status: PodStatus) {
        self.newest.send_if_modified(|newest| {
            let changed = *newest != status;
            *newest = status;
            changed
        });
    }

    /// Deletes the pod once its newest status is written. Whether it is gone.
    pub(super) async fn delete(&mut self, pod: &Pod) -> bool {
        let newest = self.newest.borrow().clone();
        self.newest.send_modify(|_| {});
        let complete = self.written.wait_for(|w| w.as_ref() == Some(&newest));
        if tokio::time::timeout(Duration::from_secs(30), complete).await.is_err() {
            return false;
        }
        match self.cx.api.delete(&pod_ref(pod)).await {
            Ok(()) | Err(ApiError::Gone) => true,
            Err(error) => {
                tracing::warn!(pod = pod.metadata.name, %error, "the pod could not be deleted");
                false
            }
        }
    }
}

/// The last lines of a log in CRI's format: at most 80 lines and 2 KiB.
pub(super) fn log_tail(path: &Path) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(16 << 10)))?;
        let mut bytes = vec![];
        file.take(16 << 10).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let Ok(bytes) = read() else { return String::new() };
    // The first line may have lost its beginning; then it is no record.
    let records =
        bytes.split_inclusive(|byte| *byte == b'\n').filter_map(|line| log_record::parse(line).ok());
    let texts: Vec<&[u8]> = records.map(|record| record.text).collect();
    let mut tail = String::from_utf8_lossy(&texts[texts.len().saturating_sub(80)..].concat()).into_owned();
    let mut start = tail.len().saturating_sub(2048);
    while !tail.is_char_boundary(start) {
        start += 1;
    }
    tail.split_off(start)
}

impl NodeContext {
    /// Removes a container's log and the link to it.
    pub(super) fn remove_log(&self, pod: &Pod, found: &ObservedContainer) {
        let name = pod_ref(pod);
        let link = format!("{}_{}_{}-{}.log", name.name, name.namespace, found.name, found.id());
        remove(&self.config.container_log_dir.join(link), false);
        let log = Path::new(&found.status.log_path);
        // What a runtime says of its logs counts only below the directory of the pod's logs.
        if log.starts_with(self.config.log_dir(&name))
            && let Err(error) = log_rotation::remove_logs(log)
        {
            tracing::warn!(log = %log.display(), %error, "a container's log cannot be removed");
        }
    }

    /// Removes a pod's logs, and then its own directory, by which a kubelet that is killed meanwhile knows that there is something left.
    /// Volumes were taken down before.
    pub(super) fn remove_pod_dirs(&self, pod: &PodRef) {
        remove_logs_of(&self.config.pod_log_dir, &self.config.container_log_dir, &pod.uid);
        let dir = self.config.pod_dir(&pod.uid);
        if self.volumes.has_mounts(&dir) {
            tracing::warn!(dir = %dir.display(), "the pod's directory has mounts and is left");
        } else {
            remove(&dir, true);
            self.user_namespaces.release(&pod.uid);
        }
    }
}

/// Removes the logs of a pod and the links to them, by its uid: when only its directory is left, its name is not known.
fn remove_logs_of(pods: &Path, links: &Path, uid: &str) {
    if uid.is_empty() {
        return;
    }
    let ending = format!("_{uid}");
    for logs in entries(pods).filter(|path| path.to_string_lossy().ends_with(&ending)) {
        let leads_there = |link: &PathBuf| std::fs::read_link(link).is_ok_and(|to| to.starts_with(&logs));
        entries(links).filter(leads_there).for_each(|link| remove(&link, false));
        remove(&logs, true);
    }
}

/// The paths in a directory; none if it cannot be read.
fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn remove(path: &Path, tree: bool) {
    let removed = if tree { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    if let Err(error) = removed
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kubelet that is killed after it has removed a pod's sandbox finds only the pod's directory.
    #[test]
    fn logs_are_removed_by_the_uid_of_their_pod() {
        let dir = tempfile::tempdir().unwrap();
        let (pods, links) = (dir.path().join("pods"), dir.path().join("containers"));
        std::fs::create_dir_all(&links).unwrap();
        for (pod, link) in [("default_a_u1", "a"), ("default_b_u11", "b"), ("default_c_1", "c")] {
            let logs = pods.join(pod).join("main");
            std::fs::create_dir_all(&logs).unwrap();
            std::fs::write(logs.join("0.log"), "").unwrap();
            std::os::unix::fs::symlink(logs.join("0.log"), links.join(link)).unwrap();
        }
        let left = || {
            let mut names: Vec<String> = entries(&pods)
                .chain(entries(&links))
                .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names.join(" ")
        };
        remove_logs_of(&pods, &links, "");
        assert_eq!(left(), "a b c default_a_u1 default_b_u11 default_c_1");
        remove_logs_of(&pods, &links, "u1");
        assert_eq!(left(), "b c default_b_u11 default_c_1");
        remove_logs_of(&pods, &links, "u1");
        remove_logs_of(&dir.path().join("absent"), &links, "1");
        assert_eq!(left(), "b c default_b_u11 default_c_1");
    }

    #[test]
    fn the_tail_of_a_log_is_what_the_container_wrote_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let tail = |text: &str| {
            std::fs::write(&path, text).unwrap();
            log_tail(&path)
        };
        let at = "2026-01-02T03:04:05.123456789Z";
        assert_eq!(tail(&format!("{at} stdout F one\n{at} stderr P DONE\n")), "one\nDONE");
        let long = tail(&format!("{at} stdout F {}\n", "x").repeat(900));
        assert_eq!(long.len(), 160);
        let wide = tail(&format!("{at} stdout F {}\n", "\u{e9}".repeat(3000)));
        assert!(wide.len() <= 2048 && wide.ends_with('\n'));
        assert_eq!(log_tail(&dir.path().join("absent")), "");
    }
}
