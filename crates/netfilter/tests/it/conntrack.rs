//! Tracked connections are listed and forgotten.

use kaji_netfilter::{
    Batch, Chain, ChainType, Expr, Family, Field, Hook, Nftables, Reg, conntrack::Conntrack,
};
use kaji_testing::netns::Netns;
use std::net::UdpSocket;

#[test]
fn flows_are_listed_and_deleted() {
    let Some(namespace) = Netns::new("flows_are_listed") else { return };
    namespace.run(|| {
        // Connections are tracked in namespaces with a rule that needs it.
        let mut batch = Batch::new(Family::V4, "t");
        batch.add_table();
        batch.add_chain(&Chain::base("output", ChainType::Filter, Hook::Output, 0));
        batch.add_rule("output", &[Expr::Load(Field::ConnectionState, Reg(0))]);
        Nftables::open().unwrap().apply(&batch).unwrap();
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(b"x", server.local_addr().unwrap()).unwrap();
        let mut conntrack = Conntrack::open().unwrap();
        let flows = conntrack.flows(Family::V4, |flow| flow.original.protocol == 17).unwrap();
        assert_eq!(flows.len(), 1);
        assert_eq!(flows[0].original.source, client.local_addr().unwrap());
        assert_eq!(flows[0].reply.source, server.local_addr().unwrap());
        conntrack.delete(&flows).unwrap();
        assert_eq!(conntrack.flows(Family::V4, |_| true).unwrap(), []);
        conntrack.delete(&flows).unwrap();
    });
}
