//! Port-forward over a WebSocket with channels: two a port, for data and for an error. Each begins with the port's number in two
//! bytes, the lower one first.

use super::Forwarder;
use crate::{
    Timeouts,
    transport::{self, Activity, Gone, Incoming, Message, Outgoing, WithoutClient},
    websocket::{self, Channel, ChannelProtocol},
};
use futures_util::future;
use hyper::upgrade::OnUpgrade;

pub(super) async fn serve(
    upgrade: OnUpgrade,
    protocol: String,
    ports: Vec<u16>,
    forwarder: Forwarder,
    timeouts: Timeouts,
) {
    let socket = match upgrade.await {
        Ok(connection) => websocket::socket(connection).await,
        Err(error) => return tracing::debug!(%error, "streaming: a connection was not upgraded"),
    };
    let layout = [Channel::Read, Channel::Ignore].repeat(ports.len());
    let activity = Activity::new();
    let protocol = ChannelProtocol::of(&protocol);
    let channels = websocket::channels(socket, protocol, &layout, &activity);
    let (outgoing, incoming) = (channels.outgoing, channels.incoming);
    let work = async move {
        let data = incoming.into_iter().flatten();
        let pairs = ports.into_iter().zip(data).enumerate();
        let pairs = pairs.map(|(index, (port, incoming))| pair(&forwarder, &outgoing, index, port, incoming));
        if future::try_join_all(pairs).await.is_ok() {
            // When the queue is closed, so is the connection.
            let _ = outgoing.send(Message::Close { status: 0 }).await;
        }
    };
    let times = (activity, timeouts.idle);
    transport::run(work, channels.reader, channels.writer, times, WithoutClient::Ends).await;
}

async fn pair(
    forwarder: &Forwarder,
    outgoing: &Outgoing,
    index: usize,
    port: u16,
    mut incoming: Incoming,
) -> Result<(), Gone> {
    // There are at most 127 ports.
    let (data, error) = (index as u32 * 2, index as u32 * 2 + 1);
    for channel in [data, error] {
        outgoing.data(channel, port.to_le_bytes().to_vec()).await?;
    }
    match forwarder.forward(port, &mut incoming, outgoing, data).await? {
        Ok(()) => Ok(()),
        Err(text) => outgoing.data(error, text).await,
    }
}
