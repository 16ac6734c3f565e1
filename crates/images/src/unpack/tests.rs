//! Tests of unpacking: what a layer becomes, and that hostile archives change nothing outside.

use super::*;
use crate::tar_writer::{TarWriter, entry};
use kaji_testing::skip::skipped;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;

fn link(name: &str, kind: EntryKind, target: &str) -> Entry {
    Entry { link: target.as_bytes().to_vec(), ..entry(name, kind) }
}

fn archive(entries: &[(Entry, &[u8])]) -> Vec<u8> {
    let mut writer = TarWriter::new(vec![]);
    for (entry, content) in entries {
        writer.append(entry, content).unwrap();
    }
    writer.finish().unwrap()
}

/// A directory with a canary beside the one that archives are unpacked into.
struct Fixture {
    _temporary: tempfile::TempDir,
    outside: PathBuf,
    layer: PathBuf,
}

impl Fixture {
    fn new() -> Fixture {
        let temporary = tempfile::tempdir().unwrap();
        let (outside, layer) = (temporary.path().join("outside"), temporary.path().join("layer"));
        std::fs::create_dir(&outside).unwrap();
        std::fs::create_dir(&layer).unwrap();
        std::fs::write(outside.join("canary"), "alive").unwrap();
        Fixture { _temporary: temporary, outside, layer }
    }

    fn unpack(&self, entries: &[(Entry, &[u8])]) -> Result<Unpacked, ImageError> {
        let limits = Limits { entries: 100, ..Limits::default() };
        unpack(&mut TarReader::new(&archive(entries)[..]), &self.layer, &limits)
    }

    fn is_untouched(&self) -> bool {
        let names: Vec<_> =
            std::fs::read_dir(&self.outside).unwrap().map(|e| e.unwrap().file_name()).collect();
        let canary = self.outside.join("canary");
        let found = std::fs::metadata(&canary).unwrap();
        names == ["canary"] && std::fs::read(&canary).unwrap() == b"alive" && found.nlink() == 1
    }
}

