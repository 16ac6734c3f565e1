//! Packages of a program that only prints, read back.

use super::*;
use flate2::read::GzDecoder;
use std::{
    collections::BTreeMap,
    io::{Cursor, Read},
    os::unix::fs::PermissionsExt,
};

/// Answers as the program does when its packages are made.
const PROGRAM: &str = "#!/bin/sh
case $1 in
  completion) echo \"completions of $2\" ;;
  man) echo page >\"$3/kaji.1\" ;;
  *) exit 1 ;;
esac
";

fn packages(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let program = dir.join("kaji");
    fs::write(&program, PROGRAM).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let release = Release { version: "1.2.3", time: 1_700_000_000, out: dir.join("out") };
    fs::create_dir_all(&release.out).unwrap();
    let shared = layout::shared(root, &program, &release.out).unwrap();
    let layout = Layout::new(PROGRAM.as_bytes(), &shared);
    let mut images = vec![];
    for target in &Target::ALL[..2] {
        deb::write(&release, target, &layout).unwrap();
        rpm::write(&release, target, &layout).unwrap();
        wheel::write(&release, target, PROGRAM.as_bytes()).unwrap();
        npm::write_platform(&release, target, PROGRAM.as_bytes()).unwrap();
        images.push((*target, image::layer(&release, PROGRAM.as_bytes()).unwrap()));
    }
    npm::write_launcher(&release, Target::ALL.into_iter().take(2)).unwrap();
    image::write(&release, &images).unwrap();
    write_checksums(&release).unwrap();
    let files = fs::read_dir(&release.out).unwrap().map(|file| file.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

/// Paths, modes and sizes of an archive.
fn entries(archive: impl Read) -> Vec<(String, u32, u64)> {
    let mut archive = tar::Archive::new(archive);
    let entry = |entry: tar::Entry<'_, _>| {
        let header = entry.header();
        (entry.path().unwrap().display().to_string(), header.mode().unwrap(), header.size().unwrap())
    };
    archive.entries().unwrap().map(|e| entry(e.unwrap())).collect()
}

#[test]
fn the_same_files_make_the_same_bytes() {
    let [one, two] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let (one, two) = (packages(one.path()), packages(two.path()));
    assert_eq!(one.keys().collect::<Vec<_>>(), two.keys().collect::<Vec<_>>());
    for (name, bytes) in &one {
        assert!(two[name] == *bytes, "{name} differs");
    }
    assert_eq!(one.len(), 11, "{:?}", one.keys());
}

#[test]
fn a_package_for_debian_has_the_program_and_its_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let package = packages(dir.path()).remove("kaji_1.2.3_arm64.deb").unwrap();
    let mut archive = ar::Archive::new(Cursor::new(package));
    let (mut names, mut data, mut control) = (vec![], vec![], vec![]);
    while let Some(entry) = archive.next_entry() {
        let mut entry = entry.unwrap();
        let name = String::from_utf8(entry.header().identifier().to_vec()).unwrap();
        match &*name {
            "data.tar.gz" => data = entries(GzDecoder::new(&mut entry)),
            "control.tar.gz" => control = entries(GzDecoder::new(&mut entry)),
            _ => {}
        }
        names.push(name);
    }
    assert_eq!(names, ["debian-binary", "control.tar.gz", "data.tar.gz"]);
    let mode = |of: &[(String, u32, u64)], path: &str| {
        of.iter().find(|(p, ..)| p.trim_start_matches("./") == path).map(|e| e.1)
    };
    assert_eq!(mode(&data, "usr/bin/kaji"), Some(0o755));
    assert_eq!(mode(&data, "usr/bin/kubectl-why"), Some(0o777));
    assert_eq!(mode(&data, "usr/lib/systemd/system/kaji.service"), Some(0o644));
    assert_eq!(mode(&data, "etc/default/kaji"), Some(0o644));
    assert_eq!(mode(&control, "postinst"), Some(0o755));
    assert_eq!(mode(&control, "control"), Some(0o644));
}

