//! The server over real sockets, with resolvers of the test behind it.

mod sockets;
