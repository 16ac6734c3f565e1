//! Maps ids into a user namespace that another process has just made: root is the caller, the others are of the ranges that
//! `/etc/subuid` and `/etc/subgid` give to the caller, as far as there are some.
//!
//! Ranges are mapped by `newuidmap` and `newgidmap`, set-user-id programs that check these files; without them there is one id.

use std::fs;
use std::io;
use std::process::{Command, Stdio};

/// As many as images use.
const MOST: u32 = 65_536;
const MAPPERS: [(&str, &str); 2] = [("newuidmap", "/etc/subuid"), ("newgidmap", "/etc/subgid")];

/// Writes both maps. Answers how many ids there are beside root's.
///
/// # Errors
/// Those of the kernel.
pub fn write(pid: i32) -> io::Result<u32> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    if let Some(ids) = write_ranges(pid, uid, gid) {
        return Ok(ids);
    }
    let text = fs::read_to_string(format!("/proc/{pid}/gid_map"))?;
    let write = |file: &str, text: String| {
        fs::write(format!("/proc/{pid}/{file}"), &text)
            .map_err(|error| io::Error::new(error.kind(), format!("mapping ids: {file} {text:?}: {error}")))
    };
    write("uid_map", format!("0 {uid} 1"))?;
    // Without a range of users, that of groups may have been mapped.
    if text.trim().is_empty() {
        // Groups that deny access could be dropped otherwise.
        write("setgroups", "deny".to_owned())?;
        write("gid_map", format!("0 {gid} 1"))?;
    }
    Ok(0)
}

/// `None` when there are no ranges, or no programs that map them. Groups are mapped first: an unprivileged process could write no
/// other map after the users'.
fn write_ranges(pid: i32, uid: u32, gid: u32) -> Option<u32> {
    let name = user_name(&fs::read_to_string("/etc/passwd").ok()?, uid);
    let of = |file: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        range(&text, name.as_deref(), uid)
    };
    let (users, groups) = (of(MAPPERS[0].1)?, of(MAPPERS[1].1)?);
    let length = users.1.min(groups.1).min(MOST);
    if !map(MAPPERS[1].0, pid, gid, groups.0, length) {
        return None;
    }
    if map(MAPPERS[0].0, pid, uid, users.0, length) {
        return Some(length);
    }
    None
}

fn map(program: &str, pid: i32, own: u32, first: u32, length: u32) -> bool {
    let words = [pid.to_string(), "0".into(), own.to_string(), "1".into(), "1".into()];
    let mut command = Command::new(program);
    command.args(words).args([first.to_string(), length.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn user_name(passwd: &str, uid: u32) -> Option<String> {
    let entries = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut own = entries.filter(|fields| fields.len() > 2 && fields[2].parse() == Ok(uid));
    own.next().map(|fields| fields[0].to_owned())
}

/// The longest range of a user, by name or number: first id and length.
fn range(text: &str, name: Option<&str>, uid: u32) -> Option<(u32, u32)> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.trim().split(':').collect();
        let [user, first, length] = fields.as_slice() else { return None };
        let own = Some(*user) == name || user.parse() == Ok(uid);
        let range: (u32, u32) = (first.parse().ok()?, length.parse().ok()?);
        (own && range.1 > 0).then_some(range)
    };
    text.lines().filter_map(line).max_by_key(|(_, length)| *length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_by_name_or_number() {
        let text = "# comment\nmika:100000:65536\n1001:200000:1000\nmika:300000:70000\nbad:x:1\n";
        assert_eq!(range(text, Some("mika"), 1000), Some((300_000, 70_000)));
        assert_eq!(range(text, None, 1001), Some((200_000, 1000)));
        assert_eq!(range(text, Some("other"), 1002), None);
    }

    #[test]
    fn names_are_of_the_password_file() {
        let passwd = "root:x:0:0::/root:/bin/sh\nmika:x:1000:1000::/home/mika:/bin/sh\n";
        assert_eq!(user_name(passwd, 1000).as_deref(), Some("mika"));
        assert_eq!(user_name(passwd, 1001), None);
    }
}
