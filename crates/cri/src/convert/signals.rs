//! Signals by which containers are stopped: numbers of the interface, not those of the kernel.

/// By number; the first one is that of the image.
const NAMES: [&str; 35] = [
    "",
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];
/// The first real-time signal; 15 follow it by their distance, and 14 come before the last one.
const RTMIN: i32 = 35;
const RTMAX: i32 = 65;

/// A signal's number; `None` for a name that does not exist.
pub(crate) fn number(name: &str) -> Option<i32> {
    if let Some(found) = NAMES.iter().position(|known| *known == name) {
        return i32::try_from(found).ok();
    }
    let distance = |text: &str, most: i32| text.parse().ok().filter(|n| (1..=most).contains(n));
    match (name.strip_prefix("SIGRTMIN"), name.strip_prefix("SIGRTMAX")) {
        (Some(""), _) => Some(RTMIN),
        (_, Some("")) => Some(RTMAX),
        (Some(rest), _) => distance(rest.strip_prefix('+')?, 15).map(|n| RTMIN + n),
        (_, Some(rest)) => distance(rest.strip_prefix('-')?, 14).map(|n| RTMAX - n),
        _ => None,
    }
}

/// A signal's name; empty for none, or one that is not known.
pub(crate) fn name(number: i32) -> String {
    match number {
        RTMIN => "SIGRTMIN".to_owned(),
        RTMAX => "SIGRTMAX".to_owned(),
        n if (RTMIN + 1..=RTMIN + 15).contains(&n) => format!("SIGRTMIN+{}", n - RTMIN),
        n if (RTMAX - 14..RTMAX).contains(&n) => format!("SIGRTMAX-{}", RTMAX - n),
        n => usize::try_from(n).ok().and_then(|n| NAMES.get(n)).copied().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_lead_to_each_other() {
        for n in 0..=65 {
            assert_eq!(number(&name(n)), Some(n), "{n} {}", name(n));
        }
        let known =
            [("SIGTERM", 23), ("SIGRTMIN", 35), ("SIGRTMIN+15", 50), ("SIGRTMAX-14", 51), ("SIGRTMAX", 65)];
        for (name, n) in known {
            assert_eq!(number(name), Some(n));
        }
        for unknown in ["TERM", "SIGRTMIN+16", "SIGRTMAX-15", "SIGRTMIN-1", "SIGRTMIN+"] {
            assert_eq!(number(unknown), None, "{unknown}");
        }
        assert_eq!((name(66), name(-1)), (String::new(), String::new()));
    }
}
