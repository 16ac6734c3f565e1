//! Modes, owners, links and what a replacement keeps.

use super::*;
use std::os::unix::fs::symlink;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Runs a step in a separate process with a umask, which belongs to the process and would affect other tests.
fn with_umask(umask: &str, dir: &Path) {
    let program = std::env::current_exe().unwrap();
    let command =
        format!("umask {umask}; exec \"$0\" --exact tests::makes_files_in_a_child --ignored --nocapture");
    let output = std::process::Command::new("sh")
        .args(["-c", &command])
        .arg(program)
        .env("FILES_DIR", dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "a step of modes_do_not_depend_on_the_umask"]
fn makes_files_in_a_child() {
    let Some(dir) = std::env::var_os("FILES_DIR").map(PathBuf::from) else { return };
    private_dir(&dir.join("a/b")).unwrap();
    parent_of_private(&dir.join("c/d")).unwrap();
    make_dirs(&dir.join("public"), 0o755).unwrap();
    replace(&dir.join("private"), b"x", PRIVATE).unwrap();
    replace(&dir.join("readable"), b"x", PUBLIC).unwrap();
    replace_linked(&dir.join("home/config"), b"x").unwrap();
}

#[test]
fn modes_do_not_depend_on_the_umask() {
    for umask in ["0", "077"] {
        let dir = tempfile::tempdir().unwrap();
        with_umask(umask, dir.path());
        let found = ["a", "a/b", "c", "c/d", "public", "private", "readable", "home", "home/config"]
            .map(|name| format!("{name} {:o}", mode(&dir.path().join(name))));
        let expected = [
            "a 700",
            "a/b 700",
            "c 700",
            "c/d 700",
            "public 755",
            "private 600",
            "readable 644",
            "home 700",
            "home/config 600",
        ];
        assert_eq!(found, expected, "umask {umask}");
    }
}

#[test]
fn closes_what_was_open_to_other_users() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("dir")).unwrap();
    chmod(&at("dir"), 0o777);
    private_dir(&at("dir")).unwrap();
    assert_eq!(mode(&at("dir")), 0o700);
    chmod(&at("dir"), 0o777);
    parent_of_private(&at("dir")).unwrap();
    assert_eq!(mode(&at("dir")), 0o755);
    // The mode of a shared directory of temporary files stays.
    chmod(&at("dir"), 0o1777);
    parent_of_private(&at("dir")).unwrap();
    assert_eq!(mode(&at("dir")), 0o1777);
    fs::write(at("key"), "x").unwrap();
    chmod(&at("key"), 0o666);
    keep_unwritable(&at("key")).unwrap();
    assert_eq!(mode(&at("key")), 0o644);
    keep_private(&at("key")).unwrap();
    assert_eq!(mode(&at("key")), 0o600);
    keep_private(&at("missing")).unwrap();
    chmod(&at("key"), 0o666);
    private_dir_and_files(dir.path()).unwrap();
    assert_eq!((mode(&at("key")), mode(dir.path())), (0o600, 0o700));
}

#[test]
fn refuses_files_of_another_user() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    fs::write(&path, "x").unwrap();
    if std::os::unix::fs::chown(&path, Some(12_345), None).is_err() {
        // Only root can give a file away.
        return;
    }
    chmod(&path, 0o600);
    let error = keep_private(&path).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    let text =
        "it belongs to user 12345, and this process runs as user 0; change its owner, or choose another path";
    assert_eq!(error.to_string(), text);
    std::os::unix::fs::chown(dir.path(), Some(12_345), None).unwrap();
    assert!(private_dir(dir.path()).is_err() && parent_of_private(dir.path()).is_err());
}

#[test]
fn writes_through_symbolic_links() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("dotfiles")).unwrap();
    fs::write(at("dotfiles/config"), "old").unwrap();
    chmod(&at("dotfiles/config"), 0o640);
    symlink("dotfiles/config", at("second")).unwrap();
    symlink(at("second"), at("first")).unwrap();
    replace_linked(&at("first"), b"new").unwrap();
    assert_eq!(fs::read_link(at("first")).unwrap(), at("second"));
    assert_eq!(fs::read_link(at("second")).unwrap(), Path::new("dotfiles/config"));
    assert_eq!(fs::read_to_string(at("dotfiles/config")).unwrap(), "new");
    assert_eq!(mode(&at("dotfiles/config")), 0o640);
    // A link may lead to a missing file.
    symlink("later/config", at("dangling")).unwrap();
    replace_linked(&at("dangling"), b"made").unwrap();
    assert_eq!(fs::read_to_string(at("later/config")).unwrap(), "made");
    symlink("loop", at("loop")).unwrap();
    assert!(replace_linked(&at("loop"), b"").is_err());
}

#[test]
fn keeps_a_mode_that_is_private_and_closes_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    for (former, now) in [(0o400, 0o400), (0o600, 0o600), (0o640, 0o640), (0o660, 0o600), (0o644, 0o600)] {
        fs::write(&path, "old").unwrap();
        chmod(&path, former);
        replace_linked(&path, b"new").unwrap();
        assert_eq!((mode(&path), fs::read_to_string(&path).unwrap().as_str()), (now, "new"), "{former:o}");
        chmod(&path, 0o600);
    }
}

#[test]
fn a_pipe_is_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let reader = std::thread::spawn({
        let path = path.clone();
        move || fs::read_to_string(path).unwrap()
    });
    replace_linked(&path, b"text").unwrap();
    assert_eq!(reader.join().unwrap(), "text");
}

#[test]
fn erases_and_says_whether_there_was_anything() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("file"), dir.path().join("link"));
    fs::write(&path, vec![7; (2 << 20) + 3]).unwrap();
    fs::hard_link(&path, &other).unwrap();
    assert!(erase(&path).unwrap());
    assert!(!erase(&path).unwrap());
    assert_eq!(fs::read(&other).unwrap(), vec![0; (2 << 20) + 3]);
}
