//! Packages for Fedora, openSUSE and what is derived from them.

use super::{DESCRIPTION, Error, LICENSE, NAME, Release, SUMMARY, Target, layout::Layout};
use ::rpm::{BuildConfig, CompressionType, FileOptions, PackageBuilder};

const DEFAULTS: &str = include_str!("../../../packaging/kaji.default");
const RELOAD: &str = "if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi";
/// Not when another version replaces this one.
const BEFORE_REMOVAL: &str = "if [ \"$1\" = 0 ] && [ -d /run/systemd/system ]; then systemctl disable --now kaji.service kaji-control-plane.service || :; fi";

/// Writes the package of a target.
///
/// # Errors
/// When it cannot be written.
pub fn write(release: &Release, target: &Target, layout: &Layout) -> Result<(), Error> {
    let refused = |error: ::rpm::Error| Error::Format("rpm", error.to_string());
    let config = BuildConfig::v4().compression(CompressionType::Gzip).source_date(release.time);
    let mut package = PackageBuilder::new(NAME, release.version, LICENSE, target.rpm, SUMMARY);
    package
        .using_config(config)
        .description(DESCRIPTION)
        .build_host("localhost")
        .post_install_script(RELOAD)
        .pre_uninstall_script(BEFORE_REMOVAL)
        .post_uninstall_script(RELOAD);
    for file in &layout.files {
        let path = format!("/usr/{}", file.path);
        if let Some(target) = file.link {
            package.with_symlink(FileOptions::symlink(path, target)).map_err(refused)?;
            continue;
        }
        let options = FileOptions::new(path).permissions(i32::try_from(file.mode()).unwrap_or(0o644) as u16);
        package.with_file_contents(file.bytes.clone(), options).map_err(refused)?;
    }
    package
        .with_file_contents(
            DEFAULTS,
            FileOptions::new("/etc/default/kaji").permissions(0o644).config().noreplace(),
        )
        .map_err(refused)?;
    let mut bytes = vec![];
    package.build().and_then(|package| package.write(&mut bytes)).map_err(refused)?;
    release.write(&format!("{NAME}-{}-1.{}.rpm", release.version, target.rpm), &bytes)
}
