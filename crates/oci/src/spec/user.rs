//! The user that a container's program is started as: looked up in `/etc/passwd` and `/etc/group` of the image.
//!
//! Invariant: files of an image are opened within its root: a symbolic link in it does not lead out.

use kaji_containers::{ContainerSecurity, ContainerUser, RuntimeError, SupplementalGroupsPolicy};
use kaji_files::{MissingId, NamespaceIds};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Larger files than any image has.
const MOST_BYTES: u64 = 16 << 20;

/// The user of the first process: the configuration's, or the image's, or root.
///
/// # Errors
/// [`RuntimeError::InvalidArgument`] for names that the image does not have.
pub fn resolve(
    security: &ContainerSecurity,
    image_user: &str,
    rootfs: &Path,
) -> Result<ContainerUser, RuntimeError> {
    let passwd = read_in(rootfs, "etc/passwd");
    let group = read_in(rootfs, "etc/group");
    let (wanted, group_wanted) = match (security.run_as_user, security.run_as_username.as_str()) {
        (Some(uid), _) => (uid.to_string(), None),
        (None, "") => match image_user.split_once(':') {
            Some((user, group)) => (user.to_owned(), Some(group.to_owned())),
            None => (image_user.to_owned(), None),
        },
        (None, name) => (name.to_owned(), None),
    };
    look_up(security, &wanted, group_wanted.as_deref(), &passwd, &group)
}

/// Refuses ids that the user namespace of this process does not have: processes cannot have them either.
///
/// # Errors
/// [`RuntimeError::InvalidArgument`].
pub fn check(user: &ContainerUser, ids: &NamespaceIds) -> Result<(), RuntimeError> {
    let invalid = |id: i64| RuntimeError::InvalidArgument(format!("id {id} is out of range"));
    let number = |id: i64| u32::try_from(id).map_err(|_| invalid(id));
    let missing = |error: MissingId| RuntimeError::InvalidArgument(error.to_string());
    ids.check(Some(number(user.uid)?), Some(number(user.gid)?)).map_err(missing)?;
    for group in &user.supplemental_groups {
        ids.check(None, Some(number(*group)?)).map_err(missing)?;
    }
    Ok(())
}

/// The home directory of a user, by `/etc/passwd` of the image.
pub fn home(rootfs: &Path, uid: i64) -> String {
    home_in(&read_in(rootfs, "etc/passwd"), uid)
}

fn home_in(passwd: &str, uid: i64) -> String {
    let entries = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut own = entries.filter(|fields| fields.len() >= 6 && fields[2].parse() == Ok(uid));
    own.next().map(|fields| fields[5]).filter(|home| !home.is_empty()).unwrap_or("/").to_owned()
}

fn look_up(
    security: &ContainerSecurity,
    wanted: &str,
    group_wanted: Option<&str>,
    passwd: &str,
    group: &str,
) -> Result<ContainerUser, RuntimeError> {
    let invalid = |what: &str| RuntimeError::InvalidArgument(format!("no users found: {what:?}"));
    // name:password:uid:gid:...
    let entry = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| {
        fields.len() >= 4
            && (fields[0] == wanted || fields[2] == wanted || (wanted.is_empty() && fields[2] == "0"))
    });
    let number = |text: &str| text.parse::<u32>().ok().map(i64::from);
    let uid = match &entry {
        Some(fields) => number(fields[2]).ok_or_else(|| invalid(wanted))?,
        None if wanted.is_empty() => 0,
        None => number(wanted).ok_or_else(|| invalid(wanted))?,
    };
    let primary = entry.as_ref().and_then(|fields| number(fields[3]));
    let gid = match (security.run_as_group, group_wanted) {
        (Some(gid), _) => gid,
        (None, Some(name)) => group_id(group, name)
            .ok_or_else(|| RuntimeError::InvalidArgument(format!("no groups found: {name:?}")))?,
        (None, None) => primary.unwrap_or_default(),
    };
    let mut groups = vec![];
    if security.supplemental_groups_policy == SupplementalGroupsPolicy::Merge
        && let Some(fields) = &entry
    {
        groups.extend(groups_of(group, fields[0]));
    }
    groups.extend(&security.supplemental_groups);
    groups.push(gid);
    groups.sort_unstable();
    groups.dedup();
    Ok(ContainerUser { uid, gid, supplemental_groups: groups })
}