#[test]
fn links_lead_to_the_program_beside_them() {
    let dir = tempfile::tempdir().unwrap();
    let release = Release { version: "1.2.3", time: 1, out: dir.path().to_owned() };
    let layout = Layout::new(PROGRAM.as_bytes(), &[]);
    let bytes = archive::tar(&release, "kaji", &layout.files).unwrap();
    let mut archive = tar::Archive::new(&bytes[..]);
    let links: Vec<(String, Option<String>)> = archive
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let target = entry.link_name().unwrap().map(|target| target.display().to_string());
            (entry.path().unwrap().display().to_string(), target)
        })
        .filter(|(_, target)| target.is_some())
        .collect();
    assert_eq!(links, [("kaji/bin/kubectl-why".to_owned(), Some("kaji".to_owned()))]);
    archive = tar::Archive::new(&bytes[..]);
    archive.unpack(dir.path()).unwrap();
    assert_eq!(fs::read(dir.path().join("kaji/bin/kubectl-why")).unwrap(), PROGRAM.as_bytes());
}

#[test]
fn the_record_of_a_wheel_is_true() {
    let dir = tempfile::tempdir().unwrap();
    let name = "kaji-1.2.3-py3-none-manylinux_2_17_x86_64.musllinux_1_1_x86_64.whl";
    let wheel = packages(dir.path()).remove(name).unwrap();
    let mut wheel = zip::ZipArchive::new(Cursor::new(wheel)).unwrap();
    let mut text = |path: &str| {
        let mut text = String::new();
        wheel.by_name(path).unwrap().read_to_string(&mut text).unwrap();
        text
    };
    assert!(text("kaji-1.2.3.data/scripts/kubectl-why").contains("kaji\" why"));
    let program = text("kaji-1.2.3.data/scripts/kaji");
    assert_eq!(program, PROGRAM);
    let record = text("kaji-1.2.3.dist-info/RECORD");
    let digest =
        base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, Sha256::digest(&program));
    assert!(
        record.contains(&format!("kaji-1.2.3.data/scripts/kaji,sha256={digest},{}\n", program.len())),
        "{record}"
    );
    assert_eq!(
        wheel.by_name("kaji-1.2.3.data/scripts/kaji").unwrap().unix_mode().map(|mode| mode & 0o777),
        Some(0o755)
    );
}

#[test]
fn blobs_of_the_image_have_the_digests_that_name_them() {
    let dir = tempfile::tempdir().unwrap();
    let image = packages(dir.path()).remove("kaji-1.2.3-image.tar").unwrap();
    let mut archive = tar::Archive::new(Cursor::new(image));
    let mut blobs = 0;
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        let mut bytes = vec![];
        entry.read_to_end(&mut bytes).unwrap();
        if let Some((_, digest)) = path.split_once("sha256/").filter(|(_, digest)| !digest.is_empty()) {
            assert_eq!(digest, hex(&Sha256::digest(&bytes)), "{path}");
            blobs += 1;
        }
    }
    // Two configurations and manifests, the layer that both have, and the index.
    assert_eq!(blobs, 6);
}

#[test]
fn checksums_are_of_all_other_files() {
    let dir = tempfile::tempdir().unwrap();
    let packages = packages(dir.path());
    let sums = String::from_utf8(packages["SHA256SUMS"].clone()).unwrap();
    let sums: BTreeMap<&str, &str> =
        sums.lines().map(|line| line.split_once("  ").unwrap()).map(|(sum, name)| (name, sum)).collect();
    for (name, bytes) in packages.iter().filter(|(name, _)| *name != "SHA256SUMS") {
        assert_eq!(sums.get(&**name), Some(&&*hex(&Sha256::digest(bytes))), "{name}");
    }
    assert_eq!(sums.len(), packages.len() - 1);
}

#[test]
fn unknown_targets_are_refused() {
    for text in ["x86_64-pc-windows-msvc=kaji.exe", "target/release/kaji", "="] {
        let error = text.parse::<Binary>().unwrap_err().to_string();
        assert!(error.starts_with(text) && error.contains("aarch64-unknown-linux-musl"), "{error}");
    }
}
