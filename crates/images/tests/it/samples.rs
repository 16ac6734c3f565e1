//! Images and stores for tests.

use flate2::{Compression, write::GzEncoder};
use kaji_images::digest::Digest;
use kaji_images::manifest::Platform;
use kaji_images::store::Store;
use kaji_images::tar::EntryKind;
use kaji_images::tar_writer::{TarWriter, entry};
use kaji_meta::{SystemClock, SystemRandom};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// An archive with one file.
pub fn layer(name: &str, content: &[u8]) -> Vec<u8> {
    let mut writer = TarWriter::new(vec![]);
    writer.append(&entry(name, EntryKind::Regular), content).unwrap();
    writer.finish().unwrap()
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(vec![], Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A configuration for this machine.
pub fn config(layers: &[Vec<u8>]) -> Vec<u8> {
    let platform = Platform::machine();
    let diff_ids: Vec<String> = layers.iter().map(|layer| Digest::of(layer).to_string()).collect();
    serde_json::json!({
        "architecture": platform.architecture, "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "config": {"Env": ["A=b"], "Cmd": ["/bin/true"], "User": "12:34"},
    })
    .to_string()
    .into_bytes()
}

pub fn store(root: &Path) -> Arc<Store> {
    Arc::new(Store::open(root, Arc::new(SystemClock), Arc::new(SystemRandom)).unwrap())
}

/// Names in a directory, sorted.
pub fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