fn group_id(group: &str, name: &str) -> Option<i64> {
    let named = group.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.len() >= 3 && fields[0] == name).then(|| fields[2].parse::<u32>().ok())?
    });
    named.or_else(|| name.parse().ok()).map(i64::from)
}

fn groups_of<'a>(group: &'a str, user: &'a str) -> impl Iterator<Item = i64> + 'a {
    group.lines().filter_map(move |line| {
        let mut fields = line.split(':');
        let gid = fields.nth(2)?.parse::<u32>().ok()?;
        fields.next()?.split(',').any(|member| member == user).then_some(i64::from(gid))
    })
}

/// The text of a file in a root file system; empty where there is none.
fn read_in(rootfs: &Path, file: &str) -> String {
    let open = || -> rustix::io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let root = openat(CWD, rootfs, flags | OFlags::DIRECTORY, Mode::empty())?;
        // Non-blocking: the file could be a pipe.
        let found = kaji_files::open_within(root, file, flags | OFlags::NONBLOCK, ResolveFlags::IN_ROOT)?;
        Ok(found.into())
    };
    let mut text = vec![];
    match open() {
        Ok(file) => match file.take(MOST_BYTES).read_to_end(&mut text) {
            Ok(_) => String::from_utf8_lossy(&text).into_owned(),
            Err(_) => String::new(),
        },
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/:/bin/false\n";
    const GROUP: &str = "root:x:0:\nweb:x:34:\nlogs:x:50:web,other\n";

    fn user(wanted: &str, group: Option<&str>, security: &ContainerSecurity) -> (i64, i64, Vec<i64>) {
        let user = look_up(security, wanted, group, PASSWD, GROUP).unwrap();
        (user.uid, user.gid, user.supplemental_groups)
    }

    #[test]
    fn finds_users_by_name_and_number() {
        let security = ContainerSecurity::default();
        assert_eq!(user("", None, &security), (0, 0, vec![0]));
        assert_eq!(user("web", None, &security), (33, 34, vec![34, 50]));
        assert_eq!(user("33", None, &security), (33, 34, vec![34, 50]));
        assert_eq!(user("1234", None, &security), (1234, 0, vec![0]));
        assert_eq!(user("web", Some("logs"), &security), (33, 50, vec![50]));
        assert!(look_up(&security, "absent", None, PASSWD, GROUP).is_err());
    }

    #[test]
    fn ids_that_the_namespace_lacks_are_refused() {
        let ids = NamespaceIds::parse("0 1000 1\n1 100000 65536\n", "0 1000 1\n", "deny\n");
        let of = |uid, gid, groups: &[i64]| {
            let user = ContainerUser { uid, gid, supplemental_groups: groups.to_vec() };
            check(&user, &ids).map_err(|error| error.to_string()).err().unwrap_or_default()
        };
        assert_eq!(of(0, 0, &[0]) + &of(33, 0, &[]), "");
        expect(&of(70_000, 0, &[]), "user 70000");
        expect(&of(0, 33, &[]), "group 33");
        expect(&of(0, 0, &[0, 5]), "group 5");
        expect(&of(-1, 0, &[]), "out of range");
    }

    fn expect(text: &str, part: &str) {
        assert!(text.contains(part), "{text:?}");
    }

    #[test]
    fn homes_are_those_of_the_image() {
        assert_eq!([0, 33, 7].map(|uid| home_in(PASSWD, uid)), ["/root", "/", "/"]);
    }

    #[test]
    fn strict_groups_are_those_of_the_pod() {
        let security = ContainerSecurity {
            supplemental_groups: vec![7],
            supplemental_groups_policy: SupplementalGroupsPolicy::Strict,
            run_as_group: Some(9),
            ..Default::default()
        };
        assert_eq!(user("web", None, &security), (33, 9, vec![7, 9]));
    }
}
