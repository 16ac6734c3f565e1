//! Archives and what the store keeps of them.

use crate::samples::{config, gzip, layer, names, store};
use kaji_images::archive::{ImportOptions, SavedImage, import, load, save};
use kaji_images::digest::Digest;
use kaji_images::reference::Reference;
use kaji_images::store::Store;
use kaji_images::tar::EntryKind;
use kaji_images::tar_writer::{TarWriter, entry};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn saved(directory: &Path, images: &[SavedImage<'_>]) -> File {
    let path = directory.join("archive.tar");
    save(images, File::create(&path).unwrap()).unwrap();
    File::open(path).unwrap()
}

fn two_images(directory: &Path, store: &Arc<Store>) {
    let (base, top) = (layer("base", b"base"), layer("top", b"top"));
    let (one, two) = (config(std::slice::from_ref(&base)), config(&[base.clone(), top.clone()]));
    let images: [SavedImage<'_>; 2] =
        [(&one, &["one:v1"], &[&base]), (&two, &["registry.k8s.io/two:v2", "two"], &[&base, &top])];
    let loaded = load(store, saved(directory, &images), None).unwrap();
    assert_eq!(loaded.len(), 2);
}

#[test]
fn images_share_layers_and_leases_keep_them() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("images");
    let images = store(&root);
    two_images(directory.path(), &images);
    assert_eq!(names(&root.join("layers")).len(), 3, "two layers and the empty one");
    let one = images.resolve("one:v1").unwrap();
    let two = images.lease("two", "container-1").unwrap();
    assert_eq!((one.layers.len(), two.layers.len()), (1, 2));
    assert_eq!(one.layers[0], two.layers[1], "the base is the last one");
    assert_eq!(std::fs::read(two.layers[0].join("top")).unwrap(), b"top");
    assert_eq!((two.config.cmd, two.config.user), (vec!["/bin/true".to_owned()], "12:34".to_owned()));
    assert!(images.lease("one:v1", "container-1").is_err(), "an owner has one lease");
    assert!(images.lease("two", "../escape").is_err());

    images.remove("registry.k8s.io/two:v2").unwrap();
    images.remove("one:v1").unwrap();
    assert!(images.images().unwrap().is_empty());
    // Another process finds the lease.
    let again = store(&root);
    again.sweep().unwrap();
    assert_eq!(again.lease_owners().unwrap(), ["container-1"]);
    assert!(two.layers.iter().all(|layer| layer.is_dir()));
    assert_eq!(again.lease("two", "container-1").unwrap().layers, two.layers);
    again.release("container-1").unwrap();
    again.release("container-1").unwrap();
    assert_eq!(names(&root.join("layers")), ["empty"]);
    assert_eq!(names(&root.join("blobs/sha256")), [""; 0]);
    assert_eq!(names(&root.join("tmp")), [""; 0]);
}

#[test]
fn a_second_process_sees_changes_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("images");
    let (server, command) = (store(&root), store(&root));
    assert!(server.find("one:v1").unwrap().is_none());
    two_images(directory.path(), &command);
    assert!(server.find("one:v1").unwrap().is_some());
    assert!(!server.untag("two").unwrap());
    assert!(
        command.find("two").unwrap().is_none() && command.find("registry.k8s.io/two:v2").unwrap().is_some()
    );
    let id = command.find("one:v1").unwrap().unwrap().id;
    assert_eq!(command.find(&id.hex()[..12]).unwrap().unwrap().id, id);
}

#[test]
fn what_a_killed_process_leaves_is_swept() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("images");
    let images = store(&root);
    two_images(directory.path(), &images);
    let abandoned = root.join("tmp/0123456789abcdef/layer/fs");
    std::fs::create_dir_all(&abandoned).unwrap();
    std::fs::write(root.join("tmp/fedcba9876543210"), "half a blob").unwrap();
    std::fs::create_dir_all(root.join("layers/00000000000000000000000000000000/fs")).unwrap();
    let busy = images.workspace().unwrap();
    store(&root).sweep().unwrap();
    assert_eq!(names(&root.join("tmp")).len(), 1, "the one of a living process stays");
    drop(busy);
    assert_eq!(names(&root.join("layers")).len(), 3);
    assert!(images.resolve("two").is_ok());
}

