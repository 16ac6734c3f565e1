//! Notices for a service manager: sd_notify(3), for units with `Type=notify`.
//!
//! Invariants: without `NOTIFY_SOCKET` nothing is done; a manager that does not read is not waited for, and one that cannot be reached
//! (the variable is inherited where its socket is not) keeps no server from running.

use std::{ffi::OsStr, io, os::unix::net::UnixDatagram};

/// A change of the service's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Requests are answered.
    Ready,
    /// The end has begun.
    Stopping,
}

impl Notice {
    fn text(self) -> &'static str {
        match self {
            Notice::Ready => "READY=1\n",
            Notice::Stopping => "STOPPING=1\n",
        }
    }
}

/// Tells the service manager that has started this process, if one has that waits for it.
pub fn notify(notice: Notice) {
    let socket = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty());
    if let Some(socket) = socket
        && let Err(error) = send(&socket, notice)
    {
        tracing::warn!(socket = %socket.display(), %error, "the service manager was not notified");
    }
}

fn send(socket: &OsStr, notice: Notice) -> io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    #[cfg(target_os = "linux")]
    if let Some(name) = socket.as_encoded_bytes().strip_prefix(b"@") {
        use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr};
        return sender
            .send_to_addr(notice.text().as_bytes(), &SocketAddr::from_abstract_name(name)?)
            .map(drop);
    }
    sender.send_to(notice.text().as_bytes(), socket).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut text = [0; 64];
        let length = socket.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    }

    #[test]
    fn sockets_with_a_path_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), Notice::Ready).unwrap();
        send(path.as_os_str(), Notice::Stopping).unwrap();
        assert_eq!([received(&socket), received(&socket)], ["READY=1\n", "STOPPING=1\n"]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn abstract_sockets_are_told() {
        use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr};
        let name = format!("kaji-notify-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(format!("@{name}").as_ref(), Notice::Ready).unwrap();
        assert_eq!(received(&socket), "READY=1\n");
    }

    #[test]
    fn a_socket_that_is_gone_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(send(dir.path().join("none").as_os_str(), Notice::Ready).is_err());
    }
}
