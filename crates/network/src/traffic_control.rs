//! Queueing messages: a token bucket on an interface, and the redirection of what an interface receives.

use crate::rtnetlink::{CREATE_NEW, CREATE_OR_REPLACE, EXISTS, Requests};

const NEW_QDISC: u16 = 36;
const NEW_FILTER: u16 = 44;
const ROOT: u32 = 0xffff_ffff;
const INGRESS: u32 = 0xffff_fff1;
const INGRESS_HANDLE: u32 = 0xffff_0000;

/// How long packets may wait in a bucket's queue, as upstream's bandwidth plug-in has it.
const LATENCY_MS: u64 = 25;

/// `struct tcmsg`
fn header(link: u32, handle: u32, parent: u32, info: u32) -> [u8; 20] {
    let mut header = [0; 20];
    for (slot, value) in header[4..].chunks_exact_mut(4).zip([link, handle, parent, info]) {
        slot.copy_from_slice(&value.to_ne_bytes());
    }
    header
}

/// Limits what an interface sends to `rate` bytes a second.
pub fn token_bucket(requests: &mut Requests, link: u32, rate: u64, mtu: u32) {
    // A tenth of a second at the rate, and some packets at least; segmentation offload makes packets of 64 KiB.
    let burst = (rate / 10).clamp(u64::from(mtu) * 2 + 65536, 1 << 30) as u32;
    let limit = (rate * LATENCY_MS / 1000).saturating_add(u64::from(burst)).min(u64::from(u32::MAX)) as u32;
    let what = format!("limit of link {link}");
    requests.add(what, (NEW_QDISC, CREATE_OR_REPLACE), &header(link, 1 << 16, ROOT, 0), &[], |out| {
        out.text(1, "tbf");
        let options = out.nest(2);
        let mut parameters = [0; 36];
        // `struct tc_ratespec`: the link layer is Ethernet, so that the kernel computes times itself.
        parameters[1] = 1;
        parameters[8..12].copy_from_slice(&(rate.min(u64::from(u32::MAX)) as u32).to_ne_bytes());
        parameters[24..28].copy_from_slice(&limit.to_ne_bytes());
        out.bytes(1, &parameters);
        if rate >= u64::from(u32::MAX) {
            out.bytes(4, &rate.to_ne_bytes());
        }
        out.native32(6, burst);
        out.close(options);
    });
}

/// Sends whatever an interface receives to another one instead.
pub fn redirect_received(requests: &mut Requests, from: u32, to: u32) {
    let what = format!("receiving queue of link {from}");
    requests.add(what, (NEW_QDISC, CREATE_NEW), &header(from, INGRESS_HANDLE, INGRESS, 0), EXISTS, |out| {
        out.text(1, "ingress");
    });
    // Priority 1, every protocol.
    let info = (1 << 16) | u32::from(3_u16.to_be());
    let what = format!("redirection from link {from} to {to}");
    requests.add(what, (NEW_FILTER, CREATE_NEW), &header(from, 0, INGRESS_HANDLE, info), EXISTS, |out| {
        out.text(1, "u32");
        let options = out.nest(2);
        let actions = out.nest(7);
        let action = out.nest(1);
        out.text(1, "mirred");
        let parameters = out.nest(2);
        let mut mirred = [0; 28];
        // TC_ACT_STOLEN, TCA_EGRESS_REDIR
        mirred[8..12].copy_from_slice(&4_u32.to_ne_bytes());
        mirred[20..24].copy_from_slice(&1_u32.to_ne_bytes());
        mirred[24..28].copy_from_slice(&to.to_ne_bytes());
        out.bytes(2, &mirred);
        out.close(parameters);
        out.close(action);
        out.close(actions);
        // One key with an empty mask: every packet.
        let mut selector = [0; 32];
        selector[0] = 1;
        selector[2] = 1;
        out.bytes(5, &selector);
        out.close(options);
    });
}
