//! Rotation of containers' logs.

use crate::fake::Fake;
use jiff::Timestamp;
use kaji_containers::{ContainerConfig, ContainerRuntime, RuntimeError};
use kaji_kubelet::pods::log_rotation::{self, LogLimits};
use std::path::Path;

fn files(directory: &Path) -> String {
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|e| {
            let entry = e.unwrap();
            format!("{} {}", entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())
        })
        .collect();
    names.sort();
    names.join("\n")
}

#[tokio::test]
async fn a_large_log_is_renamed_and_later_compressed_and_removed() {
    let fake = Fake::new();
    let directory = fake.dir.path().join("logs");
    std::fs::create_dir_all(&directory).unwrap();
    let log = directory.join("0.log");
    let config = ContainerConfig { log_path: log.display().to_string(), ..ContainerConfig::default() };
    let id = fake.runtime.create_container("s", config).await.unwrap();
    let limits = LogLimits { max_bytes: 100, max_files: 4 };
    let text = "2026-01-01T00:00:00Z stdout F hello\n".repeat(3);
    let mut now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    std::fs::write(&log, "small").unwrap();
    let rotate = async |now| log_rotation::rotate(&*fake.runtime, &id, &log, limits, now).await;
    assert!(!rotate(now).await.unwrap());
    for _ in 0..5 {
        std::fs::write(&log, &text).unwrap();
        assert!(rotate(now).await.unwrap());
        now += jiff::SignedDuration::from_secs(10);
    }
    let shown = files(&directory);
    let compressed = shown.lines().filter(|l| l.contains(".gz ")).count();
    assert_eq!((shown.lines().count(), compressed), (4, 2), "{shown}");
    assert!(shown.starts_with("0.log 0\n0.log.20260101-000020.gz"), "{shown}");
    assert!(shown.ends_with("0.log.20260101-000040 108"), "{shown}");

    // The log goes on under its name if it cannot be opened anew, and is opened anew if it is absent.
    std::fs::write(&log, &text).unwrap();
    let refused = RuntimeError::Internal("no".into());
    fake.runtime.state.lock().unwrap().failures.push(("reopen-log", refused));
    let error = rotate(now).await.unwrap_err();
    assert_eq!(error.to_string(), "failed to reopen container log: no");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), text);
    std::fs::remove_file(&log).unwrap();
    assert!(!rotate(now).await.unwrap());
    assert!(log.exists());
    log_rotation::remove_logs(&log).unwrap();
    assert_eq!(files(&directory), "");
}
