//! Packages for Debian and what is derived from it: deb(5).

use super::{
    DESCRIPTION, Error, MAINTAINER, NAME, Release, SUMMARY, Target, archive,
    layout::{File, Layout},
};

const DEFAULTS: &str = include_str!("../../../packaging/kaji.default");
/// Units are not started: what a machine is to be is its administrator's choice.
const AFTER_INSTALLATION: &str = "#!/bin/sh
set -e
if [ \"$1\" = configure ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
";
const BEFORE_REMOVAL: &str = "#!/bin/sh
set -e
if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then
  systemctl disable --now kaji.service kaji-control-plane.service
fi
";
/// The data directory stays: it is the user's.
const AFTER_REMOVAL: &str = "#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
";

/// Writes the package of a target.
///
/// # Errors
/// When it cannot be written.
pub fn write(release: &Release, target: &Target, layout: &Layout) -> Result<(), Error> {
    let mut files: Vec<File> =
        layout.files.iter().map(|file| File { path: format!("usr/{}", file.path), ..file.clone() }).collect();
    files.push(File::new("etc/default/kaji", DEFAULTS));
    let size = files.iter().map(|file| file.bytes.len()).sum::<usize>() / 1024;
    let control = [
        File::new("control", control(release, target, size)),
        File::new("conffiles", "/etc/default/kaji\n"),
        File::program("postinst", AFTER_INSTALLATION),
        File::program("prerm", BEFORE_REMOVAL),
        File::program("postrm", AFTER_REMOVAL),
    ];
    let parts = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", archive::gzip(&archive::tar(release, "", &control)?)?),
        ("data.tar.gz", archive::gzip(&archive::tar(release, "", &files)?)?),
    ];
    let mut package = ar::Builder::new(vec![]);
    for (name, bytes) in parts {
        let mut header = ar::Header::new(name.as_bytes().to_vec(), bytes.len() as u64);
        header.set_mode(0o100_644);
        header.set_mtime(release.time.into());
        package.append(&header, &*bytes).map_err(|e| Error::Format("deb", e.to_string()))?;
    }
    let bytes = package.into_inner().map_err(|e| Error::Format("deb", e.to_string()))?;
    release.write(&format!("{NAME}_{}_{}.deb", release.version, target.debian), &bytes)
}

fn control(release: &Release, target: &Target, kilobytes: usize) -> String {
    format!(
        "Package: {NAME}\nVersion: {}\nArchitecture: {}\nMaintainer: {MAINTAINER}\nInstalled-Size: {kilobytes}\nSection: admin\n\
         Priority: optional\nRecommends: ca-certificates\nSuggests: uidmap\nDescription: {SUMMARY}\n {DESCRIPTION}\n",
        release.version, target.debian,
    )
}
