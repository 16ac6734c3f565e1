//! Users of clients.

use kaji_auth::names::{
    ANONYMOUS, AUTHENTICATED, MASTERS, SERVICE_ACCOUNT_PREFIX, SERVICE_ACCOUNTS, UNAUTHENTICATED,
};
use kaji_resource::UserInfo;

/// The administrator.
pub fn admin() -> UserInfo {
    user("kubernetes-admin", vec![MASTERS.into()])
}

/// A user as authenticators make them: with the groups that follow from the name.
pub fn user(name: &str, mut groups: Vec<String>) -> UserInfo {
    let account = name.strip_prefix(SERVICE_ACCOUNT_PREFIX).and_then(|rest| rest.split_once(':'));
    if let Some((namespace, _)) = account {
        groups.extend([SERVICE_ACCOUNTS.to_owned(), format!("{SERVICE_ACCOUNTS}:{namespace}")]);
    }
    groups.push(if name == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED }.to_owned());
    let mut seen = std::collections::HashSet::new();
    groups.retain(|group| seen.insert(group.clone()));
    UserInfo { name: name.to_owned(), groups, ..UserInfo::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_follow_from_names() {
        let groups = |name: &str, given: &[&str]| {
            user(name, given.iter().map(|g| (*g).to_owned()).collect()).groups.join(" ")
        };
        assert_eq!(admin().groups.join(" "), "system:masters system:authenticated");
        assert_eq!(groups("jane", &["a", "b", "a"]), "a b system:authenticated");
        assert_eq!(groups("jane", &["system:authenticated", "a"]), "system:authenticated a");
        assert_eq!(
            groups("system:serviceaccount:ns:app", &[]),
            "system:serviceaccounts system:serviceaccounts:ns system:authenticated"
        );
        assert_eq!(groups("system:serviceaccount:odd", &[]), "system:authenticated");
        assert_eq!(groups("system:anonymous", &[]), "system:unauthenticated");
    }
}