fn file(name: &str) -> Entry {
    entry(name, EntryKind::Regular)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn names_that_leave_the_directory_are_refused() {
    for name in ["../outside/x", "a/../../outside/x", "..", "a/..", "/../outside/x"] {
        let place = Fixture::new();
        assert!(place.unpack(&[(file(name), b"x")]).is_err(), "{name}");
        assert!(
            place.unpack(&[(file("ok"), b"x"), (link("l", EntryKind::HardLink, name), b"")]).is_err(),
            "{name}"
        );
        assert!(place.is_untouched());
    }
}

#[test]
fn absolute_names_are_inside() {
    let place = Fixture::new();
    let absolute = place.outside.join("canary");
    place.unpack(&[(file(absolute.to_str().unwrap()), b"dead")]).unwrap();
    assert!(place.is_untouched());
    assert_eq!(std::fs::read(place.layer.join(absolute.strip_prefix("/").unwrap())).unwrap(), b"dead");
}

#[test]
fn links_do_not_lead_outside() {
    for target in ["../outside", "OUTSIDE", "../../../../../../../../../../proc/self/root/OUTSIDE"] {
        let place = Fixture::new();
        let target = target.replace("OUTSIDE", place.outside.to_str().unwrap());
        let symlink = link("door", EntryKind::Symlink, &target);
        // Whether the entry is refused or lands inside: outside nothing changes.
        for name in ["door/canary", "door/new", "door/sub/new", "door/.wh.canary", "door/.wh..wh..opq"] {
            let _ = place.unpack(&[(symlink.clone(), b""), (file(name), b"dead")]);
            assert!(place.is_untouched(), "{name} by {target}");
        }
        let through = link("stolen", EntryKind::HardLink, "door/canary");
        assert!(place.unpack(&[(symlink.clone(), b""), (through, b"")]).is_err());
        let replaced = [
            (symlink.clone(), &b""[..]),
            (entry("door", EntryKind::Directory), b""),
            (file("door/new"), b"x"),
        ];
        place.unpack(&replaced).unwrap();
        assert!(place.layer.join("door/new").is_file() && !place.layer.join("door").is_symlink());
        assert!(place.is_untouched());
        // A directory that becomes a link after its attributes were noted.
        let mut directory = entry("door", EntryKind::Directory);
        directory.mode = 0o777;
        let _ = place.unpack(&[
            (directory, b""),
            (symlink.clone(), b""),
            (link("file", EntryKind::Symlink, "door/canary"), b""),
            (file("file"), b"x"),
        ]);
        assert!(place.is_untouched());
        assert_ne!(std::fs::metadata(&place.outside).unwrap().mode() & 0o777, 0o777);
    }
}

#[test]
fn a_file_replaces_a_link_and_not_what_it_leads_to() {
    let place = Fixture::new();
    let canary = place.outside.join("canary");
    let symlink = link("f", EntryKind::Symlink, canary.to_str().unwrap());
    place.unpack(&[(symlink, b""), (file("f"), b"new")]).unwrap();
    assert_eq!(std::fs::read(place.layer.join("f")).unwrap(), b"new");
    assert!(place.is_untouched());
}

#[test]
fn overlay_attributes_of_archives_are_left_out() {
    let place = Fixture::new();
    let mut directory = entry("d", EntryKind::Directory);
    for name in
        ["trusted.overlay.opaque", "trusted.overlay.redirect", "user.overlay.opaque", "security.selinux"]
    {
        directory.xattrs.insert(name.into(), b"/etc".to_vec());
    }
    directory.xattrs.insert(b"user.kept".to_vec(), b"1".to_vec());
    place.unpack(&[(directory, b"")]).unwrap();
    let mut value = [0; 16];
    let mut get = |name: &str| rustix::fs::getxattr(place.layer.join("d"), name, &mut value[..]).is_ok();
    assert!(
        !get("trusted.overlay.opaque") && !get("trusted.overlay.redirect") && !get("user.overlay.opaque")
    );
    if !get("user.kept") {
        skipped("user_attributes", "the file system has no user attributes");
    }
}

#[test]
fn entries_and_names_are_bounded() {
    let place = Fixture::new();
    let many: Vec<(Entry, &[u8])> = (0..101).map(|n| (file(&format!("f{n}")), &b""[..])).collect();
    assert!(matches!(place.unpack(&many), Err(ImageError::Limit(_))));
    assert!(Fixture::new().unpack(&[(file(&"d/".repeat(3000)), b"")]).is_err());
    assert!(Fixture::new().unpack(&[(file("a/.wh..."), b"")]).is_err());
    assert!(Fixture::new().unpack(&[(file("a/.wh."), b"")]).is_err());
}

#[test]
fn whiteouts_are_those_of_overlayfs() {
    let place = Fixture::new();
    place
        .unpack(&[
            (file("a/.wh.gone"), b""),
            (file("b/kept"), b"x"),
            (file("b/.wh.kept"), b""),
            (file(".wh.c"), b""),
            (entry("c", EntryKind::Directory), b""),
            (file("d/.wh..wh..opq"), b""),
            (file(".wh..wh.plnk"), b""),
        ])
        .unwrap();
    let gone = std::fs::symlink_metadata(place.layer.join("a/gone")).unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    assert_eq!(std::fs::read(place.layer.join("b/kept")).unwrap(), b"x");
    assert!(!place.layer.join(".wh..wh.plnk").exists());
    let attribute = if is_root() { "trusted.overlay.opaque" } else { "user.overlay.opaque" };
    for name in ["c", "d"] {
        let mut value = [0; 4];
        let length = rustix::fs::getxattr(place.layer.join(name), attribute, &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"y", "{name}");
    }
}

#[test]
fn attributes_are_those_of_the_archive() {
    let place = Fixture::new();
    let mut setuid = file("bin/su");
    (setuid.mode, setuid.uid, setuid.gid, setuid.mtime) = (0o4755, 12, 34, (1_000_000, 5));
    setuid.size = 2;
    let mut directory = entry("bin", EntryKind::Directory);
    (directory.mode, directory.mtime) = (0o1777, (2_000_000, 0));
    let unpacked = place
        .unpack(&[
            (directory, b""),
            (setuid, b"su"),
            (link("bin/alias", EntryKind::HardLink, "/bin/su"), b""),
            (link("bin/sh", EntryKind::Symlink, "/bin/su"), b""),
            (file("implied/deep/f"), b""),
        ])
        .unwrap();
    assert_eq!(unpacked.implied, [b"implied".to_vec(), b"implied/deep".to_vec()]);
    assert_eq!(unpacked.bytes, 2);
    let found = std::fs::metadata(place.layer.join("bin/su")).unwrap();
    assert_eq!(
        (found.mode() & 0o7777, found.mtime(), found.mtime_nsec(), found.nlink()),
        (0o4755, 1_000_000, 5, 2)
    );
    let bin = std::fs::metadata(place.layer.join("bin")).unwrap();
    assert_eq!((bin.permissions().mode() & 0o7777, bin.mtime()), (0o1777, 2_000_000));
    assert_eq!(std::fs::read_link(place.layer.join("bin/sh")).unwrap(), PathBuf::from("/bin/su"));
    if !is_root() {
        skipped("owners_of_unpacked_files", "only root gives files away");
        return;
    }
    assert_eq!((found.uid(), found.gid()), (12, 34));
    let mut device = entry("null", EntryKind::CharDevice);
    (device.device, device.mode) = ((1, 3), 0o666);
    let place = Fixture::new();
    let mut capable = file("ping");
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    capable.xattrs.insert(b"security.capability".to_vec(), capability.to_vec());
    place.unpack(&[(device, b""), (capable, b"")]).unwrap();
    let null = std::fs::metadata(place.layer.join("null")).unwrap();
    assert_eq!((null.rdev(), null.mode() & 0o777), (rustix::fs::makedev(1, 3), 0o666));
    let mut value = [0; 32];
    let length =
        rustix::fs::getxattr(place.layer.join("ping"), "security.capability", &mut value[..]).unwrap();
    assert_eq!(value[..length], capability);
}

#[test]
fn later_entries_replace_earlier_ones() {
    let place = Fixture::new();
    place
        .unpack(&[
            (file("x/y/z"), b"1"),
            (file("x"), b"file"),
            (entry("x", EntryKind::Directory), b""),
            (file("x/w"), b"2"),
            (link("x/w2", EntryKind::HardLink, "x/w2"), b""),
        ])
        .unwrap_err();
    assert_eq!(std::fs::read(place.layer.join("x/w")).unwrap(), b"2");
    assert!(!place.layer.join("x/y").exists());
}

#[test]
fn implied_directories_have_the_attributes_of_the_layer_below() {
    let (below, above) = (Fixture::new(), Fixture::new());
    let mut tmp = entry("tmp", EntryKind::Directory);
    tmp.mode = 0o1777;
    below.unpack(&[(tmp, b"")]).unwrap();
    let unpacked = above.unpack(&[(file("tmp/f"), b"")]).unwrap();
    apply::inherit(&above.layer, &unpacked.implied, &[&below.layer]).unwrap();
    assert_eq!(std::fs::metadata(above.layer.join("tmp")).unwrap().mode() & 0o7777, 0o1777);
}
