//! Exec, attach and port-forward as kubelets serve them: WebSockets and SPDY/3.1.