#[test]
fn layers_with_another_digest_are_refused_and_leave_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("images");
    let images = store(&root);
    let (good, bad) = (layer("f", b"good"), layer("f", b"evil"));
    let wanted = config(&[good]);
    let archive = saved(directory.path(), &[(&wanted, &["x"], &[&bad])]);
    let error = load(&images, archive, None).unwrap_err().to_string();
    assert!(error.contains("expected"), "{error}");
    assert_eq!((names(&root.join("layers")), names(&root.join("tmp"))), (vec!["empty".to_owned()], vec![]));
}

#[test]
fn bombs_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut images = Arc::into_inner(store(&directory.path().join("images"))).unwrap();
    (images.limits.ratio_from, images.limits.ratio) = (1 << 20, 100);
    let images = Arc::new(images);
    let bomb = gzip(&layer("zeros", &vec![0; 8 << 20]));
    let name = Reference::parse("bomb").unwrap();
    let error = import(&images, &bomb[..], &name, &ImportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("100 times its size"), "{error}");
    assert_eq!(names(&images.root().join("tmp")), [""; 0]);
}

#[test]
fn a_root_file_system_becomes_an_image() {
    let directory = tempfile::tempdir().unwrap();
    let images = store(&directory.path().join("images"));
    let name = Reference::parse("my/app:1").unwrap();
    let options =
        ImportOptions { entrypoint: vec!["/app".into()], env: vec!["X=1".into()], ..Default::default() };
    for source in
        [gzip(&layer("app", b"x")), zstd::encode_all(&layer("app", b"x")[..], 1).unwrap(), layer("app", b"x")]
    {
        import(&images, &source[..], &name, &options).unwrap();
    }
    let found = images.resolve("my/app:1").unwrap();
    assert_eq!((found.config.entrypoint, found.config.env), (options.entrypoint, options.env));
    assert_eq!(images.images().unwrap().len(), 1, "the same content is the same image");
    assert!(import(&images, &b"BZh9"[..], &name, &ImportOptions::default()).is_err());
}

#[test]
fn oci_layouts_are_loaded_also_compressed() {
    let directory = tempfile::tempdir().unwrap();
    let images = store(&directory.path().join("images"));
    let archive = layer("f", b"x");
    let (config, compressed) = (config(std::slice::from_ref(&archive)), gzip(&archive));
    let descriptor =
        |bytes: &[u8]| serde_json::json!({"digest": Digest::of(bytes).as_str(), "size": bytes.len()});
    let manifest = serde_json::json!({"schemaVersion": 2, "config": descriptor(&config), "layers": [descriptor(&compressed)]});
    let manifest = manifest.to_string().into_bytes();
    let mut described = descriptor(&manifest);
    described["annotations"] = serde_json::json!({"io.containerd.image.name": "registry.k8s.io/pause:3.10"});
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [described]}).to_string().into_bytes();
    let mut writer = TarWriter::new(vec![]);
    for (name, content) in [
        ("index.json".to_owned(), &index),
        (format!("blobs/sha256/{}", Digest::of(&manifest).hex()), &manifest),
        (format!("./blobs/sha256/{}", Digest::of(&config).hex()), &config),
        (format!("blobs/sha256/{}", Digest::of(&compressed).hex()), &compressed),
    ] {
        writer.append(&entry(&name, EntryKind::Regular), content).unwrap();
    }
    let path: PathBuf = directory.path().join("layout.tar.gz");
    std::fs::write(&path, gzip(&writer.finish().unwrap())).unwrap();
    let loaded = load(&images, File::open(&path).unwrap(), None).unwrap();
    assert_eq!((loaded.len(), &loaded[0].manifest), (1, &Digest::of(&manifest)));
    assert!(images.find("registry.k8s.io/pause:3.10").unwrap().is_some());
}
